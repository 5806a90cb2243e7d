//! Settlements that Redis was not told of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::StoreError;
use crate::observe::events;

/// Between two log lines about settlements that were lost: an outage must not fill the log.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// How many of this process's settlements were lost, and what was logged of it.
#[derive(Default)]
pub(in crate::store) struct Unsettled {
    count: AtomicU64,
    last_line: Mutex<Option<LogLine>>,
}

#[derive(Clone, Copy)]
struct LogLine {
    at: Instant,
    count: u64,
}

impl Unsettled {
    pub(in crate::store) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, error: &StoreError) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut last = self.last_line.lock();
        if last.is_none_or(|last| last.at.elapsed() >= COMPLAINT_PAUSE) {
            let before = last.map_or(0, |last| last.count);
            *last = Some(LogLine { at: Instant::now(), count });
            drop(last);
            events::costs_not_settled(error, count.saturating_sub(before));
        }
    }
}
