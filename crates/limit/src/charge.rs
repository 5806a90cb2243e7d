//! What a request is to take from its limits.

use std::time::Duration;

use crate::bucket::{BucketReceipt, KeyedAsk, LimitId};
use crate::decide::Ask;
use crate::decision::Decision;
use crate::key::Key;
use crate::name::Name;

/// What a request is to take from one limit: of which key, and at which cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge<'c> {
    pub(crate) limit: &'c str,
    pub(crate) key: Key,
    /// Whether the key has values.
    pub(crate) is_keyed: bool,
    pub(crate) cost: u64,
}

impl<'c> Charge<'c> {
    /// A cost of one, of the key with these values. Different lists of values never have the same key. Without values
    /// everything counts in one bucket.
    pub fn new(limit: &'c str, values: &[&str]) -> Self {
        let key = Key::of(values.iter().map(|value| Some(value.as_bytes())));
        Self { limit, key, is_keyed: !values.is_empty(), cost: 1 }
    }

    /// The tokens to take, 1 to 1,000,000,000. A concurrency limit always takes one slot.
    #[must_use]
    pub fn cost(self, tokens: u64) -> Self {
        Self { cost: tokens, ..self }
    }
}

/// Why charges cannot be asked about. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChargeError {
    /// No limit has this name, or, of a settlement, it has taken nothing.
    #[error("there is no limit {0:?}")]
    Unknown(String),
    /// A cost that is zero or too large.
    #[error("a cost is 1 to 1,000,000,000 tokens, not {0}")]
    Cost(u64),
    /// Two charges are for the same key of this limit: give one charge with the sum of the costs.
    #[error("the limit {0:?} is charged twice for one key")]
    Twice(String),
}

/// A charge to a limit, and what the limit says.
#[derive(Debug)]
pub(crate) struct Charged {
    pub(crate) limit: Name,
    pub(crate) key: Key,
    pub(crate) is_keyed: bool,
    pub(crate) ask: Ask,
    /// The tokens to which the charge is settled.
    pub(crate) used: u64,
    pub(crate) decision: Decision,
    /// `Some` if the charge was taken.
    pub(crate) receipt: Option<BucketReceipt>,
    pub(crate) window_left: Option<Duration>,
}

impl Charged {
    /// The charge as its bucket is asked.
    pub(crate) fn asked(&self) -> KeyedAsk<'_> {
        let Self { limit: name, key, ask, .. } = self;
        KeyedAsk { limit: LimitId { name, fingerprint: 0 }, key, ask: *ask }
    }
}
