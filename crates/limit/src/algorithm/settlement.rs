//! Settlements: the correction of a bucket once the real use of a request is known.
//!
//! `store/grant.rs` settles a request, mostly when its response has ended. Each algorithm's `settle` says
//! how the bucket changes.

use smallvec::{SmallVec, smallvec};

use super::Algorithm;
use crate::time::Timestamp;
use crate::waiting::MaxWait;

/// The difference between the tokens that a request used and the tokens that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The request used this number of tokens more. The bucket may go below zero.
    More(u64),
    /// The request used this number of tokens less.
    Less(u64),
}

/// A limit's note about a request that took from it, needed to settle the request. The meaning depends on
/// the algorithm. For a bucket it is the time at which the bucket will be full again. For a window or a
/// log it is the moment at which the request counts: for a held request the moment when it goes. For a window that begins
/// with a request, it is the window's begin, also for the later requests that go at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    time: Timestamp,
    /// `None` if the figures do not matter, and if they are not known.
    written: Option<WrittenUnder>,
}

/// What a receipt needs of the figures under which it was written. A reload, a plan or an override may change the
/// figures while the request runs, and the receipt's time then means something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenUnder {
    /// A bucket gains `tokens` each `period` microseconds. The request took at the time `taken`.
    Rate {
        /// Whole tokens.
        tokens: u64,
        /// Microseconds.
        period: u64,
        /// By the clock of the bucket.
        taken: Timestamp,
    },
    /// From this time on, the window of the request does not count.
    WindowUntil(Timestamp),
}

impl WrittenUnder {
    /// The figures in the order in which the Lua twin takes them.
    pub fn figures(self) -> SmallVec<[u64; 4]> {
        match self {
            Self::Rate { tokens, period, taken } => smallvec![tokens, period, taken.as_micros()],
            Self::WindowUntil(end) => smallvec![end.as_micros()],
        }
    }
}

impl Receipt {
    /// The receipt of a request for which nothing can be given back.
    pub const NONE: Self = Self::new(Timestamp::MIN);

    /// Names no request: what was taken last is given back, as far as it is missing.
    pub const NEWEST: Self = Self::new(Timestamp::MAX);

    /// The receipt for which a store has kept this time.
    pub const fn new(time: Timestamp) -> Self {
        Self { time, written: None }
    }

    pub(super) fn is_newest(self) -> bool {
        self.time == Self::NEWEST.time
    }

    /// The time that a store keeps for this receipt.
    pub fn time(self) -> Timestamp {
        self.time
    }

    /// The same receipt, with what it needs of the figures of `algorithm`. The request took at the time `taken`.
    pub fn under(self, algorithm: &Algorithm, taken: Timestamp) -> Self {
        Self { written: algorithm.written_under(self.time, taken), ..self }
    }

    /// What is known of the figures under which the receipt was written, if `algorithm` has others.
    pub fn other_than(self, algorithm: &Algorithm) -> Option<WrittenUnder> {
        let taken = match self.written? {
            WrittenUnder::Rate { taken, .. } => taken,
            WrittenUnder::WindowUntil(_) => Timestamp::MIN,
        };
        self.written.filter(|_| algorithm.written_under(self.time, taken) != self.written)
    }
}

/// The correction for one request that used more or less than it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The difference between use and taken tokens.
    pub used: Difference,
    /// The receipt from when the request took.
    pub receipt: Receipt,
    /// How long requests of this limit may be held. Held requests may have later places.
    pub max_wait: MaxWait,
}

impl Settlement {
    /// Whether the window of the request ended before `now`, by the figures under which it took. Windows of other
    /// figures may still contain the request's moment, but what they count was taken by other requests.
    pub(super) fn is_window_over(&self, algorithm: &Algorithm, now: Timestamp) -> bool {
        matches!(
            self.receipt.other_than(algorithm),
            Some(WrittenUnder::WindowUntil(end)) if end <= now
        )
    }
}
