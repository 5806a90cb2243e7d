//! Limits that hold requests together: a request goes at one moment, and no limit lets more pass than it would
//! alone.

mod given_back;

use std::time::Duration;

use proptest::prelude::*;

use super::Mode;
use super::algorithm::fixed_window::{self, windows::Windows};
use super::algorithm::sliding_log::{self, Log};
use super::algorithm::token_bucket::Params;
use super::algorithm::{
    Algorithm, Difference, Receipt, Settlement, State, leaky_bucket, sliding_window,
};
use super::decide::{Ask, Change, Decided, decide};
use super::decision::{Outcome, Verdict};
use super::rate::{Burst, Cost, Interval, Rate};
use super::time::Timestamp;
use super::waiting::{MaxWait, WaitingLine};

const SECOND: u64 = 1_000_000;
const BEGIN: u64 = 1_700_000_000 * SECOND;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn rate(count: u64, seconds: u64) -> Rate {
    Rate::new(count, seconds * SECOND).unwrap()
}

fn burst(tokens: u64) -> Burst {
    Burst::new(tokens).unwrap()
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let figures = || (1_u64..6, 1_u64..8);
    let interval = |seconds: u64| Interval::from_micros(seconds * SECOND).unwrap();
    prop_oneof![
        (figures(), 1_u64..6).prop_map(|((count, seconds), size)| {
            Algorithm::TokenBucket(Params { rate: rate(count, seconds), burst: burst(size) })
        }),
        (figures(), 0_u64..6).prop_map(|((count, seconds), queue)| {
            let params = leaky_bucket::Params::new(rate(count, seconds), queue).unwrap();
            Algorithm::LeakyBucket(params)
        }),
        (figures(), any::<bool>()).prop_map(move |((count, seconds), rolls)| {
            let windows = match rolls {
                true => Windows::Rolling(interval(seconds)),
                false => Windows::Clock(interval(seconds)),
            };
            Algorithm::FixedWindow(fixed_window::Params { count: burst(count), windows })
        }),
        figures().prop_map(move |(count, seconds)| {
            Algorithm::SlidingWindow(sliding_window::Params::new(burst(count), interval(seconds)))
        }),
        figures().prop_map(|(count, seconds)| {
            Algorithm::SlidingLog(sliding_log::Params::new(rate(count, seconds)).unwrap())
        }),
    ]
}

fn any_limits() -> impl Strategy<Value = Vec<Ask>> {
    let limit = (any_algorithm(), 1..30 * SECOND).prop_map(|(algorithm, max_wait)| {
        let max_wait = MaxWait::of(Duration::from_micros(max_wait));
        Ask { algorithm, ..patient(max_wait) }
    });
    prop::collection::vec(limit, 2..4)
}

/// An ask about a limit that holds requests for this time. The algorithm is to be replaced.
fn patient(max_wait: MaxWait) -> Ask {
    let (algorithm, cost) = (Algorithm::Closed, Cost::ONE);
    Ask { algorithm, cost, max_wait, mode: Mode::Enforce, line: WaitingLine::new(1) }
}

/// The buckets of some limits.
struct Buckets {
    states: Vec<Option<State>>,
    logs: Vec<Log>,
}

impl Buckets {
    fn new(limits: usize) -> Self {
        Self { states: vec![None; limits], logs: vec![Log::default(); limits] }
    }

    /// Asks one limit alone about a request, which passes at once.
    fn take(&mut self, place: usize, ask: &Ask, now: Timestamp) -> Receipt {
        let step = ask.algorithm.decide(self.states[place], ask.want_from(0), now);
        assert_eq!(step.decision.outcome, Outcome::Allow);
        self.states[place] = step.taken;
        ask.algorithm.receipt(Outcome::Allow, step.taken.unwrap(), now)
    }

    fn give_back(
        &mut self,
        place: usize,
        ask: &Ask,
        (tokens, receipt): (u64, Receipt),
        now: Timestamp,
    ) {
        let used = Difference::Less(tokens);
        let settled = Settlement { used, receipt, max_wait: ask.max_wait };
        self.states[place] = ask.algorithm.settle(self.states[place], &settled, now);
    }

