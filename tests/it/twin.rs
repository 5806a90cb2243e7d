//! The algorithms in Rust and their Lua twins decide the same and keep the same bytes.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate::limit::Mode;
use tidegate::limit::algorithm::fixed_window::windows::{Schedule, Unit, Windows};
use tidegate::limit::algorithm::token_bucket::{self, Params, STALE};
use tidegate::limit::algorithm::{
    Algorithm, Difference, LUA, Receipt, Settlement, State, Want, fixed_window, leaky_bucket,
    sliding_window,
};
use tidegate::limit::decide::{Ask, decide};
use tidegate::limit::decision::Outcome;
use tidegate::limit::patience::Patience;
use tidegate::limit::rate::{Burst, Cost, EXACT, Interval, MAX_INTERVAL, Rate};
use tidegate::limit::time::Timestamp;

use crate::support::redis::RedisServer;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

const HALF: u64 = EXACT / 2;

/// Buckets of a history.
const BUCKETS: usize = 3;

/// One thing that happens in a history.
#[derive(Clone, Debug)]
enum Step {
    /// A request with an ask for each of the first buckets.
    Request { clock: Clock, asks: Vec<Ask> },
    /// A bucket is told that a request of this ask used its cost less, or more.
    Settle { clock: Clock, bucket: usize, ask: Ask, more: bool, shows: Shows },
}

/// Which receipt is shown.
#[derive(Clone, Copy, Debug)]
enum Shows {
    /// Of those that the bucket has given the one that is so many before the last.
    Given(usize),
    /// Of a time so many microseconds from now, or ago.
    Ahead(u64),
    Ago(u64),
}

fn any_shown() -> impl Strategy<Value = Shows> {
    prop_oneof![
        6 => (0_usize..4).prop_map(Shows::Given),
        1 => (0..2 * DAY).prop_map(Shows::Ahead),
        1 => (0..2 * DAY).prop_map(Shows::Ago),
        1 => (0_u64..10).prop_map(Shows::Ahead),
    ]
}

/// How the clock moves before a step.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Forward(u64),
    Back(u64),
    /// To the moment that the last refusal promised, or this many microseconds before it.
    Promised(u64),
    /// By this many periods of the first ask's rate, and microseconds.
    Periods(u64, u64),
}

fn any_clock() -> impl Strategy<Value = Clock> {
    prop_oneof![
        2 => Just(Clock::Forward(0)),
        2 => (0..3 * SECOND).prop_map(Clock::Forward),
        1 => (0..100 * DAY).prop_map(Clock::Forward),
        3 => (0_u64..2).prop_map(Clock::Promised),
        2 => (0_u64..20, 0_u64..3).prop_map(|(periods, micros)| Clock::Periods(periods, micros)),
        1 => (0..2 * SECOND).prop_map(Clock::Back),
        // Where a clock that is a little behind becomes one that stepped back.
        1 => (STALE - 1..=STALE + 1).prop_map(Clock::Back),
        1 => (0..DAY).prop_map(Clock::Back),
    ]
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![2 => any_bucket(), 2 => any_fixed_window(), 1 => any_sliding_window()]
}

fn any_count() -> impl Strategy<Value = Burst> {
    prop_oneof![1_u64..5, 1_u64..1_000, Just(1_000_000_000)]
        .prop_map(|count| Burst::new(count).unwrap())
}

fn any_interval() -> impl Strategy<Value = Interval> {
    prop_oneof![
        Just(SECOND),
        Just(60 * SECOND),
        Just(DAY),
        Just(MAX_INTERVAL),
        1_u64..10,
        1..10 * SECOND,
        1..30 * DAY,
    ]
    .prop_map(|micros| Interval::from_micros(micros).unwrap())
}

fn any_fixed_window() -> impl Strategy<Value = Algorithm> {
    let lengths = prop_oneof![Just(DAY), DAY - HOUR..DAY + HOUR, 28 * DAY..31 * DAY, 1_u64..10];
    let calendar = (0_u64..3, prop::collection::vec(lengths, 9), 0_usize..9).prop_map(
        |(far, lengths, around)| {
            let starts: Vec<_> = lengths
                .into_iter()
                .scan(1_700_000_000 * SECOND - far * DAY, |start, length| {
                    *start += length;
                    Some(Timestamp::from_micros(*start).unwrap())
                })
                .collect();
            let now = starts[around];
            Schedule::new(Unit::Day, "Somewhere".into(), starts).unwrap().around(now)
        },
    );
    let windows = prop_oneof![
        any_interval().prop_map(Windows::Rolling),
        any_interval().prop_map(Windows::Clock),
        calendar,
    ];
    (any_count(), windows).prop_map(|(count, windows)| {
        Algorithm::FixedWindow(fixed_window::Params { count, windows })
    })
}

