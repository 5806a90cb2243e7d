//! The report of a replay: who would have been rejected or held, when, and by which limit.
//!
//! [`Report::of`] makes the report from the counts. `json` writes it for programs. For people, `parts` has its sentences,
//! plots and tables, which `text` writes for a terminal and `html` as a page. `words` has the numbers and times as
//! people read them.

pub(crate) mod html;
pub(crate) mod json;
mod parts;
pub(crate) mod text;
mod words;

pub(crate) use self::words::{counted, number, percent, printable, time};

use std::collections::HashSet;
use std::hash::Hash;
use std::net::IpAddr;

use super::fact::Fact;
use super::log::LogOrder;
use super::tally::{HitCount, HitTable, LimitTally, ReplayTally};
use super::timeline::{Slice, Timeline};
use super::{Replay, Side};
use crate::limit::key::{Key, write_shown};
use crate::limit::time::Timestamp;

/// The clients and keys that are listed by name.
const HARDEST: usize = 20;

pub(crate) struct Report<'r> {
    /// The lines that were read.
    pub(crate) lines: LineCounts,
    /// The time of the log.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
    /// What the file's limits would have done.
    pub(crate) now: FileReport<'r>,
    /// What the limits of the other file would have done, and which clients only one of the two files hits.
    pub(crate) against: Option<(FileReport<'r>, Comparison)>,
}

/// The lines of the logs.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineCounts {
    /// All lines.
    pub(crate) read: u64,
    /// Lines that show no HTTP request.
    pub(crate) no_request: u64,
    /// Lines that cannot be read.
    pub(crate) broken: u64,
    /// The first broken lines: the file, the line's number, and what is wrong.
    pub(crate) examples: Vec<(String, u64, String)>,
    /// How far the lines are from the order of time.
    pub(crate) order: LogOrder,
}

/// What the limits of one file would have done.
pub(crate) struct FileReport<'r> {
    /// The file's name.
    pub(crate) file: &'r str,
    /// What was counted.
    pub(crate) tally: &'r ReplayTally<'r>,
    /// The clients, by address.
    pub(crate) clients: Hit,
    /// Each limit, and right behind it its candidate.
    pub(crate) limits: Vec<LimitReport<'r>>,
    /// Each route with requests, and `none` for requests without a route.
    pub(crate) routes: Vec<(&'r str, Slice)>,
    /// The limits and routes that need a fact which the log does not tell.
    pub(crate) left_out: Vec<LeftOut<'r>>,
}

/// What one limit, or one candidate, would have done.
pub(crate) struct LimitReport<'r> {
    /// What was counted.
    pub(crate) tally: &'r LimitTally<'r>,
    /// What it counts by, as in `ip, path`. Empty for one bucket for all.
    pub(crate) key: String,
    pub(crate) keys: Hit,
    /// The counts of each slice of time. The slices are those of the file's timeline.
    pub(crate) timeline: Timeline,
}

/// How many clients or keys there are, and how many of them are hit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hit {
    /// The number of those that were counted one by one.
    pub(crate) seen: usize,
    /// The requests of all others. The others were not counted one by one.
    pub(crate) untracked: u64,
    /// How many of them have a request that is rejected or held.
    pub(crate) hit: usize,
    /// How many of them have a request that is rejected.
    pub(crate) rejected: usize,
    /// How many of them have a request that is held.
    pub(crate) delayed: usize,
    /// All requests of those that have a rejected request.
    pub(crate) requests_of_rejected: u64,
    /// The median of the shares of their requests that are rejected. Only those with a rejected request count.
    pub(crate) median_share: f64,
    /// At most 20 of them: first those with the most rejected requests, then those with the most held ones.
    pub(crate) hardest: Vec<HitEntry>,
}

/// A client or a key that is hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HitEntry {
    /// The client's address, or the key as the log shows it.
    pub(crate) name: String,
    /// What happened to it.
    pub(crate) count: HitCount,
}

/// A limit that did not decide about some requests, or a route that some requests may have missed, because the log
/// does not tell a fact.
#[derive(Clone, Debug)]
pub(crate) struct LeftOut<'r> {
    /// `limit` or `route`.
    pub(crate) what: &'static str,
    pub(crate) name: String,
    /// The fact that the log does not tell.
    pub(crate) fact: &'r Fact,
    pub(crate) requests: u64,
}

/// The clients that only one of two files hits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    /// The number of clients that only the new file rejects or holds.
    pub(crate) newly: usize,
    /// The hardest hit of them; at most 20.
    pub(crate) newly_hardest: Vec<HitEntry>,
    /// The number of clients that only the old file rejects or holds.
    pub(crate) no_longer: usize,
}

