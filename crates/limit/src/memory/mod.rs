//! The buckets of this process: a table of at most `store.max_keys` buckets, split into shards with a lock
//! each. [`Memory`] answers questions about them, and its `sweep` is to run about once a second.
//!
//! Only locks make a caller wait, and a lock is held for one decision. A decision over several shards takes their
//! locks in ascending order. The shared buckets are in another shard, whose lock is taken last. `table` is the whole
//! table, `shard` keeps the buckets, `locked` takes the locks, `eviction` makes room, `shares` counts the buckets of
//! each limit, `settle` counts what a request used, `resets` knows which buckets were reset, and `full` counts what
//! a full table does.

mod blocks;
mod eviction;
mod full;
mod identity;
mod locked;
mod packed;
mod resets;
mod settle;
mod shard;
mod shares;
mod table;

use std::sync::atomic::Ordering;

use siphasher::sip128::SipHasher13;

pub use self::full::FullCounts;
pub use self::identity::Identity;
use self::identity::LimitMark;
use self::locked::shard_number;
use self::shard::{Due, Shard, Wanted};
pub use self::table::Memory;
use super::bucket::{BucketReceipt, BucketReply, Decider, KeyedAsk, LimitId, ReceiptUse};
use crate::algorithm::{Algorithm, BucketState, sliding_log};
use crate::decide::{Ask, Change, PerAsk, decide, decide_one};
use crate::decision::{Decision, Verdict};
use crate::time::Now;

/// The number of calls of [`Memory::sweep`] that together visit the whole table.
pub const SWEEP_STEPS: usize = 16;

/// The most buckets that one sweep evicts from a shard, while the table is over its bound.
const SWEEP_EVICTIONS: usize = 64;

/// The bucket that decides on an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BucketKind {
    /// The key's bucket, which the table has.
    Known,
    /// A new bucket, for which there is room.
    New,
    /// The limit's shared bucket: there is no room for a new one.
    Shared,
}

/// A bucket on which a decision is to be made.
struct FoundBucket {
    id: Identity,
    kind: BucketKind,
    state: Option<BucketState>,
}

impl FoundBucket {
    /// What the bucket says. `noted` is the number of resets before the request took, if receipts are needed.
    fn reply(
        &self,
        ask: &Ask,
        decision: Decision,
        change: Change,
        noted: Option<u64>,
        now: Now,
    ) -> BucketReply {
        let (from_shared, at) = (self.kind == BucketKind::Shared, ask.algorithm.time(now));
        let by = if from_shared { Decider::Shared } else { Decider::Process };
        let receipt = match (noted, change) {
            (Some(resets), Change::Taken(state, outcome)) => {
                let receipt = ask.receipt(outcome, state, now).under(&ask.algorithm, at);
                Some(BucketReceipt { receipt, from_shared, resets })
            }
            _ => None,
        };
        let window_left = match change.state().or(self.state) {
            Some(BucketState::FixedWindow(state)) => ask.algorithm.window_left(state.start, at),
            _ => None,
        };
        let took = matches!(change, Change::Taken(..));
        BucketReply { decision, by, took, receipt, window_left }
    }
}

impl Memory {
    /// The number of buckets in the table.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Sets the bound. If the table holds more buckets, sweeps evict the rest.
    pub fn set_max_keys(&self, max_keys: usize) {
        self.shares.set_max_keys(max_keys);
    }

