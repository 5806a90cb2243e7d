//! Settles a bucket of this process once the request's use is known.

use super::shard::Due;
use super::{Memory, SharedBucket};
use crate::limit::algorithm::sliding_log::Log;
use crate::limit::algorithm::{Algorithm, Difference, Receipt, Settlement, State};
use crate::limit::time::Now;
use crate::store::BucketAsk;
use crate::store::claim::Taken;

impl Memory {
    /// Corrects a bucket after a request: the request used more or fewer tokens than it took at first.
    /// What was `taken` from a bucket that has been made new since is not given back.
    pub(in crate::store) fn settle(
        &self,
        ask: &BucketAsk<'_>,
        settled: &Settlement,
        taken: Taken,
        now: Now,
    ) {
        if !taken.from_shared && self.settle_own(ask, settled, taken.resets, now) {
            return;
        }
        let (algorithm, id) = (ask.ask.algorithm, self.shared_identity(ask));
        let mut shared = self.shared.lock();
        let (before, mut log) = match shared.remove(&id) {
            Some(bucket) => (Some(bucket.state), bucket.log),
            None => (None, Log::default()),
        };
        if let Some(state) = after(&algorithm, before, &mut log, settled, now) {
            let due = Due::of(&algorithm, state);
            shared.insert(id, SharedBucket { state, due, log });
        }
    }

    /// Writes a bucket of which so many tokens are used. Where there is no room, nothing is written.
    pub(in crate::store) fn write_used(&self, ask: &BucketAsk<'_>, used: u64, now: Now) {
        let (algorithm, id) = (ask.ask.algorithm, self.identity(ask));
        let used = Difference::More(used);
        let settled = Settlement { used, receipt: Receipt::NONE, patience: ask.ask.patience };
        let Some(state) = after(&algorithm, None, &mut Log::default(), &settled, now) else {
            return;
        };
        let mut shards = self.lock(&[id]);
        let shard = shards.of(id);
        if shard.state(id).is_some() || self.make_room(shard, &[id], now) {
            shard.put(id, state, Due::of(&algorithm, state), now);
        }
    }

    /// Settles with the key's own bucket. `false` where the key has none and there is no room for one.
    fn settle_own(&self, ask: &BucketAsk<'_>, settled: &Settlement, resets: u64, now: Now) -> bool {
        let (algorithm, id) = (ask.ask.algorithm, self.identity(ask));
        let mut shards = self.lock(&[id]);
        let shard = shards.of(id);
        let gives = matches!(settled.used, Difference::Less(_));
        if gives && self.resets.was_after(resets, id) {
            return true;
        }
        // A missing bucket was full and is forgotten, or was evicted.
        let state = shard.state(id);
        let mut log = match algorithm {
            Algorithm::SlidingLog(_) => shard.take_log(id),
            _ => Log::default(),
        };
        match after(&algorithm, state, &mut log, settled, now) {
            Some(new) if state.is_some() || self.make_room(shard, &[id], now) => {
                shard.put(id, new, Due::of(&algorithm, new), now);
                if let State::SlidingLog(_) = new {
                    *shard.log(id) = log;
                }
                true
            }
            Some(_) => false,
            None => {
                self.removed(usize::from(shard.remove(id)));
                true
            }
        }
    }
}

/// The bucket's state after the settlement. `None` is a new bucket.
fn after(
    algorithm: &Algorithm,
    state: Option<State>,
    log: &mut Log,
    settled: &Settlement,
    now: Now,
) -> Option<State> {
    let now = algorithm.time(now);
    match algorithm {
        Algorithm::SlidingLog(params) => log.settle(params, settled, now).map(State::SlidingLog),
        _ => algorithm.settle(state, settled, now),
    }
}