fn any_sliding_window() -> impl Strategy<Value = Algorithm> {
    (any_count(), any_interval()).prop_map(|(count, interval)| {
        Algorithm::SlidingWindow(sliding_window::Params::new(count, interval))
    })
}

fn any_bucket() -> impl Strategy<Value = Algorithm> {
    let rate = prop_oneof![
        Just((1, DAY)),
        Just((10_000_000, SECOND)),
        Just((1, 3_650 * DAY)),
        Just((EXACT - 1, 1)),
        // Coprime, their product just below 2^53.
        Just((94_906_265, 94_906_264)),
        Just((1_000, 600 * SECOND)),
        Just((30, HOUR)),
        (1_u64..1_000, 1_u64..10),
        (1_u64..10_000_000, 1_u64..DAY),
    ];
    let burst = prop_oneof![1_u64..5, 1_u64..1_000, Just(1_000_000_000)];
    let figures = (rate, burst)
        .prop_filter_map("a rate that fits", |((count, interval), burst)| {
            Some((Rate::new(count, interval).ok()?, burst))
        });
    (figures, any::<bool>()).prop_map(|((rate, size), even)| match even {
        true => Algorithm::LeakyBucket(leaky_bucket::Params::new(rate, size - 1).unwrap()),
        false => Algorithm::TokenBucket(Params { rate, burst: Burst::new(size).unwrap() }),
    })
}

/// After which time much is as it was.
fn period(algorithm: &Algorithm) -> u64 {
    match algorithm {
        Algorithm::Redisson(_) => panic!("it has no twin"),
        Algorithm::TokenBucket(params) => params.rate.period(),
        Algorithm::LeakyBucket(params) => params.rate.period(),
        Algorithm::FixedWindow(params) => match params.windows {
            Windows::Rolling(interval) | Windows::Clock(interval) => interval.as_micros(),
            Windows::Calendar(_) => DAY,
        },
        Algorithm::SlidingWindow(params) => params.interval.as_micros(),
        Algorithm::SlidingLog(_) | Algorithm::Concurrency(_) => unreachable!("see `twin_lists`"),
    }
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let cost = prop_oneof![4 => Just(1), 2 => 1_u64..6, 1 => 1_u64..=1_000_000_000];
    let mode = prop_oneof![
        3 => Just(Mode::Enforce),
        1 => Just(Mode::Shadow),
        1 => Just(Mode::Candidate),
    ];
    let patience = prop_oneof![
        2 => Just(Patience::NONE),
        2 => (0..10 * SECOND).prop_map(|micros| Patience::of(Duration::from_micros(micros))),
        1 => Just(Patience::ENDLESS),
    ];
    (any_algorithm(), cost, patience, mode).prop_map(|(algorithm, cost, patience, mode)| {
        let cost = Cost::new(cost).unwrap();
        Ask { algorithm, cost, patience, mode }
    })
}

/// A history whose limits keep their figures for the most part, and sometimes change them.
fn any_history() -> impl Strategy<Value = (u64, Vec<Step>)> {
    let start = prop_oneof![Just(0), Just(1_700_000_000 * SECOND), Just(EXACT - 10 * DAY)];
    let asks = || prop::collection::vec(any_ask(), BUCKETS);
    (start, asks(), asks()).prop_flat_map(|(start, first, second)| {
        let asks = prop_oneof![4 => Just(first), 1 => Just(second)];
        let tweak = prop::option::weighted(0.3, 1_u64..4);
        let request = (any_clock(), asks.clone(), 1..=BUCKETS, tweak).prop_map(
            |(clock, mut asks, count, tweak)| {
                asks.truncate(count);
                if let Some(cost) = tweak {
                    asks[0].cost = Cost::new(cost).unwrap();
                }
                Step::Request { clock, asks }
            },
        );
        let more = prop::bool::weighted(0.3);
        let settle = (any_clock(), 0..BUCKETS, asks, more, any_shown()).prop_map(
            |(clock, bucket, asks, more, shows)| {
                let ask = asks[bucket];
                Step::Settle { clock, bucket, ask, more, shows }
            },
        );
        (Just(start), prop::collection::vec(prop_oneof![3 => request, 1 => settle], 1..40))
    })
}

