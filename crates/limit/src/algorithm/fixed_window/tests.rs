use super::windows::{Schedule, Unit};
use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::testing::{
    SECOND, a_promised_wait_is_exact, a_step_back_gives_nothing, at, micros,
    when_fresh_it_is_as_good_as_new,
};
use crate::decision::Outcome;
use crate::rate::{Cost, Interval};
use crate::waiting::MaxWait;
use proptest::prelude::*;

const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// A few seconds after the noon of some day: not a multiple of an hour since 1970.
const NOON: u64 = 19_675 * DAY + 12 * HOUR + 17 * SECOND;

fn interval(micros: u64) -> Interval {
    Interval::from_micros(micros).unwrap()
}

fn params(count: u64, windows: Windows) -> Params {
    Params { count: Burst::new(count).unwrap(), windows }
}

fn rolling(count: u64, micros: u64) -> Params {
    params(count, Windows::Rolling(interval(micros)))
}

/// Days of 24, 23, 25 and 24 hours. [`NOON`] is in the second day.
fn calendar() -> Schedule {
    let midnight = NOON - 12 * HOUR - 17 * SECOND;
    let starts = [0, DAY, DAY + 23 * HOUR, 3 * DAY, 4 * DAY, 5 * DAY, 6 * DAY];
    let starts = starts.map(|since| at(midnight - DAY + since)).to_vec();
    Schedule::new(Unit::Day, "Somewhere".into(), starts).unwrap()
}

fn want(cost: u64, max_wait: MaxWait) -> Want {
    Want { cost: Cost::new(cost).unwrap(), max_wait }
}

fn ask(params: &Params, state: Option<State>, cost: u64, max_wait: MaxWait, now: u64) -> Step {
    decide(params, state, want(cost, max_wait), at(now))
}

fn after(step: &Step, state: Option<State>) -> Option<State> {
    step.taken.or(step.kept).map(own).or(state)
}

fn own(state: BucketState) -> State {
    match state {
        BucketState::FixedWindow(state) => state,
        other => panic!("another algorithm's: {other:?}"),
    }
}

/// Takes `cost`. Returns the microseconds after which the request goes.
fn take(params: &Params, state: &mut Option<State>, cost: u64, now: u64) -> u64 {
    let step = ask(params, *state, cost, MaxWait::ENDLESS, now);
    *state = after(&step, *state);
    micros(step.decision.outcome).expect("an endless wait")
}

fn any_params() -> impl Strategy<Value = Params> {
    let length = || {
        prop_oneof![Just(SECOND), Just(60 * SECOND), Just(DAY), 1_u64..10, 1..10 * SECOND]
            .prop_map(interval)
    };
    let windows = prop_oneof![
        length().prop_map(Windows::Rolling),
        length().prop_map(Windows::Clock),
        (0..6 * DAY).prop_map(|off| calendar().around(at(NOON - DAY + off))),
    ];
    (prop_oneof![1_u64..5, 1_u64..1_000, Just(1_000_000_000)], windows)
        .prop_map(|(count, windows)| params(count, windows))
}

fn any_state() -> impl Strategy<Value = (Params, State)> {
    any_params().prop_flat_map(|params| {
        let count = params.count.get();
        let used = prop_oneof![1..=count, Just(count), 1..=4 * count];
        // Above the count in one window if the count was lowered.
        (used, 0..2 * HOUR, any::<bool>()).prop_map(move |(used, late, lowered)| {
            let start = params.windows.start_of(at(NOON + late));
            let state = match lowered {
                true => State::of(start, used),
                false => State::of(start, 0).plus(used, count),
            };
            (params, state)
        })
    })
}

