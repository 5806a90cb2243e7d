//! The sentences of a report. A terminal shows them as they are. A page begins them with a capital letter and ends
//! them with a full stop.

use super::words::{counted, length, number, percent, time};
use super::{Comparison, FileReport, Hit, HitEntry, LeftOut, LimitReport, Report, share};
use crate::limit::Mode;
use crate::limit::name::Name;
use crate::replay::tally::ReplayTally;
use crate::replay::timeline::Slice;

/// In the log of one server, time does not step back so far. In microseconds.
const FAR_BACK: u64 = 3_600_000_000;

impl Report<'_> {
    /// What was read.
    pub(super) fn read(&self) -> String {
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
    pub(super) fn disorder(&self) -> Option<String> {
        let order = self.lines.order;
        (order.late > 0 && order.furthest_back > FAR_BACK).then(|| {
            let late = counted(order.late, "request");
            format!(
                "the log is not in order of time, so {late} count too late: give the oldest file first, and look \
                 for a line with a wrong date"
            )
        })
    }

    /// What is unusual about the lines, but not wrong.
    pub(super) fn oddities(&self) -> Vec<String> {
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
    pub(super) fn broken(&self) -> Option<String> {
        let count = self.lines.broken;
        (count > 0).then(|| format!("{} that cannot be read, for example:", counted(count, "line")))
    }
}

impl FileReport<'_> {
    /// The share of requests that is rejected, for the clients with a rejected request.
    pub(super) fn share_of_rejected(&self) -> Option<String> {
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
    pub(super) fn unmet_limits(&self) -> Option<String> {
        let is_left_out = |name: &Name| {
            self.left_out.iter().any(|it| it.what == "limit" && it.name == name.limit())
        };
        let unmet = self.limits.iter().filter(|limit| limit.tally.counts.requests == 0);
        let unmet = unmet.map(|limit| &limit.tally.spec.name).filter(|name| !is_left_out(name));
        let unmet: Vec<_> = unmet.map(Name::as_str).collect();
        (!unmet.is_empty()).then(|| format!("no request met these limits: {}", unmet.join(", ")))
    }

    /// The requests on which the limits did not decide.
    pub(super) fn undecided_requests(&self) -> Option<String> {
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

    /// The rows that compare this file with an older one: a name, the old value and the new one.
    pub(super) fn beside<'r>(&'r self, old: &'r Self) -> impl Iterator<Item = [String; 3]> + 'r {
        let cell =
            |count: u64, of: u64| format!("{} ({})", number(count), percent(share(count, of)));
        let figures = self.figures().into_iter().zip(old.figures());
        figures.map(move |((what, count, of), (_, before, of_before))| {
            [what.to_owned(), cell(before, of_before), cell(count, of)]
        })
    }

    /// The number of clients that only one of the two files hits.
    pub(super) fn hit_only_by(&self, old: &Self, comparison: &Comparison) -> String {
        let clients = |count: usize| counted(count as u64, "client");
        let (by_new, by_old) = (clients(comparison.newly), clients(comparison.no_longer));
        format!("{by_new} hit only by {}, {by_old} only by {}", self.file, old.file)
    }
}

impl LimitReport<'_> {
    /// Whether the limit is in shadow.
    pub(super) fn is_shadow(&self) -> bool {
        self.tally.spec.mode != Mode::Enforce
    }

    /// What the limit counts by.
    pub(super) fn by(&self) -> String {
        match self.key.as_str() {
            "" => "one bucket for all".to_owned(),
            key => format!("by {key}"),
        }
    }

    pub(super) fn rejects(&self) -> String {
        let Self { tally, keys, .. } = self;
        let Slice { requests, rejected, .. } = tally.counts;
        let (hit, seen) = (number(keys.rejected as u64), counted(keys.seen as u64, "key"));
        let share = percent(share(rejected, requests));
        let (rejected, requests) = (number(rejected), counted(requests, "request"));
        format!("rejects {rejected} of {requests} ({share}), {hit} of {seen}")
    }

    pub(super) fn holds(&self) -> Option<String> {
        let micros = u64::try_from(self.tally.longest_wait.as_micros()).unwrap_or(u64::MAX);
        let held = self.tally.counts.delayed;
        (held > 0)
            .then(|| format!("holds {}, for at most {}", counted(held, "request"), length(micros)))
    }
}

impl Hit {
    /// What was not counted one by one.
    pub(super) fn not_tracked(&self, what: &str) -> Option<String> {
        let (seen, rest) = (counted(self.seen as u64, what), number(self.untracked));
        (self.untracked > 0).then(|| {
            format!(
                "only the first {seen} are counted one by one; {rest} requests come from others"
            )
        })
    }
}

impl HitEntry {
    /// Requests, rejected, share, held, first hit, last hit.
    pub(super) fn cells(&self) -> [String; 6] {
        let Slice { requests, delayed, rejected } = self.count.counts;
        let (first, last) = self.count.hit.unwrap_or_default();
        let share = percent(share(rejected, requests));
        [number(requests), number(rejected), share, number(delayed), time(first), time(last)]
    }
}

impl LeftOut<'_> {
    /// What was left out, and why.
    pub(super) fn sentence(&self) -> String {
        let (requests, fact) = (counted(self.requests, "request"), self.fact);
        let how = if self.what == "limit" { "left out" } else { "perhaps missed" };
        format!("{how}: {} {}, for {requests}. The log does not tell {fact}", self.what, self.name)
    }
}
