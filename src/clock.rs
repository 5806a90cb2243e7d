//! The time: a steady clock, and the time of day, which may step. Only this file reads the system's time of
//! day.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::limit::time::{Now, Timestamp};

/// A timer that is not meant to fire is set this far away.
pub(crate) const FAR: Duration = Duration::from_secs(24 * 3600);

/// Ticks at once, and then after each period. After a late tick the next one comes a whole period later.
pub(crate) fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// A steady clock: the time of day at the start plus the monotonic time since. It never goes back, and a
/// step of the system's clock does not change it. In tests, a paused runtime moves it. Clones share one
/// [`Wall`].
#[derive(Clone, Debug)]
pub struct Clock {
    start: Timestamp,
    since: Instant,
    wall: Wall,
}

impl Clock {
    /// A clock that starts from the system's time. A system time before 1970 counts as 1970.
    pub fn new() -> Self {
        Self::starting_at(system_time())
    }

    /// A clock that shows `start` now. Its time of day is `start` too.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, since: Instant::now(), wall: Wall::default() }
    }

    /// The steady time. The difference of two readings of a clock, or of its clones, is a duration.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The steady time at `moment`. A moment before the clock's start counts as the start.
    pub(crate) fn at(&self, moment: Instant) -> Timestamp {
        self.start.plus(moment.saturating_duration_since(self.since))
    }

    /// The time of day, as of the last [`Clock::anchor`].
    pub fn wall(&self) -> &Wall {
        &self.wall
    }

    /// Reads the time of day again: it may have been set, or the machine may have slept. To be called at
    /// least once a minute.
    pub(crate) fn anchor(&self) {
        self.wall.anchor(self.now(), system_time());
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// The time of day minus the steady time, in microseconds, as of the last [`Wall::anchor`]. Clones share
/// one value.
#[derive(Clone, Debug, Default)]
pub struct Wall(Arc<AtomicI64>);

impl Wall {
    /// Sets the difference: when the steady clock shows `steady`, the time of day is `wall`.
    pub fn anchor(&self, steady: Timestamp, wall: Timestamp) {
        let ahead = wall.as_micros().cast_signed() - steady.as_micros().cast_signed();
        // All cores read this value. It is written only if it has changed, which is seldom.
        if self.0.load(Ordering::Relaxed) != ahead {
            self.0.store(ahead, Ordering::Relaxed);
        }
    }

    /// The time of day when the steady clock shows `steady`.
    pub(crate) fn at(&self, steady: Timestamp) -> Timestamp {
        steady.plus_signed(self.0.load(Ordering::Relaxed))
    }

    /// Both times when the steady clock shows `steady`.
    pub(crate) fn both(&self, steady: Timestamp) -> Now {
        Now { steady, wall: self.at(steady) }
    }
}

fn system_time() -> Timestamp {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads it")]
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(micros).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn moves_with_a_paused_runtime() {
        let start = at(1_700_000_000_000_000);
        let clock = Clock::starting_at(start);
        assert_eq!(clock.now(), start);
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(clock.now().micros_since(start), 1_500_000);
        assert_eq!(clock.clone().now(), clock.now());
        assert_eq!(clock.wall().at(clock.now()), clock.now());
    }

    #[test]
    fn starts_from_the_time_of_day() {
        let year_2020 = at(1_577_836_800_000_000);
        assert!(Clock::new().now() > year_2020);
    }

    #[test]
    fn a_step_moves_the_time_of_day_alone() {
        let wall = Wall::default();
        for set in [900, 1_100, 0] {
            wall.anchor(at(1_000), at(set));
            assert_eq!(wall.clone().at(at(1_000)), at(set));
            assert_eq!(wall.both(at(1_050)), Now { steady: at(1_050), wall: at(set + 50) });
        }
        assert_eq!(wall.at(at(900)), Timestamp::MIN, "before what can be said");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_day_is_looked_up_again() {
        let clock = Clock::starting_at(at(5_000_000));
        clock.anchor();
        assert_eq!(clock.now(), at(5_000_000));
        assert!(clock.clone().wall().at(clock.now()) > at(1_577_836_800_000_000));
    }
}
