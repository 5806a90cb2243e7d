//! The last rejections of a process, for `tidegate why`.
//!
//! Each worker has its own table, and only readers take its lock beside the worker. A reader holds the lock while it
//! looks for its rejections. A worker keeps the last [`OF_KEY`] rejections of a key, so that a flood of one key does
//! not wash out the others, and [`OF_PROCESS`] in all. On machines with many workers it keeps fewer, so that all workers
//! together keep [`OF_MACHINE`] at most: 60 MB, if each has the longest texts.

mod table;

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;

use self::table::RejectionTable;
use super::rejection::{KEY, MOST_OF_KEY, Rejection};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::start;

/// The rejections that a process keeps: its newest.
const OF_PROCESS: usize = 10_000;

/// Of these, the most of one key.
const OF_KEY: usize = 50;

/// The most rejections in the tables of all workers.
const OF_MACHINE: usize = 40_000;

/// The number of keys of which it is noted when a request of theirs last passed.
const PASSES: usize = 4_096;

static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

/// The last rejections of all workers.
#[derive(Debug)]
pub(crate) struct KeptRejections {
    workers: Vec<Mutex<RejectionTable>>,
    /// Whether there was a rejection at all.
    has_some: AtomicBool,
    /// What all workers know of a rejected key. Two keys may want one place. Then the key that was rejected last has it.
    places: Box<[SharedPlace]>,
    since: Timestamp,
}

/// What all workers know of a rejected key. The times are microseconds, as of a [`Timestamp`].
#[derive(Debug, Default)]
struct SharedPlace {
    /// The key's hash.
    owner: AtomicU64,
    /// When a request of the key last passed.
    passed: AtomicU64,
    /// The time that the last rejection was told.
    told: AtomicU64,
}

/// How a key has been rejected since a request of it last passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RejectionSeries {
    /// When the first of them came.
    pub(crate) since: Timestamp,
    /// When the last of them came.
    last: Timestamp,
    pub(crate) rejected: u64,
    /// Those that came before the time that the one before was told.
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
            places: (0..PASSES).map(|_| Default::default()).collect(),
            since: now,
        }
    }

    /// Keeps a rejection of this worker.
    pub(super) fn keep(&self, worker: usize, rejection: Arc<Rejection>) {
        let Some(by) = rejection.by() else { return };
        let key = hash(&by.limit, rejection.text(KEY));
        let Some(table) = self.workers.get(worker % self.workers.len()) else { return };
        self.has_some.store(true, Ordering::Relaxed);
        let passed = self.passed_at(key);
        let mut is_early = false;
        if let Some(place) = self.place(key) {
            if passed.is_none() {
                place.owner.store(key, Ordering::Relaxed);
                place.passed.store(0, Ordering::Relaxed);
                place.told.store(0, Ordering::Relaxed);
            }
            let now = rejection.now.steady;
            let told = rejection.wait.told.map_or(u64::MAX, |told| now.plus(told).as_micros());
            is_early = now.as_micros() < place.told.swap(told, Ordering::Relaxed);
        }
        table.lock().push(key, rejection, passed, is_early);
    }

    /// A request of this key passes.
    pub(super) fn passed(&self, limit: &Name, key: &Key, now: Timestamp) {
        if !self.has_some.load(Ordering::Relaxed) {
            return;
        }
        let key = hash(limit, start(key.as_str(), MOST_OF_KEY));
        if let Some(place) = self.place(key)
            && place.owner.load(Ordering::Relaxed) == key
        {
            place.passed.store(now.as_micros(), Ordering::Relaxed);
            place.told.store(0, Ordering::Relaxed);
        }
    }

    fn place(&self, key: u64) -> Option<&SharedPlace> {
        self.places.get(usize::try_from(key % PASSES as u64).ok()?)
    }

    /// When a request of this key last passed. `None` if nobody knows.
    fn passed_at(&self, key: u64) -> Option<Timestamp> {
        let place = self.place(key)?;
        let passed = || Timestamp::from_micros(place.passed.load(Ordering::Relaxed));
        (place.owner.load(Ordering::Relaxed) == key).then(|| passed().unwrap_or_default())
    }

    /// The rejections that `wanted` wants, the newest first.
    pub(crate) fn find(&self, wanted: impl Fn(&Rejection) -> bool) -> Vec<Arc<Rejection>> {
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
    pub(crate) fn of_key(&self, limit: &str, key: &str) -> Vec<Arc<Rejection>> {
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
        let lost = self.workers.iter().filter_map(|worker| worker.lock().lost());
        let lost = lost.map(|lost| lost.plus_micros(1)).chain([self.oldest()]);
        lost.max().unwrap_or_default().max(self.since)
    }

    /// How the key of this rejection has been rejected, by all workers together.
    pub(crate) fn series(&self, rejection: &Rejection) -> RejectionSeries {
        let Some(by) = rejection.by() else { return RejectionSeries::default() };
        let key = hash(&by.limit, rejection.text(KEY));
        let passed = self.passed_at(key).unwrap_or_default();
        let own = self.workers.iter().filter_map(|worker| worker.lock().series(key));
        let own = own.filter(|series| series.last > passed);
        own.reduce(|one, other| RejectionSeries {
            since: one.since.min(other.since),
            rejected: one.rejected + other.rejected,
            early: one.early + other.early,
            ..one
        })
        .unwrap_or_default()
    }
}

impl RejectionSeries {
    /// Adds a rejection. `passed` is when a request of the key last passed. `is_early` is whether the rejection came before
    /// the time that the one before was told.
    fn add(&mut self, rejection: &Rejection, passed: Timestamp, is_early: bool) {
        let now = rejection.now.steady;
        if self.rejected == 0 || passed >= self.last {
            *self = Self { since: now, ..Self::default() };
        }
        self.early += u64::from(is_early);
        self.rejected += 1;
        self.last = now;
    }
}

fn hash(limit: &Name, key: &str) -> u64 {
    HASHER.hash_one((limit.fingerprint(), key))
}

#[cfg(test)]
mod tests;
