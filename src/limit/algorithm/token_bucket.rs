//! The token bucket: a bucket of `burst` tokens that refills continuously at `rate`.
//!
//! This is the continuous-state leaky bucket of ITU-T I.371 (annex A), seen from the other side:
//! a state is what is *missing* from a full bucket, so that no state, an expired state and a full
//! bucket are one and the same, and a changed burst needs no migration.
//!
//! Everything is a whole number. The rate gives `tokens` each `period` microseconds in lowest
//! terms, and what is missing is kept as whole tokens and a remainder in units of `1 / period`
//! token: each microsecond gives back `tokens` such units. Elapsed time is split into whole periods
//! and a rest, so no product reaches 2^53, and the wait that is promised is exact to the
//! microsecond. `token_bucket.lua` is the same function for Redis, step by step.

use std::time::Duration;

use super::{State as AnyState, Step};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::{Burst, Cost, EXACT, Rate};
use crate::limit::time::Timestamp;

/// A clock that is behind a state by up to this many microseconds is taken as equal to it: workers
/// and pipelines are a little stale. One that is further behind has stepped back.
pub const STALE: u64 = 1_000_000;

/// The figures of one token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// How fast the bucket refills.
    pub rate: Rate,
    /// What it holds when full.
    pub burst: Burst,
}

impl Params {
    /// The whole seconds in which an empty bucket is full again, rounded up.
    pub fn refill_seconds(&self) -> u64 {
        time_to_gain(self, self.burst.get(), 0).div_ceil(1_000_000)
    }
}

/// What is missing from a full bucket, as of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Whole tokens that are missing.
    pub missing: u64,
    /// What is missing besides, in units of `1 / period` token; less than `period`.
    pub rest: u64,
    /// The period under which `rest` was counted.
    pub period: u64,
    /// When this was true.
    pub at: Timestamp,
}

/// What a request of `cost` at `now` means to the bucket.
pub fn decide(params: &Params, state: Option<State>, cost: Cost, now: Timestamp) -> Step {
    let Refilled { state, moved, ahead } = refill(params, state, now);
    let burst = params.burst.get();
    let used = state.missing + u64::from(state.rest > 0);
    let untouched = burst.saturating_sub(used);
    let kept = moved.then_some(AnyState::TokenBucket(state));

    if used + cost.get() <= burst {
        let taken = State { missing: state.missing + cost.get(), ..state };
        let remaining = burst - used - cost.get();
        return Step {
            decision: Decision { outcome: Outcome::Allow, remaining },
            untouched,
            taken: Some(AnyState::TokenBucket(taken)),
            kept,
        };
    }
    let retry_after = (cost.get() <= burst).then(|| {
        let excess = state.missing + cost.get() - burst;
        Duration::from_micros((time_to_gain(params, excess, state.rest) + ahead).min(EXACT - 1))
    });
    Step {
        decision: Decision { outcome: Outcome::Reject { retry_after }, remaining: untouched },
        untouched,
        taken: None,
        kept,
    }
}

/// The state after `tokens` that were taken are given back; `None` where the bucket is then full.
pub fn give_back(params: &Params, state: State, tokens: u64, now: Timestamp) -> Option<State> {
    let state = refill(params, Some(state), now).state;
    let missing = state.missing.checked_sub(tokens)?;
    (missing > 0 || state.rest > 0).then_some(State { missing, ..state })
}

/// When nothing is missing any more.
pub fn fresh_at(params: &Params, state: State) -> Timestamp {
    let state = under(params, state);
    state.at.plus_micros(time_to_gain(params, state.missing, state.rest))
}

/// Whether more is missing than the bucket can hold.
pub fn in_debt(params: &Params, state: State) -> bool {
    state.missing + u64::from(state.rest > 0) > params.burst.get()
}

struct Refilled {
    state: State,
    /// The clock had stepped back, and the state went with it.
    moved: bool,
    /// Microseconds by which the state is ahead of `now`.
    ahead: u64,
}

/// The state as of `now`, or as of its own time where `now` is a little behind it.
fn refill(params: &Params, state: Option<State>, now: Timestamp) -> Refilled {
    let period = params.rate.period();
    let Some(state) = state else {
        let full = State { missing: 0, rest: 0, period, at: now };
        return Refilled { state: full, moved: false, ahead: 0 };
    };
    let state = under(params, state);
    let ahead = state.at.micros_since(now);
    if ahead > STALE {
        return Refilled { state: State { at: now, ..state }, moved: true, ahead: 0 };
    }
    if ahead > 0 {
        return Refilled { state, moved: false, ahead };
    }
    let elapsed = now.micros_since(state.at);
    let (missing, rest) = gain(params, state.missing, state.rest, elapsed);
    Refilled { state: State { missing, rest, period, at: now }, moved: false, ahead: 0 }
}

