//! Settlements: the correction of a bucket once the real use of a request is known.
//!
//! `store/grant.rs` settles a request, mostly when its response has ended. Each algorithm's `settle` says
//! how the bucket changes.

use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;

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
/// log it is the moment at which the request counts: for a held request the moment when it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt(Timestamp);

impl Receipt {
    /// The receipt of a request for which nothing can be given back.
    pub const NONE: Self = Self(Timestamp::MIN);

    /// The receipt for which a store has kept this time.
    pub fn new(time: Timestamp) -> Self {
        Self(time)
    }

    /// The time that a store keeps for this receipt.
    pub fn time(self) -> Timestamp {
        self.0
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
