//! Giving back at any time: never more tokens than were taken, and only where they were taken.

mod changed_figures;

use std::time::Duration;

use proptest::prelude::*;

use super::fixed_window::windows::Windows;
use super::sliding_log::Log;
use super::*;
use crate::rate::{Burst, Cost, Interval, Rate};
use crate::waiting::MaxWait;

/// One event of a history. Each event comes some microseconds after the last event.
#[derive(Clone, Copy, Debug)]
enum Event {
    Ask {
        cost: u64,
        max_wait: u64,
    },
    /// Gives back `tokens` of the request that passed `before` requests before the last one.
    GiveBack {
        before: usize,
        tokens: u64,
    },
}

fn any_events(patient: bool) -> impl Strategy<Value = Vec<(u64, Event)>> {
    let gap = prop_oneof![3 => Just(0), 4 => 0_u64..30, 1 => 0_u64..200];
    let max_wait = match patient {
        true => prop_oneof![1 => Just(0), 3 => 0_u64..300].boxed(),
        false => Just(0).boxed(),
    };
    let ask = (1_u64..6, max_wait).prop_map(|(cost, max_wait)| Event::Ask { cost, max_wait });
    let give_back =
        (0_usize..8, 1_u64..7).prop_map(|(before, tokens)| Event::GiveBack { before, tokens });
    prop::collection::vec((gap, prop_oneof![3 => ask, 2 => give_back]), 1..150)
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// One bucket, and the requests that passed.
struct BucketHistory {
    algorithm: Algorithm,
    /// The longest wait that each settlement names.
    max_wait: MaxWait,
    state: Option<BucketState>,
    log: Log,
    now: u64,
    passed: Vec<Passed>,
}

#[derive(Clone, Copy, Debug)]
struct Passed {
    asked: u64,
    moment: u64,
    /// The tokens that the request has not given back.
    tokens: u64,
    receipt: Receipt,
    /// The start of the window in which a fixed window counts the request.
    window: u64,
}

const BEGIN: u64 = 1_000_000;

impl BucketHistory {
    fn new(algorithm: Algorithm, max_wait: MaxWait) -> Self {
        let (log, passed) = (Log::default(), Vec::new());
        Self { algorithm, max_wait, state: None, log, now: BEGIN, passed }
    }

    fn seen(&mut self, cost: Cost) -> Option<BucketState> {
        let Algorithm::SlidingLog(params) = self.algorithm else { return self.state };
        self.log.forget(&params, at(self.now));
        self.log.seen(&params, cost, at(self.now)).map(BucketState::SlidingLog)
    }

    /// Whether the request passed.
    fn ask(&mut self, cost: u64, max_wait: u64) -> bool {
        let want = Want {
            cost: Cost::new(cost).unwrap(),
            max_wait: MaxWait::of(Duration::from_micros(max_wait)),
        };
        let seen = self.seen(want.cost);
        let step = self.algorithm.decide(seen, want, at(self.now));
        let Some(taken) = step.taken else { return false };
        let outcome = step.decision.outcome;
        let moment = match outcome {
            Outcome::Delay(wait) => self.now + u64::try_from(wait.as_micros()).unwrap(),
            _ => self.now,
        };
        let receipt = self.algorithm.receipt(outcome, taken, at(self.now));
        if let (Algorithm::SlidingLog(params), BucketState::SlidingLog(state)) =
            (self.algorithm, taken)
        {
            self.log.write(&params, state);
        }
        let window = match (self.algorithm, taken) {
            (Algorithm::FixedWindow(params), BucketState::FixedWindow(state)) => {
                let (Windows::Rolling(length) | Windows::Clock(length)) = params.windows else {
                    panic!("no calendar here");
                };
                moment - (moment - state.start.as_micros()) % length.as_micros()
            }
            _ => 0,
        };
        self.state = Some(taken);
        self.passed.push(Passed { asked: self.now, moment, tokens: cost, receipt, window });
        true
    }

    /// The index of the request in `passed`, and the tokens given back.
    fn give_back(&mut self, before: usize, tokens: u64) -> Option<(usize, u64)> {
        let index = self.passed.len().checked_sub(before + 1)?;
        let Passed { tokens: had, receipt, moment, .. } = self.passed[index];
        let tokens = tokens.min(had);
        let entries = |history: &Self| {
            history.log.entries().filter(|(at, _)| at.as_micros() == moment).count()
        };
        let before = entries(self);
        self.settle(Difference::Less(tokens), receipt);
        // A sliding log takes the place of a held request back only if nobody has a later one.
        let is_log = matches!(self.algorithm, Algorithm::SlidingLog(_));
        let is_kept = is_log && moment > self.now && entries(self) == before;
        let tokens = if is_kept { 0 } else { tokens };
        self.passed[index].tokens -= tokens;
        Some((index, tokens))
    }

    fn settle(&mut self, used: Difference, receipt: Receipt) {
        let settled = Settlement { used, receipt, max_wait: self.max_wait };
        match self.algorithm {
            Algorithm::SlidingLog(params) => {
                let seen = self.log.settle(&params, &settled, at(self.now));
                self.state = seen.map(BucketState::SlidingLog);
            }
            _ => self.state = self.algorithm.settle(self.state, &settled, at(self.now)),
        }
    }

    fn play(&mut self, (gap, event): (u64, Event)) -> Option<(usize, u64)> {
        self.now += gap;
        match event {
            Event::Ask { cost, max_wait } => {
                self.ask(cost, max_wait);
                None
            }
            Event::GiveBack { before, tokens } => self.give_back(before, tokens),
        }
    }

    /// The tokens, without those given back, of all requests whose moments are from `from` up to `to`.
    fn used(&self, from: u64, to: u64) -> u64 {
        let inside = |passed: &&Passed| (from..to).contains(&passed.moment);
        self.passed.iter().filter(inside).map(|passed| passed.tokens).sum()
    }
}

fn max_wait(patient: bool) -> MaxWait {
    if patient { MaxWait::ENDLESS } else { MaxWait::NONE }
}

fn fixed(count: u64, windows: Windows) -> Algorithm {
    Algorithm::FixedWindow(fixed_window::Params { count: Burst::new(count).unwrap(), windows })
}

fn interval(micros: u64) -> Interval {
    Interval::from_micros(micros).unwrap()
}

fn leaky(count: u64, interval: u64, queue: u64) -> Algorithm {
    let rate = Rate::new(count, interval).unwrap();
    Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, queue).unwrap())
}

