//! What is said of a request's use once it is known.

use crate::limit::patience::Patience;
use crate::limit::time::Timestamp;

/// How much more, or less, a request used than it had taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// So many tokens more: the bucket may go below zero.
    More(u64),
    /// So many tokens less.
    Less(u64),
}

/// What a limit has noted of a request that took from it, to be shown when its use is known. What it
/// says is the algorithm's own business: by when a bucket had regained what it lacked then, or at what
/// moment a window or a log has counted the request, be it one for which it was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt(Timestamp);

impl Receipt {
    /// Of one that took nothing which could be found again.
    pub const NONE: Self = Self(Timestamp::MIN);

    /// As a store wrote it down.
    pub fn new(time: Timestamp) -> Self {
        Self(time)
    }

    /// As it is to be written down.
    pub fn time(self) -> Timestamp {
        self.0
    }
}

/// A request's use is known, which was another than it had taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// By how much.
    pub used: Difference,
    /// What was noted when it took.
    pub receipt: Receipt,
    /// How long requests of this limit may be held: others may have places behind its own.
    pub patience: Patience,
}
