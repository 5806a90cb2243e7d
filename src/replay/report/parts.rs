//! What a report says, part by part. `text` and `html` write the same parts. A terminal shows sentences as they are. A
//! page begins them with a capital letter and ends them with a full stop.

use self::ReportPart::{Example, File, Note, Plot, Section, Sentence, Table};
use super::words::{counted, length, number, percent};
use super::{Comparison, FileReport, Hit, HitEntry, LeftOut, LimitReport, Report, share};
use crate::limit::Mode;
use crate::replay::log::{CHANGES, FaultyLine};
use crate::replay::timeline::{Slice, Timeline};

/// A step back of more milliseconds does not happen in the log of one server.
const FAR_BACK: u64 = 3_600_000;

/// The most keys that are listed for a limit.
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
    /// Where a line is that cannot be read, and why. A page shows it unchanged, too.
    Example(String),
    /// What happened over the time of the log: with `true` to all requests, with `false` to the requests of one limit.
    Plot(&'r Timeline, bool),
    Table(ReportTable),
}

/// Rows under their titles. The first column has names, and the others have figures.
pub(super) struct ReportTable {
    pub(super) titles: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A table with these titles.
fn table<'r>(titles: &[&str], rows: Vec<Vec<String>>) -> ReportPart<'r> {
    Table(ReportTable { titles: titles.iter().map(|title| (*title).to_owned()).collect(), rows })
}

impl Report<'_> {
    pub(super) fn parts(&self) -> Vec<ReportPart<'_>> {
        let Self { lines, result, .. } = self;
        let mut parts = Vec::new();
        for (process, missing) in &lines.missing {
            let count = counted(*missing, "line");
            parts.push(Note(format!("WARNING: this log lacks {count} of the process {process}")));
        }
        if lines.repeated > 0 {
            let count = counted(lines.repeated, "line");
            parts.push(Note(format!("WARNING: this log has {count} twice, which count twice")));
        }
        parts.push(Sentence(self.read()));
        for (message, says) in CHANGES {
            if let Some(count) = lines.changes.get(message) {
                parts.push(Sentence(format!("{says}: {}", number(*count))));
            }
        }
        if lines.order.late > 0 {
            let late = counted(lines.order.late, "request");
            let most = length(lines.order.furthest_back_ms);
            if lines.order.furthest_back_ms > FAR_BACK {
                parts.push(Note(format!(
                    "WARNING: the log is not in order of time, so {late} count too late: give the oldest file first, \
                     and look for a line with a wrong date"
                )));
            }
            parts.push(Sentence(format!(
                "lines are sorted within two minutes, and some are up to {most} late: {late} count at a later time \
                 than the log says"
            )));
        }
        if lines.no_request > 0 {
            let count = counted(lines.no_request, "line");
            parts.push(Sentence(format!("{count} without an HTTP request")));
        }
        if lines.broken > 0 {
            let count = counted(lines.broken, "line");
            parts.push(Note(format!("{count} that cannot be read, for example:")));
        }
        for FaultyLine { file, line, fault } in &lines.broken_examples {
            parts.push(Example(format!("{file}:{line}: {fault}")));
        }
        if let (Some(old), Some(comparison)) = (&self.against, &self.comparison) {
            result.add_comparison(old, comparison, &mut parts);
        }
        result.add_parts(&mut parts);
        parts
    }

    /// What was read.
    fn read(&self) -> String {
        let Self { from, to, span: (first, last), result, .. } = self;
        let mut read = counted(result.counts.requests, "request");
        if result.clients.seen > 0 {
            read += &format!(" of {}", counted(result.clients.seen as u64, "client"));
        }
        read + &format!(", from {from} to {to} ({})", length(last.micros_since(*first) / 1_000))
    }
}

