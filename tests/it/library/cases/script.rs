//! The store's own script in a real Redis, by a clock that is moved by hand.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::limit::Mode;
use tidegate::limit::algorithm::{Algorithm, Difference, LUA, Receipt};
use tidegate::limit::decision::{Decision, Outcome};
use tidegate::limit::time::Timestamp;

use super::players::{Asked, Event, Pure, What, settled_by};

/// What `crates/limit/src/call/mod.rs` sends, but for the clock.
fn text() -> String {
    let put = |text: &str, from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text.replacen(from, to, 1)
    };
    let shell = concat!(
        include_str!("../../../../crates/limit/src/call/lists.lua"),
        include_str!("../../../../crates/limit/src/call/shell.lua"),
    );
    let shell = put(shell, "redis.call,", "test_call,");
    assert!(!shell.contains("redis."), "Redis is called through one name");
    format!("{LUA}{}", put(include_str!("clock.lua"), "-- (shell.lua)\n", &shell))
}

/// What one call says to its requests, and what its keys then hold.
pub(crate) struct Answer {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) kept: Vec<Key>,
}

/// A key as it is then.
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) holds: Vec<u8>,
    /// The millisecond of its expiry; 0 where there is none.
    pub(crate) goes_at: u64,
}

/// What the shell answers to a call, what its keys then hold, and when they go.
type Told = (Vec<u8>, Vec<Vec<u8>>, Vec<u64>);

/// Whether a key goes when its time has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    ByTheClock,
    Never,
}

/// Plays a history in an empty Redis, requests of one moment in one call. Each answer stands with the
/// number of events of its call. What was noted of requests is known beforehand: what is noted here has
/// to be the same.
pub(crate) fn play(
    connection: &mut redis::Connection,
    events: &[Event],
    known: &Pure,
    expiry: Expiry,
) -> Vec<(usize, Answer)> {
    let mut requests: Vec<&[Asked]> = Vec::new();
    let (mut calls, mut sizes) = (Vec::new(), Vec::new());
    let together = |a: &Event, b: &Event| {
        let ask = |event: &Event| matches!(event.what, What::Request(_));
        a.now == b.now && ask(a) && ask(b)
    };
    for events in events.chunk_by(together) {
        let mut call = Call::default();
        for event in events {
            match &event.what {
                What::Request(asked) => {
                    call.request(asked, requests.len());
                    let noted = asked.iter().enumerate().map(|(place, asked)| {
                        known.noted(requests.len(), place).1.filter(|_| !asked.is_slot())
                    });
                    call.noted.extend(noted);
                    requests.push(asked);
                }
                What::End { request } => {
                    for asked in requests[*request].iter().filter(|asked| asked.is_slot()) {
                        call.settle(asked, Difference::Less(1), (*request, Receipt::NONE));
                    }
                }
                What::Settle { request, place, used, newest } => {
                    let (asked, receipt) = known.settled(requests.len(), *request, *place);
                    call.settle(&asked, *used, (*request, settled_by(receipt, *newest)));
                }
            }
        }
        if !call.keys.is_empty() {
            calls.push(json!({
                "now": events[0].now.as_micros(),
                "keys": call.keys, "plan": call.plan, "terms": call.terms,
            }));
        }
        sizes.push((events.len(), call));
    }
    let given = json!({ "expires": expiry == Expiry::ByTheClock, "calls": calls });
    let () = redis::cmd("FLUSHALL").query(connection).unwrap();
    let said: Vec<Told> = redis::cmd("EVAL")
        .arg(text())
        .arg(0)
        .arg(given.to_string())
        .query(connection)
        .unwrap_or_else(|error| panic!("{error} to {given}"));
    let mut said = said.into_iter();
    let answer = |(size, call): (usize, Call)| {
        if call.keys.is_empty() {
            return (size, Answer { decisions: Vec::new(), kept: Vec::new() });
        }
        let (numbers, kept, goes_at) = said.next().expect("each call is answered");
        let decisions = match call.noted.len() {
            0 => Vec::new(),
            asks => {
                let (decisions, noted) = read(&numbers, asks);
                for (noted, expected) in noted.into_iter().zip(&call.noted) {
                    assert_eq!(expected.unwrap_or(noted).time(), noted.time(), "{given}");
                }
                decisions
            }
        };
        let keys = call.keys.into_iter().zip(kept).zip(goes_at);
        let kept = keys.map(|((name, holds), goes_at)| Key { name, holds, goes_at }).collect();
        (size, Answer { decisions, kept })
    };
    sizes.into_iter().map(answer).collect()
}

/// A call as the shell takes it.
#[derive(Default)]
struct Call {
    keys: Vec<String>,
    plan: Vec<i64>,
    terms: Vec<Value>,
    /// What is to be noted of what is asked in it; nothing where something is only told.
    /// A slot is known by its holder, whatever is noted.
    noted: Vec<Option<Receipt>>,
}

impl Call {
    fn request(&mut self, asked: &[Asked], request: usize) {
        // Below zero: it wants receipts.
        self.plan.push(-i64::try_from(asked.len()).unwrap());
        for asked in asked {
            let way = match asked.ask.mode {
                Mode::Enforce => "enforce",
                Mode::Shadow | Mode::Mark => "shadow",
                Mode::Candidate => "candidate",
            };
            self.ask(asked, asked.ask.cost.get().cast_signed(), way, (request, None));
        }
    }

