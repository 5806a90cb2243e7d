//! Settles a bucket of this process once the request's use is known.

use std::cmp::Ordering;

use super::identity::Identity;
use super::shard::{Due, Shard};
use super::table::Memory;
use crate::limit::algorithm::sliding_log::Log;
use crate::limit::algorithm::{Algorithm, BucketState, Difference, Receipt, Settlement, Want};
use crate::limit::rate::Cost;
use crate::limit::time::{Now, Timestamp};
use crate::limit::waiting::MaxWait;
use crate::store::bucket::{BucketAsk, BucketReceipt};

impl Memory {
    /// Corrects a bucket after a request: the request used more or fewer tokens than it took at first. If the bucket
    /// was reset after the request took, nothing is given back.
    pub(in crate::store) fn settle(
        &self,
        ask: &BucketAsk<'_>,
        settled: &Settlement,
        taken: BucketReceipt,
        now: Now,
    ) {
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

    /// Writes that at least `used` tokens of a bucket are used. A bucket with fewer tokens left stays as it is:
    /// requests may have taken from it while Redis was away. If there is no room, nothing is written.
    pub(in crate::store) fn write_used(&self, ask: &BucketAsk<'_>, used: u64, now: Now) {
        let (algorithm, id) = (ask.ask.algorithm, self.identity(ask));
        let used = Difference::More(used);
        let settled = Settlement { used, receipt: Receipt::NONE, max_wait: ask.ask.max_wait };
        let Some(state) = after(&algorithm, None, &mut Log::default(), &settled, now) else {
            return;
        };
        let mut shards = self.lock(&[id]);
        let shard = shards.of(id);
        let had = shard.state(id, now);
        if had.is_some_and(|had| is_emptier(&algorithm, had, state, algorithm.time(now))) {
            return;
        }
        if shard.has(id) || self.make_room(shard, id, &[id], now) {
            shard.put(id, state, Due::of(&algorithm, state), now);
        }
    }
}

/// Whether `one` leaves no more tokens than `other` does.
fn is_emptier(algorithm: &Algorithm, one: BucketState, other: BucketState, now: Timestamp) -> bool {
    let want = Want { cost: Cost::ONE, max_wait: MaxWait::NONE };
    let left = |state| algorithm.decide(Some(state), want, now).untouched;
    // `untouched` does not show parts of a token, nor debts. The time until the bucket is full shows both.
    let is_later = || algorithm.fresh_at(one) >= algorithm.fresh_at(other);
    match left(one).cmp(&left(other)) {
        Ordering::Less => true,
        Ordering::Equal => is_later(),
        Ordering::Greater => false,
    }
}

/// Settles with a bucket of this shard. Returns how many buckets were removed. `None` if the bucket is missing and there
/// is no room for one.
fn settle_in(
    shard: &mut Shard,
    id: Identity,
    ask: &BucketAsk<'_>,
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
    let Some(new) = after(algorithm, state, &mut log, settled, now) else {
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

/// The bucket's state after the settlement, as [`Algorithm::settle`] returns it.
fn after(
    algorithm: &Algorithm,
    state: Option<BucketState>,
    log: &mut Log,
    settled: &Settlement,
    now: Now,
) -> Option<BucketState> {
    let now = algorithm.time(now);
    match algorithm {
        Algorithm::SlidingLog(params) => {
            log.settle(params, settled, now).map(BucketState::SlidingLog)
        }
        _ => algorithm.settle(state, settled, now),
    }
}