impl FileReport<'_> {
    fn add_parts<'r>(&'r self, parts: &mut Vec<ReportPart<'r>>) {
        let Self { counts: all, clients, .. } = self;
        parts.push(File(format!("by {}", self.file)));
        let row = |what: &str, count, hit: usize| {
            let share = percent(share(count, all.requests));
            vec![what.to_owned(), number(count), share, number(hit as u64)]
        };
        let rows = vec![
            row("rejected", all.rejected, clients.rejected),
            row("held", all.delayed, clients.delayed),
        ];
        parts.push(table(&["", "requests", "share", "clients"], rows));
        if clients.rejected > 0 {
            let of_hit = percent(share(all.rejected, clients.requests_of_rejected));
            let median = percent(clients.median_rejected_share);
            parts.push(Sentence(format!(
                "of all requests of these clients, {of_hit} are rejected; for the median client it is {median}"
            )));
        }
        let unmet = self.unmet_limits();
        if !unmet.is_empty() {
            parts.push(Sentence(format!("no request met these limits: {}", unmet.join(", "))));
        }
        self.add_notes(parts);
        parts.push(Plot(self.timeline, true));
        add_entries(parts, "client hit hardest", &clients.hardest, clients.hit);
        let met = self.limits.iter().filter(|limit| limit.counts.requests > 0);
        met.for_each(|limit| limit.add_parts(clients, parts));
        if self.routes.len() > 1 {
            parts.push(Section("routes".to_owned()));
            let rows = self.routes.iter().map(|route| {
                let Slice { requests, delayed, rejected } = route.counts;
                vec![route.name.to_owned(), number(requests), number(rejected), number(delayed)]
            });
            parts.push(table(&["route", "requests", "rejected", "held"], rows.collect()));
        }
    }

    /// Adds notes about requests that the counts leave out.
    fn add_notes(&self, parts: &mut Vec<ReportPart<'_>>) {
        self.clients.add_untracked("client", parts);
        // What limits cannot count has sentences of its own.
        let bad = self.bad_requests.iter().filter(|(part, _)| !matches!(**part, "key" | "cost"));
        let count: u64 = bad.clone().map(|(_, count)| count).sum();
        if count > 0 {
            let why: Vec<_> =
                bad.map(|(part, count)| format!("{part} {}", number(*count))).collect();
            let bad = counted(count, "request");
            parts.push(Note(format!(
                "not decided: {bad} that the proxy answers with an error. What is wrong with them: {}",
                why.join(", ")
            )));
        }
        for (why, count) in self.refused {
            parts.push(Note(format!("{} would get {why}", counted(*count, "request"))));
        }
        if !self.max_requests.is_empty() {
            let names = self.max_requests.join(", ");
            parts.push(Note(format!("left out: max_requests of {names}. A replay asks no API.")));
        }
        for LeftOut { what, name, fact, requests } in &self.left_out {
            let requests = counted(*requests, "request");
            let how = if *what == "limit" { "left out" } else { "perhaps missed" };
            let advice = if fact.can_be_assumed() { " See --assume." } else { "" };
            parts.push(Note(format!(
                "{how}: {what} {name}, for {requests}. The log does not have {fact}.{advice}"
            )));
        }
    }

    /// The limits that no request met. Limits that were left out are not listed, nor their candidates: nobody knows
    /// whether a request met them.
    fn unmet_limits(&self) -> Vec<&str> {
        let is_left_out = |limit: &LimitReport<'_>| {
            let name = limit.spec.name.limit();
            self.left_out.iter().any(|it| it.what == "limit" && it.name == name)
        };
        let unmet = self.limits.iter().filter(|limit| limit.counts.requests == 0);
        unmet.filter(|limit| !is_left_out(limit)).map(|limit| limit.name).collect()
    }

    /// Compares this file with an older one.
    fn add_comparison<'r>(
        &self,
        old: &'r Self,
        comparison: &Comparison,
        parts: &mut Vec<ReportPart<'r>>,
    ) {
        let Comparison { newly_hit_clients, newly_hit_hardest, no_longer_hit_clients } = comparison;
        let row = |what: &str, of: fn(&Self) -> (u64, u64)| {
            let cell = |report: &Self| {
                let (count, all) = of(report);
                format!("{} ({})", number(count), percent(share(count, all)))
            };
            vec![what.to_owned(), cell(old), cell(self)]
        };
        let rows = vec![
            row("requests rejected", |it| (it.counts.rejected, it.counts.requests)),
            row("requests held", |it| (it.counts.delayed, it.counts.requests)),
            row("clients rejected", |it| (it.clients.rejected as u64, it.clients.seen as u64)),
            row("clients held", |it| (it.clients.delayed as u64, it.clients.seen as u64)),
        ];
        parts.push(File("side by side".to_owned()));
        parts.push(table(&["", old.file, self.file], rows));
        let clients = |count: usize| counted(count as u64, "client");
        let (by_new, by_old) = (clients(*newly_hit_clients), clients(*no_longer_hit_clients));
        parts.push(Sentence(format!(
            "{by_new} hit only by {}, {by_old} only by {}",
            self.file, old.file
        )));
        add_entries(parts, "newly hit hardest", newly_hit_hardest, *newly_hit_clients);
        let mut notes = Vec::new();
        old.add_notes(&mut notes);
        if !notes.is_empty() {
            parts.push(Section(format!("by {}", old.file)));
            parts.extend(notes);
        }
    }
}