/// The state under these figures. A remainder that was counted under another period is rounded up
/// to a token, against the client: less than one token is lost, once for each change of figures.
fn under(params: &Params, state: State) -> State {
    let period = params.rate.period();
    if state.period == period {
        return state;
    }
    State { missing: state.missing + u64::from(state.rest > 0), rest: 0, period, at: state.at }
}

/// What is still missing after `elapsed` microseconds: whole tokens and remainder.
fn gain(params: &Params, missing: u64, rest: u64, elapsed: u64) -> (u64, u64) {
    let (tokens, period) = (params.rate.tokens(), params.rate.period());
    let periods = elapsed / period;
    // Clamped before multiplying: in this many periods the bucket is full whatever the remainder.
    if periods >= (missing + 1).div_ceil(tokens) {
        return (0, 0);
    }
    let units = (elapsed % period) * tokens;
    let mut gained = periods * tokens + units / period;
    let mut rest_gained = units % period;
    if rest_gained > rest {
        gained += 1;
        rest_gained = period - rest_gained + rest;
    } else {
        rest_gained = rest - rest_gained;
    }
    if gained > missing { (0, 0) } else { (missing - gained, rest_gained) }
}

/// Microseconds until `whole` tokens and `rest` units are gained, at most 2^53 - 1.
fn time_to_gain(params: &Params, whole: u64, rest: u64) -> u64 {
    let (tokens, period) = (params.rate.tokens(), params.rate.period());
    let periods = (whole / tokens).saturating_mul(period);
    let units = (whole % tokens) * period + rest;
    periods.saturating_add(units.div_ceil(tokens)).min(EXACT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * SECOND;

    fn params(count: u64, interval: u64, burst: u64) -> Params {
        Params { rate: Rate::new(count, interval).unwrap(), burst: Burst::new(burst).unwrap() }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    fn cost(tokens: u64) -> Cost {
        Cost::new(tokens).unwrap()
    }

    fn bucket(step: &Step) -> Option<State> {
        step.taken.or(step.kept).map(|AnyState::TokenBucket(state)| state)
    }

    fn wait(step: &Step) -> Option<u64> {
        match step.decision.outcome {
            Outcome::Reject { retry_after } => {
                retry_after.map(|wait| u64::try_from(wait.as_micros()).unwrap())
            }
            Outcome::Allow => panic!("allowed"),
        }
    }

    fn passes(params: &Params, state: Option<State>, tokens: u64, now: Timestamp) -> bool {
        decide(params, state, cost(tokens), now).decision.outcome == Outcome::Allow
    }

    /// Figures of every size, the extreme ones often.
    fn any_params() -> impl Strategy<Value = Params> {
        let rate = prop_oneof![
            Just((1, DAY)),
            Just((10_000_000, SECOND)),
            Just((1, 3_650 * DAY)),
            // Coprime, their product just below 2^53.
            Just((94_906_265, 94_906_264)),
            Just((30, 3_600 * SECOND)),
            (1_u64..1_000, 1_u64..10),
            (1_u64..10_000_000, 1_u64..DAY),
        ];
        let burst = prop_oneof![1_u64..5, 1_u64..1_000, Just(1_000_000_000)];
        (rate, burst).prop_filter_map("a rate that fits", |((count, interval), burst)| {
            Some(Params { rate: Rate::new(count, interval).ok()?, burst: Burst::new(burst)? })
        })
    }

    /// A bucket of these figures as it may be found at 2^52, a remainder and all.
    fn any_state(params: Params) -> impl Strategy<Value = (Params, State)> {
        let period = params.rate.period();
        let missing = prop_oneof![
            0..=params.burst.get(),
            Just(params.burst.get()),
            Just(3 * params.burst.get())
        ];
        (missing, 0..period).prop_map(move |(missing, rest)| {
            (params, State { missing, rest, period, at: at(1 << 52) })
        })
    }

    fn any_bucket() -> impl Strategy<Value = (Params, State)> {
        any_params().prop_flat_map(any_state)
    }

    /// A move of the clock: forward by this many thousandths of the time for one token, or to a
    /// time that many microseconds off, forward or back.
    #[derive(Clone, Copy, Debug)]
    enum Move {
        Tokens(u64),
        Micros(i64),
    }

    impl Move {
        fn from(self, now: u64, rate: Rate) -> u64 {
            match self {
                Self::Tokens(thousandths) => {
                    let micros = u128::from(rate.period()) * u128::from(thousandths)
                        / (1_000 * u128::from(rate.tokens()));
                    now + u64::try_from(micros).unwrap()
                }
                Self::Micros(micros) => now.saturating_add_signed(micros),
            }
        }
    }

    fn forward() -> impl Strategy<Value = Move> {
        prop_oneof![
            (0_u64..3_000).prop_map(Move::Tokens),
            (0_i64..5_000_000).prop_map(Move::Micros)
        ]
    }

    fn anywhere() -> impl Strategy<Value = Move> {
        prop_oneof![3 => forward(), 1 => (-5_000_000_i64..0).prop_map(Move::Micros)]
    }

    #[test]
    fn a_new_bucket_is_full_and_refills_at_the_rate() {
        let figures = params(10, SECOND, 10);
        let mut state = None;
        for left in (0..10).rev() {
            let step = decide(&figures, state, Cost::ONE, at(0));
            let allow = Decision { outcome: Outcome::Allow, remaining: left };
            assert_eq!(step.decision, allow);
            state = bucket(&step);
        }
        assert_eq!(wait(&decide(&figures, state, Cost::ONE, at(0))), Some(100_000));
        assert_eq!(wait(&decide(&figures, state, cost(3), at(50_000))), Some(250_000));
        assert_eq!(wait(&decide(&figures, state, cost(11), at(0))), None);
        assert!(passes(&figures, state, 1, at(100_000)));
    }

    #[test]
    fn a_burst_after_idle_time_is_no_larger_than_the_bucket() {
        let figures = params(10, SECOND, 10);
        let mut state = bucket(&decide(&figures, None, Cost::ONE, at(0)));
        let now = at(1_700_000);
        let mut passed = 0;
        while passes(&figures, state, 1, now) {
            state = bucket(&decide(&figures, state, Cost::ONE, now));
            passed += 1;
        }
        assert_eq!(passed, 10);
    }

    #[test]
    fn changed_figures_go_on_from_what_was_used() {
        let before = params(10, SECOND, 10);
        let state = bucket(&decide(&before, None, cost(4), at(0)));
        for (name, after, remaining) in [
            ("a larger burst", params(10, SECOND, 100), 95),
            ("a smaller burst", params(10, SECOND, 5), 0),
            ("another rate", params(1, DAY, 10), 5),
        ] {
            let step = decide(&after, state, Cost::ONE, at(0));
            assert_eq!(step.decision.remaining, remaining, "{name}");
        }
        let smaller = params(10, SECOND, 3);
        assert!(in_debt(&smaller, state.unwrap()));
        assert_eq!(wait(&decide(&smaller, state, Cost::ONE, at(0))), Some(200_000));
    }

    #[test]
    fn a_clock_that_is_a_little_behind_waits_for_the_state() {
        let figures = params(1, SECOND, 1);
        let state = bucket(&decide(&figures, None, Cost::ONE, at(10 * SECOND)));
        let step = decide(&figures, state, Cost::ONE, at(9 * SECOND));
        assert_eq!(wait(&step), Some(2 * SECOND));
        assert_eq!(step.kept, None);
    }

    #[test]
    fn a_clock_that_stepped_back_takes_the_state_with_it() {
        let figures = params(1, SECOND, 1);
        let state = bucket(&decide(&figures, None, Cost::ONE, at(3_600 * SECOND)));
        let step = decide(&figures, state, Cost::ONE, at(SECOND));
        assert_eq!(wait(&step), Some(SECOND));
        assert!(passes(&figures, bucket(&step), 1, at(2 * SECOND)));
    }

    proptest! {
        #[test]
        fn no_interval_passes_more_than_burst_and_rate_allow(
            (figures, start) in any_bucket(),
            begins_new in any::<bool>(),
            moves in prop::collection::vec((anywhere(), 1_u64..4), 1..60),
        ) {
            let mut state = (!begins_new).then_some(start);
            let mut now = 1_u64 << 52;
            // Only what the clock gained over where it had been counts as time.
            let (mut reached, mut time) = (now, 0_u64);
            let mut passed: Vec<(u64, u64)> = Vec::new();
            for (step, tokens) in moves {
                now = step.from(now, figures.rate).min(EXACT - 1);
                if state.is_none() {
                    // A new bucket has seen no time yet that a clock could be behind of.
                    reached = now;
                }
                if now >= reached || reached - now > STALE {
                    time += now.saturating_sub(reached);
                    reached = now;
                }
                let tokens = tokens.min(figures.burst.get());
                let step = decide(&figures, state, cost(tokens), at(now));
                state = bucket(&step).or(state);
                if step.decision.outcome == Outcome::Allow {
                    passed.push((time, tokens));
                }
            }
            for (first, &(from, _)) in passed.iter().enumerate() {
                let mut sum = 0_u128;
                for &(until, tokens) in &passed[first..] {
                    sum += u128::from(tokens);
                    let beyond = sum.saturating_sub(u128::from(figures.burst.get()));
                    let gained = u128::from(until - from) * u128::from(figures.rate.tokens());
                    prop_assert!(beyond * u128::from(figures.rate.period()) <= gained);
                }
            }
        }

        #[test]
        fn the_promised_wait_is_exact(
            (figures, state) in any_bucket(),
            tokens in 1_u64..1_000,
            off in -2_000_000_i64..2_000_000,
        ) {
            let tokens = tokens.min(figures.burst.get());
            let now = at(state.at.as_micros().saturating_add_signed(off));
            let step = decide(&figures, Some(state), cost(tokens), now);
            if step.decision.outcome == Outcome::Allow {
                return Ok(());
            }
            let state = bucket(&step).or(Some(state));
            let wait = wait(&step).unwrap();
            prop_assert!(wait > 0);
            let then = now.plus_micros(wait);
            if then < Timestamp::MAX {
                prop_assert!(passes(&figures, state, tokens, then));
                prop_assert!(!passes(&figures, state, tokens, now.plus_micros(wait - 1)));
            }
        }

        #[test]
        fn at_fresh_at_a_bucket_is_as_good_as_new(
            (figures, state) in any_bucket(),
            tokens in 1_u64..1_000,
            later in 0_u64..DAY,
        ) {
            let fresh = fresh_at(&figures, state);
            if fresh < Timestamp::MAX {
                let now = fresh.plus_micros(later);
                prop_assert_eq!(
                    decide(&figures, Some(state), cost(tokens), now),
                    decide(&figures, None, cost(tokens), now)
                );
                if state.missing > 0 || state.rest > 0 {
                    let before = at(fresh.as_micros() - 1);
                    let all = figures.burst.get();
                    prop_assert!(!passes(&figures, Some(state), all, before));
                }
            }
        }

        #[test]
        fn a_clock_that_steps_back_gives_nothing_and_sticks_nowhere(
            (figures, state) in any_bucket(),
            back in 1_u64..(1 << 52),
        ) {
            let now = at(state.at.as_micros() - back);
            let before = decide(&figures, Some(state), Cost::ONE, state.at);
            let step = decide(&figures, Some(state), Cost::ONE, now);
            prop_assert!(step.untouched <= before.untouched);
            let kept = match step.kept {
                Some(AnyState::TokenBucket(kept)) => kept,
                None => state,
            };
            prop_assert!(kept.at.micros_since(now) <= STALE);
            let to_fill = time_to_gain(&figures, state.missing, state.rest);
            prop_assert!(fresh_at(&figures, kept) <= now.plus_micros(STALE).plus_micros(to_fill));
        }

        #[test]
        fn what_is_given_back_is_there_again(
            (figures, state) in any_bucket(),
            tokens in 1_u64..1_000,
            later in 0_u64..DAY,
        ) {
            let now = state.at.plus_micros(later);
            let step = decide(&figures, Some(state), cost(tokens), now);
            if let Some(AnyState::TokenBucket(taken)) = step.taken {
                let back = give_back(&figures, taken, tokens, now);
                let again = decide(&figures, back, cost(tokens), now);
                prop_assert_eq!(again.decision, step.decision);
                prop_assert_eq!(again.untouched, step.untouched);
            }
        }

        #[test]
        fn a_change_of_figures_gives_less_than_nothing(
            (figures, state) in any_bucket(),
            other in any_params(),
        ) {
            let step = decide(&other, Some(state), Cost::ONE, state.at);
            let used = state.missing + u64::from(state.rest > 0);
            prop_assert_eq!(step.untouched, other.burst.get().saturating_sub(used));
            prop_assert!(fresh_at(&figures, state) >= state.at);
        }
    }
}
