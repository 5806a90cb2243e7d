//! The buckets of this process: a bounded table, split into shards with a lock each.
//!
//! Nothing here waits but for a lock, and a lock is held for one decision. Where a decision needs
//! several shards their locks are taken in ascending order, and the one of the shared buckets last.

mod blocks;
mod eviction;
mod full;
mod locked;
mod packed;
mod settle;
mod shard;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use self::full::Full;
use self::locked::shard_number;
use self::shard::{Due, Identity, Shard};
use super::claim::{BucketAsk, Claim, Taken};
use crate::limit::algorithm::sliding_log::{self, Log};
use crate::limit::algorithm::{Algorithm, State, Want};
use crate::limit::decide::{Ask, Change, PerAsk, decide, decide_one};
use crate::limit::decision::{Decision, Verdict};
use crate::limit::patience::Patience;
use crate::limit::time::Now;

/// Buckets to a shard, about: few enough that a pass over all of them is short, and a little less
/// than a hash table of 1,024 places takes before it doubles.
const SHARD_SIZE: usize = 800;
const MOST_SHARDS: usize = 16_384;

/// So many calls of [`Memory::sweep`] go around the whole table.
pub(super) const SWEEP_STEPS: usize = 16;

/// Past its bound a sweep evicts so many of a shard at once.
const SWEEP_EVICTIONS: usize = 64;

/// The buckets of a process.
pub(super) struct Memory {
    secret: (u64, u64),
    shards: Box<[Mutex<Shard>]>,
    /// Where new keys go when nothing can be evicted: one bucket for each limit.
    shared: Mutex<HashMap<Identity, SharedBucket>>,
    keys: AtomicUsize,
    max_keys: AtomicUsize,
    full: Full,
    swept: AtomicUsize,
    /// Where the next look for a bucket to forget begins, where a shard has none.
    looked_at: AtomicUsize,
}

/// Where a claim's bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BucketPlace {
    /// In its shard.
    Known,
    /// Not there yet, but there is room for it.
    New,
    /// The limit's shared one.
    Shared,
}

/// A bucket that several keys share.
struct SharedBucket {
    state: State,
    due: Due,
    /// Empty but for an algorithm that keeps a list.
    log: Log,
}

/// A claim's bucket, as it is found.
struct Seat {
    id: Identity,
    place: BucketPlace,
    state: Option<State>,
}

/// Whether it is noted what a request takes, since some of it may come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noting {
    On,
    Off,
}

