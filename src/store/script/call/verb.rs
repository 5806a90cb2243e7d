//! What an ask wants of its bucket, and for whom.

use crate::limit::algorithm::{Difference, Receipt};

/// What an ask wants of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Take, if every enforcing limit of the request allows.
    Take,
    /// Learn the decision, and take nothing.
    Look,
    /// Settle: the request used more or fewer tokens than it took.
    Settle(Difference, Receipt),
    /// Renew the lease of a slot.
    Hold,
    /// Give a slot back.
    Release,
}

/// Who holds a slot: two numbers below 2^53, together unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Identifies a worker of a process.
    pub(crate) worker: u64,
    /// Identifies a request of that worker.
    pub(crate) request: u64,
}
