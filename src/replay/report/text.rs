//! A replay's report as text, for a terminal.

use std::fmt::{self, Display, Write as _};

use super::words::{counted, length, number, percent, plot, printable, time, values_each};
use super::{
    Comparison, FileReport, Hit, HitEntry, LeftOut, LeftOutName, LimitReport, Report, share,
};
use crate::limit::Mode;
use crate::replay::timeline::{Slice, Timeline};

/// The columns of a plot.
const PLOT: usize = 60;

/// The keys that are listed of each limit. The clients are listed in full.
const KEYS: usize = 5;

/// In the log of one server, time does not step back so far. In microseconds.
pub(super) const FAR_BACK: u64 = 3_600_000_000;

/// A report that is written as text.
pub(crate) struct TerminalReport<'r>(pub &'r Report);

impl Display for TerminalReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { now, against, .. } = self.0;
        self.log(f)?;
        match against {
            None => file(now, f),
            Some((old, comparison)) => {
                beside(now, old, f)?;
                newly(now, old, comparison, f)?;
                if !old.left_out.is_empty() || !old.bad.is_empty() {
                    write!(f, "\nby {}", old.file)?;
                    notes(old, f)?;
                }
                file(now, f)
            }
        }
    }
}

impl TerminalReport<'_> {
    /// What was read.
    fn log(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { lines, clock, now, .. } = self.0;
        let clients = match now.clients.seen {
            0 => String::new(),
            seen => format!(" of {}", counted(seen as u64, "client")),
        };
        write!(f, "{}{clients}", counted(now.all.requests, "request"))?;
        if let Some((from, to)) = clock.span {
            let span = length(to.micros_since(from));
            write!(f, ", from {} to {} UTC ({span})", time(from), time(to))?;
        }
        f.write_char('\n')?;
        if clock.steps_back > 0 {
            let (steps, most) = (counted(clock.steps_back, "time"), length(clock.furthest_back));
            let late = counted(clock.late, "request");
            if clock.furthest_back > FAR_BACK {
                writeln!(
                    f,
                    "WARNING: the log is not in order of time, so {late} count too late: give the oldest \
                     file first, and look for a line with a wrong date"
                )?;
            }
            writeln!(
                f,
                "time steps back in the log {steps}, by at most {most}: {late} count at the time of an earlier \
                 line"
            )?;
        }
        if lines.no_request > 0 {
            writeln!(f, "{} without an HTTP request", counted(lines.no_request, "line"))?;
        }
        if lines.broken > 0 {
            writeln!(f, "{} that cannot be read, for example:", counted(lines.broken, "line"))?;
            for (file, line, why) in &lines.examples {
                writeln!(f, "    {file}:{line}: {why}")?;
            }
        }
        untracked(&now.clients, "client", "", f)
    }
}

/// What was not counted one by one.
fn untracked(hit: &Hit, what: &str, indent: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if hit.untracked == 0 {
        return Ok(());
    }
    let (seen, rest) = (counted(hit.seen as u64, what), number(hit.untracked));
    writeln!(
        f,
        "{indent}only the first {seen} are counted one by one; {rest} requests come from others"
    )
}

/// What one file's limits would have done.
fn file(report: &FileReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\nby {}", report.file)?;
    let (all, clients) = (&report.all, &report.clients);
    let rows =
        [("rejected", all.rejected, clients.rejected), ("held", all.delayed, clients.delayed)];
    for (what, count, hit) in rows {
        let share = percent(share(count, all.requests));
        let (count, hit) = (counted(count, "request"), counted(hit as u64, "client"));
        writeln!(f, "  {what:<9} {count:>21}  {share:>9}  {hit:>17}")?;
    }
    if clients.rejected > 0 {
        let of_hit = percent(share(all.rejected, clients.requests_of_rejected));
        let median = percent(clients.median_share);
        writeln!(
            f,
            "  of all requests of these clients, {of_hit} are rejected; for the median client it is {median}"
        )?;
    }
    plots(&report.timeline, true, "  ", f)?;
    entries("client", &clients.hardest, clients.hit, "  ", f)?;
    for limit in report.met() {
        self::limit(limit, clients, f)?;
    }
    let unmet = report.unmet();
    if !unmet.is_empty() {
        writeln!(f, "\n  no request met these limits: {}", unmet.join(", "))?;
    }
    if report.routes.len() > 1 {
        writeln!(f, "\n  {:<32} {:>12} {:>12} {:>12}", "route", "requests", "rejected", "held")?;
        for (name, counts) in &report.routes {
            let Slice { requests, delayed, rejected } = counts;
            writeln!(
                f,
                "  {name:<32} {:>12} {:>12} {:>12}",
                number(*requests),
                number(*rejected),
                number(*delayed)
            )?;
        }
    }
    notes(report, f)?;
    Ok(())
}

/// The requests on which the limits did not decide, or not all of them.
fn notes(report: &FileReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let bad: u64 = report.bad.iter().map(|(_, count)| count).sum();
    if bad > 0 {
        let why: Vec<_> = report
            .bad
            .iter()
            .map(|(bad, count)| format!("{} {}", bad.as_str(), number(*count)))
            .collect();
        writeln!(
            f,
            "\n  not decided: {} that the proxy answers with an error. What is wrong with them: {}",
            counted(bad, "request"),
            why.join(", ")
        )?;
    }
    report.left_out.iter().try_for_each(|it| left_out(it, f))
}