impl Memory {
    pub(super) fn new(max_keys: usize) -> Self {
        let shards = max_keys.div_ceil(SHARD_SIZE).clamp(1, MOST_SHARDS);
        // Each of the two takes its seed from the system.
        let secret = (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        Self {
            secret,
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            shared: Mutex::default(),
            keys: AtomicUsize::new(0),
            max_keys: AtomicUsize::new(max_keys.max(1)),
            full: Full::default(),
            swept: AtomicUsize::new(0),
            looked_at: AtomicUsize::new(0),
        }
    }

    /// Buckets held.
    pub(super) fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Decisions that were made by a shared bucket for want of room.
    pub(super) fn shared_uses(&self) -> u64 {
        self.full.shared_uses()
    }

    /// Buckets that were forgotten, for want of room, before they were full.
    pub(super) fn forgotten(&self) -> u64 {
        self.full.forgotten_buckets()
    }

    /// Another bound. Where more buckets are held, sweeps take the rest away.
    pub(super) fn set_max_keys(&self, max_keys: usize) {
        self.max_keys.store(max_keys.max(1), Ordering::Relaxed);
    }

    /// Decides over these claims together: every limit that allows takes, or none does.
    pub(super) fn take(&self, claims: &mut [&mut Claim<'_>], noting: Noting, now: Now) -> Verdict {
        // Most requests have one claim, which needs no lists of seats and locks.
        if let [claim] = claims
            && let Some(verdict) = self.take_one(claim, noting, now)
        {
            return verdict;
        }
        let ids: PerAsk<Identity> = claims.iter().map(|it| self.identity(&it.question())).collect();
        let mut shards = self.lock(&ids);
        let mut seats: PerAsk<Seat> = PerAsk::new();
        for id in &ids {
            let place = if shards.of(*id).state(*id).is_some() {
                BucketPlace::Known
            } else if self.make_room(shards.of(*id), &ids, now) {
                BucketPlace::New
            } else {
                BucketPlace::Shared
            };
            seats.push(Seat { id: *id, place, state: None });
        }
        let has_shared = seats.iter().any(|seat| seat.place == BucketPlace::Shared);
        let mut shared = has_shared.then(|| self.shared.lock());
        for (claim, seat) in claims.iter().zip(&mut seats) {
            match (seat.place, &mut shared) {
                (BucketPlace::Known, _) => {
                    seat.state = state(shards.of(seat.id), seat.id, &claim.ask, now)
                }
                (BucketPlace::Shared, Some(shared)) => {
                    self.full.shared(&claim.spec.name, self.keys());
                    seat.id = self.shared_identity(&claim.question());
                    let bucket = shared.get_mut(&seat.id);
                    seat.state = bucket.map(|it| read(it.state, &mut it.log, &claim.ask, now));
                }
                (BucketPlace::New | BucketPlace::Shared, _) => {}
            }
        }
        let states: PerAsk<Option<State>> = seats.iter().map(|seat| seat.state).collect();
        let asks: PerAsk<Ask> = claims.iter().map(|claim| claim.ask).collect();
        let decided = decide(&asks, &states, now);
        let said = decided.decisions.into_iter().zip(decided.changes);
        for ((claim, seat), (decision, change)) in claims.iter_mut().zip(seats).zip(said) {
            match (seat.place, &mut shared) {
                (BucketPlace::Shared, Some(shared)) => {
                    keep_shared(shared, seat.id, &claim.ask.algorithm, change.state());
                }
                _ => {
                    let (shard, algorithm) = (shards.of(seat.id), &claim.ask.algorithm);
                    self.keep(shard, (seat.id, seat.state), algorithm, (change.state(), now));
                }
            }
            decided_on(claim, decision, change, (noting, now));
            if let Some(taken) = &mut claim.taken {
                taken.from_shared = seat.place == BucketPlace::Shared;
            }
        }
        decided.verdict
    }

    /// The same for one claim. `None` where its bucket is new and no room can be made for it.
    fn take_one(&self, claim: &mut Claim<'_>, noting: Noting, now: Now) -> Option<Verdict> {
        let id = self.identity(&claim.question());
        let number = shard_number(id, self.shards.len());
        let mut shard = self.shards.get(number)?.lock();
        let before = state(&mut shard, id, &claim.ask, now);
        if before.is_none() && !self.make_room(&mut shard, &[id], now) {
            return None;
        }
        let (decision, change, verdict) = decide_one(&claim.ask, before, now);
        self.keep(&mut shard, (id, before), &claim.ask.algorithm, (change.state(), now));
        drop(shard);
        decided_on(claim, decision, change, (noting, now));
        Some(verdict)
    }

    /// Writes what a decision made of a bucket, for which there is room.
    fn keep(
        &self,
        shard: &mut Shard,
        (id, before): (Identity, Option<State>),
        algorithm: &Algorithm,
        (write, now): (Option<State>, Now),
    ) {
        match (write, before) {
            (Some(state), _) => {
                shard.put(id, state, Due::of(algorithm, state), now);
                if let (Algorithm::SlidingLog(params), State::SlidingLog(seen)) = (algorithm, state)
                {
                    shard.log(id).write(params, seen);
                }
            }
            (None, None) => self.release_room(),
            // Under a smaller burst than before a bucket may owe what it did not owe.
            (None, Some(state)) if algorithm.in_debt(state) => {
                shard.put(id, state, Due::of(algorithm, state), now);
            }
            (None, Some(_)) => {}
        }
    }

    /// What one ask would be told, with nothing taken.
    pub(super) fn look(&self, ask: &BucketAsk<'_>, now: Now) -> Decision {
        let id = self.identity(ask);
        let state = state(self.lock(&[id]).of(id), id, &ask.ask, now);
        let want = Want { cost: ask.ask.cost, patience: Patience::NONE };
        let step = ask.ask.algorithm.decide(state, want, ask.ask.algorithm.time(now));
        Decision { remaining: step.untouched, ..step.decision }
    }

    /// Makes the bucket a new one.
    pub(super) fn forget(&self, ask: &BucketAsk<'_>) {
        let id = self.identity(ask);
        let removed = self.lock(&[id]).of(id).remove(id);
        self.removed(usize::from(removed));
    }

    /// One step of forgetting what is full, evicting what is past the bound and giving memory back:
    /// [`SWEEP_STEPS`] of them go around, each lock is held for one shard alone.
    pub(super) fn sweep(&self, now: Now) {
        let step = self.shards.len().div_ceil(SWEEP_STEPS);
        let from = self.swept.fetch_add(step, Ordering::Relaxed) % self.shards.len();
        for shard in self.shards.iter().cycle().skip(from).take(step) {
            let mut shard = shard.lock();
            self.removed(shard.sweep(now));
            let over = self.keys().saturating_sub(self.max_keys.load(Ordering::Relaxed));
            let evictions =
                (0..over.min(SWEEP_EVICTIONS)).take_while(|_| self.evict(&mut shard, &[], now));
            self.removed(evictions.count());
        }
        self.shared.lock().retain(|_, bucket| !bucket.due.fresh(now));
    }

    /// What a bucket is known by: a limit whose algorithm or key changes begins anew, one whose
    /// figures change goes on.
    fn identity(&self, ask: &BucketAsk<'_>) -> Identity {
        self.hash(ask, ask.key.as_bytes())
    }

    /// The shared bucket of a limit.
    fn shared_identity(&self, ask: &BucketAsk<'_>) -> Identity {
        self.hash(ask, b"")
    }

    /// Each limit hashes with secrets of its own, so that only the key is left to be hashed.
    fn hash(&self, ask: &BucketAsk<'_>, key: &[u8]) -> Identity {
        let sources = ask.spec.key.sources.fingerprint();
        let (name, algorithm) = (ask.spec.name.fingerprint(), ask.ask.algorithm.number());
        let secret = (self.secret.0 ^ name, self.secret.1 ^ sources ^ algorithm);
        let hash = SipHasher13::new_with_keys(secret.0, secret.1).hash(key);
        Identity { shard: hash.h1, place: hash.h2 }
    }
}

/// Writes down what a limit said to a claim, and what it took.
fn decided_on(
    claim: &mut Claim<'_>,
    decision: Decision,
    change: Change,
    (noting, now): (Noting, Now),
) {
    claim.decision = Some(decision);
    claim.taken = match (noting, change) {
        (Noting::On, Change::Taken(state)) => Some(Taken {
            receipt: claim.ask.receipt(decision.outcome, state, now),
            from_shared: false,
        }),
        _ => None,
    };
}

/// Writes what a decision made of a bucket that several keys share.
fn keep_shared(
    shared: &mut HashMap<Identity, SharedBucket>,
    id: Identity,
    algorithm: &Algorithm,
    write: Option<State>,
) {
    let Some(state) = write else { return };
    let due = Due::of(algorithm, state);
    let mut log = shared.remove(&id).map(|bucket| bucket.log).unwrap_or_default();
    if let (Algorithm::SlidingLog(params), State::SlidingLog(seen)) = (algorithm, state) {
        log.write(params, seen);
    }
    shared.insert(id, SharedBucket { state, due, log });
}

/// A bucket's state, as a request is to see it.
fn state(shard: &mut Shard, id: Identity, ask: &Ask, now: Now) -> Option<State> {
    let state = shard.state(id)?;
    match state {
        State::SlidingLog(_) => Some(read(state, shard.log(id), ask, now)),
        _ => Some(state),
    }
}

fn read(state: State, log: &mut Log, ask: &Ask, now: Now) -> State {
    let Algorithm::SlidingLog(params) = ask.algorithm else { return state };
    let now = ask.algorithm.time(now);
    log.forget(&params, now);
    let seen = log.seen(&params, ask.cost, now);
    State::SlidingLog(seen.unwrap_or_else(|| sliding_log::State::of_none(now)))
}

#[cfg(test)]
mod tests;
