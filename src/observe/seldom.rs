//! Decides about log lines that are written at once, and again only after a pause.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// When each kind of line was last written. The kinds come from the program and its configuration, so their number
/// is bounded.
#[derive(Debug)]
pub(crate) struct Seldom<K> {
    pause: Duration,
    written: Mutex<HashMap<K, Instant>>,
}

impl<K: Eq + Hash> Seldom<K> {
    /// `pause` is the time between two lines of a kind.
    pub(crate) fn new(pause: Duration) -> Self {
        Self { pause, written: Mutex::default() }
    }

    /// Whether a line of this kind is to be written now. If so, the pause begins.
    pub(crate) fn is_due(&self, kind: K) -> bool {
        let now = Instant::now();
        let mut written = self.written.lock();
        let due = written.get(&kind).is_none_or(|last| now.duration_since(*last) >= self.pause);
        if due {
            written.insert(kind, now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_due_at_once_and_after_the_pause() {
        let seldom = Seldom::new(Duration::from_secs(10));
        assert!(seldom.is_due("a") && !seldom.is_due("a"));
        assert!(seldom.is_due("b"), "another kind");
        tokio::time::advance(Duration::from_millis(9_999)).await;
        assert!(!seldom.is_due("a"));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(seldom.is_due("a") && !seldom.is_due("a"));
    }
}
