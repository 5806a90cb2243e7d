//! The algorithms that keep a list decide the same in Rust and in Lua, and keep the same entries.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate::limit::algorithm::sliding_log::{self, Log, Params};
use tidegate::limit::algorithm::{
    Algorithm, Difference, LUA, Receipt, Settlement, State, Want, concurrency,
};
use tidegate::limit::decision::Outcome;
use tidegate::limit::patience::Patience;
use tidegate::limit::rate::{Burst, Cost, EXACT, Rate};
use tidegate::limit::time::Timestamp;

use crate::support::redis::RedisServer;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

#[derive(Clone, Copy, Debug)]
struct Step {
    clock: Clock,
    bucket: usize,
    cost: u64,
    what: What,
    /// Whether the figures are the second ones, as after a reload.
    reloaded: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Ask {
        patience: Patience,
        passes: bool,
    },
    More,
    /// Of the request so many before the last.
    Less(usize),
}

#[derive(Clone, Copy, Debug)]
enum Clock {
    Forward(u64),
    Back(u64),
    /// To the moment that the last answer promised, or this many microseconds before it.
    Promised(u64),
    /// By so many thousandths of the interval.
    Part(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![
        4 => Just(Clock::Forward(0)),
        2 => (0..3 * SECOND).prop_map(Clock::Forward),
        3 => (0_u64..2).prop_map(Clock::Promised),
        3 => (0_u64..1_200).prop_map(Clock::Part),
        1 => (0..2 * SECOND).prop_map(Clock::Back),
        1 => (SECOND - 1..=SECOND + 1).prop_map(Clock::Back),
        1 => (0..DAY).prop_map(Clock::Back),
    ];
    let patience = prop_oneof![
        2 => Just(Patience::NONE),
        2 => (0..10 * SECOND).prop_map(|micros| Patience::of(Duration::from_micros(micros))),
        1 => Just(Patience::ENDLESS),
    ];
    let ask = (patience, prop::bool::weighted(0.8))
        .prop_map(|(patience, passes)| What::Ask { patience, passes });
    let what = prop_oneof![8 => ask, 1 => Just(What::More), 2 => (0_usize..6).prop_map(What::Less)];
    let cost = prop_oneof![4 => Just(1), 3 => 1_u64..6, 1 => 1_u64..60];
    (clock, 0_usize..2, cost, what, prop::bool::weighted(0.1)).prop_map(
        |(clock, bucket, cost, what, reloaded)| Step { clock, bucket, cost, what, reloaded },
    )
}

fn any_params() -> impl Strategy<Value = Params> {
    let interval = prop_oneof![1_u64..100, Just(SECOND), Just(60 * SECOND), Just(3_650 * DAY)];
    let count = prop_oneof![3 => 1_u64..6, 2 => 1_u64..50, 1 => Just(5_000)];
    (count, interval).prop_filter_map("a rate that fits", |(count, interval)| {
        Params::new(Rate::new(count, interval).ok()?)
    })
}

/// What is said, and the entries that are kept then.
type Said = (String, String);

fn play(start: u64, figures: [Params; 2], steps: &[Step]) -> (Value, Vec<Said>) {
    let mut logs: HashMap<usize, Log> = HashMap::new();
    let (mut now, mut promised) = (start, None);
    let (mut script, mut answers) = (Vec::new(), Vec::new());
    let mut receipts: HashMap<usize, Vec<Timestamp>> = HashMap::new();
    for step in steps {
        let params = &figures[usize::from(step.reloaded)];
        let (count, interval) = (params.rate().count(), params.rate().interval());
        now = match step.clock {
            Clock::Forward(micros) => now + micros,
            Clock::Back(micros) => now.saturating_sub(micros),
            Clock::Promised(early) => promised.map_or(now, |then: u64| then.saturating_sub(early)),
            Clock::Part(thousandths) => now + interval / 1_000 * thousandths + thousandths % 3,
        }
        .min(EXACT - 1);
        let time = Timestamp::from_micros(now).unwrap();
        let log = logs.entry(step.bucket).or_default();
        let mut told = json!({
            "now": now, "key": format!("log {}", step.bucket), "cost": step.cost,
            "figures": [count, interval],
        });
        let said = match step.what {
            What::Ask { patience, passes } => {
                told["patience"] = json!(patience.as_micros());
                told["passes"] = json!(passes);
                let cost = Cost::new(step.cost).unwrap();
                let seen = log.seen(params, cost, time);
                let decided = sliding_log::decide(params, seen, Want { cost, patience }, time);
                if let Some(State::SlidingLog(state)) =
                    decided.taken.filter(|_| passes).or(decided.kept)
                {
                    log.write(params, state);
                }
                let (said, wait) = match decided.decision.outcome {
                    Outcome::Allow => (0, Duration::ZERO),
                    Outcome::Delay(wait) => (3, wait),
                    Outcome::Reject { retry_after: Some(wait) } => (1, wait),
                    Outcome::Reject { retry_after: None } => (2, Duration::ZERO),
                };
                let wait = u64::try_from(wait.as_micros()).unwrap();
                if wait > 0 {
                    promised = Some(now + wait);
                }
                let noted = decided.taken.map_or(0, |taken| {
                    let outcome = decided.decision.outcome;
                    let receipt = Algorithm::SlidingLog(*params).receipt(outcome, taken, time);
                    receipts.entry(step.bucket).or_default().push(receipt.time());
                    receipt.time().as_micros()
                });
                format!("{said} {wait} {} {noted}", decided.decision.remaining)
            }
            What::More | What::Less(_) => {
                let more = matches!(step.what, What::More);
                let used = match more {
                    true => Difference::More(step.cost),
                    false => Difference::Less(step.cost),
                };
                told["settle"] = json!(true);
                told["cost"] = json!(step.cost.cast_signed() * if more { 1 } else { -1 });
                let given = receipts.get(&step.bucket).map_or(&[][..], Vec::as_slice);
                let receipt = match step.what {
                    What::Less(before) => given.iter().rev().nth(before).copied(),
                    _ => None,
                };
                let receipt = receipt.map_or(Receipt::NONE, Receipt::new);
                told["receipt"] = json!(receipt.time().as_micros());
                log.settle(params, &Settlement { used, receipt, patience: Patience::NONE }, time);
                "0 0 0 0".to_owned()
            }
        };
        script.push(told);
        let entries = log.entries();
        let entries = entries.map(|(at, by)| format!("{}:{}", at.as_micros(), by.as_micros()));
        answers.push((said, entries.collect::<Vec<_>>().join(" ")));
    }
    (Value::Array(script), answers)
}

fn in_lua(connection: &mut redis::Connection, script: &Value) -> Vec<Said> {
    let lists = include_str!("../../src/store/lists.lua");
    let shell = include_str!("twin_lists.lua").replacen("-- (lists.lua)\n", lists, 1);
    let _: () = redis::cmd("FLUSHALL").query(connection).unwrap();
    let answer: Vec<String> = redis::cmd("EVAL")
        .arg(format!("{LUA}{shell}"))
        .arg(0)
        .arg(script.to_string())
        .query(connection)
        .unwrap();
    answer.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

#[test]
fn a_sliding_log_in_lua_is_the_one_in_rust() {
    let server = RedisServer::start();
    let connection = RefCell::new(server.connection());
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() };
    let start = prop_oneof![Just(0), Just(1_700_000_000 * SECOND), Just(EXACT - 10 * DAY)];
    proptest!(config, |(
        start in start,
        first in any_params(),
        second in any_params(),
        steps in prop::collection::vec(any_step(), 1..60),
    )| {
        let (script, expected) = play(start, [first, second], &steps);
        let answers = in_lua(&mut connection.borrow_mut(), &script);
        prop_assert_eq!(answers.len(), expected.len());
        for (place, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
            prop_assert_eq!(answer, expected, "answer {} to {}", place, script);
        }
    });
}

/// However many come in one microsecond, whatever was given back or waits: a second entry of the same
/// name would take the place of the first.
#[test]
fn every_permit_has_an_entry_of_its_own() {
    let server = RedisServer::start();
    let figures = Params::new(Rate::new(5_000, SECOND).unwrap()).unwrap();
    let now = Clock::Forward(0);
    let ask = |cost| Step {
        clock: now,
        bucket: 0,
        cost,
        what: What::Ask { patience: Patience::ENDLESS, passes: true },
        reloaded: false,
    };
    let settle = |cost, what| Step { what, ..ask(cost) };
    let steps = [
        ask(4_500),
        ask(499),
        settle(2, What::More),
        ask(7),
        ask(3),
        settle(3, What::More),
        ask(1),
        settle(2, What::Less(0)),
        settle(1, What::More),
        ask(2),
    ];
    let (script, expected) = play(1_700_000_000 * SECOND, [figures, figures], &steps);
    let answers = in_lua(&mut server.connection(), &script);
    let count = |said: &Said| said.1.split(' ').count();
    let counts: Vec<_> = answers.iter().map(count).collect();
    assert_eq!(counts, [4_500, 4_999, 5_001, 5_008, 5_011, 5_014, 5_015, 5_013, 5_014, 5_016]);
    assert!(answers == expected);
}

#[test]
fn a_concurrency_limit_in_lua_is_the_one_in_rust() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(7);
    for (limit, held) in [(1, 0), (1, 1), (3, 0), (3, 2), (3, 3), (3, 9), (1_000_000_000, 5)] {
        let params = concurrency::Params::new(Burst::new(limit).unwrap(), lease);
        let figures = Algorithm::Concurrency(params).figures();
        let script = format!(
            "{LUA} local wait, left, moved, ends =
             decide('concurrency', {{ {}, {} }}, 1, 0, {held}, 1000000)
             return string.format('%.0f %.0f %s %.0f', wait, left, tostring(moved), ends or 0)",
            figures[0], figures[1]
        );
        let said: String =
            redis::cmd("EVAL").arg(script).arg(0).query(&mut server.connection()).unwrap();
        let state = (held > 0).then_some(concurrency::State { held });
        let step = concurrency::decide(&params, state);
        let (wait, ends) = match step.decision.outcome {
            Outcome::Allow => (0, 8 * SECOND),
            Outcome::Reject { retry_after: Some(wait) } => (wait.as_micros(), 0),
            outcome => panic!("{outcome:?}"),
        };
        assert_eq!(said, format!("{wait} {} false {ends}", step.decision.remaining));
        assert_eq!(step.taken.is_some(), ends > 0);
    }
}
