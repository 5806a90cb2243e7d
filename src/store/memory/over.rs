//! Counts the keys that have used more than a limit's new figures allow.

use std::collections::{HashMap, HashSet};

use super::identity::{Identity, LimitMark};
use super::table::Memory;

use crate::limit::algorithm::sliding_log::Log;
use crate::limit::algorithm::{Algorithm, BucketState, Want};
use crate::limit::decision::Outcome;
use crate::limit::key::Key;
use crate::limit::rate::Cost;
use crate::limit::time::Now;
use crate::plan::{KeyDisplay, LoweredLimit};
use crate::store::name::BucketKey;

/// The keys of a lowered limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverCount {
    /// The keys whose next request the new figures refuse.
    pub(crate) over: u64,
    /// The keys whose bucket is not full.
    pub(crate) keys: u64,
}

/// Counts the buckets of one lowered limit.
struct OverCounter<'l> {
    limit: &'l LoweredLimit,
    /// The cost of the usual request.
    cost: Cost,
    /// The buckets of keys with an override.
    left_out: HashSet<Identity>,
    count: OverCount,
}

impl Memory {
    /// Counts the keys of each of these limits, in their order. Only one shard is locked at a time. If an override
    /// names a key exactly, the key is left out. If an override matches a key by a network or by `*`, the key counts:
    /// the table has only hashes of keys.
    pub(in crate::store) fn count_over(
        &self,
        limits: &[LoweredLimit],
        display: KeyDisplay,
        now: Now,
    ) -> Vec<OverCount> {
        let mut all: Vec<_> = limits.iter().map(|limit| self.counter(limit, display)).collect();
        let marks: HashMap<LimitMark, usize> =
            limits.iter().enumerate().map(|(index, limit)| (self.mark(limit), index)).collect();
        for shard in &self.shards {
            shard.lock().each(now, |mark, identity, state, log| {
                let counter = marks.get(&mark).and_then(|index| all.get_mut(*index));
                if let Some(counter) = counter.filter(|it| !it.left_out.contains(&identity)) {
                    counter.count.keys += 1;
                    counter.count.over += u64::from(counter.refuses(state, log, now));
                }
            });
        }
        all.into_iter().map(|counter| counter.count).collect()
    }

    fn counter<'l>(&self, limit: &'l LoweredLimit, display: KeyDisplay) -> OverCounter<'l> {
        let keys = limit.spec.overrides.single_keys().filter_map(Key::parse);
        let keys = keys.map(|key| BucketKey::new(&limit.spec, key, display));
        let left_out =
            keys.map(|key| self.hash(&limit.spec, &limit.before, key.shown().as_bytes()));
        let left_out = left_out.collect();
        OverCounter {
            limit,
            cost: limit.spec.cost.default_cost(),
            left_out,
            count: OverCount::default(),
        }
    }

    fn mark(&self, limit: &LoweredLimit) -> LimitMark {
        self.hash(&limit.spec, &limit.before, b"").limit()
    }
}

impl OverCounter<'_> {
    /// Whether the new figures refuse the usual request now.
    fn refuses(&self, state: BucketState, log: Option<&Log>, now: Now) -> bool {
        let algorithm = self.limit.after;
        let now = algorithm.time(now);
        let state = match (algorithm, log) {
            (Algorithm::SlidingLog(params), Some(log)) => {
                log.seen(&params, self.cost, now).map(BucketState::SlidingLog)
            }
            _ => Some(state),
        };
        let want = Want { cost: self.cost, max_wait: self.limit.spec.wait };
        let outcome = algorithm.decide(state, want, now).decision.outcome;
        matches!(outcome, Outcome::Reject { .. })
    }
}
