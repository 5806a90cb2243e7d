//! Decides whether a log line may be written now. The first line may be written at once. After each line, an interval
//! must pass.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time since the last line of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogInterval {
    /// When the last line was written. `None` before the first one.
    last: Option<Instant>,
}

impl LogInterval {
    /// An interval that begins now, as after a line.
    pub(crate) fn from(now: Instant) -> Self {
        Self { last: Some(now) }
    }

    /// Whether a line may be written now, if lines are to be this far apart.
    pub(crate) fn is_over(self, interval: Duration, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) >= interval)
    }

    /// Whether a line may be written now. If so, the next interval begins.
    pub(crate) fn next(&mut self, interval: Duration, now: Instant) -> bool {
        let is_over = self.is_over(interval, now);
        if is_over {
            *self = Self::from(now);
        }
        is_over
    }
}

/// An interval for each kind of lines, for all threads. The kinds come from the program and its configuration, so their
/// number is bounded.
#[derive(Debug)]
pub(crate) struct LogIntervals<K> {
    length: Duration,
    kinds: Mutex<HashMap<K, LogInterval>>,
}

impl<K: Eq + Hash> LogIntervals<K> {
    /// `length` is the time between two lines of a kind.
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, kinds: Mutex::default() }
    }

    /// Whether a line of this kind may be written now. If so, its next interval begins.
    pub(crate) fn next(&self, kind: K) -> bool {
        self.kinds.lock().entry(kind).or_default().next(self.length, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_comes_at_once_and_after_the_interval() {
        let lines = LogIntervals::new(Duration::from_secs(10));
        assert!(lines.next("a") && !lines.next("a"));
        assert!(lines.next("b"), "another kind");
        tokio::time::advance(Duration::from_millis(9_999)).await;
        assert!(!lines.next("a"));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(lines.next("a") && !lines.next("a"));
    }

    #[test]
    fn an_interval_may_begin_without_a_line() {
        let (begin, length) = (Instant::now(), Duration::from_secs(10));
        let mut line = LogInterval::from(begin);
        assert!(!line.next(length, begin + length / 2));
        assert!(line.next(length, begin + length), "a look in between puts nothing off");
        assert!(!line.is_over(length, begin + length));
    }
}
