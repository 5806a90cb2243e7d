//! Counts what happens while the table is full, and logs the first case of each kind.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::name::Name;

/// How often there was no room for a new bucket, by what was done.
#[derive(Default)]
pub struct FullCounts {
    /// Decisions that shared buckets made.
    pub shared: AtomicU64,
    /// Buckets that were forgotten before they were full.
    pub forgotten: AtomicU64,
}

impl FullCounts {
    /// Logs nothing: the first case of each kind counts as logged.
    pub(super) fn reported() -> Self {
        Self { shared: AtomicU64::new(1), forgotten: AtomicU64::new(1) }
    }

    /// There was no room, so a limit's shared bucket decided.
    pub(super) fn shared(&self, limit: &Name, keys: usize) {
        if self.shared.fetch_add(1, Ordering::Relaxed) == 0 {
            let help = "raise store.max_keys; tidegate_shared_decisions_total counts the requests that it concerns";
            tracing::warn!(%limit, keys, help, "memory store full, new keys share a bucket");
        }
    }

    /// A bucket was forgotten before it was full.
    pub(super) fn forgotten(&self, keys: usize) {
        if self.forgotten.fetch_add(1, Ordering::Relaxed) == 0 {
            let help = "raise store.max_keys: a key whose bucket is forgotten begins with a full one; tidegate_forgotten_total counts these buckets";
            tracing::warn!(keys, help, "memory store full, buckets in use are forgotten");
        }
    }
}
