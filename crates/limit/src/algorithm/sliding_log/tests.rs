use std::time::Duration;

use super::*;
use crate::algorithm::Receipt;
use crate::algorithm::testing::{SECOND, at};
use crate::decision::{Decision, Outcome};
use crate::waiting::MaxWait;
use proptest::prelude::*;

fn params(count: u64, interval: u64) -> Params {
    Params::new(Rate::new(count, interval).unwrap()).unwrap()
}

fn want(cost: u64, max_wait: u64) -> Want {
    let max_wait = MaxWait::of(Duration::from_micros(max_wait));
    Want { cost: Cost::new(cost).unwrap(), max_wait }
}

/// Asks, and writes the decided state, as a store does.
fn ask(log: &mut Log, params: &Params, want: Want, now: u64) -> Decision {
    let step = decide(params, log.seen(params, want.cost, at(now)), want, at(now));
    if let Some(BucketState::SlidingLog(state)) = step.taken.or(step.kept) {
        log.write(params, state);
    }
    step.decision
}

fn passes(log: &mut Log, params: &Params, cost: u64, now: u64) -> bool {
    ask(log, params, want(cost, 0), now).outcome.passes()
}

/// The settlement of a request that took at this time.
fn settled(used: Difference, taken: u64) -> Settlement {
    Settlement { used, receipt: Receipt::new(at(taken)), max_wait: MaxWait::NONE }
}

#[test]
fn a_larger_use_counts_and_a_smaller_use_does_not() {
    let (mut log, figures) = (Log::default(), params(3, 10 * SECOND));
    assert!(passes(&mut log, &figures, 1, 0));
    let state = log.settle(&figures, &settled(Difference::More(4), 0), at(SECOND));
    let state = state.unwrap();
    assert_eq!(state.used, 5);
    assert!(in_debt(&figures, state));
    assert_eq!(fresh_at(&figures, state), at(11 * SECOND));
    assert!(!passes(&mut log, &figures, 1, 10 * SECOND));
    let times = |log: &Log| log.entries().map(|(at, _)| at.as_micros()).collect::<Vec<_>>();
    log.settle(&figures, &settled(Difference::Less(3), SECOND), at(2 * SECOND));
    assert_eq!(times(&log), [0, SECOND]);
    log.settle(&figures, &settled(Difference::Less(3), SECOND + 1), at(2 * SECOND));
    assert_eq!(times(&log), [0, SECOND], "nobody took then");
    assert!(passes(&mut log, &figures, 1, 2 * SECOND));
    log.settle(&figures, &settled(Difference::Less(1), 0), at(2 * SECOND));
    assert_eq!(times(&log), [SECOND, 2 * SECOND]);
    log.settle(&figures, &settled(Difference::Less(9), 2 * SECOND), at(2 * SECOND));
    assert_eq!(times(&log), [SECOND]);
    let state = log.settle(&figures, &settled(Difference::Less(9), SECOND), at(2 * SECOND));
    assert_eq!(state, None);
    assert_eq!(log, Log::default());
}

#[test]
fn a_larger_use_has_a_bounded_number_of_entries() {
    let (mut log, figures) = (Log::default(), params(3, 10 * SECOND));
    for now in 0..10 {
        log.settle(&figures, &settled(Difference::More(1 << 50), 0), at(now));
        assert_eq!(log.entries().count(), 103.min(1_000 * index(now + 1)));
    }
    assert!(log.entries().all(|(time, _)| time >= at(6)), "the oldest went");
}

#[test]
fn no_more_permits_than_can_be_kept() {
    assert!(Params::new(Rate::new(MOST, SECOND).unwrap()).is_some());
    assert!(Params::new(Rate::new(MOST + 1, SECOND).unwrap()).is_none());
}

#[test]
fn a_list_is_compact_and_gives_memory_back() {
    let (mut log, figures) = (Log::default(), params(1_000, SECOND));
    for now in 0..1_000 {
        assert!(passes(&mut log, &figures, 1, now));
    }
    assert!(log.bytes() <= 20 * 1_000, "{}", log.bytes());
    assert!(passes(&mut log, &figures, 1, 10 * SECOND));
    assert!(log.bytes() <= 16 * 20, "{}", log.bytes());
    let mut together = Log::default();
    assert!((0..25).all(|_| passes(&mut together, &figures, 32, 0)));
    assert!(together.bytes() <= 20 * 25 * 32, "of one moment: {}", together.bytes());
}

