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
                    states[place] = decided.writes[place].or(states[place]);
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
                states[*bucket] = given.flatten();
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

/// A state as it stands in Redis.
fn bytes(State::TokenBucket(state): State) -> Vec<u8> {
    let shortest = |number: u64| -> Vec<u8> {
        let bytes = number.to_be_bytes();
        let zeros = bytes.iter().take(7).take_while(|byte| **byte == 0).count();
        bytes[zeros..].to_vec()
    };
    let (missing, period) = (shortest(state.missing), shortest(state.period));
    let widths = u8::try_from(missing.len() * 16 + period.len()).unwrap();
    let at = &state.at.as_micros().to_be_bytes()[1..];
    let rest = &state.rest.to_be_bytes()[8 - period.len()..];
    [&[widths], &missing[..], at, rest, &period[..]].concat()
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

#[test]
fn lua_reads_what_it_does_not_know_as_a_new_bucket() {
    let server = RedisServer::start();
    let period = HOUR;
    let at = Timestamp::from_micros(1_700_000_000 * SECOND).unwrap();
    let good = bytes(State::TokenBucket(token_bucket::State { missing: 3, rest: 1, period, at }));
    let with = |place: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[place] = byte;
        bytes
    };
    let last = good.len() - 1;
    let script = format!(
        "{LUA} local s = algorithms['token-bucket'].decode(ARGV[1])
         return s and string.format('%.0f %.0f %.0f %.0f', s.missing, s.rest, s.period, s.at) or ''"
    );
    let known = format!("3 1 {period} {}", at.as_micros());
    for (name, bytes, expected) in [
        ("what it wrote", good.clone(), known.as_str()),
        ("nothing", vec![], ""),
        ("one byte", vec![good[0]], ""),
        ("another format", with(0, 0xF4), ""),
        ("no width of missing", with(0, 0x04), ""),
        ("no width of period", with(0, 0x10), ""),
        ("cut off", good[..last].to_vec(), ""),
        ("too long", [&good[..], &[0]].concat(), ""),
        ("a time from 2^53 on", with(2, 0x20), ""),
        ("a remainder of a whole period", with(9, 0xFF), ""),
        ("text", b"12".to_vec(), ""),
    ] {
        let read: String = redis::cmd("EVAL")
            .arg(&script)
            .arg(0)
            .arg(bytes)
            .query(&mut server.connection())
            .unwrap();
        assert_eq!(read, expected, "{name}");
    }
}
