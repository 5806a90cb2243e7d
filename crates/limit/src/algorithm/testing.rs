//! Properties of all algorithms with buckets, and helpers that their tests share.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::{Algorithm, BucketState, Step, Want};
use crate::decision::Outcome;
use crate::rate::Cost;
use crate::time::Timestamp;
use crate::waiting::MaxWait;

pub(super) const SECOND: u64 = 1_000_000;

pub(super) fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// The microseconds after which a request goes or may come again; `None` if it never may.
pub(super) fn micros(outcome: Outcome) -> Option<u64> {
    let wait = match outcome {
        Outcome::Allow => Duration::ZERO,
        Outcome::Delay(wait) => wait,
        Outcome::Reject { retry_after } => retry_after?,
    };
    Some(u64::try_from(wait.as_micros()).unwrap())
}

fn ask(algorithm: &Algorithm, state: Option<BucketState>, cost: u64, now: Timestamp) -> Step {
    let cost = Cost::new(cost).unwrap();
    algorithm.decide(state, Want { cost, max_wait: MaxWait::NONE }, now)
}

/// A refused request passes after its `retry_after` and not a microsecond earlier. If its longest wait is exactly this
/// time, it is held instead.
pub(super) fn a_promised_wait_is_exact(
    algorithm: Algorithm,
    state: BucketState,
    cost: u64,
    now: Timestamp,
) -> TestCaseResult {
    let step = ask(&algorithm, Some(state), cost, now);
    let Outcome::Reject { retry_after } = step.decision.outcome else { return Ok(()) };
    let state = step.taken.or(step.kept).unwrap_or(state);
    let wait = micros(step.decision.outcome).unwrap();
    prop_assert!(wait > 0);
    if now.plus_micros(wait) == Timestamp::MAX {
        return Ok(());
    }
    let after = |wait| ask(&algorithm, Some(state), cost, now.plus_micros(wait)).decision.outcome;
    prop_assert_eq!(after(wait), Outcome::Allow);
    prop_assert_ne!(after(wait - 1), Outcome::Allow);
    let cost = Cost::new(cost).unwrap();
    let held = |wait| {
        let max_wait = MaxWait::of(Duration::from_micros(wait));
        algorithm.decide(Some(state), Want { cost, max_wait }, now)
    };
    let patient = held(wait);
    // A sliding window reserves places only in its next window.
    let too_far = matches!(algorithm, Algorithm::SlidingWindow(_)) && patient.taken.is_none();
    let delay = retry_after.map(Outcome::Delay);
    prop_assert!(too_far || Some(patient.decision.outcome) == delay, "{patient:?}");
    prop_assert!(!held(wait - 1).decision.outcome.passes());
    Ok(())
}

/// At `fresh_at`, and `later` microseconds after it, a state is the same as no state. More than `sooner` microseconds
/// before `fresh_at` the bucket is not full.
pub(super) fn when_fresh_it_is_as_good_as_new(
    (algorithm, state): (Algorithm, BucketState),
    cost: u64,
    later: u64,
    sooner: u64,
) -> TestCaseResult {
    let fresh = algorithm.fresh_at(state);
    let now = fresh.plus_micros(later);
    prop_assert_eq!(ask(&algorithm, Some(state), cost, now), ask(&algorithm, None, cost, now));
    let before = at(fresh.as_micros() - sooner - 1);
    let all = ask(&algorithm, Some(state), algorithm.capacity(), before);
    prop_assert_ne!(all.decision.outcome, Outcome::Allow);
    Ok(())
}

/// A clock that steps back from `then` to `now` gives no tokens. The answer is the step at `now`.
pub(super) fn a_step_back_gives_nothing(
    algorithm: Algorithm,
    state: BucketState,
    then: Timestamp,
    now: Timestamp,
) -> Result<Step, TestCaseError> {
    let before = ask(&algorithm, Some(state), 1, then);
    let step = ask(&algorithm, Some(state), 1, now);
    prop_assert!(step.untouched <= before.untouched);
    Ok(step)
}
