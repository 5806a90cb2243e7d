//! Concurrency: a request holds one of `limit` slots until its response ends.
//!
//! In a process a bucket is the number of held slots, and each request gives its slot back. In Redis each
//! slot has its holder's name and the end of its lease, since a holder may die: see `call/lists.lua`.

use std::time::Duration;

use super::{BucketState, Difference, Step, Want};
use crate::rate::{Burst, Cost};
use crate::time::Timestamp;
use crate::waiting::MaxWait;

/// The figures of one concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The number of slots: the most requests at once.
    pub limit: Burst,
    /// Microseconds after which a slot whose holder died is free again.
    lease: u64,
}

impl Params {
    /// A lease below one second becomes one second, and a lease above 3650 days becomes 3650 days.
    pub fn new(limit: Burst, lease: Duration) -> Self {
        let lease = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX);
        Self { limit, lease: lease.clamp(1_000_000, crate::rate::MAX_INTERVAL) }
    }

    /// The time after which a slot whose holder died is free again.
    pub fn lease(&self) -> Duration {
        Duration::from_micros(self.lease)
    }
}

/// The held slots of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The number of held slots, at least one.
    pub held: u64,
}

/// The microseconds after which a refused request may come again. This is a guess, since the end of a response
/// is unknown.
const GUESS: u64 = 1_000_000;

/// Decides on a request. The request takes one slot, whatever its cost for other limits.
pub(crate) fn decide(params: &Params, state: Option<State>) -> Step {
    let held = state.map_or(0, |state| state.held);
    let free = params.limit.get().saturating_sub(held);
    let wait = if free > 0 { 0 } else { GUESS };
    let taken = BucketState::Concurrency(State { held: held + 1 });
    let one_slot = Want { cost: Cost::ONE, max_wait: MaxWait::NONE };
    Step::of(one_slot, free, Some(wait), Some(taken), None)
}

/// The state after slots were given back or taken; `None` if no slot is held.
pub(crate) fn settle(state: Option<State>, used: Difference) -> Option<State> {
    let held = state.map_or(0, |state| state.held);
    let held = match used {
        Difference::More(slots) => held.saturating_add(slots),
        Difference::Less(slots) => held.saturating_sub(slots),
    };
    (held > 0).then_some(State { held })
}

/// The end of time: the end of a response is unknown, and held slots must not expire.
pub(crate) fn fresh_at() -> Timestamp {
    Timestamp::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_too_short_to_be_renewed() {
        let lease = |lease| Params::new(Burst::new(1).unwrap(), lease).lease();
        assert_eq!(lease(Duration::ZERO), Duration::from_secs(1));
        assert_eq!(lease(Duration::from_secs(7)), Duration::from_secs(7));
        assert!(lease(Duration::MAX) < Duration::from_secs(400_000_000));
    }
}
