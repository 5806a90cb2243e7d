//! Counts and logs the settlements that may not have reached Redis.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::StoreError;
use crate::observe::events;
use crate::observe::seldom::Seldom;

/// How many of this process's settlements were lost, and how many of them the log has counted.
pub(super) struct Unsettled {
    pub(super) count: AtomicU64,
    logged: AtomicU64,
    lines: Seldom<()>,
}

impl Default for Unsettled {
    fn default() -> Self {
        // An outage must not fill the log.
        let lines = Seldom::new(Duration::from_secs(10));
        Self { count: AtomicU64::new(0), logged: AtomicU64::new(0), lines }
    }
}

impl Unsettled {
    pub(super) fn add(&self, error: &StoreError) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if self.lines.is_due(()) {
            let before = self.logged.swap(count, Ordering::Relaxed);
            events::costs_not_settled(error, count.saturating_sub(before));
        }
    }
}