fn limit(limit: &LimitReport, clients: &Hit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let LimitReport { name, figures, key, mode, counts, longest_wait, keys, timeline } = limit;
    let by = if key.is_empty() { "one bucket for all".to_owned() } else { format!("by {key}") };
    let mode = match mode {
        Mode::Enforce => "",
        Mode::Shadow | Mode::Candidate => " (in shadow)",
    };
    writeln!(f, "\n  limit {name}{mode}: {figures}, {by}")?;
    let Hit { seen, rejected, .. } = keys;
    let share = percent(share(counts.rejected, counts.requests));
    writeln!(
        f,
        "    rejects {} of {} ({share}), {} of {}",
        number(counts.rejected),
        counted(counts.requests, "request"),
        number(*rejected as u64),
        counted(*seen as u64, "key"),
    )?;
    untracked(keys, "key", "    ", f)?;
    if counts.delayed > 0 {
        let micros = u64::try_from(longest_wait.as_micros()).unwrap_or(u64::MAX);
        let held = counted(counts.delayed, "request");
        writeln!(f, "    holds {held}, for at most {}", length(micros))?;
    }
    plots(timeline, false, "    ", f)?;
    if keys.hardest == clients.hardest {
        // A limit by address whose keys were listed as clients.
        return Ok(());
    }
    let shown = &keys.hardest[..keys.hardest.len().min(KEYS)];
    entries("key", shown, keys.hit, "    ", f)
}

/// Plots of what happened over the time of the log.
fn plots(timeline: &Timeline, all: bool, indent: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let slices = timeline.slices();
    let column = |of: fn(&Slice) -> u64| slices.iter().map(of).collect::<Vec<_>>();
    let rows = [
        ("requests", column(|slice| slice.requests), all),
        ("rejected", column(|slice| slice.rejected), true),
        ("held", column(|slice| slice.delayed), true),
    ];
    let rows = rows.iter().filter(|(_, values, wanted)| *wanted && values.iter().any(|it| *it > 0));
    let mut is_any = false;
    for (what, values, _) in rows {
        writeln!(f, "{indent}{what:<9} {}", plot(values, PLOT))?;
        is_any = true;
    }
    if is_any {
        let each = values_each(slices.len(), PLOT) as u64 * timeline.width();
        writeln!(f, "{indent}{:<9} one column is {}", "", length(each))?;
    }
    Ok(())
}

/// The clients or keys that are hit hardest.
fn entries(
    what: &str,
    entries: &[HitEntry],
    hit: usize,
    indent: &str,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if entries.is_empty() {
        return Ok(());
    }
    let width = entries.iter().map(|it| it.name.chars().count()).max().unwrap_or_default();
    let title = format!("{what} hit hardest");
    let width = width.clamp(title.len(), 44);
    writeln!(
        f,
        "{indent}{title:<width$} {:>9} {:>9} {:>7} {:>9}  {:<19}  last hit (UTC)",
        "requests", "rejected", "share", "held", "first hit"
    )?;
    for HitEntry { name, count } in entries {
        let Slice { requests, delayed, rejected } = count.counts;
        let share = percent(share(rejected, requests));
        let (first, last) =
            count.hit.map(|(first, last)| (time(first), time(last))).unwrap_or_default();
        let (requests, rejected, delayed) = (number(requests), number(rejected), number(delayed));
        let name = printable(name);
        writeln!(
            f,
            "{indent}{name:<width$} {requests:>9} {rejected:>9} {share:>7} {delayed:>9}  {first}  {last}"
        )?;
    }
    if hit > entries.len() {
        writeln!(f, "{indent}and {} more", number((hit - entries.len()) as u64))?;
    }
    Ok(())
}

/// Both files side by side.
fn beside(new: &FileReport, old: &FileReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\n  {:<18} {:>22} {:>22}", "", clipped(&old.file, 22), clipped(&new.file, 22))?;
    let cell = |count: u64, of: u64| format!("{} ({})", number(count), percent(share(count, of)));
    for ((what, count, of), (_, before, of_before)) in new.figures().into_iter().zip(old.figures())
    {
        let (new, old) = (cell(count, of), cell(before, of_before));
        writeln!(f, "  {what:<18} {old:>22} {new:>22}")?;
    }
    Ok(())
}

/// The clients that only one of the two files hits.
fn newly(
    new: &FileReport,
    old: &FileReport,
    comparison: &Comparison,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Comparison { newly, newly_hardest, no_longer } = comparison;
    let (by_new, by_old) = (counted(*newly as u64, "client"), counted(*no_longer as u64, "client"));
    writeln!(f, "  {by_new} hit only by {}, {by_old} only by {}", new.file, old.file)?;
    entries("newly", newly_hardest, *newly, "  ", f)
}

fn left_out(left_out: &LeftOut, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let LeftOut { what, fact, can_be_assumed, requests } = left_out;
    let requests = counted(*requests, "request");
    match what {
        LeftOutName::Limit(name) => {
            write!(f, "\n  left out: limit {name}, for {requests}. The log does not tell {fact}.")?;
        }
        LeftOutName::Route(name) => {
            write!(
                f,
                "\n  perhaps missed: route {name}, for {requests}. The log does not tell {fact}."
            )?;
        }
    }
    writeln!(f, "{}", if *can_be_assumed { " See --assume." } else { "" })
}

/// The end of a text that is too long: a file's name says more than its folder.
fn clipped(text: &str, width: usize) -> String {
    let count = text.chars().count();
    match count.checked_sub(width) {
        None | Some(0) => text.to_owned(),
        Some(more) => std::iter::once('…').chain(text.chars().skip(more + 1)).collect(),
    }
}
