//! The table and the plot of a sweep.

use std::fmt::Write;

use super::Tally;

/// For each row, the number of nodes, and the results without and with known refusals.
pub(super) type Rows = Vec<(usize, [Tally; 2])>;

/// The lines' colours. They can be told apart on white and on black.
const COLOURS: [&str; 3] = ["#8a8f98", "#2f81f7", "#d9822b"];

/// The plot's width and height, without its margin.
const SIZE: (f64, f64) = (600.0, 200.0);

#[allow(clippy::cast_precision_loss, reason = "figures to be read")]
fn calls(figures: &Tally) -> f64 {
    1_000.0 * figures.calls as f64 / figures.requests.max(1) as f64
}

/// The rows as a table in Markdown.
pub(super) fn table(rows: &Rows) -> String {
    let mut text = String::from(
        "| nodes | requests | admitted: exact, known | calls: known | excess | wrong |\n\
         | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (nodes, modes @ [exact, known]) in rows {
        let excess = modes.iter().map(|it| it.excess).max().unwrap_or_default();
        let wrong = known.wrong_refusals + known.late_refusals;
        let admitted = modes.map(|it| it.admitted.to_string()).join(", ");
        let (requests, calls) = (exact.requests, calls(known));
        let _ = writeln!(
            text,
            "| {nodes} | {requests} | {admitted} | {calls:.0} | {excess} | {wrong} |"
        );
    }
    text
}

/// A plot with a line for each group of rows: the calls with known refusals.
pub(super) fn plot(groups: &[(&str, Rows)]) -> String {
    let ((width, height), left, top) = (SIZE, 55.0, 65.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" \
         aria-label=\"Script calls with known refusals, by the number of nodes\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" stroke-width=\"2\" fill=\"none\">\n\
         <style>text{{fill:#24292f;stroke:none}}.axis{{stroke:#8a8f9880;stroke-width:1}}\
         @media(prefers-color-scheme:dark){{text{{fill:#d0d7de}}}}</style>\n\
         <text x=\"{left}\" y=\"19\" font-weight=\"bold\">Script calls per 1,000 requests</text>\n",
        left + width + 35.0,
        top + height + 50.0,
    );
    let step = 250.0;
    let scale = height / 4.0;
    let nodes: Vec<usize> = groups[0].1.iter().map(|(nodes, _)| *nodes).collect();
    let most = u32::try_from(nodes.len() - 1).unwrap();
    let x = |index: u32| left + width * f64::from(index) / f64::from(most);
    let y = |value: f64| top + height - value / step * scale;
    let mut mark = 0.0;
    while mark <= 1_000.0 {
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
    for (index, nodes) in (0..).zip(nodes) {
        let (x, y) = (x(index), top + height + 18.0);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{nodes}</text>");
    }
    let (middle, below) = (left + width / 2.0, top + height + 34.0);
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">nodes</text>");
    for (line, ((name, rows), colour)) in (0..).zip(groups.iter().zip(COLOURS)) {
        let points = (0..)
            .zip(rows)
            .map(|(index, (_, [_, known]))| format!("{:.1},{:.1}", x(index), y(calls(known))));
        let points = points.collect::<Vec<_>>().join(" ");
        let (legend, at) = (left + 200.0 * f64::from(line), top - 26.0);
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" stroke=\"{colour}\"/>\
             <path d=\"M{legend} {at}h16\" stroke=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\">{name}</text>",
            legend + 22.0,
            at + 4.0,
        );
    }
    svg + "</svg>\n"
}
