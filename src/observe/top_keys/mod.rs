//! Finds the keys that are rejected most, and the keys that are nearest to a limit. It keeps a few keys of each
//! limit, in fixed memory.
//!
//! Each worker has its own counts, and a reader adds up the counts of all workers. A worker counts each rejection.
//! If a request passes or is held, and its bucket has less than a quarter left, the worker notes the key. It notes
//! at most one such key each millisecond. Every other request costs only a comparison.
//!
//! A limit takes at most 110 KiB in each worker: three lists of 64 keys with at most 512 bytes. With keys of 20 bytes,
//! a limit takes 15 KiB. A limit without such keys takes no memory.

mod sketch;

use std::cmp::Reverse;
use std::hash::BuildHasher as _;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

use self::sketch::{KEYS, KeySketch, merged};
pub(crate) use self::sketch::{KeyCount, KeyLabel, OwnedLabel};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::KEY_HASHER;

/// Rejections are counted in periods of this length, in microseconds. A reader sees the running period and the one
/// before.
const PERIOD: u64 = 300_000_000;

/// After a decision that a key is near its limit, the key counts as near for this time.
const NEAR_FOR: Duration = Duration::from_secs(60);

/// A bucket with less than a quarter of its tokens left is near its limit.
const NEAR_PART: u64 = 4;

/// The most limits of which a worker counts keys.
const LIMITS: usize = 128;

/// The keys of one worker.
#[derive(Debug, Default)]
pub(crate) struct TopKeys {
    /// Only a reader takes this lock besides the worker.
    table: Mutex<LimitTable>,
    /// The time of the last note of a key near its limit, in milliseconds.
    last_near: AtomicU64,
}

/// What a reader sees of a limit's keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReadKeys {
    /// The keys that were rejected in the last periods, the most rejected first.
    pub(crate) rejected: Vec<KeyCount>,
    /// The keys near their limit, the nearest first.
    pub(crate) near: Vec<NearKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NearKey {
    id: u64,
    pub(crate) label: OwnedLabel,
    /// The tokens that the key's bucket had left, and the tokens of a full bucket.
    pub(crate) remaining: u64,
    pub(crate) burst: u64,
    /// When the bucket had `remaining` tokens.
    pub(crate) seen: Timestamp,
}

#[derive(Debug, Default)]
struct LimitTable {
    /// The number of the running period.
    period: u64,
    /// By the fingerprint of the limit's name.
    limits: HashMap<u64, LimitKeys>,
}

#[derive(Debug, Default)]
struct LimitKeys {
    rejected: KeySketch,
    rejected_before: KeySketch,
    near: Vec<NearKey>,
}

/// Whether a key is near its limit: its bucket has only a small part of its tokens left.
pub(crate) fn is_near(remaining: u64, burst: u64) -> bool {
    remaining.saturating_mul(NEAR_PART) < burst
}

/// The time before `now` whose rejections a reader sees: between one and two periods.
pub(crate) fn window(now: Timestamp) -> Duration {
    Duration::from_micros(PERIOD + now.as_micros() % PERIOD)
}

impl TopKeys {
    /// Counts a rejection of a key.
    pub(crate) fn rejected(&self, limit: &Name, key: KeyLabel<'_>, now: Timestamp) {
        let id = KEY_HASHER.hash_one(key.text);
        self.of(limit, now, |keys| keys.rejected.record(id, now, key));
    }

    /// Notes that the bucket of a key has little left. Does nothing if another key was noted in the same
    /// millisecond.
    pub(crate) fn near(
        &self,
        limit: &Name,
        key: KeyLabel<'_>,
        remaining: u64,
        burst: u64,
        now: Timestamp,
    ) {
        let millis = now.as_micros() / 1_000;
        if self.last_near.load(Ordering::Relaxed) == millis {
            return;
        }
        self.last_near.store(millis, Ordering::Relaxed);
        let id = KEY_HASHER.hash_one(key.text);
        let new = NearKey { id, label: OwnedLabel::default(), remaining, burst, seen: now };
        self.of(limit, now, |keys| keys.note(new, key));
    }

