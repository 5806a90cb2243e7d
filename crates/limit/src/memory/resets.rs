//! Which buckets were reset lately. If a request took before the reset, it must not give back to the new bucket.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Identity;

/// The most resets that are remembered. If more come during one request, the request may give back to a bucket from
/// which it did not take.
const MOST_NOTED: usize = 4_096;

/// The buckets that were reset last. The lock of a bucket's shard must be held for each question about the
/// bucket: then a request takes, settles and is counted either before a reset or after it.
#[derive(Default)]
pub(super) struct Resets {
    count: AtomicU64,
    noted: Mutex<VecDeque<(u64, Identity)>>,
}

impl Resets {
    /// The number of resets so far, for [`Resets::was_after`].
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, id: Identity) {
        let mut noted = self.noted.lock();
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        if noted.len() >= MOST_NOTED {
            noted.pop_front();
        }
        noted.push_back((count, id));
    }

    /// Whether this bucket was reset after the first `count` resets.
    pub(super) fn was_after(&self, count: u64, id: Identity) -> bool {
        if count >= self.count() {
            return false;
        }
        let noted = self.noted.lock();
        let mut later = noted.iter().rev().take_while(|(number, _)| *number > count);
        later.any(|(_, reset)| *reset == id)
    }
}
