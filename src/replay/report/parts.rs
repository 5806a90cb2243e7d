//! What a report says, part by part. `text` and `html` write the same parts. A terminal shows sentences as they are. A
//! page begins them with a capital letter and ends them with a full stop.

use super::words::{counted, length, number, percent, time};
use super::{Comparison, FileReport, Hit, HitEntry, LeftOut, LimitReport, Report, share};
use crate::limit::Mode;
use crate::limit::name::Name;
use crate::replay::tally::{LimitTally, ReplayTally};
use crate::replay::timeline::{Slice, Timeline};

/// In the log of one server, time does not step back so far. In microseconds.
const FAR_BACK: u64 = 3_600_000_000;

/// The keys of a limit that are listed. The clients are listed in full.
const KEYS: usize = 5;

/// A part of a report, in the order in which it is read.
pub(super) enum ReportPart<'r> {
    /// Here the result of a file begins.
    File(String),
    /// Here a part of that result begins.
    Section(String),
    /// A sentence that should not be missed.
    Note(String),
    Sentence(String),
    /// What happened over the time of the log. With `true` it is of all requests.
    Plot(&'r Timeline, bool),
    Table(Table),
}

/// Rows under their titles. The first column has names, and the others have figures.
pub(super) struct Table {
    pub(super) titles: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    fn new(titles: &[&str], rows: Vec<Vec<String>>) -> Self {
        Self { titles: titles.iter().map(|title| (*title).to_owned()).collect(), rows }
    }
}

impl Report<'_> {
    pub(super) fn parts(&self) -> Vec<ReportPart<'_>> {
        let mut parts = vec![ReportPart::Sentence(self.read())];
        parts.extend(self.disorder().map(ReportPart::Note));
        parts.extend(self.oddities().into_iter().map(ReportPart::Sentence));
        parts.extend(self.broken().map(ReportPart::Note));
        let examples = self.lines.examples.iter();
        let examples = examples.map(|(file, line, why)| format!("{file}:{line}: {why}"));
        parts.extend(examples.map(ReportPart::Sentence));
        if let Some((old, comparison)) = &self.against {
            parts.push(ReportPart::File("side by side".to_owned()));
            parts.push(ReportPart::Table(self.now.beside(old)));
            parts.push(ReportPart::Sentence(self.now.hit_only_by(old, comparison)));
            let newly = &comparison.newly_hardest;
            add_entries(&mut parts, "newly hit hardest", newly, comparison.newly);
            let notes: Vec<_> = old.notes().collect();
            if !notes.is_empty() {
                parts.push(ReportPart::Section(format!("by {}", old.file)));
                parts.extend(notes);
            }
        }
        self.now.add_parts(&mut parts);
        parts
    }

    /// What was read.
    fn read(&self) -> String {
        let Self { span, now, .. } = self;
        let mut read = counted(now.tally.all.requests, "request");
        if now.clients.seen > 0 {
            read += &format!(" of {}", counted(now.clients.seen as u64, "client"));
        }
        if let Some((from, to)) = *span {
            let span = length(to.micros_since(from));
            read += &format!(", from {} to {} UTC ({span})", time(from), time(to));
        }
        read
    }

    /// A warning of a log that is not in order of time.
    fn disorder(&self) -> Option<String> {
        let order = self.lines.order;
        (order.late > 0 && order.furthest_back > FAR_BACK).then(|| {
            let late = counted(order.late, "request");
            format!(
                "WARNING: the log is not in order of time, so {late} count too late: give the oldest file first, and look \
                 for a line with a wrong date"
            )
        })
    }

    /// What is unusual about the lines, but not wrong.
    fn oddities(&self) -> Vec<String> {
        let Self { lines, .. } = self;
        let mut oddities = Vec::new();
        if lines.order.late > 0 {
            let (late, most) =
                (counted(lines.order.late, "request"), length(lines.order.furthest_back));
            oddities.push(format!(
                "lines are sorted within two minutes, and some are up to {most} late: {late} count at a later time than \
                 the log says"
            ));
        }
        if lines.no_request > 0 {
            let count = counted(lines.no_request, "line");
            oddities.push(format!("{count} without an HTTP request"));
        }
        oddities
    }

    /// The number of broken lines, if there are any.
    fn broken(&self) -> Option<String> {
        let count = self.lines.broken;
        (count > 0).then(|| format!("{} that cannot be read, for example:", counted(count, "line")))
    }
}