    /// Calls `change` with the keys of a limit, unless there are too many limits.
    fn of(&self, limit: &Name, now: Timestamp, change: impl FnOnce(&mut LimitKeys)) {
        let mut table = self.table.lock();
        table.begin_period(now);
        let is_full = table.limits.len() >= LIMITS;
        match table.limits.entry(limit.fingerprint()) {
            Entry::Occupied(mut known) => change(known.get_mut()),
            Entry::Vacant(_) if is_full => {}
            Entry::Vacant(new) => change(new.insert(LimitKeys::default())),
        }
    }
}

/// At most `most` keys of a limit in each list, as all workers together see them.
pub(crate) fn read<'w>(
    workers: impl IntoIterator<Item = &'w TopKeys>,
    limit: &Name,
    now: Timestamp,
    most: usize,
) -> ReadKeys {
    let (mut sketches, mut near) = (Vec::new(), Vec::<NearKey>::new());
    for worker in workers {
        let mut table = worker.table.lock();
        table.begin_period(now);
        let Some(keys) = table.limits.get(&limit.fingerprint()) else { continue };
        sketches.extend([keys.rejected.clone(), keys.rejected_before.clone()]);
        for key in keys.near.iter().filter(|key| key.is_fresh(now)) {
            match near.iter_mut().find(|known| known.id == key.id) {
                Some(known) if known.seen < key.seen => known.clone_from(key),
                Some(_) => {}
                None => near.push(key.clone()),
            }
        }
    }
    // The list has the keys that are rejected most now. It is sorted by their counts.
    let mut rejected = merged(&sketches, now);
    let rate = |key: &KeyCount| key.recent.per_second(now);
    rejected.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    rejected.truncate(most);
    rejected
        .sort_by(|a, b| (Reverse(a.count), &a.label.text).cmp(&(Reverse(b.count), &b.label.text)));
    near.sort_by(|a, b| a.share().total_cmp(&b.share()).then(b.seen.cmp(&a.seen)));
    near.truncate(most);
    ReadKeys { rejected, near }
}

impl LimitTable {
    /// Begins a new period if the last one is over. Then it removes the limits whose keys no reader sees any more, so
    /// that other limits get room.
    fn begin_period(&mut self, now: Timestamp) {
        let period = now.as_micros() / PERIOD;
        let is_next = match period.saturating_sub(self.period) {
            0 => return,
            passed => passed == 1,
        };
        self.period = period;
        self.limits.retain(|_, keys| {
            let last = take(&mut keys.rejected);
            keys.rejected_before = if is_next { last } else { KeySketch::default() };
            keys.near.retain(|key| key.is_fresh(now));
            !keys.rejected_before.is_empty() || !keys.near.is_empty()
        });
    }
}

impl LimitKeys {
    /// Notes a key near its limit. If there is no room, the new key replaces a key that is further from its limit, or
    /// that was seen too long ago.
    fn note(&mut self, mut new: NearKey, key: KeyLabel<'_>) {
        if let Some(known) = self.near.iter_mut().find(|known| known.id == new.id) {
            new.label = take(&mut known.label);
            *known = new;
            return;
        }
        if self.near.len() >= KEYS {
            let now = new.seen;
            let share = |key: &NearKey| if key.is_fresh(now) { key.share() } else { f64::INFINITY };
            let shares = self.near.iter().map(share).enumerate();
            let furthest = shares.max_by(|(_, a), (_, b)| a.total_cmp(b));
            let Some((furthest, _)) = furthest.filter(|(_, share)| *share > new.share()) else {
                return;
            };
            self.near.swap_remove(furthest);
        }
        new.label.write(key);
        self.near.push(new);
    }
}

impl NearKey {
    /// The share of the key's bucket that is left, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        self.remaining as f64 / self.burst.max(1) as f64
    }

    fn is_fresh(&self, now: Timestamp) -> bool {
        Duration::from_micros(now.micros_since(self.seen)) <= NEAR_FOR
    }
}

#[cfg(test)]
mod tests;
