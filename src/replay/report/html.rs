//! A replay's report as one page that needs nothing else: no script, no font, no file.

use std::fmt::{self, Display, Write as _};

use super::words::{counted, length, number, percent, printable, time};
use super::{Comparison, FileReport, HitEntry, LimitReport, Report, share};
use crate::replay::tally::{LimitTally, ReplayTally};
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
    let Report { lines, now, against, .. } = report;
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Replay of {}</title>\n<style>\n{}</style>\n</head>\n<body>\n\
         <h1>What the limits would have done</h1>\n",
        HtmlText(now.file),
        include_str!("page.css")
    )?;
    soft(page, &report.read())?;
    report.oddities().iter().try_for_each(|oddity| soft(page, oddity))?;
    note(page, report.disorder())?;
    note(page, report.broken())?;
    for (file, line, why) in &lines.examples {
        writeln!(
            page,
            "<p class=\"note\"><code>{}:{line}</code> {}</p>",
            HtmlText(file),
            HtmlText(why)
        )?;
    }
    match against {
        None => file(page, now),
        Some((old, comparison)) => {
            beside(page, now, old, comparison)?;
            file(page, now)?;
            file(page, old)
        }
    }?;
    page.push_str("</body>\n</html>\n");
    Ok(())
}

/// What one file's limits would have done.
fn file(page: &mut String, report: &FileReport<'_>) -> fmt::Result {
    let FileReport { file, tally, clients, routes, left_out, .. } = report;
    let ReplayTally { all, timeline, .. } = tally;
    writeln!(page, "<h2>By {}</h2>\n<div class=\"tiles\">", HtmlText(file))?;
    let of_clients =
        |hit: usize| format!("{} of {} clients", number(hit as u64), number(clients.seen as u64));
    let share_of = |count| percent(share(count, all.requests));
    let seen = counted(clients.seen as u64, "client");
    tile(page, "requests", &number(all.requests), "requests", &seen)?;
    let (rejected, held) = (share_of(all.rejected), share_of(all.delayed));
    let told = format!("rejected: {}, {}", number(all.rejected), of_clients(clients.rejected));
    tile(page, "rejected", &rejected, "", &told)?;
    let told = format!("held: {}, {}", number(all.delayed), of_clients(clients.delayed));
    tile(page, "held", &held, "", &told)?;
    page.push_str("</div>\n");
    note(page, clients.not_tracked("client"))?;
    left_out.iter().try_for_each(|left| note(page, Some(left.sentence())))?;
    note(page, report.undecided_requests())?;
    page.push_str("<section class=\"card\">\n<h3>All requests</h3>\n");
    plot(page, timeline, "")?;
    report.share_of_rejected().iter().try_for_each(|share| soft(page, share))?;
    entries(page, "client hit hardest", &clients.hardest)?;
    page.push_str("</section>\n");
    for limit in report.met() {
        self::limit(page, limit)?;
    }
    report.unmet_limits().iter().try_for_each(|unmet| soft(page, unmet))?;
    if routes.len() > 1 {
        page.push_str("<section class=\"card\"><h3>Routes</h3>\n");
        head(page, &["route", "requests", "rejected", "held"])?;
        for (name, Slice { requests, delayed, rejected }) in routes {
            let cells = [number(*requests), number(*rejected), number(*delayed)];
            row(page, name, &cells, *rejected > 0)?;
        }
        page.push_str("</tbody></table></div></section>\n");
    }
    Ok(())
}

fn limit(page: &mut String, limit: &LimitReport<'_>) -> fmt::Result {
    let LimitReport { tally: LimitTally { spec, counts, .. }, keys, timeline, .. } = limit;
    let badge = if limit.is_shadow() { "<span class=\"badge\">in shadow</span>" } else { "" };
    writeln!(
        page,
        "<section class=\"card\">\n<h3>Limit {}{badge}</h3>\n<p class=\"soft\"><code>{}</code> {}</p>",
        HtmlText(spec.name.as_str()),
        HtmlText(&spec.figures.to_string()),
        HtmlText(&limit.by()),
    )?;
    for sentence in std::iter::once(limit.rejects()).chain(limit.holds()) {
        writeln!(page, "<p>{}</p>", HtmlText(&finished(&sentence)))?;
    }
    note(page, keys.not_tracked("key"))?;
    if counts.rejected + counts.delayed > 0 {
        plot(page, timeline, "small")?;
    }
    entries(page, "key hit hardest", &keys.hardest)?;
    page.push_str("</section>\n");
    Ok(())
}

