//! The report of a replay: who would have been rejected or held, when, and by which limit.
//!
//! [`Report::of`] makes the report from the counts. Programs get the report as JSON. For people, `parts` has the
//! sentences, plots and tables of the report. `text` writes them for a terminal, and `html` as a page. `words` writes
//! numbers and times for people.

pub(crate) mod html;
mod parts;
pub(crate) mod text;
mod words;

pub(crate) use self::words::{counted, length, number, percent, printable, time};

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;

use serde::{Serialize, Serializer};
use serde_json::json;

use super::fact::Fact;
use super::log::{FaultyLine, LogOrder};
use super::tally::{HitCount, HitTable, LimitTally};
use super::timeline::{Slice, Timeline};
use super::{Replay, Side};
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::request::key::shown;
use crate::settings::LimitSpec;

/// The most clients, and the most keys of a limit, that are listed by name.
const HARDEST: usize = 20;

#[derive(Serialize)]
pub(crate) struct Report<'r> {
    /// The lines that were read.
    pub(crate) lines: LineCounts,
    /// The times of the log's first and last request.
    from: String,
    to: String,
    #[serde(skip)]
    span: (Timestamp, Timestamp),
    /// What the file's limits would have done.
    pub(crate) result: FileReport<'r>,
    /// What the limits of the other file would have done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) against: Option<FileReport<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comparison: Option<Comparison>,
}

/// The lines of the logs.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LineCounts {
    /// All lines.
    pub(crate) read: u64,
    /// Lines that show no HTTP request.
    pub(crate) no_request: u64,
    /// Lines that cannot be read.
    pub(crate) broken: u64,
    /// The first broken lines.
    pub(crate) broken_examples: Vec<FaultyLine>,
    /// The lines of tidegate that are missing, by the process that wrote them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) missing: BTreeMap<String, u64>,
    /// The lines of tidegate that were read again.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) repeated: u64,
    /// How often tidegate's own lines tell of something that a replay does not repeat, by their message.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) changes: BTreeMap<&'static str, u64>,
    /// How far the lines are from the order of time.
    #[serde(flatten)]
    pub(crate) order: LogOrder,
}

/// What the limits of one file would have done.
#[derive(Serialize)]
pub(crate) struct FileReport<'r> {
    /// The file's name.
    pub(crate) file: &'r str,
    /// All requests.
    #[serde(flatten)]
    pub(crate) counts: Slice,
    pub(crate) rejected_share: f64,
    /// Requests that are not rejected, but might be: the log does not have all that their limits read.
    pub(crate) undecided: u64,
    /// Requests that get an error in place of a decision, by the part of them that is wrong.
    pub(crate) bad_requests: &'r BTreeMap<&'static str, u64>,
    /// Requests that limits refuse, or would refuse but for shadow, because they cannot count them: by the answer.
    pub(crate) refused: &'r BTreeMap<String, u64>,
    /// The clients, by address.
    pub(crate) clients: Hit,
    /// Each limit, and right after it its candidate.
    pub(crate) limits: Vec<LimitReport<'r>>,
    /// Each route with requests, and `none` for requests without a route.
    pub(crate) routes: Vec<RouteReport<'r>>,
    /// The limits and routes that need a fact which the log does not have.
    pub(crate) left_out: Vec<LeftOut<'r>>,
    /// The upstreams whose `max_requests` is left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) max_requests: Vec<&'r str>,
    /// All requests over the log's time.
    pub(crate) timeline: &'r Timeline,
}

/// What one limit, or one candidate, would have done.
#[derive(Serialize)]
pub(crate) struct LimitReport<'r> {
    #[serde(skip)]
    pub(crate) spec: &'r LimitSpec,
    pub(crate) name: &'r str,
    pub(crate) figures: String,
    /// What it counts by, as in `ip, path`. Empty for one bucket for all.
    pub(crate) key: String,
    pub(crate) mode: &'static str,
    /// The requests to which it applied.
    #[serde(flatten)]
    pub(crate) counts: Slice,
    /// The longest time for which it holds a request.
    pub(crate) longest_wait_ms: u64,
    pub(crate) keys: Hit,
    /// The counts of each slice of time. The slices are those of the file's timeline.
    pub(crate) timeline: Timeline,
}

