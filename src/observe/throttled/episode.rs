//! An episode of throttling. It begins with a limit's first rejection. It ends with the first interval in which the
//! limit rejects nothing. A line in the log then says so.

use std::mem::take;

use tracing::info;

use super::TARGET;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::distinct::DistinctKeys;

#[derive(Debug, Default)]
pub(super) struct Episode {
    began: Timestamp,
    last: Timestamp,
    /// Each key counts once, however often it comes back.
    keys: DistinctKeys,
    count: u64,
    /// Keys that were rejected since the last summary (`keys_now`), and in the interval before
    /// (`keys_before`).
    keys_now: u64,
    pub(super) keys_before: u64,
    /// Whether the limit has rejected a request since the last interval ended.
    pub(super) goes_on: bool,
}

impl Episode {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { began: now, last: now, goes_on: true, ..Self::default() }
    }

    /// Adds `count` rejections of a key. `id` is the key's hash, and `last` the time of the last rejection.
    pub(super) fn add(&mut self, id: u64, count: u64, last: Timestamp) {
        self.add_uncounted(count);
        self.keys.insert(id);
        self.keys_now += 1;
        self.last = self.last.max(last);
    }

    /// Adds `count` rejections of keys for which the table has no room.
    pub(super) fn add_uncounted(&mut self, count: u64) {
        self.count += count;
        self.goes_on = true;
    }

    /// Ends an interval. Returns whether the episode goes on.
    pub(super) fn end_interval(&mut self) -> bool {
        self.keys_before = take(&mut self.keys_now);
        take(&mut self.goes_on)
    }

    /// Logs that the episode has ended.
    pub(super) fn log(&self, limit: &Name) {
        let (keys, count) = (self.keys.count(), self.count);
        let lasted_ms = self.last.micros_since(self.began) / 1_000;
        info!(target: TARGET, limit = limit.as_str(), keys, count, lasted_ms, "throttling ended");
    }
}
