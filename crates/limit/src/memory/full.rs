//! Counts what happens while the table is full.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::name::Name;

/// How often there was no room for a new bucket, by what was done.
#[derive(Default)]
pub struct FullCounts {
    /// Decisions that shared buckets made.
    pub shared: AtomicU64,
    /// Buckets that were forgotten before they were full.
    pub forgotten: AtomicU64,
    /// The first limit whose shared bucket decided.
    pub first_shared: OnceLock<Name>,
}

impl FullCounts {
    /// There was no room, so a limit's shared bucket decided.
    pub(super) fn note_shared(&self, limit: &Name) {
        if self.shared.fetch_add(1, Ordering::Relaxed) == 0 {
            self.first_shared.get_or_init(|| limit.clone());
        }
    }
}
