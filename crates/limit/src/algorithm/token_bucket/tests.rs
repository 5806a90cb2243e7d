use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::Receipt;
use crate::algorithm::testing::{SECOND, a_promised_wait_is_exact, a_step_back_gives_nothing, at};
use crate::decision::Outcome;
use crate::rate::Cost;
use crate::time::STALE;
use crate::waiting::MaxWait;
use proptest::prelude::*;

const DAY: u64 = 86_400 * SECOND;

fn cost(tokens: u64) -> Cost {
    Cost::new(tokens).unwrap()
}

/// A request that is not held.
fn want(cost: Cost) -> Want {
    Want { cost, max_wait: MaxWait::NONE }
}

fn bucket(step: &Step) -> Option<State> {
    step.taken.or(step.kept).map(own)
}

fn own(state: BucketState) -> State {
    match state {
        BucketState::Bucket(state) => state,
        other => panic!("another algorithm's: {other:?}"),
    }
}

fn passes(params: &Params, state: Option<State>, tokens: u64, now: Timestamp) -> bool {
    decide(params, false, state, want(cost(tokens)), now).decision.outcome == Outcome::Allow
}

/// Figures of every size. Extreme figures come often.
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

/// Any state that a bucket of these figures can have at 2^52, also with a rest.
fn any_state(params: Params) -> impl Strategy<Value = (Params, State)> {
    let period = params.rate.period();
    let missing =
        prop_oneof![0..=params.burst.get(), Just(params.burst.get()), Just(3 * params.burst.get())];
    (missing, 0..period)
        .prop_map(move |(missing, rest)| (params, State { missing, rest, period, at: at(1 << 52) }))
}

fn any_bucket() -> impl Strategy<Value = (Params, State)> {
    any_params().prop_flat_map(any_state)
}

/// A move of the clock: forward by thousandths of the time for one token, or by microseconds in either
/// direction.
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
    prop_oneof![(0_u64..3_000).prop_map(Move::Tokens), (0_i64..5_000_000).prop_map(Move::Micros)]
}

fn anywhere() -> impl Strategy<Value = Move> {
    prop_oneof![3 => forward(), 1 => (-5_000_000_i64..0).prop_map(Move::Micros)]
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
        // Time counts only while the clock is beyond the latest time it has reached.
        let (mut reached, mut time) = (now, 0_u64);
        let mut passed: Vec<(u64, u64)> = Vec::new();
        for (step, tokens) in moves {
            now = step.from(now, figures.rate).min(EXACT - 1);
            if state.is_none() {
                // A new bucket has seen no time yet, so no clock can be late against it.
                reached = now;
            }
            // The clock has stepped back if it is far earlier than the last request that took. A refused
            // request leaves no trace in the state.
            let stepped_back = state.is_some_and(|state| state.at.micros_since(at(now)) > STALE);
            if now >= reached || stepped_back {
                time += now.saturating_sub(reached);
                reached = now;
            }
            let tokens = tokens.min(figures.burst.get());
            let step = decide(&figures, false, state, want(cost(tokens)), at(now));
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
        let (algorithm, state) = (Algorithm::TokenBucket(figures), BucketState::Bucket(state));
        a_promised_wait_is_exact(algorithm, state, tokens, now)?;
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
                decide(&figures, false, Some(state), want(cost(tokens)), now),
                decide(&figures, false, None, want(cost(tokens)), now)
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
        let bucket = (Algorithm::TokenBucket(figures), BucketState::Bucket(state));
        let step = a_step_back_gives_nothing(bucket.0, bucket.1, state.at, now)?;
        let kept = step.kept.map_or(state, own);
        prop_assert!(kept.at.micros_since(now) <= STALE);
        let to_fill = time_to_gain(&figures, state.missing, state.rest);
        prop_assert!(fresh_at(&figures, kept) <= now.plus_micros(STALE).plus_micros(to_fill));
    }

    #[test]
    fn returned_tokens_are_there_again(
        (figures, state) in any_bucket(),
        tokens in 1_u64..1_000,
        later in 0_u64..DAY,
    ) {
        let now = state.at.plus_micros(later);
        let step = decide(&figures, false, Some(state), want(cost(tokens)), now);
        if let Some(BucketState::Bucket(taken)) = step.taken {
            let receipt = Receipt::new(fresh_at(&figures, taken));
            let used = Difference::Less(tokens);
            let settled = Settlement { used, receipt, max_wait: MaxWait::NONE };
            let back = settle(&figures, false, Some(taken), &settled, now);
            let again = decide(&figures, false, back, want(cost(tokens)), now);
            prop_assert_eq!(again.decision, step.decision);
            prop_assert_eq!(again.untouched, step.untouched);
        }
    }

    #[test]
    fn a_change_of_figures_gives_less_than_nothing(
        (figures, state) in any_bucket(),
        other in any_params(),
    ) {
        let step = decide(&other, false, Some(state), want(Cost::ONE), state.at);
        let used = state.missing + u64::from(state.rest > 0);
        prop_assert_eq!(step.untouched, other.burst.get().saturating_sub(used));
        prop_assert!(fresh_at(&figures, state) >= state.at);
    }
}

#[test]
fn each_rate_has_its_own_mark() {
    let mut marked = std::collections::HashMap::new();
    let counts = [1, 2, 3, 4, 5, 7, 8, 10, 12, 30, 50, 60, 64, 90, 100, 125, 300, 1_000, 1_000_000];
    let times = [1, 2, 3, 5, 7, 9, 10, 15, 24, 27, 30, 64, 81, 90, 365, 1_000, 3_650];
    let units = [1, 1_000, SECOND, 60 * SECOND, 3_600 * SECOND, DAY];
    for (count, time) in counts.into_iter().flat_map(|count| times.map(|time| (count, time))) {
        for interval in units.map(|unit| unit * time).into_iter().filter(|all| *all <= 3_650 * DAY)
        {
            let Ok(rate) = Rate::new(count, interval) else { continue };
            let mark = mark(rate);
            if mark != UNMARKED {
                assert!(mark < UNMARKED && mark.is_multiple_of(64), "{rate}");
                let figures = (rate.tokens(), rate.period());
                assert_eq!(*marked.entry(mark).or_insert(figures), figures, "{rate}");
            }
        }
    }
    assert!(marked.len() > 100, "{}", marked.len());
    for rate in ["1/s", "100/s", "1000000/s", "100/m", "1000/h", "1/d", "7/w"] {
        assert_ne!(mark(rate.parse().unwrap()), UNMARKED, "{rate}");
    }
    for rate in ["3/s", "7/d", "10000000/s", "1/w", "1/65536us", "1/81s", "1/30d"] {
        assert_eq!(mark(rate.parse().unwrap()), UNMARKED, "{rate}");
    }
}
