//! A replay's report as one HTML page without scripts, fonts or other files.

use std::fmt::{self, Write as _};

use super::parts::{ReportPart, ReportTable};
use super::words::{counted, length, number, printable, time};
use super::{Report, share};
use crate::replay::timeline::{Slice, Timeline};

/// The units of a plot's height.
const HEIGHT: u64 = 100;

pub(crate) fn page(report: &Report<'_>) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut page, report);
    page
}

fn write_page(page: &mut String, report: &Report<'_>) -> fmt::Result {
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Replay of {}</title>\n<style>\n{}</style>\n</head>\n<body>\n\
         <h1>What the limits would have done</h1>\n<section class=\"card\">\n",
        escaped(report.result.file),
        concat!(include_str!("../../admin/page/palette.css"), include_str!("page.css"))
    )?;
    for part in report.parts() {
        match part {
            ReportPart::File(title) => write!(
                page,
                "</section>\n<h2>{}</h2>\n<section class=\"card\">\n",
                escaped(&capitalized(&title))
            ),
            ReportPart::Section(title) => write!(
                page,
                "</section>\n<section class=\"card\">\n<h3>{}</h3>\n",
                escaped(&capitalized(&title))
            ),
            ReportPart::Note(sentence) => paragraph(page, "note", &finished(&sentence)),
            ReportPart::Sentence(sentence) => paragraph(page, "soft", &finished(&sentence)),
            ReportPart::Example(example) => paragraph(page, "soft", &example),
            ReportPart::Plot(timeline, true) => plot(page, timeline, ""),
            ReportPart::Plot(timeline, false) => plot(page, timeline, "small"),
            ReportPart::Table(table) => write_table(page, &table),
        }?;
    }
    page.push_str("</section>\n</body>\n</html>\n");
    Ok(())
}

fn paragraph(page: &mut String, class: &str, text: &str) -> fmt::Result {
    writeln!(page, "<p class=\"{class}\">{}</p>", escaped(text))
}

/// A sentence with a capital letter and a full stop.
fn finished(sentence: &str) -> String {
    capitalized(sentence) + if sentence.ends_with([':', '.']) { "" } else { "." }
}

fn capitalized(sentence: &str) -> String {
    let (first, rest) = sentence.split_at(sentence.chars().next().map_or(0, char::len_utf8));
    first.to_uppercase() + rest
}

fn write_table(page: &mut String, table: &ReportTable) -> fmt::Result {
    // With a `tabindex` the arrow keys scroll the box, too.
    page.push_str("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>");
    for title in &table.titles {
        write!(page, "<th>{}</th>", escaped(title))?;
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for cell in row {
            write!(page, "<td>{}</td>", escaped(cell))?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

/// A bar for each slice of the log's time. Its lowest part is the requests that pass. Above it are those that are held,
/// and then those that are rejected.
fn plot(page: &mut String, timeline: &Timeline, class: &str) -> fmt::Result {
    let slices = &timeline.slices;
    let Some(start) = timeline.start.filter(|_| !slices.is_empty()) else { return Ok(()) };
    let most = slices.iter().map(|slice| slice.requests).max().unwrap_or_default().max(1);
    let each = length(timeline.width / 1_000);
    page.push_str("<figure><figcaption>");
    for (hue, what) in [("allowed", "passes at once"), ("held", "held"), ("rejected", "rejected")] {
        write!(page, "<span><i style=\"--hue: var(--{hue})\"></i>{what}</span>")?;
    }
    write!(page, "<span>one bar is {each}; the highest has {}</span>", counted(most, "request"))?;
    writeln!(
        page,
        "</figcaption><svg class=\"{class}\" viewBox=\"0 0 {} {HEIGHT}\" preserveAspectRatio=\"none\" \
         role=\"img\" aria-label=\"requests over time\">",
        slices.len()
    )?;
    let mut at = start;
    for (column, slice) in slices.iter().enumerate() {
        if slice.requests > 0 {
            bar(page, column, slice, most, &time(at))?;
        }
        at = at.plus_micros(timeline.width);
    }
    writeln!(
        page,
        "</svg><div class=\"axis\"><span>{}</span><span>{}</span></div></figure>",
        time(start),
        time(at)
    )
}

fn bar(page: &mut String, column: usize, slice: &Slice, most: u64, at: &str) -> fmt::Result {
    let Slice { requests, delayed, rejected } = *slice;
    let passed = requests.saturating_sub(delayed + rejected);
    writeln!(
        page,
        "<g><title>{at}: {} pass, {} held, {} rejected</title>",
        number(passed),
        number(delayed),
        number(rejected)
    )?;
    let mut below = 0.0;
    for (count, hue) in [(passed, "allowed"), (delayed, "held"), (rejected, "rejected")] {
        if count == 0 {
            continue;
        }
        // One request among thousands must still be seen.
        let height = (share(count, most) * 100.0).max(1.0);
        below += height;
        let top = (100.0 - below).max(0.0);
        writeln!(
            page,
            "<rect x=\"{column}.05\" y=\"{top:.1}\" width=\".9\" height=\"{height:.1}\" fill=\"var(--{hue})\"/>"
        )?;
    }
    page.push_str("</g>\n");
    Ok(())
}

/// The text, escaped for HTML: in elements and in attributes.
fn escaped(text: &str) -> String {
    let text = printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}