impl LimitReport<'_> {
    fn add_parts<'r>(&'r self, clients: &Hit, parts: &mut Vec<ReportPart<'r>>) {
        let Self { spec, name, figures, counts, keys, .. } = self;
        let mode = match spec.mode {
            Mode::Enforce => "",
            Mode::Mark => " (marks)",
            Mode::Shadow | Mode::Candidate => " (in shadow)",
        };
        let by = match self.key.as_str() {
            "" => "one bucket for all".to_owned(),
            key => format!("by {key}"),
        };
        parts.push(Section(format!("limit {name}{mode}: {figures}, {by}")));
        let (hit, seen) = (number(keys.rejected as u64), counted(keys.seen as u64, "key"));
        let share = percent(share(counts.rejected, counts.requests));
        let (rejected, requests) = (number(counts.rejected), counted(counts.requests, "request"));
        parts
            .push(Sentence(format!("rejects {rejected} of {requests} ({share}), {hit} of {seen}")));
        if counts.rejected > 0 && spec.ban.is_some() && spec.mode == Mode::Enforce {
            let what =
                "this replay bans no key: with `ban`, banned keys would be rejected more often";
            parts.push(Note(what.to_owned()));
        }
        if counts.delayed > 0 {
            let (held, most) = (counted(counts.delayed, "request"), length(self.longest_wait_ms));
            parts.push(Sentence(format!("holds {held}, for at most {most}")));
        }
        keys.add_untracked("key", parts);
        if counts.rejected + counts.delayed > 0 {
            parts.push(Plot(&self.timeline, false));
        }
        // If a limit counts by address, its keys may be the same as the clients, which are listed before.
        if keys.hardest != clients.hardest {
            let shown = &keys.hardest[..keys.hardest.len().min(KEYS)];
            add_entries(parts, "key hit hardest", shown, keys.hit);
        }
    }
}

impl Hit {
    /// Adds what was not counted one by one.
    fn add_untracked(&self, what: &str, parts: &mut Vec<ReportPart<'_>>) {
        if self.untracked_requests > 0 {
            let (seen, rest) = (counted(self.seen as u64, what), number(self.untracked_requests));
            parts.push(Note(format!(
                "only the first {seen} are counted one by one; {rest} requests come from others"
            )));
        }
    }
}

/// Adds a table of the clients or keys that are hit hardest. `hit` is the number of all that are hit.
fn add_entries(parts: &mut Vec<ReportPart<'_>>, title: &str, entries: &[HitEntry], hit: usize) {
    if entries.is_empty() {
        return;
    }
    let rows = entries.iter().map(|entry| {
        let Slice { requests, delayed, rejected } = entry.counts;
        let share = percent(entry.rejected_share);
        let counts = [number(requests), number(rejected), share, number(delayed)];
        let times = [&entry.first, &entry.last].map(|time| time.clone().unwrap_or_default());
        [entry.name.clone()].into_iter().chain(counts).chain(times).collect()
    });
    let titles = [title, "requests", "rejected", "share", "held", "first hit", "last hit"];
    parts.push(table(&titles, rows.collect()));
    if let Some(more @ 1..) = hit.checked_sub(entries.len()) {
        parts.push(Sentence(format!("and {} more", number(more as u64))));
    }
}
