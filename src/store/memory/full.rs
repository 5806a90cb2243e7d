//! Counts what happens while the table is full, and logs the first case of each kind.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::limit::name::Name;

/// How often there was no room, by what followed.
#[derive(Default)]
pub(super) struct Full {
    shared: LoggedCount,
    forgotten: LoggedCount,
}

#[derive(Default)]
struct LoggedCount {
    count: AtomicU64,
    logged: AtomicBool,
}

impl LoggedCount {
    /// Counts one case. `true` for the first one.
    fn is_first(&self) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        !self.logged.load(Ordering::Relaxed) && !self.logged.swap(true, Ordering::Relaxed)
    }
}

impl Full {
    /// A limit's shared bucket decided for want of room.
    pub(super) fn shared(&self, limit: &Name, keys: usize) {
        if self.shared.is_first() {
            let help = "raise store.max_keys; tidegate_shared_decisions_total counts whom it meets";
            tracing::warn!(%limit, keys, help, "memory store full, new keys share a bucket");
        }
    }

    /// A bucket was forgotten before it was full.
    pub(super) fn forgotten(&self, keys: usize) {
        if self.forgotten.is_first() {
            let help = "raise store.max_keys: whoever is forgotten begins anew; \
                        tidegate_forgotten_total counts them";
            tracing::warn!(keys, help, "memory store full, buckets in use are forgotten");
        }
    }

    /// Decisions that shared buckets made.
    pub(super) fn shared_uses(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// Buckets that were forgotten before they were full.
    pub(super) fn forgotten_buckets(&self) -> u64 {
        self.forgotten.count.load(Ordering::Relaxed)
    }
}
