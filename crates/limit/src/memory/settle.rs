//! Settles a bucket of this process once the request's use is known.

use super::identity::Identity;
use super::shard::{Due, Shard};
use super::table::Memory;
use crate::algorithm::sliding_log::Log;
use crate::algorithm::{Algorithm, BucketState, Difference, Settlement};
use crate::bucket::{BucketReceipt, KeyedAsk};
use crate::time::Now;

impl Memory {
    /// Corrects a bucket after a request: the request used more or fewer tokens than it took at first. If the bucket
    /// was reset after the request took, nothing is given back.
    pub fn settle(&self, ask: &KeyedAsk<'_>, settled: &Settlement, taken: BucketReceipt, now: Now) {
        if !taken.from_shared {
            let id = self.identity(ask);
            let mut shards = self.lock(&[id]);
            let gives = matches!(settled.used, Difference::Less(_));
            if gives && self.resets.was_after(taken.resets, id) {
                return;
            }
            let make_room = |shard: &mut Shard| self.make_room(shard, id, &[id], now);
            if let Some(removed) = settle_in(shards.of(id), id, ask, settled, make_room, now) {
                return self.removed(removed);
            }
        }
        let id = self.shared_identity(ask);
        settle_in(&mut self.shared.lock(), id, ask, settled, |_| true, now);
    }
}

/// Settles with a bucket of this shard. Returns how many buckets were removed. `None` if the bucket is missing and there
/// is no room for one.
fn settle_in(
    shard: &mut Shard,
    id: Identity,
    ask: &KeyedAsk<'_>,
    settled: &Settlement,
    make_room: impl FnOnce(&mut Shard) -> bool,
    now: Now,
) -> Option<usize> {
    let algorithm = &ask.ask.algorithm;
    // A missing bucket was forgotten because it was full, or was evicted.
    let state = shard.state(id, now);
    let mut log = match (algorithm, state) {
        (Algorithm::SlidingLog(_), Some(_)) => shard.take_log(id),
        _ => Log::default(),
    };
    let time = algorithm.time(now);
    let new = match algorithm {
        Algorithm::SlidingLog(params) => {
            log.settle(params, settled, time).map(BucketState::SlidingLog)
        }
        _ => algorithm.settle(state, settled, time),
    };
    let Some(new) = new else {
        return Some(usize::from(shard.remove(id)));
    };
    if state.is_none() && !shard.has(id) && !make_room(shard) {
        return None;
    }
    shard.put(id, new, Due::of(algorithm, new), now);
    if let BucketState::SlidingLog(_) = new {
        *shard.log(id) = log;
    }
    Some(0)
}