/// What is said and kept, the same from both sides.
type Said = (String, Vec<u8>);

/// The history in Rust: what the other side is to be asked, and what it should answer.
fn play(start: u64, steps: &[Step]) -> (Value, Vec<Said>) {
    let mut states: HashMap<String, State> = HashMap::new();
    let (mut now, mut promised) = (start, None);
    let (mut script, mut answers) = (Vec::new(), Vec::new());
    let mut receipts: HashMap<String, Vec<Receipt>> = HashMap::new();
    for step in steps {
        let (clock, first) = match step {
            Step::Request { clock, asks } => (*clock, asks[0]),
            Step::Settle { clock, ask, .. } => (*clock, *ask),
        };
        now = match clock {
            Clock::Forward(micros) => now + micros,
            Clock::Back(micros) => now.saturating_sub(micros),
            Clock::Promised(early) => promised.map_or(now, |then: u64| then.saturating_sub(early)),
            Clock::Periods(periods, micros) => now + periods * period(&first.algorithm) + micros,
        }
        .min(EXACT - 1);
        let time = Timestamp::from_micros(now).unwrap();
        match step {
            Step::Request { asks, .. } => {
                let told = (0..).zip(asks).map(|(bucket, ask)| in_json(bucket, ask));
                let names: Vec<_> =
                    (0..).zip(asks).map(|(bucket, ask)| name(bucket, ask)).collect();
                let known: Vec<_> = names.iter().map(|name| states.get(name).copied()).collect();
                script.push(json!({ "now": now, "asks": told.collect::<Vec<_>>() }));
                let decided = decide(asks, &known, time.into());
                for (place, decision) in decided.decisions.iter().enumerate() {
                    let write = decided.writes[place].map(|s| kept(s, &asks[place].algorithm));
                    states.extend(write.map(|state| (names[place].clone(), state)));
                    let (said, wait) = match decision.outcome {
                        Outcome::Allow => (0, 0),
                        Outcome::Delay(wait) => (3, wait.as_micros()),
                        Outcome::Reject { retry_after: Some(wait) } => (1, wait.as_micros()),
                        Outcome::Reject { retry_after: None } => (2, 0),
                    };
                    if said == 1 || said == 3 {
                        promised = Some(now + u64::try_from(wait).unwrap());
                    }
                    let ask = &asks[place];
                    let own = ask.algorithm.decide(known[place], ask.want(), time);
                    let (noted, fresh_at) = own.taken.map_or((0, 0), |taken| {
                        let receipt = ask.algorithm.receipt(own.decision.outcome, taken, time);
                        receipts.entry(names[place].clone()).or_default().push(receipt);
                        let fresh_at = ask.algorithm.fresh_at(taken);
                        (receipt.time().as_micros(), fresh_at.as_micros())
                    });
                    let said = format!("{said} {wait} {} {noted} {fresh_at}", decision.remaining);
                    answers
                        .push((said, states.get(&names[place]).map_or(Vec::new(), |s| bytes(*s))));
                }
            }
            Step::Settle { bucket, ask, more, shows, .. } => {
                let mut told = in_json(*bucket, ask);
                let tokens = ask.cost.get();
                let (used, cost) = match more {
                    true => (Difference::More(tokens), json!(tokens)),
                    false => (Difference::Less(tokens), json!(-tokens.cast_signed())),
                };
                told["cost"] = cost;
                let name = name(*bucket, ask);
                let given = receipts.get(&name).map_or(&[][..], Vec::as_slice);
                let receipt = match shows {
                    Shows::Given(before) => given.iter().rev().nth(*before).copied(),
                    Shows::Ahead(micros) => Some(Receipt::new(time.plus_micros(*micros))),
                    Shows::Ago(micros) => {
                        Some(Receipt::new(time.plus_signed(-micros.cast_signed())))
                    }
                };
                let receipt = receipt.unwrap_or(Receipt::NONE);
                let shown = receipt.time().as_micros();
                script.push(json!({ "now": now, "settle": told, "receipt": shown }));
                let settled = Settlement { used, receipt, patience: ask.patience };
                let settled = ask.algorithm.settle(states.remove(&name), &settled, time);
                let settled = settled.map(|state| kept(state, &ask.algorithm));
                states.extend(settled.map(|state| (name, state)));
                answers.push(("0 0 0 0 0".into(), settled.map_or(Vec::new(), bytes)));
            }
        }
    }
    (Value::Array(script), answers)
}