fn tokens(count: u64, interval: u64, burst: u64) -> token_bucket::Params {
    let rate = Rate::new(count, interval).unwrap();
    token_bucket::Params { rate, burst: Burst::new(burst).unwrap() }
}

fn missing(state: Option<BucketState>, params: &token_bucket::Params, now: u64) -> (u64, u64) {
    let Some(BucketState::Bucket(state)) = state else { return (0, 0) };
    let (state, _) = token_bucket::refill(params, Some(state), at(now));
    (state.missing, state.rest)
}

proptest! {
    /// No interval has too many permits; it is enough to look at those that end with a permit. The list is
    /// the same as if tokens given back had never been taken.
    #[test]
    fn returned_tokens_leave_a_sliding_log_unchanged(
        (count, length) in (1_u64..8, 1_u64..100),
        patient in any::<bool>(),
        events in any_events(true),
    ) {
        let rate = Rate::new(count, length).unwrap();
        let params = sliding_log::Params::new(rate).unwrap();
        let mut history = BucketHistory::new(Algorithm::SlidingLog(params), max_wait(patient));
        for event in events {
            history.play(event);
            history.log.forget(&params, at(history.now));
            let mut expected: Vec<u64> = Vec::new();
            let in_window = |passed: &&Passed| passed.moment + length > history.now;
            for passed in history.passed.iter().filter(in_window) {
                expected.extend((0..passed.tokens).map(|_| passed.moment));
            }
            expected.sort_unstable();
            let kept: Vec<u64> = history.log.entries().map(|(at, _)| at.as_micros()).collect();
            prop_assert_eq!(kept, expected);
            for end in &history.passed {
                let from = (end.moment + 1).saturating_sub(length);
                prop_assert!(history.used(from, end.moment + 1) <= count);
            }
        }
    }

    #[test]
    fn a_fixed_window_never_has_more_than_its_count(
        (count, length) in (1_u64..12, 1_u64..100),
        (on_clock, patient) in any::<(bool, bool)>(),
        events in any_events(true),
    ) {
        let length = interval(length);
        let windows = if on_clock { Windows::Clock(length) } else { Windows::Rolling(length) };
        // A limit that holds no requests asks without longest wait.
        let mut history = BucketHistory::new(fixed(count, windows), max_wait(patient));
        for (gap, event) in events {
            let event = match event {
                Event::Ask { cost, .. } if !patient => Event::Ask { cost, max_wait: 0 },
                event => event,
            };
            history.play((gap, event));
            for one in &history.passed {
                let same = history.passed.iter().filter(|other| other.window == one.window);
                prop_assert!(same.map(|passed| passed.tokens).sum::<u64>() <= count);
            }
            if patient || !on_clock {
                continue;
            }
            // The state is the same as if tokens given back in time had never been taken.
            let window = history.now - history.now % length.as_micros();
            let used = history.used(window, window + length.as_micros());
            let kept = match history.state {
                Some(BucketState::FixedWindow(state)) if state.start == at(window) => {
                    state.used + state.beyond
                }
                _ => 0,
            };
            prop_assert_eq!(kept, used);
        }
    }

    #[test]
    fn returned_tokens_leave_a_sliding_windows_counters_unchanged(
        (count, length) in (1_u64..12, 1_u64..100),
        events in any_events(true),
    ) {
        let params = sliding_window::Params::new(Burst::new(count).unwrap(), interval(length));
        let mut history = BucketHistory::new(Algorithm::SlidingWindow(params), MaxWait::ENDLESS);
        for event in events {
            history.play(event);
            // Brings the state up to now.
            history.settle(Difference::More(0), Receipt::NONE);
            let begin = history.now - history.now % length;
            let kept = match history.state {
                Some(BucketState::SlidingWindow(state)) => {
                    [state.previous, state.current, state.next]
                }
                _ => [0; 3],
            };
            let window = |from| history.used(from, from + length);
            prop_assert_eq!(kept, [window(begin - length), window(begin), window(begin + length)]);
        }
    }

    /// Between two requests lies the time that the rate gives the first, even if others left the queue.
    #[test]
    fn a_leaky_bucket_keeps_its_spacing(
        (count, length, queue) in (1_u64..4, 1_u64..60, 0_u64..20),
        events in any_events(true),
    ) {
        let mut history = BucketHistory::new(leaky(count, length, queue), MaxWait::ENDLESS);
        for (gap, event) in events {
            match event {
                // Only a request that has not gone yet can leave the queue.
                Event::GiveBack { before, .. } => {
                    history.now += gap;
                    let index = history.passed.len().checked_sub(before + 1);
                    if index.is_some_and(|index| history.passed[index].moment > history.now) {
                        history.give_back(before, u64::MAX);
                    }
                }
                event => drop(history.play((gap, event))),
            }
        }
        let mut went: Vec<_> = history.passed.iter().filter(|passed| passed.tokens > 0).collect();
        went.sort_by_key(|passed| passed.moment);
        for pair in went.windows(2) {
            let [first, then] = pair else { continue };
            // The moments are rounded up to whole microseconds.
            let apart = (then.moment + 1 - first.moment) * count;
            prop_assert!(apart >= first.tokens * length, "{:?}", pair);
            prop_assert!(first.asked <= then.asked, "nobody is overtaken");
        }
    }

    /// Other requests take only if they could also take without the request that gives back.
    #[test]
    fn a_bucket_gains_nothing_that_it_would_not_have_had(
        (count, length, burst) in (1_u64..5, 1_u64..60, 1_u64..20),
        before in prop::collection::vec((0_u64..40, 1_u64..6), 0..20),
        cost in 1_u64..20,
        between in prop::collection::vec((0_u64..40, 1_u64..6), 0..20),
        (gap, part) in (0_u64..100, 1_u64..20),
    ) {
        let params = tokens(count, length, burst);
        let algorithm = Algorithm::TokenBucket(params);
        let mut with = BucketHistory::new(algorithm, MaxWait::NONE);
        let mut without = BucketHistory::new(algorithm, MaxWait::NONE);
        let others = |with: &mut BucketHistory,
                      without: &mut BucketHistory,
                      events: &[(u64, u64)]| {
            for (gap, cost) in events {
                with.now += gap;
                without.now += gap;
                assert!(!with.ask(*cost, 0) || without.ask(*cost, 0));
            }
        };
        others(&mut with, &mut without, &before);
        if !with.ask(cost, 0) {
            return Ok(());
        }
        let taken = with.passed[with.passed.len() - 1];
        let part = part.min(cost);
        if cost > part {
            // The request used the rest of its cost.
            without.ask(cost - part, 0);
        }
        others(&mut with, &mut without, &between);
        with.now += gap;
        let lacked = missing(with.state, &params, with.now);
        with.settle(Difference::Less(part), taken.receipt);
        let now = with.now;
        let lacks = missing(with.state, &params, now);
        // Rates are kept to the microsecond.
        prop_assert!(lacks >= missing(without.state, &params, now + 1));
        if now >= taken.receipt.time().as_micros() {
            prop_assert_eq!(lacks, lacked, "it has been full, or could have been");
        }
        let to_come = taken.receipt.time().as_micros() - now.min(taken.receipt.time().as_micros());
        if to_come.saturating_sub(1) * count >= part * length {
            prop_assert_eq!(lacks, missing(without.state, &params, now), "as if it had not taken");
        }
    }

    /// In an interval at most these tokens are used: those that the bucket holds, those that it gains, and
    /// those given back by requests from before the interval.
    #[test]
    fn a_bucket_lets_no_more_pass_than_is_given_back_to_it(
        (count, length, burst) in (1_u64..5, 1_u64..60, 1_u64..20),
        events in any_events(false),
    ) {
        let algorithm = Algorithm::TokenBucket(tokens(count, length, burst));
        let mut history = BucketHistory::new(algorithm, MaxWait::NONE);
        let mut given_back = Vec::new();
        for event in events {
            if let Some((index, tokens)) = history.play(event) {
                given_back.push((history.now, history.passed[index].moment, tokens));
            }
        }
        for from in &history.passed {
            for to in history.passed.iter().filter(|to| to.moment >= from.moment) {
                let during = from.moment..=to.moment;
                let late = given_back.iter().filter(|(now, taken, _)| {
                    during.contains(now) && *taken < from.moment
                });
                // Tokens taken in the interval and given back after it count as used.
                let still = given_back.iter().filter(|(now, taken, _)| {
                    *now > to.moment && during.contains(taken)
                });
                let used = history.used(from.moment, to.moment + 1)
                    + still.map(|(.., tokens)| tokens).sum::<u64>();
                let late: u64 = late.map(|(.., tokens)| tokens).sum();
                let gained = (to.moment - from.moment + 1) * count;
                prop_assert!(used * length <= (burst + late) * length + gained);
            }
        }
    }
}

#[test]
fn tokens_due_after_the_last_timestamp_are_given_back() {
    let params = tokens(1, 3_650 * 86_400_000_000, 1_000);
    let mut history = BucketHistory::new(Algorithm::TokenBucket(params), MaxWait::NONE);
    assert!(history.ask(900, 0));
    assert_eq!(history.passed[0].receipt.time(), Timestamp::MAX);
    history.give_back(0, 899);
    assert_eq!(missing(history.state, &params, history.now), (1, 0));
}