    fn settle(&mut self, asked: &Asked, used: Difference, (request, receipt): (usize, Receipt)) {
        self.plan.push(1);
        let cost = match used {
            Difference::More(tokens) => tokens.cast_signed(),
            Difference::Less(tokens) => -tokens.cast_signed(),
        };
        self.ask(asked, cost, "settle", (request, Some(receipt)));
    }

    fn ask(
        &mut self,
        asked: &Asked,
        cost: i64,
        way: &str,
        (request, receipt): (usize, Option<Receipt>),
    ) {
        let name = asked.name();
        let bucket = self.keys.iter().position(|key| *key == name).unwrap_or_else(|| {
            self.keys.push(name);
            self.keys.len() - 1
        });
        let mut figures: Vec<_> = asked.ask.algorithm.figures().to_vec();
        if asked.is_slot() {
            figures.extend([1, u64::try_from(request).unwrap()]);
        }
        let max_wait = asked.ask.max_wait.as_micros();
        let mut terms = vec![
            json!(asked.ask.algorithm.name()),
            json!(cost),
            json!(way),
            json!(figures),
            json!(max_wait),
        ];
        terms.extend(receipt.map(|receipt| json!(receipt.time().as_micros())));
        let former = receipt.and_then(|receipt| receipt.other_than(&asked.ask.algorithm));
        terms.extend(former.map(|former| json!(former.figures().to_vec())));
        self.terms.push(Value::Array(terms));
        let places = [bucket + 1, self.terms.len()];
        self.plan.extend(places.map(|place| i64::try_from(place).unwrap()));
    }
}

/// Numbers of eight bytes, as the head of `shell.lua` has them: what is said of so many asks, and what is
/// noted of them.
fn read(numbers: &[u8], asks: usize) -> (Vec<Decision>, Vec<Receipt>) {
    let (numbers, odd) = numbers.as_chunks::<8>();
    assert!(odd.is_empty());
    let mut numbers = numbers.iter().map(|number| i64::from_be_bytes(*number));
    let decisions = (0..asks).map(|_| said(&mut numbers)).collect();
    // A lease may end later than can be said.
    let receipt = |number| {
        let time = Timestamp::from_micros(u64::try_from(number).unwrap());
        Receipt::new(time.unwrap_or(Timestamp::MAX))
    };
    (decisions, numbers.map(receipt).collect())
}

fn said(numbers: &mut impl Iterator<Item = i64>) -> Decision {
    let mut next = || numbers.next().expect("each ask has its answer");
    let first = next();
    if let Ok(remaining) = u64::try_from(first) {
        return Decision { outcome: Outcome::Allow, remaining };
    }
    let second = next();
    let wait = Duration::from_micros((-2_i64).abs_diff(first));
    let outcome = match (first, second) {
        (-2, _) => panic!("a key of another type"),
        (-1, _) => Outcome::Reject { retry_after: None },
        (_, ..0) => Outcome::Delay(wait),
        _ => Outcome::Reject { retry_after: Some(wait) },
    };
    let remaining = if second < 0 { -1 - second } else { second };
    Decision { outcome, remaining: u64::try_from(remaining).unwrap() }
}

/// Asks one limiter of Redisson's, which is called `orders`, by that script with the event's time in
/// place of Redis's.
pub(crate) fn ask_limiter(connection: &mut redis::Connection, event: &Event) -> Decision {
    let What::Request(asked) = &event.what else { panic!("only requests") };
    let [Asked { ask, .. }] = asked[..] else { panic!("only one limiter") };
    let Algorithm::Redisson(params) = ask.algorithm else { panic!("only Redisson's") };
    let now = event.now.as_micros();
    let time = format!("{{ {}, {} }}", now / 1_000_000, now % 1_000_000);
    let script = include_str!("../../../../src/store/script/redisson/redisson.lua");
    assert_eq!(script.matches("call('TIME')").count(), 1);
    let script = script.replace("call('TIME')", &time);
    let (rate, cost) = (params.rate().unwrap(), ask.cost.get());
    // No two entries have the same id.
    let entries: u64 = redis::cmd("ZCARD").arg("{orders}:permits").query(connection).unwrap();
    let said: Vec<i64> = redis::cmd("EVAL")
        .arg(script)
        .arg(5)
        .arg(&["orders", "{orders}:value", "{orders}:permits", "", ""])
        .arg("take")
        .arg(cost)
        .arg(&(now ^ entries).to_be_bytes()[..])
        .arg(&[rate.count(), rate.interval() / 1_000, 0, 0, ask.max_wait.as_micros()])
        .query(connection)
        .unwrap();
    let [0, wait, waits, left, ..] = said[..] else { panic!("{said:?}") };
    let time = Duration::from_micros(wait.unsigned_abs());
    let outcome = match (wait, waits) {
        (-1, _) => Outcome::Reject { retry_after: None },
        (0, _) => Outcome::Allow,
        (_, 1) => Outcome::Delay(time),
        _ => Outcome::Reject { retry_after: Some(time) },
    };
    Decision { outcome, remaining: u64::try_from(left).unwrap_or(0) }
}
