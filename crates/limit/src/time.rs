//! Time in the core: its unit, the two clocks, and the bound from which a clock has stepped back.

use std::time::Duration;

/// Workers and pipelines use slightly old times. So a time that is at most this number of microseconds before a
/// bucket's state counts as the time of the state. If a time is earlier, the clock has stepped back.
pub const STALE: u64 = 1_000_000;

/// Whole microseconds since 1970-01-01 UTC, below 2^53 (good until the year 2255).
///
/// Microseconds, because Redis's `TIME` has no finer unit. Below 2^53, because Lua's numbers are doubles.
/// A time is therefore the same whole number in both stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The earliest timestamp: 1970-01-01 UTC.
    pub const MIN: Self = Self(0);

    /// The latest timestamp: 2^53 - 1 microseconds.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// `None` from 2^53 on.
    pub fn from_micros(micros: u64) -> Option<Self> {
        (micros <= Self::MAX.0).then_some(Self(micros))
    }

    /// Microseconds since 1970.
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// This time and `micros` more, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros).min(Self::MAX.0))
    }

    /// This time and `duration` more (fractions of a microsecond are dropped), at most
    /// [`Timestamp::MAX`].
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        self.plus_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    /// This time plus `micros`, which may be below zero; at least [`Timestamp::MIN`] and at most
    /// [`Timestamp::MAX`].
    #[must_use]
    pub fn plus_signed(self, micros: i64) -> Self {
        Self(self.0.saturating_add_signed(micros).min(Self::MAX.0))
    }

    /// Microseconds from `earlier` to this time; 0 if `earlier` is in fact later.
    pub fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// One moment by two clocks. In Redis both clocks are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// By a clock that never steps. Buckets that refill, leak or slide use it, since a step forward would
    /// give tokens.
    pub steady: Timestamp,
    /// By the wall clock, which may be set. Windows that begin with the clock or the calendar use it.
    pub wall: Timestamp,
}

/// For one clock that serves as both.
impl From<Timestamp> for Now {
    fn from(time: Timestamp) -> Self {
        Self { steady: time, wall: time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_at_two_to_the_fifty_third() {
        assert!(Timestamp::from_micros(1 << 53).is_none());
        assert_eq!(Timestamp::from_micros((1 << 53) - 1), Some(Timestamp::MAX));
        assert_eq!(Timestamp::MAX.plus_micros(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.plus(Duration::MAX), Timestamp::MAX);
    }

    #[test]
    fn a_signed_step_goes_both_ways_and_stops_at_the_ends() {
        assert_eq!(Timestamp(7).plus_signed(-3), Timestamp(4));
        assert_eq!(Timestamp(7).plus_signed(3), Timestamp(10));
        assert_eq!(Timestamp(7).plus_signed(i64::MIN), Timestamp::MIN);
        assert_eq!(Timestamp::MAX.plus_signed(i64::MAX), Timestamp::MAX);
    }

    #[test]
    fn time_since_something_later_is_zero() {
        let early = Timestamp(5);
        assert_eq!(early.micros_since(Timestamp(9)), 0);
        assert_eq!(Timestamp(9).micros_since(early), 4);
    }
}