#[test]
fn a_window_on_the_clock_knows_how_long_it_still_lasts() {
    let hours = Windows::Clock(interval(HOUR));
    let days = calendar().around(at(NOON));
    for (windows, now, seconds) in [
        (hours, NOON - 17 * SECOND, 3_600),
        (hours, NOON, 3_583),
        (hours, NOON + 1, 3_583),
        (hours, NOON - 17 * SECOND + HOUR - 1, 1),
        (days, NOON, 11 * 3_600 - 17),
        (days, NOON + 24 * HOUR, 12 * 3_600 - 17),
        (Windows::Rolling(interval(HOUR)), NOON, 3_600),
    ] {
        assert_eq!(windows.seconds_left(at(now)), seconds, "{windows} at {now}");
    }
}

#[test]
fn days_are_as_long_as_the_calendar_has_them() {
    let schedule = calendar();
    let midnight = NOON - 12 * HOUR - 17 * SECOND;
    for (name, now, seconds) in [
        ("a day of 23 hours", midnight, 23 * 3_600),
        ("its last moment", midnight + 23 * HOUR - 1, 23 * 3_600),
        ("a day of 25 hours", midnight + 23 * HOUR, 25 * 3_600),
        ("a day before all that is known", midnight - 10 * DAY, 23 * 3_600),
        ("one after", midnight + 100 * DAY, 24 * 3_600),
    ] {
        assert_eq!(schedule.around(at(now)).seconds(), seconds, "{name}");
    }
    let figures = params(2, schedule.around(at(NOON)));
    let mut state = None;
    assert_eq!(take(&figures, &mut state, 2, midnight), 0);
    let refused = ask(&figures, state, 1, MaxWait::NONE, midnight);
    assert_eq!(micros(refused.decision.outcome), Some(23 * HOUR));
    assert_eq!(take(&figures, &mut state, 2, midnight + 23 * HOUR), 0, "the next day");
    // The windows were looked up for noon. A clock that is a day late still finds the window of its day.
    assert_eq!(take(&figures, &mut None, 2, midnight - 5), 0);
    let yesterday = Some(State::of(at(midnight - DAY), 2));
    let refused = ask(&figures, yesterday, 1, MaxWait::NONE, midnight - 5);
    assert_eq!(micros(refused.decision.outcome), Some(5));
}

#[test]
fn changed_figures_go_on_from_what_was_used() {
    let mut state = None;
    take(&rolling(10, HOUR), &mut state, 4, NOON);
    let schedule = calendar();
    for (name, figures, remaining) in [
        ("more", rolling(100, HOUR), 95),
        ("less", rolling(3, HOUR), 0),
        ("longer", rolling(10, DAY), 5),
        ("on the clock", params(10, Windows::Clock(interval(HOUR))), 5),
        ("on the calendar", params(10, schedule.around(at(NOON))), 5),
    ] {
        let step = ask(&figures, state, 1, MaxWait::NONE, NOON + 1);
        assert_eq!(step.decision.remaining, remaining, "{name}");
    }
}