/// A history of requests. Each request has the time since the last request, its cost, and its longest wait.
fn any_requests() -> impl Strategy<Value = Vec<(i64, u64, u64)>> {
    let gap = prop_oneof![3 => Just(0), 4 => 0_i64..30, 1 => 0_i64..300];
    let max_wait = prop_oneof![3 => Just(0), 2 => 0_u64..200];
    prop::collection::vec((gap, 1_u64..6, max_wait), 1..120)
}

/// Whether `cost` more permits fit into the interval that ends at `time`.
fn fits(permits: &[u64], count: u64, interval: u64, cost: u64, time: u64) -> bool {
    let inside = permits.iter().filter(|at| **at <= time && **at + interval > time).count();
    u64::try_from(inside).unwrap() + cost <= count
}

/// The most permits in any interval. It is enough to look at the intervals that end with a permit.
fn most_in_an_interval(permits: &[u64], interval: u64) -> usize {
    let inside =
        |end: &u64| permits.iter().filter(|at| *at <= end && **at + interval > *end).count();
    permits.iter().map(inside).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn agrees_with_a_count(
        (count, interval) in (1_u64..8, 1_u64..100),
        requests in any_requests(),
    ) {
        let figures = params(count, interval);
        let (mut log, mut permits, mut now) = (Log::default(), Vec::new(), 1_000_u64);
        for (gap, cost, max_wait) in requests {
            now += gap.unsigned_abs();
            let newest = permits.iter().copied().max().unwrap_or(0).max(now);
            let turn = (cost <= count).then(|| {
                (newest..).find(|time| fits(&permits, count, interval, cost, *time)).unwrap()
            });
            let outcome = ask(&mut log, &figures, want(cost, max_wait), now).outcome;
            let expected = match turn.map(|turn| turn - now) {
                None => Outcome::Reject { retry_after: None },
                Some(0) => Outcome::Allow,
                Some(wait) if wait <= max_wait => Outcome::Delay(Duration::from_micros(wait)),
                Some(wait) => Outcome::Reject { retry_after: Some(Duration::from_micros(wait)) },
            };
            prop_assert_eq!(outcome, expected, "cost {} at {}", cost, now);
            if outcome.passes() {
                permits.extend((0..cost).map(|_| turn.unwrap()));
            }
            prop_assert!(log.entries().count() <= usize::try_from(figures.most()).unwrap());
        }
        prop_assert!(most_in_an_interval(&permits, interval) <= usize::try_from(count).unwrap());
    }

    /// The test has a second clock. It stands still when the first clock steps back. The test counts tokens by
    /// the second clock.
    #[test]
    fn a_clock_that_steps_back_never_gives_tokens(
        (count, interval) in (1_u64..5, 1_u64..5_000_000),
        moves in prop::collection::vec((-3_000_000_i64..2_000_000, 1_u64..3, 0_u64..3_000_000), 1..80),
    ) {
        let figures = params(count, interval);
        let (mut log, mut permits) = (Log::default(), Vec::new());
        let (mut now, mut lost, mut last) = (1_u64 << 40, 0, 0);
        for (step, cost, max_wait) in moves {
            now = now.saturating_add_signed(step);
            if last > now + STALE {
                lost += last - now;
                last = now;
            }
            let outcome = ask(&mut log, &figures, want(cost, max_wait), now).outcome;
            if !outcome.passes() {
                continue;
            }
            let gone = match outcome {
                Outcome::Delay(wait) => now + u64::try_from(wait.as_micros()).unwrap(),
                _ => now.max(last),
            };
            last = now.max(last);
            permits.extend((0..cost).map(|_| gone + lost));
        }
        prop_assert!(most_in_an_interval(&permits, interval) <= usize::try_from(count).unwrap());
    }

    #[test]
    fn the_promised_wait_is_exact(
        (count, interval) in (1_u64..8, 1_u64..100),
        requests in any_requests(),
        cost in 1_u64..8,
        late in 0_u64..STALE,
    ) {
        let figures = params(count, interval);
        let (mut log, mut now) = (Log::default(), 2 * SECOND);
        for (gap, cost, max_wait) in requests {
            now += gap.unsigned_abs();
            ask(&mut log, &figures, want(cost, max_wait), now);
        }
        now -= late;
        let said = ask(&mut log.clone(), &figures, want(cost, 0), now).outcome;
        if let Outcome::Reject { retry_after: Some(wait) } = said {
            let then = now + u64::try_from(wait.as_micros()).unwrap();
            let at_once = |now| ask(&mut log.clone(), &figures, want(cost, 0), now).outcome;
            prop_assert_eq!(at_once(then), Outcome::Allow);
            prop_assert_ne!(at_once(then - 1), Outcome::Allow);
        }
    }
}
