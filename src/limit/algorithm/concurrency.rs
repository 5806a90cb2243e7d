//! Concurrency: a request holds one of `limit` slots until its response ends.
//!
//! In a process a bucket is the number of slots that are held, and whoever holds one gives it back. In
//! Redis, where a holder may die, each slot stands with its holder's name and the end of its lease: see
//! `store/lists.lua`.

use std::time::Duration;

use super::{Difference, State as AnyState, Step};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Burst;
use crate::limit::time::Timestamp;

/// The figures of one concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// How many may be under way at once.
    pub limit: Burst,
    /// Microseconds after which a slot whose holder died is free again.
    lease: u64,
}

impl Params {
    /// A lease is a second at least; a longer one than ten years is as good as that.
    pub fn new(limit: Burst, lease: Duration) -> Self {
        let lease = u64::try_from(lease.as_micros()).unwrap_or(u64::MAX);
        Self { limit, lease: lease.clamp(1_000_000, crate::limit::rate::MAX_INTERVAL) }
    }

    /// After this time a slot whose holder died is free again.
    pub fn lease(&self) -> Duration {
        Duration::from_micros(self.lease)
    }
}

/// How many slots are held, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Slots.
    pub held: u64,
}

/// What a refused client is told to wait: nobody knows when a response ends.
const GUESS: Duration = Duration::from_secs(1);

/// What a request means to the slots. It takes one, whatever it costs elsewhere.
pub fn decide(params: &Params, state: Option<State>) -> Step {
    let (limit, held) = (params.limit.get(), state.map_or(0, |state| state.held));
    let untouched = limit.saturating_sub(held);
    let Some(remaining) = untouched.checked_sub(1) else {
        let outcome = Outcome::Reject { retry_after: Some(GUESS) };
        let decision = Decision { outcome, remaining: 0 };
        return Step { decision, untouched, taken: None, kept: None };
    };
    let taken = Some(AnyState::Concurrency(State { held: held + 1 }));
    let decision = Decision { outcome: Outcome::Allow, remaining };
    Step { decision, untouched, taken, kept: None }
}

/// The slots once some of them are free again, or more are held; `None` where none is.
pub fn settle(state: Option<State>, used: Difference) -> Option<State> {
    let held = state.map_or(0, |state| state.held);
    let held = match used {
        Difference::More(slots) => held.saturating_add(slots),
        Difference::Less(slots) => held.saturating_sub(slots),
    };
    (held > 0).then_some(State { held })
}

/// Nobody knows when: as long as a slot is held.
pub fn fresh_at() -> Timestamp {
    Timestamp::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_held_until_it_is_given_back() {
        let limit = |slots| Params::new(Burst::new(slots).unwrap(), Duration::from_secs(60));
        let mut state = None;
        for left in [1, 0] {
            let step = decide(&limit(2), state);
            assert_eq!(step.decision, Decision { outcome: Outcome::Allow, remaining: left });
            let Some(AnyState::Concurrency(taken)) = step.taken else { panic!("{step:?}") };
            state = Some(taken);
        }
        let outcome = Outcome::Reject { retry_after: Some(Duration::from_secs(1)) };
        let full = decide(&limit(2), state);
        assert_eq!(full.decision, Decision { outcome, remaining: 0 });
        assert_eq!(full.taken, None);
        assert_eq!(decide(&limit(1), state).untouched, 0, "of a limit that was lowered");
        assert_eq!(decide(&limit(4), state).decision.remaining, 1, "of one that was raised");
        state = settle(state, Difference::Less(1));
        assert_eq!(state, Some(State { held: 1 }));
        assert_eq!(settle(state, Difference::Less(1)), None);
        assert_eq!(settle(None, Difference::Less(1)), None);
    }

    #[test]
    fn a_lease_is_never_too_short_to_be_renewed() {
        let lease = |lease| Params::new(Burst::new(1).unwrap(), lease).lease();
        assert_eq!(lease(Duration::ZERO), Duration::from_secs(1));
        assert_eq!(lease(Duration::from_secs(7)), Duration::from_secs(7));
        assert!(lease(Duration::MAX) < Duration::from_secs(400_000_000));
    }
}
