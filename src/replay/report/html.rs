//! A replay's report as one page that needs nothing else: no script, no font, no file.

use std::fmt::{self, Display, Write as _};

use super::text::FAR_BACK;
use super::words::{counted, length, number, percent, printable, time};
use super::{Comparison, FileReport, Hit, HitEntry, LeftOutName, LimitReport, Report, share};
use crate::limit::Mode;
use crate::replay::timeline::{Slice, Timeline};

/// The units of a plot's height.
const HEIGHT: u64 = 100;

pub(crate) fn page(report: &Report) -> String {
    let mut page = String::new();
    // A text takes all that is written.
    let _ = write_page(&mut page, report);
    page
}

fn write_page(page: &mut String, report: &Report) -> fmt::Result {
    let Report { lines, clock, now, against } = report;
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Replay of {}</title>\n<style>\n{}</style>\n</head>\n<body>\n\
         <h1>What the limits would have done</h1>\n",
        HtmlText(&now.file),
        include_str!("page.css")
    )?;
    let mut read = counted(now.all.requests, "request");
    if let Some((from, to)) = clock.span {
        let span = length(to.micros_since(from));
        write!(read, ", from {} to {} UTC ({span})", time(from), time(to))?;
    }
    writeln!(page, "<p class=\"soft\">{read}</p>")?;
    if clock.steps_back > 0 {
        let (steps, most) = (counted(clock.steps_back, "time"), length(clock.furthest_back));
        let late = counted(clock.late, "request");
        writeln!(
            page,
            "<p class=\"soft\">Time steps back in the log {steps}, by at most {most}. {late} count at the time of an \
             earlier line.</p>"
        )?;
    }
    if clock.furthest_back > FAR_BACK {
        page.push_str(
            "<p class=\"note\">The log is not in order of time, so some requests count too late. Give the oldest \
             file first, and look for a line with a wrong date.</p>\n",
        );
    }
    if lines.no_request > 0 {
        let skipped = counted(lines.no_request, "line");
        writeln!(page, "<p class=\"soft\">{skipped} without an HTTP request.</p>")?;
    }
    if lines.broken > 0 {
        writeln!(page, "<p class=\"note\">{} that cannot be read", counted(lines.broken, "line"))?;
        for (file, line, why) in &lines.examples {
            writeln!(page, "<br><code>{}:{line}</code> {}", HtmlText(file), HtmlText(why))?;
        }
        page.push_str("</p>\n");
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
fn file(page: &mut String, report: &FileReport) -> fmt::Result {
    let FileReport { file, all, bad, timeline, clients, routes, left_out, .. } = report;
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
    untracked(page, clients, "client")?;
    for left in left_out {
        let requests = counted(left.requests, "request");
        let what = match &left.what {
            LeftOutName::Limit(name) => format!("The limit {name} is left out for {requests}"),
            LeftOutName::Route(name) => format!("The route {name} may be missed for {requests}"),
        };
        let fact = HtmlText(&left.fact);
        writeln!(page, "<p class=\"note\">{}: the log does not tell {fact}.</p>", HtmlText(&what))?;
    }
    if !bad.is_empty() {
        let bad = bad.iter().map(|(bad, count)| format!("{} {}", bad.as_str(), number(*count)));
        let bad = bad.collect::<Vec<_>>().join(", ");
        writeln!(
            page,
            "<p class=\"note\">Not decided are requests that the proxy answers with an error. What is wrong with \
             them: {bad}.</p>"
        )?;
    }
    page.push_str("<section class=\"card\">\n<h3>All requests</h3>\n");
    plot(page, timeline, "")?;
    if clients.rejected > 0 {
        let of_hit = percent(share(all.rejected, clients.requests_of_rejected));
        let median = percent(clients.median_share);
        writeln!(
            page,
            "<p class=\"soft\">Of all requests of the clients that are hit, {of_hit} are rejected. For the median \
             client it is {median}.</p>"
        )?;
    }
    entries(page, "client hit hardest", &clients.hardest)?;
    page.push_str("</section>\n");
    for limit in report.met() {
        self::limit(page, limit)?;
    }
    let unmet = report.unmet().join(", ");
    if !unmet.is_empty() {
        let unmet = HtmlText(&unmet);
        writeln!(page, "<p class=\"soft\">No request met these limits: {unmet}.</p>")?;
    }
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

fn limit(page: &mut String, limit: &LimitReport) -> fmt::Result {
    let LimitReport { name, figures, key, mode, counts, longest_wait, keys, timeline } = limit;
    let badge = match mode {
        Mode::Enforce => "",
        Mode::Shadow | Mode::Candidate => "<span class=\"badge\">in shadow</span>",
    };
    let by = if key.is_empty() { "one bucket for all".to_owned() } else { format!("by {key}") };
    let Hit { seen, rejected, .. } = keys;
    writeln!(
        page,
        "<section class=\"card\">\n<h3>Limit {}{badge}</h3>\n<p class=\"soft\"><code>{}</code> {}</p>\n\
         <p>Rejects {} of {} ({}), {} of {}.",
        HtmlText(name),
        HtmlText(figures),
        HtmlText(&by),
        number(counts.rejected),
        counted(counts.requests, "request"),
        percent(share(counts.rejected, counts.requests)),
        number(*rejected as u64),
        counted(*seen as u64, "key"),
    )?;
    if counts.delayed > 0 {
        let micros = u64::try_from(longest_wait.as_micros()).unwrap_or(u64::MAX);
        let (held, most) = (counted(counts.delayed, "request"), length(micros));
        writeln!(page, " Holds {held}, for at most {most}.")?;
    }
    page.push_str("</p>\n");
    untracked(page, keys, "key")?;
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
    new: &FileReport,
    old: &FileReport,
    comparison: &Comparison,
) -> fmt::Result {
    let Comparison { newly, newly_hardest, no_longer } = comparison;
    page.push_str("<section class=\"card\">\n<h3>Side by side</h3>\n");
    head(page, &["", &old.file, &new.file])?;
    let cell = |count: u64, of: u64| format!("{} ({})", number(count), percent(share(count, of)));
    for ((what, count, of), (_, before, of_before)) in new.figures().into_iter().zip(old.figures())
    {
        let cells = [cell(before, of_before), cell(count, of)];
        row(page, what, &cells, false)?;
    }
    let (by_new, by_old) = (counted(*newly as u64, "client"), counted(*no_longer as u64, "client"));
    let (new, old) = (HtmlText(&new.file), HtmlText(&old.file));
    writeln!(
        page,
        "</tbody></table></div>\n<p>{by_new} hit only by {new}, {by_old} only by {old}.</p>"
    )?;
    entries(page, "newly hit", newly_hardest)?;
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

/// What was not counted one by one.
fn untracked(page: &mut String, hit: &Hit, what: &str) -> fmt::Result {
    if hit.untracked == 0 {
        return Ok(());
    }
    let (seen, rest) = (counted(hit.seen as u64, what), number(hit.untracked));
    writeln!(
        page,
        "<p class=\"note\">Only the first {seen} are counted one by one; {rest} requests come from others.</p>"
    )
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
    for HitEntry { name, count } in entries {
        let Slice { requests, delayed, rejected } = count.counts;
        let (first, last) =
            count.hit.map(|(first, last)| (time(first), time(last))).unwrap_or_default();
        let share = percent(share(rejected, requests));
        let cells = [number(requests), number(rejected), share, number(delayed), first, last];
        row(page, name, &cells, rejected > 0)?;
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
    let slices = timeline.slices();
    let Some(start) = timeline.start().filter(|_| !slices.is_empty()) else { return Ok(()) };
    let most = slices.iter().map(|slice| slice.requests).max().unwrap_or_default().max(1);
    let each = length(timeline.width());
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
        at = at.plus_micros(timeline.width());
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