impl<'r> Report<'r> {
    /// The report of a replay of these lines, through the limits of files with these names. `None` where there
    /// is no file.
    pub(crate) fn of(
        replay: &'r Replay<'_>,
        lines: LineCounts,
        files: &'r [String],
    ) -> Option<Self> {
        let mut sides = replay.sides.iter().zip(files);
        let (new, file) = sides.next()?;
        let against = sides.next().map(|(old, file)| {
            (FileReport::of(old, file), compare(&new.tally.clients, &old.tally.clients))
        });
        let now = FileReport::of(new, file);
        Some(Self { lines, span: replay.span, now, against })
    }
}

impl<'r> FileReport<'r> {
    fn of(side: &'r Side<'_>, file: &'r str) -> Self {
        let Side { judge, tally } = side;
        let plan = judge.plan;
        let names = plan.routes.iter().map(|route| &*route.name).chain([&*plan.no_route.name]);
        let routes = names.zip(&tally.routes).filter(|(_, counts)| counts.requests > 0);
        let left_out = tally.untold.iter().map(|(untold, requests)| {
            let (what, name, fact) = judge.described(*untold);
            LeftOut { what, name, fact, requests: *requests }
        });
        let limits = tally.limits.iter();
        Self {
            file,
            tally,
            clients: Hit::of(&tally.clients, IpAddr::to_string),
            limits: limits.map(|it| LimitReport::of(it, &tally.timeline)).collect(),
            routes: routes.map(|(name, counts)| (name, *counts)).collect(),
            left_out: left_out.collect(),
        }
    }

    /// Whether more than this percentage of the requests is rejected. Requests about which the log tells too little
    /// count as rejected.
    pub(crate) fn may_exceed(&self, percent: f64) -> bool {
        let ReplayTally { all, undecided, .. } = self.tally;
        float(all.rejected + undecided) * 100.0 > percent * float(all.requests)
    }
}

impl<'r> LimitReport<'r> {
    fn of(tally: &'r LimitTally<'_>, all: &Timeline) -> Self {
        let spec = tally.spec;
        let sources: Vec<_> = spec.key.sources.iter().map(ToString::to_string).collect();
        Self {
            tally,
            key: sources.join(", "),
            keys: Hit::of(&tally.keys, shown),
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
            untracked: counts.untracked.requests,
            hit: counts.hit().count(),
            rejected: shares.len(),
            delayed: counts.hit().filter(|(_, count)| count.counts.delayed > 0).count(),
            requests_of_rejected: counts.rejected().map(|(_, count)| count.counts.requests).sum(),
            median_share: shares.get(shares.len() / 2).copied().unwrap_or_default(),
            hardest: hardest(counts.table.iter(), name),
        }
    }
}

/// At most 20 that are hit: first those with the most rejected requests, then those with the most held ones.
fn hardest<'c, K: Ord + 'c>(
    counts: impl Iterator<Item = (&'c K, &'c HitCount)>,
    name: impl Fn(&K) -> String,
) -> Vec<HitEntry> {
    let mut hit: Vec<_> = counts.filter(|(_, count)| count.hit.is_some()).collect();
    let weight = |count: &HitCount| (count.counts.rejected, count.counts.delayed);
    hit.sort_unstable_by(|(key, a), (other, b)| weight(b).cmp(&weight(a)).then(key.cmp(other)));
    hit.truncate(HARDEST);
    hit.into_iter().map(|(key, count)| HitEntry { name: name(key), count: *count }).collect()
}

fn compare(new: &HitTable<IpAddr>, old: &HitTable<IpAddr>) -> Comparison {
    let by = |counts: &HitTable<IpAddr>| -> HashSet<IpAddr> {
        counts.hit().map(|(client, _)| *client).collect()
    };
    let (by_new, by_old) = (by(new), by(old));
    let newly = || new.hit().filter(|(client, _)| !by_old.contains(*client));
    Comparison {
        newly: newly().count(),
        newly_hardest: hardest(newly(), IpAddr::to_string),
        no_longer: by_old.difference(&by_new).count(),
    }
}

/// A key as the log of the proxy shows it.
pub(crate) fn shown(key: &Key) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_shown(key.as_str(), &mut text);
    text
}

/// The share of a part in a whole, from 0 to 1. It is 0 where the whole is 0.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

#[allow(clippy::cast_precision_loss, reason = "53 bits are enough for every count")]
fn float(number: u64) -> f64 {
    number as f64
}
