//! The algorithms in Rust and their Lua twins decide the same and keep the same bytes.

use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate::limit::Mode;
use tidegate::limit::algorithm::token_bucket::{self, Params, STALE};
use tidegate::limit::algorithm::{Algorithm, LUA, State};
use tidegate::limit::decide::{Ask, decide};
use tidegate::limit::decision::Outcome;
use tidegate::limit::rate::{Burst, Cost, EXACT, Rate};
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
    /// The cost of this ask is given back to a bucket.
    Back { clock: Clock, bucket: usize, ask: Ask },
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
    (rate, burst).prop_filter_map("a rate that fits", |((count, interval), burst)| {
        let (rate, burst) = (Rate::new(count, interval).ok()?, Burst::new(burst)?);
        Some(Algorithm::TokenBucket(Params { rate, burst }))
    })
}

fn any_ask() -> impl Strategy<Value = Ask> {
    let cost = prop_oneof![4 => Just(1), 2 => 1_u64..6, 1 => 1_u64..=1_000_000_000];
    let mode = prop_oneof![3 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)];
    (any_algorithm(), cost, mode).prop_map(|(algorithm, cost, mode)| Ask {
        algorithm,
        cost: Cost::new(cost).unwrap(),
        mode,
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
        let back = (any_clock(), 0..BUCKETS, asks).prop_map(|(clock, bucket, asks)| Step::Back {
            clock,
            bucket,
            ask: asks[bucket],
        });
        (Just(start), prop::collection::vec(prop_oneof![6 => request, 1 => back], 1..40))
    })
}

/// What is said and kept, the same from both sides.
type Said = (String, Vec<u8>);

/// The history in Rust: what the other side is to be asked, and what it should answer.
fn play(start: u64, steps: &[Step]) -> (Value, Vec<Said>) {
    let mut states: [Option<State>; BUCKETS] = [None; BUCKETS];
    let (mut now, mut promised) = (start, None);
    let (mut script, mut answers) = (Vec::new(), Vec::new());
    for step in steps {
        let (clock, first) = match step {
            Step::Request { clock, asks } => (*clock, asks[0]),
            Step::Back { clock, ask, .. } => (*clock, *ask),
        };
        let Algorithm::TokenBucket(params) = first.algorithm;
        now = match clock {
            Clock::Forward(micros) => now + micros,
            Clock::Back(micros) => now.saturating_sub(micros),
            Clock::Promised(early) => promised.map_or(now, |then: u64| then.saturating_sub(early)),
            Clock::Periods(periods, micros) => now + periods * params.rate.period() + micros,
        }
        .min(EXACT - 1);
        let time = Timestamp::from_micros(now).unwrap();
        match step {
            Step::Request { asks, .. } => {
                let told = (0..).zip(asks).map(|(bucket, ask)| in_json(bucket, ask));
                script.push(json!({ "now": now, "asks": told.collect::<Vec<_>>() }));
                let decided = decide(asks, &states, time);
                for (place, decision) in decided.decisions.iter().enumerate() {
                    let write = decided.writes[place].map(|s| kept(s, &asks[place].algorithm));
                    states[place] = write.or(states[place]);
                    let (said, wait) = match decision.outcome {
                        Outcome::Allow => (0, 0),
                        Outcome::Reject { retry_after: Some(wait) } => (1, wait.as_micros()),
                        Outcome::Reject { retry_after: None } => (2, 0),
                    };
                    if said == 1 {
                        promised = Some(now + u64::try_from(wait).unwrap());
                    }
                    let said = format!("{said} {wait} {}", decision.remaining);
                    answers.push((said, states[place].map_or(Vec::new(), bytes)));
                }
            }
            Step::Back { bucket, ask, .. } => {
                script.push(json!({ "now": now, "back": in_json(*bucket, ask) }));
                let given =
                    states[*bucket].map(|s| ask.algorithm.give_back(s, ask.cost.get(), time));
                states[*bucket] = given.flatten().map(|state| kept(state, &ask.algorithm));
                answers.push(("0 0 0".into(), states[*bucket].map_or(Vec::new(), bytes)));
            }
        }
    }
    (Value::Array(script), answers)
}

fn in_json(bucket: usize, ask: &Ask) -> Value {
    json!({
        "bucket": bucket + 1,
        "algorithm": ask.algorithm.name(),
        "enforces": ask.mode == Mode::Enforce,
        "cost": ask.cost.get(),
        "figures": ask.algorithm.figures().to_vec(),
    })
}

/// A state as Redis keeps it: as of the last microsecond at which it was less than a microsecond's
/// gain above whole tokens. From then on it is the same state.
fn kept(State::TokenBucket(state): State, algorithm: &Algorithm) -> State {
    let Algorithm::TokenBucket(Params { rate, .. }) = algorithm;
    let (tokens, period, at) = (rate.tokens(), rate.period(), state.at.as_micros());
    let back = (period - state.rest).div_ceil(tokens);
    if state.rest == 0 || tokens >= period || back > at {
        return State::TokenBucket(state);
    }
    let rest = state.rest + back * tokens - period;
    let at = Timestamp::from_micros(at - back).unwrap();
    State::TokenBucket(token_bucket::State { missing: state.missing + 1, rest, period, at })
}

/// The bytes of a state that is kept.
fn bytes(State::TokenBucket(state): State) -> Vec<u8> {
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
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() };
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
        (algorithm, missing, rest) in (any_algorithm(), 0_u64..2_000, any::<prop::sample::Index>()),
        at in prop_oneof![Just(0), Just(1_700_000_000 * SECOND)],
        (cost, later) in (1_u64..2_000, 0_u64..DAY),
    )| {
        let Algorithm::TokenBucket(Params { rate, .. }) = algorithm;
        let period = rate.period();
        let rest = u64::try_from(rest.index(usize::MAX)).unwrap() % period;
        let at = Timestamp::from_micros(at).unwrap();
        let state = State::TokenBucket(token_bucket::State { missing, rest, period, at });
        let kept = kept(state, &algorithm);
        let (cost, now) = (Cost::new(cost).unwrap(), at.plus_micros(later));
        prop_assert_eq!(
            algorithm.decide(Some(kept), cost, now),
            algorithm.decide(Some(state), cost, now)
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
        "{LUA} local _, left = decide('token-bucket', {{ 7, 1000000, 10 }}, 1, ARGV[1], {now})
         return left"
    );
    let state = |missing, rest, period| {
        let at = Timestamp::from_micros(now).unwrap();
        bytes(State::TokenBucket(token_bucket::State { missing, rest, period, at }))
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