impl FileReport<'_> {
    fn add_parts<'r>(&'r self, parts: &mut Vec<ReportPart<'r>>) {
        let Self { tally: ReplayTally { timeline, .. }, clients, routes, .. } = self;
        parts.push(ReportPart::File(format!("by {}", self.file)));
        parts.push(ReportPart::Table(self.counts()));
        parts.extend(self.share_of_rejected().map(ReportPart::Sentence));
        parts.extend(self.unmet_limits().map(ReportPart::Sentence));
        parts.extend(self.notes());
        parts.push(ReportPart::Plot(timeline, true));
        add_entries(parts, "client hit hardest", &clients.hardest, clients.hit);
        let met = self.limits.iter().filter(|limit| limit.tally.counts.requests > 0);
        met.for_each(|limit| limit.add_parts(clients, parts));
        if routes.len() > 1 {
            parts.push(ReportPart::Section("routes".to_owned()));
            let rows = routes.iter().map(|(name, Slice { requests, delayed, rejected })| {
                vec![(*name).to_owned(), number(*requests), number(*rejected), number(*delayed)]
            });
            let titles = ["route", "requests", "rejected", "held"];
            parts.push(ReportPart::Table(Table::new(&titles, rows.collect())));
        }
    }

    /// The requests and clients that are rejected or held.
    fn counts(&self) -> Table {
        let Self { tally: ReplayTally { all, .. }, clients, .. } = self;
        let row = |what: &str, count, hit: usize| {
            let share = percent(share(count, all.requests));
            vec![what.to_owned(), number(count), share, number(hit as u64)]
        };
        let rows = vec![
            row("rejected", all.rejected, clients.rejected),
            row("held", all.delayed, clients.delayed),
        ];
        Table::new(&["", "requests", "share", "clients"], rows)
    }

    /// What the counts do not have.
    fn notes(&self) -> impl Iterator<Item = ReportPart<'_>> {
        let left_out = self.left_out.iter().map(LeftOut::sentence);
        let not_tracked = self.clients.not_tracked("client");
        let notes = not_tracked.into_iter().chain(self.undecided_requests()).chain(left_out);
        notes.map(ReportPart::Note)
    }

    /// The share of requests that is rejected, for the clients with a rejected request.
    fn share_of_rejected(&self) -> Option<String> {
        let Self { tally: ReplayTally { all, .. }, clients, .. } = self;
        (clients.rejected > 0).then(|| {
            let of_hit = percent(share(all.rejected, clients.requests_of_rejected));
            let median = percent(clients.median_share);
            format!(
                "of all requests of these clients, {of_hit} are rejected; for the median client it is {median}"
            )
        })
    }

    /// The limits that no request met. A limit that was left out is not among them, nor its candidate: nobody
    /// knows.
    fn unmet_limits(&self) -> Option<String> {
        let is_left_out = |name: &Name| {
            self.left_out.iter().any(|it| it.what == "limit" && it.name == name.limit())
        };
        let unmet = self.limits.iter().filter(|limit| limit.tally.counts.requests == 0);
        let unmet = unmet.map(|limit| &limit.tally.spec.name).filter(|name| !is_left_out(name));
        let unmet: Vec<_> = unmet.map(Name::as_str).collect();
        (!unmet.is_empty()).then(|| format!("no request met these limits: {}", unmet.join(", ")))
    }

    /// The requests on which the limits did not decide.
    fn undecided_requests(&self) -> Option<String> {
        let all = &self.tally.bad;
        let why = all.iter().map(|(bad, count)| format!("{} {}", bad.as_str(), number(*count)));
        let (bad, why) = (all.values().sum(), why.collect::<Vec<_>>());
        (bad > 0).then(|| {
            format!(
                "not decided: {} that the proxy answers with an error. What is wrong with them: {}",
                counted(bad, "request"),
                why.join(", ")
            )
        })
    }

    /// Compares this file with an older one.
    fn beside(&self, old: &Self) -> Table {
        let row = |what: &str, of: fn(&Self) -> (u64, u64)| {
            let cell = |report: &Self| {
                let (count, all) = of(report);
                format!("{} ({})", number(count), percent(share(count, all)))
            };
            vec![what.to_owned(), cell(old), cell(self)]
        };
        let rows = vec![
            row("requests rejected", |it| (it.tally.all.rejected, it.tally.all.requests)),
            row("requests held", |it| (it.tally.all.delayed, it.tally.all.requests)),
            row("clients rejected", |it| (it.clients.rejected as u64, it.clients.seen as u64)),
            row("clients held", |it| (it.clients.delayed as u64, it.clients.seen as u64)),
        ];
        Table::new(&["", old.file, self.file], rows)
    }

    /// The number of clients that only one of the two files hits.
    fn hit_only_by(&self, old: &Self, comparison: &Comparison) -> String {
        let clients = |count: usize| counted(count as u64, "client");
        let (by_new, by_old) = (clients(comparison.newly), clients(comparison.no_longer));
        format!("{by_new} hit only by {}, {by_old} only by {}", self.file, old.file)
    }
}

