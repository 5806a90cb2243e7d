//! How long a request may be held.

use std::time::Duration;

use super::rate::EXACT;

/// The longest time for which a request may be held instead of refused, in whole microseconds below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaxWait(u64);

impl MaxWait {
    /// The request is never held.
    pub const NONE: Self = Self(0);

    /// The request may be held for any time.
    pub const ENDLESS: Self = Self(EXACT - 1);

    /// At most this time. 2^53 microseconds or more become [`MaxWait::ENDLESS`].
    pub fn of(time: Duration) -> Self {
        Self(u64::try_from(time.as_micros()).map_or(EXACT - 1, |micros| micros.min(EXACT - 1)))
    }

    /// In microseconds.
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// Whether a request may be held for `micros` microseconds.
    pub(crate) fn allows(self, micros: u64) -> bool {
        micros <= self.0
    }
}