/// Both files side by side, and who is newly hit.
fn beside(
    page: &mut String,
    new: &FileReport<'_>,
    old: &FileReport<'_>,
    comparison: &Comparison,
) -> fmt::Result {
    page.push_str("<section class=\"card\">\n<h3>Side by side</h3>\n");
    head(page, &["", old.file, new.file])?;
    for [what, before, now] in new.beside(old) {
        row(page, &what, &[before, now], false)?;
    }
    let told = finished(&new.hit_only_by(old, comparison));
    writeln!(page, "</tbody></table></div>\n<p>{}</p>", HtmlText(&told))?;
    entries(page, "newly hit", &comparison.newly_hardest)?;
    page.push_str("</section>\n");
    Ok(())
}

fn tile(page: &mut String, hue: &str, figure: &str, unit: &str, told: &str) -> fmt::Result {
    let told = HtmlText(told);
    writeln!(
        page,
        "<div class=\"tile\" style=\"--hue: var(--{hue})\"><strong>{figure} {unit}</strong><p>{told}</p></div>"
    )
}

/// A paragraph that should be read, if there is one.
fn note(page: &mut String, sentence: Option<String>) -> fmt::Result {
    let Some(sentence) = sentence else { return Ok(()) };
    writeln!(page, "<p class=\"note\">{}</p>", HtmlText(&finished(&sentence)))
}

/// A paragraph that can be skipped.
fn soft(page: &mut String, sentence: &str) -> fmt::Result {
    writeln!(page, "<p class=\"soft\">{}</p>", HtmlText(&finished(sentence)))
}

/// A sentence with a capital letter and a full stop.
fn finished(sentence: &str) -> String {
    let (first, rest) = sentence.split_at(sentence.chars().next().map_or(0, char::len_utf8));
    let stop = if sentence.ends_with(':') { "" } else { "." };
    format!("{}{rest}{stop}", first.to_uppercase())
}

/// The clients or keys that are hit hardest.
fn entries(page: &mut String, title: &str, entries: &[HitEntry]) -> fmt::Result {
    if entries.is_empty() {
        return Ok(());
    }
    head(
        page,
        &[title, "requests", "rejected", "share", "held", "first hit (UTC)", "last hit (UTC)"],
    )?;
    for entry in entries {
        row(page, &entry.name, &entry.cells(), entry.count.counts.rejected > 0)?;
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

fn head(page: &mut String, titles: &[&str]) -> fmt::Result {
    // With a `tabindex` the arrow keys scroll the box, too.
    page.push_str("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>");
    for (place, title) in titles.iter().enumerate() {
        let class = if place == 0 { "" } else { " class=\"n\"" };
        write!(page, "<th{class}>{}</th>", HtmlText(title))?;
    }
    page.push_str("</tr></thead><tbody>\n");
    Ok(())
}

/// A row. `is_hot` marks the second number.
fn row(page: &mut String, name: &str, cells: &[String], is_hot: bool) -> fmt::Result {
    write!(page, "<tr><td><code>{}</code></td>", HtmlText(name))?;
    for (place, cell) in cells.iter().enumerate() {
        let hot = if is_hot && place == 1 { " hot" } else { "" };
        write!(page, "<td class=\"n{hot}\">{}</td>", HtmlText(cell))?;
    }
    page.push_str("</tr>\n");
    Ok(())
}

/// A bar for each slice of the log's time: requests that pass, above them those that are held, then those that are
/// rejected.
fn plot(page: &mut String, timeline: &Timeline, class: &str) -> fmt::Result {
    let slices = &timeline.slices;
    let Some(start) = timeline.start.filter(|_| !slices.is_empty()) else { return Ok(()) };
    let most = slices.iter().map(|slice| slice.requests).max().unwrap_or_default().max(1);
    let each = length(timeline.width);
    page.push_str("<figure><figcaption>");
    for (hue, what) in [("requests", "passes at once"), ("held", "held"), ("rejected", "rejected")]
    {
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
    for (place, slice) in slices.iter().enumerate() {
        if slice.requests > 0 {
            bar(page, place, slice, most, &time(at))?;
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

fn bar(page: &mut String, place: usize, slice: &Slice, most: u64, at: &str) -> fmt::Result {
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
    for (count, hue) in [(passed, "requests"), (delayed, "held"), (rejected, "rejected")] {
        if count == 0 {
            continue;
        }
        // One request among thousands must still be seen.
        let height = (share(count, most) * 100.0).max(1.0);
        below += height;
        let top = (100.0 - below).max(0.0);
        writeln!(
            page,
            "<rect x=\"{place}.05\" y=\"{top:.1}\" width=\".9\" height=\"{height:.1}\" fill=\"var(--{hue})\"/>"
        )?;
    }
    page.push_str("</g>\n");
    Ok(())
}

/// A text in which HTML finds no tag, no entity and no end of an attribute.
struct HtmlText<'t>(&'t str);

impl Display for HtmlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in printable(self.0).chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
