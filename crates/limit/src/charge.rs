//! What a request is to take from its limits.

use std::time::Duration;

use crate::answer::Quotas;
use crate::bucket::{BucketReceipt, KeyedAsk, LimitId};
use crate::decide::Ask;
use crate::decision::Decision;
use crate::key::Key;
use crate::name::Name;
use crate::rate::Cost;
use crate::time::Timestamp;

/// What a request is to take from one limit: of which key, and at which cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge<'c> {
    limit: &'c str,
    key: Key,
    /// Whether the key has values.
    is_keyed: bool,
    cost: u64,
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

/// The charges, as these limits are asked about them.
pub(crate) fn charged<'c>(
    limits: &[(Name, Ask)],
    charges: impl IntoIterator<Item = Charge<'c>>,
) -> Result<Quotas, ChargeError> {
    let charges = charges.into_iter();
    // In a vector: so large values cost less on the heap than to be moved.
    let mut all: Vec<Charged> = Vec::with_capacity(charges.size_hint().0);
    for Charge { limit: name, key, is_keyed, cost } in charges {
        let known = limits.iter().find(|(known, _)| known.as_str() == name);
        let (limit, ask) = known.ok_or_else(|| ChargeError::Unknown(name.to_owned()))?;
        let cost = match ask.algorithm.lease() {
            Some(_) => Cost::ONE,
            None => Cost::new(cost).ok_or(ChargeError::Cost(cost))?,
        };
        let ask = Ask { cost, ..*ask };
        if all.iter().any(|other| other.limit == *limit && other.key == key) {
            return Err(ChargeError::Twice(name.to_owned()));
        }
        let (limit, decision, receipt) = (limit.clone(), Decision::NEVER, None);
        let (used, window_left) = (cost.get(), None);
        all.push(Charged { limit, key, is_keyed, ask, used, decision, receipt, window_left });
    }
    Ok(Quotas { charged: all, goes: Timestamp::MIN, rejected: None })
}
