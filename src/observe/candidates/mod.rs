//! Counts the requests and the different keys that candidates would have rejected. Also counts the requests and keys
//! that the limits themselves rejected.
//!
//! Each worker counts by itself, and a reader adds up the counts of all workers. The counts begin when a candidate
//! gets its figures. A reload that changes neither these figures nor those of the limit keeps the counts.
//!
//! A candidate takes at most 48 KiB in each worker: three times the keys of [`distinct`](super::distinct).

use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::KEY_HASHER;
use super::distinct::DistinctKeys;
use crate::limit::time::Timestamp;
use crate::settings::LimitSpec;

/// The counts of one worker.
#[derive(Debug, Default)]
pub struct CandidateTallies {
    /// By the fingerprint of the candidate's name. Only a reader takes this lock besides the worker.
    tallies: Mutex<HashMap<u64, (Arc<LimitSpec>, CandidateTally)>>,
}

/// What was counted of a candidate.
#[derive(Clone, Debug)]
pub(crate) struct CandidateTally {
    /// When the candidate and its limit got their present figures.
    pub(crate) since: Timestamp,
    /// The requests about which the candidate decided.
    pub(crate) all: CandidateCount,
    /// The requests that the candidate would have rejected, and those that its limit rejected.
    pub(crate) rejected: CandidateCount,
    pub(crate) limit_rejected: CandidateCount,
}

/// A number of requests, and the different keys of these requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct CandidateCount {
    pub(crate) requests: u64,
    keys: DistinctKeys,
}

/// Which of the two rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedBy {
    /// The candidate would have rejected it.
    pub candidate: bool,
    /// The limit rejects it.
    pub limit: bool,
}

impl CandidateTallies {
    /// Counts for the candidates of these limits from now on. If a candidate and its limit have the same figures as
    /// before, its counts stay.
    pub fn put_in_force(&self, limits: &[Arc<LimitSpec>], now: Timestamp) {
        let mut tallies = self.tallies.lock();
        let mut before = std::mem::take(&mut *tallies);
        for limit in limits {
            let Some(candidate) = &limit.candidate else { continue };
            let fingerprint = candidate.name.fingerprint();
            let kept =
                before.remove(&fingerprint).filter(|(known, _)| have_same_figures(known, limit));
            let tally = kept.map_or_else(|| CandidateTally::new(now), |(_, tally)| tally);
            tallies.insert(fingerprint, (limit.clone(), tally));
        }
    }

    /// Counts a request about which this candidate decided. A request that began before the candidate got
    /// its present figures is not counted.
    pub fn count(&self, candidate: &LimitSpec, key: &[u8], by: RejectedBy) {
        let mut tallies = self.tallies.lock();
        let Some((limit, tally)) = tallies.get_mut(&candidate.name.fingerprint()) else { return };
        if limit.candidate.as_ref().is_some_and(|it| it.figures == candidate.figures) {
            tally.count(KEY_HASHER.hash_one(key), by);
        }
    }
}

/// The sum of what these workers have counted for the candidate of `limit`. The counts of a worker whose settings have
/// other figures are left out. `None` if `limit` has no candidate, or no worker counts it yet.
pub(crate) fn read<'w>(
    workers: impl IntoIterator<Item = &'w CandidateTallies>,
    limit: &LimitSpec,
) -> Option<CandidateTally> {
    let fingerprint = limit.candidate.as_ref()?.name.fingerprint();
    let tallies = workers.into_iter().filter_map(|worker| {
        let tallies = worker.tallies.lock();
        let (of, tally) = tallies.get(&fingerprint)?;
        have_same_figures(of, limit).then(|| tally.clone())
    });
    tallies.reduce(CandidateTally::plus)
}

/// Whether both limits and their candidates have the same figures, so that the counts stay.
fn have_same_figures(one: &LimitSpec, other: &LimitSpec) -> bool {
    let candidates = [one, other].map(|limit| limit.candidate.as_ref().map(|it| &it.figures));
    one.figures == other.figures
        && one.key == other.key
        && one.cost == other.cost
        && candidates[0] == candidates[1]
}

impl CandidateTally {
    pub(crate) fn new(since: Timestamp) -> Self {
        let [all, rejected, limit_rejected] = Default::default();
        Self { since, all, rejected, limit_rejected }
    }

    fn count(&mut self, key: u64, by: RejectedBy) {
        self.all.count(key);
        if by.candidate {
            self.rejected.count(key);
        }
        if by.limit {
            self.limit_rejected.count(key);
        }
    }

    fn plus(mut self, other: Self) -> Self {
        self.since = self.since.min(other.since);
        self.all.add(&other.all);
        self.rejected.add(&other.rejected);
        self.limit_rejected.add(&other.limit_rejected);
        self
    }

    /// These requests in percent of all, with three digits after the point.
    pub(crate) fn percent(&self, of: &CandidateCount) -> f64 {
        let share = of.requests as f64 / self.all.requests.max(1) as f64;
        (share * 100_000.0).round() / 1_000.0
    }
}

impl CandidateCount {
    fn count(&mut self, key: u64) {
        self.requests += 1;
        self.keys.insert(key);
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.keys.add(&other.keys);
    }

    /// The number of different keys. It is exact below 2,048. From there on it is an estimate with a standard error of
    /// 2.2 %.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.count()
    }
}

#[cfg(test)]
mod tests;
