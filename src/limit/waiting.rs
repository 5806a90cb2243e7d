//! How long a request may be held, and for which limits together.

use std::num::NonZeroU16;
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

    /// Up to this long. A time of 2^53 microseconds or more becomes [`MaxWait::ENDLESS`].
    pub fn of(time: Duration) -> Self {
        Self(u64::try_from(time.as_micros()).map_or(EXACT - 1, |micros| micros.min(EXACT - 1)))
    }

    /// In microseconds.
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// Whether a request may be held for this many microseconds.
    pub(crate) fn allows(self, micros: u64) -> bool {
        micros <= self.0
    }
}

/// Limits that hold a request together: always asked for the same requests by the same key. A request that one
/// of them holds counts in all of them at the moment at which it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitingLine(NonZeroU16);

impl WaitingLine {
    /// The line with this number, from 1.
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self)
    }

    /// The line's number.
    pub fn number(self) -> u16 {
        self.0.get()
    }
}