/// A bucket's name: as in a store, algorithms never meet in one.
fn name(bucket: usize, ask: &Ask) -> String {
    format!("{bucket} {}", ask.algorithm.name())
}

fn in_json(bucket: usize, ask: &Ask) -> Value {
    json!({
        "bucket": name(bucket, ask),
        "algorithm": ask.algorithm.name(),
        "way": match ask.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Candidate => "candidate",
        },
        "cost": ask.cost.get(),
        "figures": ask.algorithm.figures().to_vec(),
        "patience": ask.patience.as_micros(),
    })
}

/// A state as Redis keeps it.
fn kept(state: State, algorithm: &Algorithm) -> State {
    match (state, algorithm) {
        (State::TokenBucket(state), Algorithm::TokenBucket(params)) => {
            State::TokenBucket(kept_bucket(state, params.rate))
        }
        (State::LeakyBucket(state), Algorithm::LeakyBucket(params)) => {
            State::LeakyBucket(kept_bucket(state, params.rate))
        }
        (state, _) => state,
    }
}

/// As of the last microsecond at which it was less than a microsecond's gain above whole tokens. From
/// then on it is the same state.
fn kept_bucket(state: token_bucket::State, rate: Rate) -> token_bucket::State {
    let (tokens, period, at) = (rate.tokens(), rate.period(), state.at.as_micros());
    let back = (period - state.rest).div_ceil(tokens);
    if state.rest == 0 || tokens >= period || back > at {
        return state;
    }
    let rest = state.rest + back * tokens - period;
    let at = Timestamp::from_micros(at - back).unwrap();
    token_bucket::State { missing: state.missing + 1, rest, period, at }
}

/// The bytes of a state that is kept.
fn bytes(state: State) -> Vec<u8> {
    match state {
        State::TokenBucket(state) | State::LeakyBucket(state) => bucket_bytes(state),
        State::Redisson(_) => panic!("it has no twin"),
        State::FixedWindow(state) => fixed_bytes(state),
        State::SlidingWindow(state) => sliding_bytes(state),
        // Not here: see `twin_lists`.
        State::SlidingLog(_) | State::Concurrency(_) => Vec::new(),
    }
}

fn fixed_bytes(state: fixed_window::State) -> Vec<u8> {
    counted_bytes(state.start, &[state.used])
}

fn sliding_bytes(state: sliding_window::State) -> Vec<u8> {
    counted_bytes(state.start, &[state.previous, state.current, state.next])
}

/// A format, a time, and counters in four bytes each, or in five where one needs them.
fn counted_bytes(start: Timestamp, counters: &[u64]) -> Vec<u8> {
    let (format, from) = match counters.iter().all(|counter| *counter < 1 << 32) {
        true => (1, 4),
        false => (2, 3),
    };
    let start = start.as_micros().to_be_bytes();
    let mut bytes = [&[format], &start[1..]].concat();
    for counter in counters {
        bytes.extend_from_slice(&counter.to_be_bytes()[from..]);
    }
    bytes
}

fn bucket_bytes(state: token_bucket::State) -> Vec<u8> {
    let (missing, at) = (state.missing.to_be_bytes(), state.at.as_micros());
    let (rest, period) = (state.rest.to_be_bytes(), state.period.to_be_bytes());
    let marked = (at + HALF).to_be_bytes();
    if at < HALF && state.rest == 0 && state.missing < 1 << 32 {
        return [&marked[1..], &missing[4..]].concat();
    }
    if at < HALF && state.rest < 1 << 8 && state.missing < 1 << 8 && state.period < 1 << 24 {
        return [&marked[1..], &missing[7..], &rest[7..], &period[5..]].concat();
    }
    [&[32], &at.to_be_bytes()[1..], &missing[3..], &rest[1..], &period[1..]].concat()
}

