use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::Receipt;
use crate::algorithm::testing::{
    SECOND, a_promised_wait_is_exact, a_step_back_gives_nothing, at, micros,
    when_fresh_it_is_as_good_as_new,
};
use crate::decision::Outcome;
use crate::rate::Cost;
use crate::waiting::MaxWait;
use proptest::prelude::*;

const MINUTE: u64 = 60 * SECOND;
const DAY: u64 = 86_400 * SECOND;

/// A multiple of a day since 1970. Every window whose length divides a day can begin here.
const MIDNIGHT: u64 = 19_675 * DAY;

fn params(count: u64, micros: u64) -> Params {
    Params::new(Burst::new(count).unwrap(), Interval::from_micros(micros).unwrap())
}

fn ask(params: &Params, state: Option<State>, cost: u64, max_wait: MaxWait, now: u64) -> Step {
    decide(params, state, Want { cost: Cost::new(cost).unwrap(), max_wait }, at(now))
}

fn after(step: &Step, state: Option<State>) -> Option<State> {
    step.taken.or(step.kept).map(own).or(state)
}

fn own(state: BucketState) -> State {
    match state {
        BucketState::SlidingWindow(state) => state,
        other => panic!("another algorithm's: {other:?}"),
    }
}

fn counted(previous: u64, current: u64, next: u64) -> Option<State> {
    Some(State { start: at(MIDNIGHT), previous, current, next })
}

fn any_params() -> impl Strategy<Value = Params> {
    let length = prop_oneof![Just(SECOND), Just(MINUTE), Just(DAY), 1_u64..10, 1..10 * SECOND];
    (prop_oneof![1_u64..5, 1_u64..1_000, Just(1_000_000_000)], length)
        .prop_map(|(count, micros)| params(count, micros))
}

fn any_state() -> impl Strategy<Value = (Params, State)> {
    any_params().prop_flat_map(|params| {
        let count = params.count.get();
        let most = prop_oneof![Just(0), 0..=count, Just(count), 0..=200 * count];
        let next = prop_oneof![3 => Just(0), 1 => 0..=count];
        (most.clone(), most, next, 0..2 * DAY).prop_map(move |(previous, current, next, late)| {
            let start = begin(params.interval.as_micros(), at(MIDNIGHT + late));
            (params, State { start, previous, current: current.max(1), next })
        })
    })
}

#[test]
fn a_smaller_use_is_taken_from_the_counter_that_has_it() {
    let figures = params(100, MINUTE);
    let settled = |used, taken| {
        let receipt = Receipt::new(at(taken));
        let settled = Settlement { used, receipt, max_wait: MaxWait::NONE };
        settle(&figures, counted(9, 8, 7), &settled, at(MIDNIGHT))
    };
    for (name, taken, state) in [
        ("long ago", MIDNIGHT - MINUTE - 1, counted(9, 8, 7)),
        ("in the window before", MIDNIGHT - MINUTE, counted(4, 8, 7)),
        ("at its end", MIDNIGHT - 1, counted(4, 8, 7)),
        ("in this one", MIDNIGHT, counted(9, 3, 7)),
        ("at its end", MIDNIGHT + MINUTE - 1, counted(9, 3, 7)),
        ("for the next one", MIDNIGHT + MINUTE, counted(9, 8, 2)),
        ("at its end", MIDNIGHT + 2 * MINUTE - 1, counted(9, 8, 2)),
        ("for one that no counter reaches", MIDNIGHT + 2 * MINUTE, counted(9, 8, 7)),
    ] {
        assert_eq!(settled(Difference::Less(5), taken), state, "{name}");
    }
    assert_eq!(settled(Difference::Less(50), MIDNIGHT), counted(9, 0, 7));
    assert_eq!(settled(Difference::More(5), 0), counted(9, 13, 7));
}

#[test]
fn changed_figures_keep_the_counters() {
    for (name, figures, remaining) in [
        ("more", params(1_000, MINUTE), 1_000 - 20 - 9),
        ("less", params(10, MINUTE), 0),
        // The windows of these figures begin at other times, so all old tokens count in full.
        ("another interval", params(100, 7 * MINUTE), 100 - 20 - 10),
    ] {
        let state =
            Some(State { start: at(MIDNIGHT + MINUTE), previous: 10, current: 20, next: 0 });
        let step = ask(&figures, state, 1, MaxWait::NONE, MIDNIGHT + MINUTE + 10 * SECOND);
        assert_eq!(step.untouched, remaining, "{name}");
    }
}

