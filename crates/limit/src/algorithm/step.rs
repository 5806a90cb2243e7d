//! What a request wants of a bucket, and what an algorithm answers to it.

use std::time::Duration;

use super::BucketState;
use crate::decision::{Decision, Outcome};
use crate::rate::Cost;
use crate::waiting::MaxWait;

/// What a request wants of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The tokens that the request takes.
    pub cost: Cost,
    /// How long the request may be held.
    pub max_wait: MaxWait,
}

/// What one algorithm would do with one request. Nothing has been taken yet: all limits of a route
/// together decide whether the request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The answer. Its `remaining` is valid if an allowed request takes its cost.
    pub decision: Decision,
    /// The tokens that remain if the request takes nothing, rounded down. If the request would be
    /// held, this is the same number as in `decision`.
    pub(crate) untouched: u64,
    /// The state after the request has taken; `None` if the request is refused.
    pub taken: Option<BucketState>,
    /// The state to keep although nothing was taken. `Some` only if the clock had stepped back and the state was moved
    /// to the new time.
    pub kept: Option<BucketState>,
}

impl Step {
    /// The step of a request that could go in `wait` microseconds. The bucket has `untouched` tokens now. Without a
    /// `wait` the request can never go. Without `taken` it is refused, even if it may be held.
    pub(super) fn of(
        want: Want,
        untouched: u64,
        wait: Option<u64>,
        taken: Option<BucketState>,
        kept: Option<BucketState>,
    ) -> Self {
        let taken = taken.filter(|_| wait.is_some_and(|wait| want.max_wait.allows(wait)));
        let left = untouched.saturating_sub(want.cost.get());
        let (outcome, remaining, untouched) = match (wait, taken) {
            (Some(0), Some(_)) => (Outcome::Allow, left, untouched),
            (Some(wait), Some(_)) => (Outcome::Delay(Duration::from_micros(wait)), left, left),
            (wait, _) => {
                let retry_after = wait.map(Duration::from_micros);
                (Outcome::Reject { retry_after }, untouched, untouched)
            }
        };
        Self { decision: Decision { outcome, remaining }, untouched, taken, kept }
    }
}
