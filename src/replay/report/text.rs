//! A replay's report as text, for a terminal.

use std::fmt::{self, Display};

use super::words::{counted, length, number, percent, plot, printable, values_each};
use super::{FileReport, Hit, HitEntry, LimitReport, Report, share};
use crate::replay::tally::{LimitTally, ReplayTally};
use crate::replay::timeline::{Slice, Timeline};

/// The columns of a plot.
const PLOT: usize = 60;

/// The keys that are listed of each limit. The clients are listed in full.
const KEYS: usize = 5;

/// A report that is written as text.
pub(crate) struct TerminalReport<'r>(pub &'r Report<'r>);

impl Display for TerminalReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { now, against, .. } = self.0;
        self.log(f)?;
        match against {
            None => file(now, f),
            Some((old, comparison)) => {
                beside(now, old, f)?;
                writeln!(f, "  {}", now.hit_only_by(old, comparison))?;
                entries("newly", &comparison.newly_hardest, comparison.newly, "  ", f)?;
                if !old.left_out.is_empty() || !old.tally.bad.is_empty() {
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
        let Report { lines, now, .. } = self.0;
        writeln!(f, "{}", self.0.read())?;
        if let Some(disorder) = self.0.disorder() {
            writeln!(f, "WARNING: {disorder}")?;
        }
        for line in self.0.oddities().into_iter().chain(self.0.broken()) {
            writeln!(f, "{line}")?;
        }
        for (file, line, why) in &lines.examples {
            writeln!(f, "    {file}:{line}: {why}")?;
        }
        line("", now.clients.not_tracked("client"), f)
    }
}

/// Writes a line, if there is one.
fn line(indent: &str, line: Option<String>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    line.map_or(Ok(()), |line| writeln!(f, "{indent}{line}"))
}

/// What one file's limits would have done.
fn file(report: &FileReport<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\nby {}", report.file)?;
    let FileReport { tally: ReplayTally { all, timeline, .. }, clients, .. } = report;
    let rows =
        [("rejected", all.rejected, clients.rejected), ("held", all.delayed, clients.delayed)];
    for (what, count, hit) in rows {
        let share = percent(share(count, all.requests));
        let (count, hit) = (counted(count, "request"), counted(hit as u64, "client"));
        writeln!(f, "  {what:<9} {count:>21}  {share:>9}  {hit:>17}")?;
    }
    line("  ", report.share_of_rejected(), f)?;
    plots(timeline, true, "  ", f)?;
    entries("client", &clients.hardest, clients.hit, "  ", f)?;
    for limit in report.met() {
        self::limit(limit, clients, f)?;
    }
    line("\n  ", report.unmet_limits(), f)?;
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
fn notes(report: &FileReport<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    line("\n  ", report.undecided_requests(), f)?;
    report.left_out.iter().try_for_each(|it| {
        let advice = if it.fact.can_be_assumed() { " See --assume." } else { "" };
        writeln!(f, "\n  {}.{advice}", it.sentence())
    })
}

fn limit(limit: &LimitReport<'_>, clients: &Hit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let LimitReport { tally: LimitTally { spec, .. }, keys, timeline, .. } = limit;
    let mode = if limit.is_shadow() { " (in shadow)" } else { "" };
    writeln!(f, "\n  limit {}{mode}: {}, {}", spec.name, spec.figures, limit.by())?;
    writeln!(f, "    {}", limit.rejects())?;
    line("    ", keys.not_tracked("key"), f)?;
    line("    ", limit.holds(), f)?;
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
    let slices = &timeline.slices;
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
        let each = values_each(slices.len(), PLOT) as u64 * timeline.width;
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
    for entry in entries {
        let [requests, rejected, share, delayed, first, last] = entry.cells();
        let name = printable(&entry.name);
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
fn beside(new: &FileReport<'_>, old: &FileReport<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\n  {:<18} {:>22} {:>22}", "", clipped(old.file, 22), clipped(new.file, 22))?;
    for [what, old, new] in new.beside(old) {
        writeln!(f, "  {what:<18} {old:>22} {new:>22}")?;
    }
    Ok(())
}

/// The end of a text that is too long: a file's name says more than its folder.
fn clipped(text: &str, width: usize) -> String {
    let count = text.chars().count();
    match count.checked_sub(width) {
        None | Some(0) => text.to_owned(),
        Some(more) => std::iter::once('…').chain(text.chars().skip(more + 1)).collect(),
    }
}