fn in_lua(connection: &mut redis::Connection, script: &Value) -> Vec<Said> {
    let shell = format!("{LUA}{}", include_str!("twin.lua"));
    let answer: Vec<Vec<u8>> =
        redis::cmd("EVAL").arg(shell).arg(0).arg(script.to_string()).query(connection).unwrap();
    let said = |pair: &[Vec<u8>]| (String::from_utf8(pair[0].clone()).unwrap(), pair[1].clone());
    answer.chunks(2).map(said).collect()
}

#[test]
fn rust_and_lua_decide_the_same_and_keep_the_same_bytes() {
    let server = RedisServer::start();
    let connection = std::cell::RefCell::new(server.connection());
    let config = ProptestConfig { cases: 600, failure_persistence: None, ..Default::default() };
    proptest!(config, |((start, steps) in any_history())| {
        let (script, expected) = play(start, &steps);
        let answers = in_lua(&mut connection.borrow_mut(), &script);
        prop_assert_eq!(answers.len(), expected.len());
        for (place, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
            prop_assert_eq!(answer, expected, "answer {} to {}", place, script);
        }
    });
}

/// Where a state is read again, that it was kept as of an earlier time makes no difference.
#[test]
fn a_state_that_is_kept_goes_on_as_it_was() {
    proptest!(|(
        (algorithm, missing, rest) in (any_bucket(), 0_u64..2_000, any::<prop::sample::Index>()),
        at in prop_oneof![Just(0), Just(1_700_000_000 * SECOND)],
        (cost, later) in (1_u64..2_000, 0_u64..DAY),
    )| {
        let period = period(&algorithm);
        let rest = u64::try_from(rest.index(usize::MAX)).unwrap() % period;
        let at = Timestamp::from_micros(at).unwrap();
        let state = token_bucket::State { missing, rest, period, at };
        let state = match algorithm {
            Algorithm::LeakyBucket(_) => State::LeakyBucket(state),
            Algorithm::Redisson(_) => panic!("it has no twin"),
            _ => State::TokenBucket(state),
        };
        let kept = kept(state, &algorithm);
        let want = Want { cost: Cost::new(cost).unwrap(), patience: Patience::NONE };
        let now = at.plus_micros(later);
        prop_assert_eq!(
            algorithm.decide(Some(kept), want, now),
            algorithm.decide(Some(state), want, now)
        );
        prop_assert_eq!(algorithm.fresh_at(kept), algorithm.fresh_at(state));
    });
}

#[test]
fn lua_reads_what_it_does_not_know_as_a_new_bucket() {
    let server = RedisServer::start();
    let now = 1_700_000_000 * SECOND;
    // A bucket of ten: what is missing shows in what remains.
    let script = format!(
        "{LUA} local _, left = decide('token-bucket', {{ 7, 1000000, 10 }}, 1, 0, ARGV[1], {now})
         return left"
    );
    let state = |missing, rest, period| {
        let at = Timestamp::from_micros(now).unwrap();
        bucket_bytes(token_bucket::State { missing, rest, period, at })
    };
    let with = |bytes: &[u8], place: usize, byte: u8| {
        let mut bytes = bytes.to_vec();
        bytes[place] = byte;
        bytes
    };
    let (whole, short) = (state(3, 0, 1_000_000), state(3, 5, 1_000_000));
    let long = state(3, 5, 1 << 24);
    assert_eq!([whole.len(), short.len(), long.len()], [11, 12, 27]);
    for (name, bytes, left) in [
        ("whole tokens", whole.clone(), 6),
        ("a small remainder", short.clone(), 5),
        ("a large one", long.clone(), 5),
        ("nothing", vec![], 9),
        ("one byte", vec![whole[0]], 9),
        ("text", b"12".to_vec(), 9),
        ("another format, short", with(&whole, 0, 0x20), 9),
        ("no format, short", with(&short, 0, 0x0F), 9),
        ("another format, long", with(&long, 0, 0x16), 9),
        ("a time from 2^53 on", with(&long, 1, 0x20), 9),
        ("another period", with(&short, 9, 0), 5),
        ("a remainder of a whole period", [&short[..9], &[0, 0, 5]].concat(), 9),
        ("no period", [&short[..9], &[0, 0, 0]].concat(), 9),
        ("a remainder of a whole long period", with(&long, 13, 1), 9),
        ("cut off", long[..26].to_vec(), 9),
        ("too long", [&long[..], &[0]].concat(), 9),
    ] {
        let read: u64 = redis::cmd("EVAL")
            .arg(&script)
            .arg(0)
            .arg(bytes)
            .query(&mut server.connection())
            .unwrap();
        assert_eq!(read, left, "{name}");
    }
}

