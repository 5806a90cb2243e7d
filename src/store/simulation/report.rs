//! The table and the plot of a sweep.

use std::fmt::Write;

use super::Tally;

/// The nodes of each row, with what came of it in each mode: exact, known refusals, prefetch.
pub(super) type Rows = Vec<(usize, [Tally; 3])>;

/// The modes' colours. They can be told apart on white and on black.
const COLOURS: [&str; 3] = ["#8a8f98", "#2f81f7", "#d9822b"];

const MODES: [&str; 3] = ["exact", "known refusals", "prefetch"];

/// A panel's width and height in the plot, without its margin.
const SIZE: (f64, f64) = (330.0, 180.0);

#[allow(clippy::cast_precision_loss, reason = "figures to be read")]
fn part(of: u64, all: u64, scale: f64) -> f64 {
    scale * of as f64 / all.max(1) as f64
}

fn calls(figures: &Tally) -> f64 {
    part(figures.calls, figures.requests, 1_000.0)
}

/// By how many percent less than in the exact mode was admitted.
fn less(exact: u64, admitted: u64) -> f64 {
    100.0 - part(admitted, exact, 100.0)
}

fn less_of_all([exact, _, prefetch]: &[Tally; 3]) -> f64 {
    less(exact.admitted, prefetch.admitted)
}

fn less_of_hot([exact, _, prefetch]: &[Tally; 3]) -> f64 {
    less(exact.hot_admitted, prefetch.hot_admitted)
}

/// The rows as a table in Markdown.
pub(super) fn table(rows: &Rows) -> String {
    let mut text = String::from(
        "| nodes | requests | admitted: exact, known, prefetch | calls: exact | known | prefetch | \
         less: all | less: hot | excess | wrong |\n\
         | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (nodes, modes) in rows {
        let [exact, known, prefetch] = modes;
        let excess = modes.iter().map(|it| it.excess).max().unwrap_or_default();
        let wrong: u64 = modes.iter().map(|it| it.wrong_refusals + it.late_refusals).sum();
        let admitted = modes.map(|it| it.admitted.to_string()).join(", ");
        let (all, hot) = (less_of_all(modes), less_of_hot(modes));
        let (one, two, three) = (calls(exact), calls(known), calls(prefetch));
        let requests = exact.requests;
        let _ = writeln!(
            text,
            "| {nodes} | {requests} | {admitted} | {one:.0} | {two:.0} | {three:.0} | \
             {all:.2} % | {hot:.2} % | {excess} | {wrong} |"
        );
    }
    text
}

/// A plot of these groups of rows, one below the other: calls on the left, and on the right what prefetching
/// admitted less.
pub(super) fn plot(groups: &[(&str, Rows)]) -> String {
    let (wide, high) = (SIZE.0 + 90.0, SIZE.1 + 95.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" \
         aria-label=\"Script calls, and what prefetching admitted less, by the number of nodes\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" stroke-width=\"2\" fill=\"none\">\n\
         <style>text{{fill:#24292f;stroke:none}}.axis{{stroke:#8a8f9880;stroke-width:1}}\
         @media(prefers-color-scheme:dark){{text{{fill:#d0d7de}}}}</style>\n",
        2.0 * wide,
        groups.iter().fold(0.0, |sum, _| sum + high),
    );
    let mut top = 45.0;
    for (title, rows) in groups {
        let of_mode = |mode: usize| rows.iter().map(|(_, modes)| calls(&modes[mode])).collect();
        let lines = [0, 1, 2].map(|mode| (MODES[mode], COLOURS[mode], of_mode(mode)));
        let title_of = |what| format!("{title}: {what}");
        let nodes: Vec<_> = rows.iter().map(|(nodes, _)| *nodes).collect();
        let left = title_of("script calls per 1,000 requests");
        panel(&mut svg, (55.0, top), &left, &nodes, &lines);
        let all = rows.iter().map(|(_, modes)| less_of_all(modes)).collect();
        let hot = rows.iter().map(|(_, modes)| less_of_hot(modes)).collect();
        let lines = [("hot keys", COLOURS[2], hot), ("all keys", COLOURS[1], all)];
        let right = title_of("prefetch admits less, in %");
        panel(&mut svg, (55.0 + wide, top), &right, &nodes, &lines);
        top += high;
    }
    svg + "</svg>\n"
}

/// One panel with a line for each name, colour and values.
fn panel(
    svg: &mut String,
    (left, top): (f64, f64),
    title: &str,
    nodes: &[usize],
    lines: &[(&str, &str, Vec<f64>)],
) {
    let (width, height) = SIZE;
    let highest = lines.iter().flat_map(|line| &line.2).fold(1.0_f64, |high, it| high.max(*it));
    let step = [1.0, 2.0, 5.0, 50.0, 250.0].into_iter().find(|it| it * 5.0 >= highest);
    let step = step.unwrap_or(500.0);
    let scale = height / (highest / step).ceil();
    let x = |place: u32| left + width * f64::from(place) / f64::from(count(nodes) - 1).max(1.0);
    let y = |value: f64| top + height - value / step * scale;
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
        top - 26.0
    );
    let mut mark = 0.0;
    while mark < highest + step {
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{left} {y:.1}h{width}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
            left - 6.0,
            y(mark) + 4.0,
            y = y(mark),
        );
        mark += step;
    }
    for (place, nodes) in (0..).zip(nodes) {
        let (x, y) = (x(place), top + height + 18.0);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{nodes}</text>");
    }
    let (middle, below) = (left + width / 2.0, top + height + 34.0);
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">nodes</text>");
    let mut legend = left;
    for (name, colour, values) in lines {
        let points = (0..).zip(values).map(|(place, it)| format!("{:.1},{:.1}", x(place), y(*it)));
        let points = points.collect::<Vec<_>>().join(" ");
        let at = top - 12.0;
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" stroke=\"{colour}\"/>\
             <path d=\"M{legend} {at}h16\" stroke=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            legend + 22.0,
            at + 4.0,
        );
        legend += 115.0;
    }
}

fn count(nodes: &[usize]) -> u32 {
    u32::try_from(nodes.len()).unwrap()
}