proptest! {
    #[test]
    fn no_interval_has_more_than_twice_the_count(
        figures in any_params(),
        gaps in prop::collection::vec(0_u64..32, 1..200),
    ) {
        let (interval, count) = (figures.interval.as_micros(), figures.count.get());
        let (mut state, mut now) = (None, MIDNIGHT);
        let mut passed: Vec<u64> = Vec::new();
        for gap in gaps {
            now += gap * interval / 32 / count.min(8);
            let step = ask(&figures, state, count.div_ceil(8), MaxWait::NONE, now);
            state = after(&step, state);
            if step.decision.outcome == Outcome::Allow {
                passed.push(now);
            }
        }
        for (index, until) in passed.iter().enumerate() {
            let inside = passed[..=index].iter().filter(|time| **time + interval > *until);
            prop_assert!(inside.count() as u64 * count.div_ceil(8) <= 2 * count);
        }
    }

    #[test]
    fn never_more_than_count_by_its_own_formula_and_in_order(
        figures in any_params(),
        steps in prop::collection::vec((0_u64..40, 1_u64..20, any::<bool>()), 1..80),
    ) {
        let (count, interval) = (figures.count.get(), figures.interval.as_micros());
        let units = u128::from(figures.units());
        let (mut state, mut now, mut last) = (None, MIDNIGHT, 0);
        let mut passed: Vec<(u64, u64)> = Vec::new();
        for (sixteenths, cost, patient) in steps {
            now += sixteenths * interval / 16;
            let cost = cost.min(count);
            let max_wait = if patient { MaxWait::ENDLESS } else { MaxWait::NONE };
            let step = ask(&figures, state, cost, max_wait, now);
            state = after(&step, state);
            if step.decision.outcome.passes() {
                let goes = now + micros(step.decision.outcome).unwrap();
                prop_assert!(goes >= last, "nobody overtakes");
                last = goes;
                passed.push((goes, cost));
            }
        }
        for (index, (goes, _)) in passed.iter().enumerate() {
            let window = goes / interval;
            let of = |wanted: u64| -> u128 {
                let until = &passed[..=index];
                let of = until.iter().filter(|(goes, _)| goes / interval == wanted);
                of.map(|(_, cost)| u128::from(*cost)).sum()
            };
            let inside = units - u128::from(goes % interval / figures.grain);
            let all = of(window) * units + of(window - 1) * inside;
            prop_assert!(all <= u128::from(count) * units);
        }
    }

    #[test]
    fn the_promised_wait_is_exact(
        (figures, state) in any_state(),
        cost in 1_u64..1_000,
        later in 0_u64..2_000,
        back in 0..2 * STALE,
    ) {
        let cost = cost.min(figures.count.get());
        let later = figures.interval.as_micros() * later / 1_000;
        let now = state.start.as_micros() + later - back;
        let algorithm = Algorithm::SlidingWindow(figures);
        let state = BucketState::SlidingWindow(state);
        a_promised_wait_is_exact(algorithm, state, cost, at(now))?;
    }

    #[test]
    fn at_fresh_at_a_window_is_as_good_as_new(
        (figures, state) in any_state(),
        cost in 1_u64..1_000,
        later in 0_u64..DAY,
    ) {
        let bucket = (Algorithm::SlidingWindow(figures), BucketState::SlidingWindow(state));
        when_fresh_it_is_as_good_as_new(bucket, cost, later, 0)?;
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_and_sticks_nowhere(
        (figures, state) in any_state(),
        back in 1..MIDNIGHT,
    ) {
        let now = at(state.start.as_micros() - back);
        let bucket = (Algorithm::SlidingWindow(figures), BucketState::SlidingWindow(state));
        let step = a_step_back_gives_nothing(bucket.0, bucket.1, state.start, now)?;
        let kept = after(&step, Some(state)).unwrap();
        prop_assert!(kept.start.micros_since(now) <= STALE.max(figures.interval.as_micros()));
    }

    #[test]
    fn every_figure_leaves_the_arithmetic_exact(
        count in 1..=1_000_000_000_u64,
        micros in 1..=crate::rate::MAX_INTERVAL,
    ) {
        let figures = params(count, micros);
        prop_assert!(MOST_EARLIER * count * figures.units() < EXACT);
        prop_assert!(figures.grain <= micros.div_ceil(70_000));
        prop_assert!((figures.units() - 1) * figures.grain < micros);
    }
}