#[test]
fn lua_reads_what_it_does_not_know_as_a_new_window() {
    let server = RedisServer::start();
    let start = Timestamp::from_micros(1_700_000_000 * SECOND).unwrap();
    let fixed = |used| fixed_bytes(fixed_window::State { start, used });
    let sliding = |previous, current| {
        sliding_bytes(sliding_window::State { start, previous, current, next: 0 })
    };
    let with = |bytes: Vec<u8>, place: usize, byte: u8| {
        let mut bytes = bytes;
        bytes[place] = byte;
        bytes
    };
    for (name, algorithm, bytes, left) in [
        ("what was used", "fixed-window", fixed(3), 6),
        ("no format", "fixed-window", with(fixed(3), 0, 9), 9),
        ("the other format", "fixed-window", with(fixed(3), 0, 2), 9),
        ("a time from 2^53 on", "fixed-window", with(fixed(3), 1, 0x20), 9),
        ("nothing used", "fixed-window", fixed(0), 9),
        ("cut off", "fixed-window", fixed(3)[..11].to_vec(), 9),
        ("nothing", "fixed-window", vec![], 9),
        ("two windows", "sliding-window", sliding(2, 3), 4),
        ("no format", "sliding-window", with(sliding(2, 3), 0, 9), 9),
        ("the other format", "sliding-window", with(sliding(2, 3), 0, 2), 9),
        ("a time from 2^53 on", "sliding-window", with(sliding(2, 3), 1, 0x20), 9),
        ("nothing counted", "sliding-window", sliding(0, 0), 9),
        ("too long", "sliding-window", [sliding(2, 3), vec![0]].concat(), 9),
    ] {
        // Ten each second, at the begin of a window.
        let script = format!(
            "{LUA} local _, left = decide('{algorithm}', {{ 10, 1, 1000000 }}, 1, 0, ARGV[1], {})
             return left",
            start.as_micros()
        );
        let script = match algorithm {
            "sliding-window" => script.replace("{ 10, 1, 1000000 }", "{ 10, 1000000, 1 }"),
            _ => script,
        };
        let read: u64 = redis::cmd("EVAL")
            .arg(&script)
            .arg(0)
            .arg(bytes)
            .query(&mut server.connection())
            .unwrap();
        assert_eq!(read, left, "{algorithm}: {name}");
    }
}

/// Lua's `%` and `/` at the ends of what is exact: the steps of the algorithms rest on them.
#[test]
fn lua_divides_whole_numbers_exactly() {
    let server = RedisServer::start();
    let script = "local a, b = tonumber(ARGV[1]), tonumber(ARGV[2])
         local rest = a % b
         return string.format('%.0f %.0f', (a - rest) / b, rest)";
    let connection = std::cell::RefCell::new(server.connection());
    let divide = |a: u64, b: u64| -> String {
        let connection = &mut *connection.borrow_mut();
        redis::cmd("EVAL").arg(script).arg(0).arg(a).arg(b).query(connection).unwrap()
    };
    let check = |a: u64, b: u64| assert_eq!(divide(a, b), format!("{} {}", a / b, a % b));
    for b in [1, 2, 3, 7, 1_000_000, 94_906_264, 94_906_265, 94_906_266, HALF, EXACT - 2] {
        // Just below a multiple is where a rounded quotient would be one too large.
        let last = (EXACT - 1) / b * b;
        for a in [0, b - 1, b, last - 1, last, EXACT - 2, EXACT - 1] {
            check(a, b);
        }
    }
    proptest!(ProptestConfig::with_cases(500), |(b in 1..EXACT, n in 1..EXACT)| {
        check(n, b);
        check((EXACT - 1) / b * b - 1, b);
    });
}