proptest! {
    #[test]
    fn no_window_has_more_than_its_count_and_order_is_kept(
        figures in any_params(),
        steps in prop::collection::vec((0_u64..3, 0..2 * SECOND, 1_u64..5, any::<bool>()), 1..80),
    ) {
        let count = figures.count.get();
        let (mut state, mut now, mut last) = (None, NOON, 0);
        // For each request the time when it goes, and its cost.
        let mut passed: Vec<(u64, u64)> = Vec::new();
        for (windows, micros_on, cost, patient) in steps {
            let length = figures.windows.seconds() * SECOND;
            now += windows * length / 2 + micros_on;
            let max_wait = if patient { MaxWait::ENDLESS } else { MaxWait::NONE };
            let step = ask(&figures, state, cost.min(count), max_wait, now);
            state = after(&step, state);
            if step.decision.outcome.passes() {
                let goes = now + micros(step.decision.outcome).unwrap();
                prop_assert!(goes >= last, "nobody overtakes");
                last = goes;
                passed.push((goes, cost.min(count)));
            }
        }
        // A rolling window begins with the first request that is in no earlier window.
        let mut window: Option<(u64, u64)> = None;
        for (goes, cost) in passed {
            let used = match (&figures.windows, window) {
                (Windows::Rolling(interval), Some((start, used))) => {
                    let ends = start + interval.as_micros();
                    if goes < ends { Some((start, used)) } else { None }
                }
                (windows, Some((start, used))) => {
                    (windows.start_of(at(goes)) == at(start)).then_some((start, used))
                }
                (_, None) => None,
            };
            let start = match figures.windows {
                Windows::Rolling(_) => goes,
                windows => windows.start_of(at(goes)).as_micros(),
            };
            let (start, used) = used.unwrap_or((start, 0));
            prop_assert!(used + cost <= count, "{} and {} in one window", used, cost);
            window = Some((start, used + cost));
        }
    }

    #[test]
    fn whatever_the_figures_were_the_next_window_has_its_whole_count(
        steps in prop::collection::vec((any_params(), 1_u64..1_000_000_000, 0..HOUR), 1..9),
        last in any_params(),
    ) {
        let (mut state, mut now) = (None, NOON);
        for (figures, cost, later) in steps {
            now += later;
            let cost = 1 + cost % figures.count.get();
            state = after(&ask(&figures, state, cost, MaxWait::NONE, now), state);
        }
        let present = open(&last, state, at(now)).0.start;
        let next = last.windows.later(present, 1).as_micros();
        let all = ask(&last, state, last.count.get(), MaxWait::NONE, next);
        prop_assert_eq!(all.decision.outcome, Outcome::Allow);
    }

    #[test]
    fn the_promised_wait_is_exact(
        (figures, state) in any_state(),
        cost in 1_u64..1_000,
        later in 0..3 * DAY,
        back in 0..2 * STALE,
    ) {
        let cost = cost.min(figures.count.get());
        let now = state.start.as_micros() + later - back.min(later);
        let (algorithm, state) = (Algorithm::FixedWindow(figures), BucketState::FixedWindow(state));
        a_promised_wait_is_exact(algorithm, state, cost, at(now))?;
    }

    #[test]
    fn at_fresh_at_a_window_is_as_good_as_new(
        (figures, state) in any_state(),
        cost in 1_u64..1_000,
        later in 0_u64..DAY,
    ) {
        let grace = if figures.windows.are_on_clock() { STALE } else { 0 };
        let bucket = (Algorithm::FixedWindow(figures), BucketState::FixedWindow(state));
        when_fresh_it_is_as_good_as_new(bucket, cost, later, grace)?;
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_and_sticks_nowhere(
        (figures, state) in any_state(),
        back in 1..NOON - 4 * DAY,
    ) {
        let now = at(state.start.as_micros() - back);
        let bucket = (Algorithm::FixedWindow(figures), BucketState::FixedWindow(state));
        let step = a_step_back_gives_nothing(bucket.0, bucket.1, state.start, now)?;
        let kept = after(&step, Some(state)).unwrap();
        let next = figures.windows.later(figures.windows.start_of(now), 1);
        prop_assert!(kept.start <= next || kept.start.micros_since(now) <= STALE);
        let returned = open(&figures, Some(kept), state.start).0;
        if state.start <= next {
            prop_assert_eq!(returned, open(&figures, Some(state), state.start).0);
        }
    }

    #[test]
    fn a_returned_cost_is_there_again((figures, state) in any_state(), cost in 1_u64..1_000) {
        let now = state.start;
        let step = decide(&figures, Some(state), want(cost, MaxWait::NONE), now);
        if let Some(taken) = step.taken.map(own) {
            let taken_at = Algorithm::FixedWindow(figures).receipt(
                step.decision.outcome,
                BucketState::FixedWindow(taken),
                now,
            );
            let used = Difference::Less(cost);
            let settled = Settlement { used, receipt: taken_at, max_wait: MaxWait::NONE };
            let back = settle(&figures, Some(taken), &settled, now);
            prop_assert_eq!(decide(&figures, back, want(cost, MaxWait::NONE), now), step);
        }
    }
}