    /// Like [`Buckets::ask`], with what each limit notes.
    fn hold(&mut self, asks: &[Ask], now: Timestamp) -> (Duration, Vec<Receipt>) {
        let decided = decide(asks, &self.states, now.into());
        let Verdict::Pass { wait } = decided.verdict else { panic!("{:?}", decided.verdict) };
        let taken = asks.iter().zip(&decided.changes).enumerate().map(|(place, (ask, change))| {
            let Change::Taken(state, outcome) = *change else { panic!("{change:?}") };
            self.states[place] = Some(state);
            ask.receipt(outcome, state, now.into())
        });
        (wait, taken.collect())
    }

    /// The verdict, and when each limit counts the request.
    fn ask(&mut self, asks: &[Ask], now: Timestamp) -> (Verdict, Vec<Outcome>) {
        let decided = self.decide(asks, now);
        let taken = decided.changes.iter().filter_map(|change| match change {
            Change::Taken(_, outcome) => Some(*outcome),
            Change::Moved(_) | Change::None => None,
        });
        (decided.verdict, taken.collect())
    }

    fn decide(&mut self, asks: &[Ask], now: Timestamp) -> Decided {
        for ((ask, state), log) in asks.iter().zip(&mut self.states).zip(&self.logs) {
            if let Algorithm::SlidingLog(params) = ask.algorithm {
                *state = log.seen(&params, ask.cost, now).map(State::SlidingLog);
            }
        }
        let decided = decide(asks, &self.states, now.into());
        for (place, change) in decided.changes.iter().enumerate() {
            self.states[place] = change.state().or(self.states[place]);
            if let (Algorithm::SlidingLog(params), Some(State::SlidingLog(state))) =
                (asks[place].algorithm, change.state())
            {
                self.logs[place].write(&params, state);
            }
        }
        decided
    }
}

/// A leaky bucket that lets requests go at once shows whether they come at its even spacing.
fn alone(ask: &Ask) -> Ask {
    let algorithm = match ask.algorithm {
        Algorithm::LeakyBucket(params) => {
            Algorithm::LeakyBucket(leaky_bucket::Params::new(params.rate, 0).unwrap())
        }
        other => other,
    };
    Ask { algorithm, max_wait: MaxWait::NONE, line: None, ..*ask }
}

proptest! {
    #[test]
    fn no_limit_lets_more_pass_than_it_would_alone(
        limits in any_limits(),
        gaps in prop::collection::vec(prop_oneof![3 => Just(0), 3 => 0..SECOND, 1 => 0..20 * SECOND], 1..80),
    ) {
        let (mut buckets, mut now, mut goes) = (Buckets::new(limits.len()), BEGIN, Vec::new());
        for gap in gaps {
            now += gap;
            let (verdict, outcomes) = buckets.ask(&limits, at(now));
            let Verdict::Pass { wait } = verdict else { continue };
            let expected = if wait.is_zero() { Outcome::Allow } else { Outcome::Delay(wait) };
            prop_assert!(outcomes.iter().all(|outcome| *outcome == expected), "{outcomes:?}");
            goes.push(at(now).plus(wait));
        }
        goes.sort_unstable();
        for ask in &limits {
            let (ask, mut bucket) = (alone(ask), Buckets::new(1));
            for (number, now) in goes.iter().enumerate() {
                let (mut verdict, _) = bucket.ask(&[ask], *now);
                // Waits are whole microseconds, so two requests may go a microsecond closer together.
                if let Verdict::Refuse { retry_after: Some(wait), .. } = verdict
                    && wait <= Duration::from_micros(99)
                {
                    verdict = bucket.ask(&[ask], now.plus(wait)).0;
                }
                prop_assert!(verdict.passes(), "request {number} of {goes:?}: {verdict:?} by {ask:?}");
            }
        }
    }

    /// A regression: the number of remaining tokens was that of the moment at which the request goes. It rose from
    /// one held request to the next.
    #[test]
    fn what_remains_does_not_rise_while_no_time_passes(
        limits in any_limits(),
        gaps in prop::collection::vec(prop_oneof![9 => Just(0), 1 => 0..5 * SECOND], 1..60),
    ) {
        let (mut buckets, mut now) = (Buckets::new(limits.len()), BEGIN);
        let mut least = vec![u64::MAX; limits.len()];
        for gap in gaps {
            now += gap;
            if gap > 0 {
                least.fill(u64::MAX);
            }
            let told = buckets.decide(&limits, at(now)).decisions;
            let told: Vec<_> = told.iter().map(|decision| decision.remaining).collect();
            prop_assert!(told.iter().zip(&least).all(|(now, before)| now <= before), "{least:?}, {told:?}");
            least = told;
        }
    }

    #[test]
    fn a_line_of_one_limit_changes_nothing(
        limits in any_limits(),
        gaps in prop::collection::vec(0..3 * SECOND, 1..40),
    ) {
        let alone: Vec<_> = limits.iter().take(1).copied().collect();
        let beside = Ask { algorithm: Algorithm::TokenBucket(Params { rate: rate(1000, 1), burst: burst(1000) }), line: None, ..alone[0] };
        let (mut one, mut two, mut now) = (Buckets::new(1), Buckets::new(2), BEGIN);
        for gap in gaps {
            now += gap;
            let (verdict, _) = one.ask(&alone, at(now));
            prop_assert_eq!(two.ask(&[alone[0], beside], at(now)).0, verdict);
        }
    }
}