impl LimitReport<'_> {
    fn add_parts<'r>(&'r self, clients: &Hit, parts: &mut Vec<ReportPart<'r>>) {
        let Self { tally: LimitTally { spec, counts, .. }, keys, timeline, .. } = self;
        let mode = if spec.mode == Mode::Enforce { "" } else { " (in shadow)" };
        let by = match self.key.as_str() {
            "" => "one bucket for all".to_owned(),
            key => format!("by {key}"),
        };
        let title = format!("limit {}{mode}: {}, {by}", spec.name, spec.figures);
        parts.push(ReportPart::Section(title));
        parts.push(ReportPart::Sentence(self.rejects()));
        parts.extend(self.holds().map(ReportPart::Sentence));
        parts.extend(keys.not_tracked("key").map(ReportPart::Note));
        if counts.rejected + counts.delayed > 0 {
            parts.push(ReportPart::Plot(timeline, false));
        }
        // The keys of a limit by address may have been listed as clients.
        if keys.hardest != clients.hardest {
            let shown = &keys.hardest[..keys.hardest.len().min(KEYS)];
            add_entries(parts, "key hit hardest", shown, keys.hit);
        }
    }

    fn rejects(&self) -> String {
        let Self { tally, keys, .. } = self;
        let Slice { requests, rejected, .. } = tally.counts;
        let (hit, seen) = (number(keys.rejected as u64), counted(keys.seen as u64, "key"));
        let share = percent(share(rejected, requests));
        let (rejected, requests) = (number(rejected), counted(requests, "request"));
        format!("rejects {rejected} of {requests} ({share}), {hit} of {seen}")
    }

    fn holds(&self) -> Option<String> {
        let micros = u64::try_from(self.tally.longest_wait.as_micros()).unwrap_or(u64::MAX);
        let held = self.tally.counts.delayed;
        (held > 0)
            .then(|| format!("holds {}, for at most {}", counted(held, "request"), length(micros)))
    }
}

impl Hit {
    /// What was not counted one by one.
    fn not_tracked(&self, what: &str) -> Option<String> {
        let (seen, rest) = (counted(self.seen as u64, what), number(self.untracked));
        (self.untracked > 0).then(|| {
            format!(
                "only the first {seen} are counted one by one; {rest} requests come from others"
            )
        })
    }
}

/// Adds the clients or keys that are hit hardest, of all that are hit.
fn add_entries(parts: &mut Vec<ReportPart<'_>>, title: &str, entries: &[HitEntry], hit: usize) {
    if entries.is_empty() {
        return;
    }
    let rows = entries.iter().map(|entry| {
        let Slice { requests, delayed, rejected } = entry.count.counts;
        let (first, last) = entry.count.hit.unwrap_or_default();
        let share = percent(share(rejected, requests));
        let counts = [number(requests), number(rejected), share, number(delayed)];
        let cells = [entry.name.clone()].into_iter().chain(counts);
        cells.chain([time(first), time(last)]).collect()
    });
    let titles =
        [title, "requests", "rejected", "share", "held", "first hit (UTC)", "last hit (UTC)"];
    parts.push(ReportPart::Table(Table::new(&titles, rows.collect())));
    if let Some(more @ 1..) = hit.checked_sub(entries.len()) {
        parts.push(ReportPart::Sentence(format!("and {} more", number(more as u64))));
    }
}

impl LeftOut<'_> {
    /// What was left out, and why.
    fn sentence(&self) -> String {
        let (requests, fact) = (counted(self.requests, "request"), self.fact);
        let how = if self.what == "limit" { "left out" } else { "perhaps missed" };
        let advice = if fact.can_be_assumed() { " See --assume." } else { "" };
        let Self { what, name, .. } = self;
        format!("{how}: {what} {name}, for {requests}. The log does not tell {fact}.{advice}")
    }
}
