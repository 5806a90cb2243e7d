//! Finds the keys that are rejected most. It keeps a few keys of each limit, in fixed memory.
//!
//! Each worker has its own counts, and a reader adds up the counts of all workers. A worker counts each rejection.
//!
//! A limit takes at most 75 KiB in each worker: two lists of 64 keys with at most 512 bytes. With keys of 20 bytes, a
//! limit takes 10 KiB. A limit without such keys takes no memory.

mod sketch;

use std::cmp::Reverse;
use std::mem::take;
use std::time::Duration;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;

pub(crate) use self::sketch::{KeyCount, KeyLabel};
use self::sketch::{KeySketch, merged};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;

/// Rejections are counted in periods of this length, in microseconds. A reader sees the running period and the one
/// before.
const PERIOD: u64 = 300_000_000;

/// The most limits of which a worker counts keys.
const LIMITS: usize = 128;

/// The keys of one worker.
#[derive(Debug, Default)]
pub(crate) struct TopKeys {
    /// Only a reader takes this lock besides the worker.
    table: Mutex<LimitTable>,
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
}

/// The time before `now` whose rejections a reader sees: between one and two periods.
pub(crate) fn window(now: Timestamp) -> Duration {
    Duration::from_micros(PERIOD + now.as_micros() % PERIOD)
}

impl TopKeys {
    /// Counts a rejection of a key. `id` is its [`key_hash`](crate::observe::key_hash).
    pub(crate) fn rejected(&self, limit: &Name, id: u64, key: KeyLabel<'_>, now: Timestamp) {
        self.of(limit, now, |keys| keys.rejected.record(id, now, key));
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

/// At most `most` keys of a limit that were rejected in the last periods, as all workers together see them. The most
/// rejected comes first.
pub(crate) fn read<'w>(
    workers: impl IntoIterator<Item = &'w TopKeys>,
    limit: &Name,
    now: Timestamp,
    most: usize,
) -> Vec<KeyCount> {
    let mut sketches = Vec::new();
    for worker in workers {
        let mut table = worker.table.lock();
        table.begin_period(now);
        if let Some(keys) = table.limits.get(&limit.fingerprint()) {
            sketches.extend([keys.rejected.clone(), keys.rejected_before.clone()]);
        }
    }
    // The list has the keys that are rejected most now. It is sorted by their counts.
    let mut rejected = merged(&sketches, now);
    let rate = |key: &KeyCount| key.recent.per_second(now);
    rejected.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    rejected.truncate(most);
    rejected
        .sort_by(|a, b| (Reverse(a.count), &a.label.text).cmp(&(Reverse(b.count), &b.label.text)));
    rejected
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
            !keys.rejected_before.is_empty()
        });
    }
}

#[cfg(test)]
mod tests;
