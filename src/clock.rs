//! The time of day, without its steps.
//!
//! The only place that reads a clock. Everything else takes the time as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::limit::time::Timestamp;

/// The wall time at the start and the monotonic time since: it never goes back, and a step of the
/// system's clock does not move it. A paused test runtime moves it.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Timestamp,
    since: Instant,
}

impl Clock {
    /// A clock that starts from the system's time. A system time before 1970 is taken as 1970.
    pub fn new() -> Self {
        #[allow(clippy::disallowed_methods, reason = "read once, at the start")]
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        Self::starting_at(Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX))
    }

    /// A clock that shows `start` now.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, since: Instant::now() }
    }

    /// The time. Two readings of one clock (or of its clones) also serve to measure a duration.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The time at a moment that was read already; one before the clock's start is its start.
    pub fn at(&self, moment: Instant) -> Timestamp {
        self.start.plus(moment.saturating_duration_since(self.since))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn moves_with_a_paused_runtime() {
        let start = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        let clock = Clock::starting_at(start);
        assert_eq!(clock.now(), start);
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now().micros_since(start), 1_500_000);
        assert_eq!(clock.clone().now(), clock.now());
    }

    #[test]
    fn starts_from_the_time_of_day() {
        let year_2020 = Timestamp::from_micros(1_577_836_800_000_000).unwrap();
        assert!(Clock::new().now() > year_2020);
    }
}
