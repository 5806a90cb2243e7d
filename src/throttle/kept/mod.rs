//! The last rejections of a process, for `tidegate why`.
//!
//! Each worker has its own table, and only readers take its lock beside the worker. A reader holds the lock while it
//! looks for its rejections. A worker keeps the last [`OF_KEY`] rejections of a key, so that many rejections of one key
//! do not displace the others. It keeps [`OF_PROCESS`] rejections in all, and fewer on machines with many workers. All
//! workers together keep [`OF_MACHINE`] rejections. A table forgets its oldest ones when it
//! holds a quarter more.
//! With the longest texts all tables together need 90 MB.

mod table;

use std::hash::BuildHasher as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;

use self::table::RejectionTable;
use super::rejection::Rejection;
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;

/// The rejections that a process keeps: its newest.
const OF_PROCESS: usize = 10_000;

/// Of these, the most of one key.
const OF_KEY: usize = 50;

/// The most rejections in the tables of all workers.
const OF_MACHINE: usize = 32_000;

/// The number of keys for which a [`RejectionSeries`] is kept.
const SERIES: usize = 8_192;

static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

/// The last rejections of all workers.
#[derive(Debug)]
pub(crate) struct KeptRejections {
    workers: Vec<Mutex<RejectionTable>>,
    /// Whether there was a rejection at all.
    has_some: AtomicBool,
    /// The series of keys, counted by all workers. If two keys have the same place, the key that was rejected last has
    /// it.
    series: Box<[SharedSeries]>,
    since: Timestamp,
}

/// The rejections of a key since its last request that passed. The times are microseconds of a [`Timestamp`].
#[derive(Debug, Default)]
struct SharedSeries {
    /// The key's hash.
    key: AtomicU64,
    /// The time of the first rejection.
    since: AtomicU64,
    rejected: AtomicU64,
    /// The requests that came too early: before the time in the previous answer.
    early: AtomicU64,
    /// The time in the last answer, from which the client may come again.
    told: AtomicU64,
}

/// The rejections of a key since its last request that passed: the time of the first one, their number, and how many of
/// the requests came before the time in the previous answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RejectionSeries {
    pub(crate) since: Timestamp,
    pub(crate) rejected: u64,
    pub(crate) early: u64,
}

impl KeptRejections {
    /// Nothing is kept yet. `now` is the time of day.
    pub(crate) fn new(workers: usize, now: Timestamp) -> Self {
        let most = OF_PROCESS.min(OF_MACHINE / workers.max(1));
        let table = || Mutex::new(RejectionTable::new(most));
        Self {
            workers: (0..workers.max(1)).map(|_| table()).collect(),
            has_some: AtomicBool::new(false),
            series: (0..SERIES).map(|_| Default::default()).collect(),
            since: now,
        }
    }

    /// Keeps a rejection of this worker. `told` is the wait in the answer. `write` writes the rejection over an older
    /// one.
    pub(super) fn keep(
        &self,
        worker: usize,
        (limit, key): (&Name, &Key),
        (now, told): (Timestamp, Option<Duration>),
        write: impl FnOnce(&mut Rejection),
    ) {
        let Some(table) = self.workers.get(worker % self.workers.len()) else { return };
        self.has_some.store(true, Ordering::Relaxed);
        let key = hash(limit, key);
        let told = told.map_or(u64::MAX, |told| now.plus(told).as_micros());
        self.series_at(key).add(key, now.as_micros(), told);
        let mut table = table.lock();
        let kept = table.place(key);
        write(kept);
        kept.hash = key;
    }

    /// A request of this key passes.
    pub(super) fn passed(&self, limit: &Name, key: &Key) {
        if !self.has_some.load(Ordering::Relaxed) {
            return;
        }
        let key = hash(limit, key);
        let series = self.series_at(key);
        if series.key.load(Ordering::Relaxed) == key {
            series.end();
        }
    }

    fn series_at(&self, key: u64) -> &SharedSeries {
        &self.series[usize::try_from(key % SERIES as u64).unwrap_or_default()]
    }

    /// The rejections that `wanted` wants, the newest first.
    pub(crate) fn find(&self, wanted: impl Fn(&Rejection) -> bool) -> Vec<Rejection> {
        let oldest = self.oldest();
        let mut found = Vec::new();
        for worker in &self.workers {
            let table = worker.lock();
            let kept = table.all().filter(|it| it.now.steady >= oldest && wanted(it));
            found.extend(kept.cloned());
        }
        found.sort_by(|one, other| {
            other.now.steady.cmp(&one.now.steady).then(other.id.cmp(&one.id))
        });
        found
    }

    /// The rejections of this key, the newest first.
    pub(crate) fn of_key(&self, limit: &str, key: &str) -> Vec<Rejection> {
        let mut found = self.find(|rejection| rejection.is_of_key(limit, key));
        found.truncate(OF_KEY);
        found
    }

    /// The time of the oldest of the newest [`OF_PROCESS`] rejections.
    fn oldest(&self) -> Timestamp {
        let mut times = Vec::new();
        for worker in &self.workers {
            times.extend(worker.lock().all().map(|it| it.now.steady));
        }
        match times.len().checked_sub(OF_PROCESS) {
            None | Some(0) => Timestamp::MIN,
            Some(more) => *times.select_nth_unstable(more).1,
        }
    }

    /// The time of day since which nothing is lost.
    pub(crate) fn since(&self) -> Timestamp {
        let oldest = self.workers.iter().filter_map(|worker| {
            let table = worker.lock();
            table.all().map(|it| it.now.wall).min().filter(|_| table.is_full())
        });
        oldest.chain([self.oldest(), self.since]).max().unwrap_or_default()
    }

    /// The series of this key, which was rejected.
    pub(crate) fn series(&self, key: u64) -> RejectionSeries {
        let SharedSeries { key: own, since, rejected, early, .. } = self.series_at(key);
        let [own, since, rejected, early] =
            [own, since, rejected, early].map(|it| it.load(Ordering::Relaxed));
        let since = Timestamp::from_micros(since).unwrap_or_default();
        let series = RejectionSeries { since, rejected, early };
        Some(series).filter(|_| own == key).unwrap_or_default()
    }
}

impl SharedSeries {
    /// A request of this key is rejected at `now`.
    fn add(&self, key: u64, now: u64, told: u64) {
        if self.key.swap(key, Ordering::Relaxed) != key {
            self.end();
        }
        let is_early = now < self.told.swap(told, Ordering::Relaxed);
        self.early.fetch_add(u64::from(is_early), Ordering::Relaxed);
        if self.rejected.fetch_add(1, Ordering::Relaxed) == 0 {
            self.since.store(now, Ordering::Relaxed);
        }
    }

    fn end(&self) {
        let Self { rejected, early, told, .. } = self;
        [rejected, early, told].iter().for_each(|it| it.store(0, Ordering::Relaxed));
    }
}

/// The hash of a limit and a key.
fn hash(limit: &Name, key: &Key) -> u64 {
    HASHER.hash_one((limit.fingerprint(), key.as_bytes()))
}

#[cfg(test)]
mod tests;