/// The requests of a route.
#[derive(Serialize)]
pub(crate) struct RouteReport<'r> {
    pub(crate) name: &'r str,
    #[serde(flatten)]
    pub(crate) counts: Slice,
}

/// How many clients or keys there are, and how many of them are hit.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Hit {
    /// The number of clients or keys that were counted one by one.
    pub(crate) seen: usize,
    /// The requests of all others, which were not counted one by one.
    pub(crate) untracked_requests: u64,
    /// How many of them have a request that is rejected or held.
    pub(crate) hit: usize,
    /// How many of them have a request that is rejected.
    pub(crate) rejected: usize,
    /// How many of them have a request that is held.
    pub(crate) delayed: usize,
    /// All requests of the clients or keys that have a rejected request.
    pub(crate) requests_of_rejected: u64,
    /// The median of the share of requests that are rejected, over all clients or keys with a rejected request.
    pub(crate) median_rejected_share: f64,
    /// At most 20 of them: first those with the most rejected requests, then those with the most held ones.
    pub(crate) hardest: Vec<HitEntry>,
}

/// A client or a key that is hit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HitEntry {
    /// The client's address, or the key as the log shows it.
    pub(crate) name: String,
    /// Its requests.
    #[serde(flatten)]
    pub(crate) counts: Slice,
    pub(crate) rejected_share: f64,
    /// When a request of it was first held or rejected, and when last.
    pub(crate) first: Option<String>,
    pub(crate) last: Option<String>,
}

/// A limit that did not decide about some requests, or a route that some requests may have missed, because the log
/// does not have a fact.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LeftOut<'r> {
    /// `limit` or `route`.
    pub(crate) what: &'static str,
    pub(crate) name: &'r str,
    /// The fact that the log does not have.
    pub(crate) fact: &'r Fact,
    pub(crate) requests: u64,
}

/// The clients that only one of two files hits.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Comparison {
    /// The number of clients that only the new file rejects or holds.
    pub(crate) newly_hit_clients: usize,
    /// Those of them that are hit hardest, at most 20.
    pub(crate) newly_hit_hardest: Vec<HitEntry>,
    /// The number of clients that only the old file rejects or holds.
    pub(crate) no_longer_hit_clients: usize,
}

impl<'r> Report<'r> {
    /// The report of a replay of these lines, through the limits of files with these names. `None` if there
    /// is no file or no request.
    pub(crate) fn of(
        replay: &'r Replay<'_>,
        lines: LineCounts,
        files: &'r [String],
    ) -> Option<Self> {
        let mut sides = replay.sides.iter().zip(files);
        let (new, file) = sides.next()?;
        let old = sides.next();
        let span = replay.span?;
        Some(Self {
            lines,
            from: time(span.0),
            to: time(span.1),
            span,
            result: FileReport::of(new, file),
            against: old.map(|(old, file)| FileReport::of(old, file)),
            comparison: old.map(|(old, _)| compare(&new.tally.clients, &old.tally.clients)),
        })
    }
}

impl<'r> FileReport<'r> {
    fn of(side: &'r Side<'_>, file: &'r str) -> Self {
        let Side { judge, tally } = side;
        let settings = judge.settings;
        let names =
            settings.routes.iter().map(|route| &*route.name).chain([&*settings.no_route.name]);
        let routes = names.zip(&tally.routes).filter(|(_, counts)| counts.requests > 0);
        let left_out = tally.missing.iter().map(|(missing, requests)| {
            let (what, name, fact) = judge.described(*missing);
            LeftOut { what, name, fact, requests: *requests }
        });
        let full = settings.upstreams.iter().filter(|upstream| upstream.max_requests.is_some());
        let (counts, limits) = (Slice::sum(&tally.timeline.slices), tally.limits.iter());
        Self {
            file,
            counts,
            rejected_share: share(counts.rejected, counts.requests),
            undecided: tally.undecided,
            bad_requests: &tally.bad,
            refused: &tally.refused,
            clients: Hit::of(&tally.clients, IpAddr::to_string),
            limits: limits.map(|it| LimitReport::of(it, &tally.timeline)).collect(),
            routes: routes.map(|(name, counts)| RouteReport { name, counts: *counts }).collect(),
            left_out: left_out.collect(),
            max_requests: full.map(|upstream| upstream.name.as_str()).collect(),
            timeline: &tally.timeline,
        }
    }