    /// Decides over these asks together: every limit that allows takes, or none does. Returns one answer for each ask,
    /// and the verdict of the enforcing limits.
    pub fn take(
        &self,
        asks: &[KeyedAsk<'_>],
        receipts: ReceiptUse,
        now: Now,
    ) -> (PerAsk<BucketReply>, Verdict) {
        let ids: PerAsk<Identity> = asks.iter().map(|ask| self.identity(ask)).collect();
        let mut shards = self.lock(&ids);
        let mut buckets: PerAsk<FoundBucket> = PerAsk::new();
        for id in &ids {
            let kind = if shards.of(*id).has(*id) {
                BucketKind::Known
            } else if self.make_room(shards.of(*id), *id, &ids, now) {
                BucketKind::New
            } else {
                BucketKind::Shared
            };
            buckets.push(FoundBucket { id: *id, kind, state: None });
        }
        let has_shared = buckets.iter().any(|bucket| bucket.kind == BucketKind::Shared);
        let mut shared = has_shared.then(|| self.shared.lock());
        for (ask, bucket) in asks.iter().zip(&mut buckets) {
            let shard = match (bucket.kind, &mut shared) {
                (BucketKind::New, _) => continue,
                (BucketKind::Shared, Some(shared)) => {
                    self.full.note_shared(ask.limit.name);
                    bucket.id = self.shared_identity(ask);
                    shared
                }
                _ => shards.of(bucket.id),
            };
            bucket.state = state(shard, bucket.id, &ask.ask, now);
        }
        let states: PerAsk<Option<BucketState>> =
            buckets.iter().map(|bucket| bucket.state).collect();
        let wanted: PerAsk<Ask> = asks.iter().map(|ask| ask.ask).collect();
        let decided = decide(&wanted, &states, now);
        let (mut answers, mut changes) = (PerAsk::new(), decided.changes.into_iter());
        for ((ask, bucket), decision) in wanted.iter().zip(buckets).zip(decided.decisions) {
            let shard = match (bucket.kind, &mut shared) {
                (BucketKind::Shared, Some(shared)) => shared,
                _ => shards.of(bucket.id),
            };
            let change = changes.next().unwrap_or(Change::None);
            let is_kept = keep(shard, bucket.id, bucket.state, &ask.algorithm, change, now);
            if bucket.kind == BucketKind::New && !is_kept {
                self.removed(1);
            }
            answers.push(bucket.reply(ask, decision, change, self.noted(receipts), now));
        }
        (answers, decided.verdict)
    }

    /// Like [`Memory::take`], for one ask, without lists of buckets and locks. `None` if its bucket is new and no
    /// room can be made for it.
    pub fn take_one(
        &self,
        ask: &KeyedAsk<'_>,
        receipts: ReceiptUse,
        now: Now,
    ) -> Option<(BucketReply, Verdict)> {
        let id = self.identity(ask);
        let number = shard_number(id, self.shards.len());
        let mut shard = self.shards.get(number)?.lock();
        let before = state(&mut shard, id, &ask.ask, now);
        let is_new = before.is_none() && !shard.has(id);
        if is_new && !self.make_room(&mut shard, id, &[id], now) {
            return None;
        }
        let (decision, change, verdict) = decide_one(&ask.ask, before, now);
        let is_kept = keep(&mut shard, id, before, &ask.ask.algorithm, change, now);
        let noted = self.noted(receipts);
        drop(shard);
        if is_new && !is_kept {
            self.removed(1);
        }
        let bucket = FoundBucket { id, kind: BucketKind::Known, state: before };
        Some((bucket.reply(&ask.ask, decision, change, noted, now), verdict))
    }

    /// The number of resets so far, if receipts are needed.
    fn noted(&self, receipts: ReceiptUse) -> Option<u64> {
        (receipts == ReceiptUse::Needed).then(|| self.resets.count())
    }

    /// The decision that one ask alone would get. Nothing is taken.
    pub fn look(&self, ask: &KeyedAsk<'_>, now: Now) -> Decision {
        let id = self.identity(ask);
        let look = Ask { takes: false, ..ask.ask };
        let state = state(self.lock(&[id]).of(id), id, &look, now);
        look.step(state, now).decision
    }

    /// Resets the bucket to a new one.
    pub fn forget(&self, ask: &KeyedAsk<'_>) {
        let id = self.identity(ask);
        let mut shards = self.lock(&[id]);
        let removed = shards.of(id).remove(id);
        self.resets.note(id);
        self.removed(usize::from(removed));
    }

    /// Visits some of the shards, one lock at a time: forgets full buckets, evicts buckets over the bound,
    /// and gives memory back. [`SWEEP_STEPS`] calls visit the whole table.
    pub fn sweep(&self, now: Now) {
        let step = self.shards.len().div_ceil(SWEEP_STEPS);
        let from = self.swept.fetch_add(step, Ordering::Relaxed) % self.shards.len();
        for shard in self.shards.iter().cycle().skip(from).take(step) {
            let mut shard = shard.lock();
            self.removed(shard.sweep(now));
            let over = self.keys().saturating_sub(self.shares.max_keys());
            let evictions = (0..over.min(SWEEP_EVICTIONS)).take_while(|_| {
                let from = &self.shares.exceeded(None, &[]);
                self.evict(&mut shard, Wanted { from, spare: &[], now })
            });
            self.removed(evictions.count());
        }
        self.shared.lock().sweep(now);
    }

    /// Identifies a bucket. A limit whose id or algorithm changes begins with new buckets. A limit whose figures change
    /// keeps its buckets.
    pub fn identity(&self, ask: &KeyedAsk<'_>) -> Identity {
        self.hash(ask.limit, &ask.ask.algorithm, ask.key.as_bytes())
    }

    /// Identifies the shared bucket of a limit.
    fn shared_identity(&self, ask: &KeyedAsk<'_>) -> Identity {
        self.hash(ask.limit, &ask.ask.algorithm, b"")
    }

    /// Each limit has its own secrets for the hash. So the limit's name need not be hashed too.
    fn hash(&self, limit: LimitId<'_>, algorithm: &Algorithm, key: &[u8]) -> Identity {
        let (name, algorithm) = (limit.name.fingerprint(), algorithm.number());
        let secret = (self.secret.0 ^ name, self.secret.1 ^ limit.fingerprint ^ algorithm);
        let hash = SipHasher13::new_with_keys(secret.0, secret.1).hash(key);
        Identity::new(LimitMark::of(name, limit.fingerprint, algorithm), hash.h1, hash.h2)
    }
}

/// Writes the outcome of a decision into a bucket for which there is room. Returns whether there is something
/// to keep.
fn keep(
    shard: &mut Shard,
    id: Identity,
    before: Option<BucketState>,
    algorithm: &Algorithm,
    change: Change,
    now: Now,
) -> bool {
    let is_empty =
        |state: &BucketState| matches!(state, BucketState::SlidingLog(seen) if seen.used == 0);
    let before = before.filter(|state| !is_empty(state));
    let Some(state) = change.state().or(before) else { return false };
    let due = Due::of(algorithm, state);
    // After a reload with a slower rate or a smaller burst, a bucket is full later, or owes tokens. The new
    // due time is written even if nothing is taken. Otherwise the bucket would be forgotten too early.
    if change.state().is_some() || shard.due(id) != Some(due) {
        shard.put(id, state, due, now);
    }
    if let (Algorithm::SlidingLog(params), Some(BucketState::SlidingLog(seen))) =
        (algorithm, change.state())
    {
        shard.log(id).write(params, seen);
    }
    true
}

/// A bucket's state for a decision on this ask. A sliding log's state is read from its list.
fn state(shard: &mut Shard, id: Identity, ask: &Ask, now: Now) -> Option<BucketState> {
    let state = shard.state(id, now);
    let Algorithm::SlidingLog(params) = ask.algorithm else { return state };
    if state.is_none() {
        shard.take_log(id);
        return None;
    }
    let (log, now) = (shard.log(id), ask.algorithm.time(now));
    // A question that takes nothing may have other figures than the bucket. It must not change the log.
    if ask.takes {
        log.forget(&params, now);
    }
    let seen = log.seen(&params, ask.cost, now);
    Some(BucketState::SlidingLog(seen.unwrap_or_else(|| sliding_log::State::of_none(now))))
}

#[cfg(test)]
mod tests;