/// Held requests wait for the next window. Without a line they would all go when the window begins.
#[test]
fn a_window_does_not_let_requests_go_closer_together_than_a_bucket_does() {
    let interval = Interval::from_micros(10 * SECOND).unwrap();
    let windows = Windows::Clock(interval);
    let window = Algorithm::FixedWindow(fixed_window::Params { count: burst(5), windows });
    let bucket = Algorithm::TokenBucket(Params { rate: rate(1, 1), burst: burst(1) });
    let most_at_once = |line: Option<WaitingLine>| {
        let ask = |algorithm| Ask { algorithm, line, ..patient(MaxWait::ENDLESS) };
        let (asks, mut buckets) = ([ask(window), ask(bucket)], Buckets::new(2));
        let goes: Vec<_> = (0..10)
            .map(|number| {
                let now = at(BEGIN + number * SECOND);
                let Verdict::Pass { wait } = buckets.ask(&asks, now).0 else { panic!("refused") };
                now.plus(wait)
            })
            .collect();
        let in_a_second = |from: &Timestamp| {
            goes.iter().filter(|go| go.as_micros() / SECOND == from.as_micros() / SECOND).count()
        };
        goes.iter().map(in_a_second).max()
    };
    assert_eq!(most_at_once(WaitingLine::new(1)), Some(1));
    assert_eq!(most_at_once(None), Some(5));
}

#[test]
fn no_limit_holds_a_request_for_longer_than_its_own_wait() {
    let even = leaky_bucket::Params::new(rate(5, 1), 1).unwrap();
    let log = sliding_log::Params::new(rate(1, 1)).unwrap();
    let bucket = Params { rate: rate(10, 1), burst: burst(1) };
    let ask = |algorithm, seconds| Ask {
        algorithm,
        ..patient(MaxWait::of(Duration::from_secs(seconds)))
    };
    let asks = [
        ask(Algorithm::TokenBucket(bucket), 3),
        ask(Algorithm::LeakyBucket(even), 60),
        ask(Algorithm::SlidingLog(log), 2),
    ];
    let mut buckets = Buckets::new(asks.len());
    let waits: Vec<_> = (0..5).map(|_| buckets.ask(&asks, at(BEGIN)).0).collect();
    let held = |seconds| Verdict::Pass { wait: Duration::from_secs(seconds) };
    assert_eq!(waits[..3], [held(0), held(1), held(2)]);
    for refused in &waits[3..] {
        let retry_after = Some(Duration::from_secs(3));
        assert_eq!(*refused, Verdict::Refuse { by: 2, retry_after });
    }
}