    /// Whether more than this percentage of the requests may be rejected. Undecided requests count as rejected.
    pub(crate) fn may_exceed(&self, percent: f64) -> bool {
        let Slice { requests, rejected, .. } = self.counts;
        float(rejected + self.undecided) * 100.0 > percent * float(requests)
    }
}

impl<'r> LimitReport<'r> {
    fn of(tally: &'r LimitTally<'_>, all: &Timeline) -> Self {
        let spec = tally.spec;
        Self {
            spec,
            name: spec.name.as_str(),
            figures: spec.figures.to_string(),
            key: spec.key.parts_text().join(", "),
            mode: spec.mode.name(),
            counts: Slice::sum(&tally.timeline.slices),
            longest_wait_ms: tally.longest_wait.as_millis().try_into().unwrap_or(u64::MAX),
            keys: Hit::of(&tally.keys, |key: &Key| shown(key.as_str())),
            timeline: tally.timeline.clone().sliced_like(all),
        }
    }
}

impl Hit {
    fn of<K: Hash + Ord + Clone>(counts: &HitTable<K>, name: impl Fn(&K) -> String) -> Self {
        let mut shares: Vec<f64> = counts
            .rejected()
            .map(|(_, count)| share(count.counts.rejected, count.counts.requests))
            .collect();
        shares.sort_unstable_by(f64::total_cmp);
        Self {
            seen: counts.table.len(),
            untracked_requests: counts.untracked.requests,
            hit: counts.hit().count(),
            rejected: shares.len(),
            delayed: counts.hit().filter(|(_, count)| count.counts.delayed > 0).count(),
            requests_of_rejected: counts.rejected().map(|(_, count)| count.counts.requests).sum(),
            median_rejected_share: shares.get(shares.len() / 2).copied().unwrap_or_default(),
            hardest: hardest(counts.hit(), name),
        }
    }
}

/// At most 20 of those that are hit: first those with the most rejected requests, then those with the most held ones.
fn hardest<'c, K: Ord + 'c>(
    hit: impl Iterator<Item = (&'c K, &'c HitCount)>,
    name: impl Fn(&K) -> String,
) -> Vec<HitEntry> {
    let mut hit: Vec<_> = hit.collect();
    let weight = |count: &HitCount| (count.counts.rejected, count.counts.delayed);
    hit.sort_unstable_by(|(key, a), (other, b)| weight(b).cmp(&weight(a)).then(key.cmp(other)));
    hit.truncate(HARDEST);
    let entry = |(key, count): (&K, &HitCount)| HitEntry {
        name: name(key),
        counts: count.counts,
        rejected_share: share(count.counts.rejected, count.counts.requests),
        first: count.hit.map(|(first, _)| time(first)),
        last: count.hit.map(|(_, last)| time(last)),
    };
    hit.into_iter().map(entry).collect()
}

fn compare(new: &HitTable<IpAddr>, old: &HitTable<IpAddr>) -> Comparison {
    let by = |counts: &HitTable<IpAddr>| -> HashSet<IpAddr> {
        counts.hit().map(|(client, _)| *client).collect()
    };
    let (by_new, by_old) = (by(new), by(old));
    let newly = || new.hit().filter(|(client, _)| !by_old.contains(*client));
    Comparison {
        newly_hit_clients: newly().count(),
        newly_hit_hardest: hardest(newly(), IpAddr::to_string),
        no_longer_hit_clients: by_old.difference(&by_new).count(),
    }
}

/// A timeline as JSON has a list for each of the counts.
impl Serialize for Timeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let column = |of: fn(&Slice) -> u64| self.slices.iter().map(of).collect::<Vec<_>>();
        let columns = json!({
            "from": self.start.map(time),
            "slice_ms": self.width / 1_000,
            "requests": column(|slice| slice.requests),
            "delayed": column(|slice| slice.delayed),
            "rejected": column(|slice| slice.rejected),
        });
        columns.serialize(serializer)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The share of a part in a whole, from 0 to 1. It is 0 if the whole is 0.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

#[allow(clippy::cast_precision_loss, reason = "53 bits are enough for every count")]
fn float(number: u64) -> f64 {
    number as f64
}
