//! What an ask wants of its bucket.

use crate::algorithm::{Difference, Receipt};

/// What an ask wants of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take, if every enforcing limit of the request allows.
    Take,
    /// Learn the decision, and take nothing.
    Look,
    /// Settle: the request used more or fewer tokens than it took.
    Settle(Difference, Receipt),
}

impl Verb {
    /// Renews the lease of a slot.
    pub const HOLD: Self = Self::Settle(Difference::More(1), Receipt::NONE);
    /// Gives a slot back.
    pub const RELEASE: Self = Self::Settle(Difference::Less(1), Receipt::NONE);
}
