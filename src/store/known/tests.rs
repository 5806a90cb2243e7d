//! Tests of known refusals. The tests say what Redis answers, and time moves only where a test says so.

use std::sync::Arc;

use super::*;
use crate::limit::decide::Ask;
use crate::limit::key::Key;
use crate::settings::LimitSpec;
use crate::settings::testing::limit;
use crate::store::name::BucketKey;

/// One worker, and a limit of this rate with one key.
struct KnownAtWorker {
    known: KnownRefusals,
    memory: Memory,
    spec: Arc<LimitSpec>,
    key: BucketKey,
}

impl KnownAtWorker {
    fn with(lines: &str) -> Self {
        let (known, key) = (KnownRefusals::default(), Key::of([None]).into());
        Self { known, memory: Memory::new(10), spec: limit(lines), key }
    }

    fn question(&self, cost: u64) -> (BucketAsk<'_>, KeyLocation) {
        let algorithm = self.spec.figures.at(Timestamp::MIN).unwrap();
        let ask = Ask { cost: Cost::new(cost).unwrap(), ..Ask::for_one(algorithm) };
        let ask = BucketAsk { spec: &self.spec, key: &self.key, ask };
        (ask, KeyLocation { connection: Some(1), ..KeyLocation::default() })
    }

    /// The milliseconds after which a request for `cost` tokens may come again, and what remains. `None` if it asks.
    fn said(&self, cost: u64, now: u64) -> Option<(u128, u64)> {
        let asked = [self.question(cost)];
        let decisions = self.known.look_up(&self.memory, asked.into_iter(), at(now))?;
        Some((after(decisions[0]), decisions[0].remaining))
    }

    /// Redis answers a question that was sent at `asked`.
    fn hears(&self, cost: u64, decision: Decision, asked: u64) {
        self.known.note(&self.memory, &[(self.question(cost), decision)], at(asked));
    }
}

fn after(decision: Decision) -> u128 {
    let Outcome::Reject { retry_after: Some(after) } = decision.outcome else { panic!() };
    after.as_millis()
}

/// So many milliseconds after the beginning.
fn at(millis: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + 1_000 * millis).unwrap()
}

fn rejected(after_ms: u64, remaining: u64) -> Decision {
    let retry_after = Some(Duration::from_millis(after_ms));
    Decision { outcome: Outcome::Reject { retry_after }, remaining }
}

fn allowed(remaining: u64) -> Decision {
    Decision { outcome: Outcome::Allow, remaining }
}

#[test]
fn a_refusal_is_known_until_its_moment() {
    let worker = KnownAtWorker::with("rate = \"1/s\"");
    assert_eq!(worker.said(1, 0), None, "nothing is known yet");
    worker.hears(1, rejected(1_000, 0), 0);
    assert_eq!(worker.said(1, 1), Some((999, 0)));
    assert_eq!(worker.said(1, 999), Some((1, 0)));
    assert_eq!([1_000, 1_001].map(|now| worker.said(1, now)), [None; 2]);
    // One request takes the token, and a later one is refused.
    worker.hears(1, allowed(0), 1_000);
    assert_eq!(worker.said(1, 1_002), None);
    worker.hears(1, rejected(998, 0), 1_002);
    assert_eq!(worker.said(1, 1_500), Some((500, 0)));
}

#[test]
fn of_a_long_wait_one_request_in_two_seconds_asks_while_others_are_refused() {
    let worker = KnownAtWorker::with("rate = \"1/h\"");
    worker.hears(1, rejected(3_600_000, 0), 0);
    assert_eq!(worker.said(1, 1_999), Some((3_598_001, 0)));
    assert_eq!(worker.said(1, 2_000), None);
    assert_eq!(worker.said(1, 2_001), Some((3_597_999, 0)));
    assert_eq!(worker.said(1, 2_100), None);
    // It passes: somebody has deleted the key.
    worker.hears(1, allowed(0), 2_100);
    assert_eq!(worker.said(1, 2_101), None);
}

#[test]
fn only_the_same_question_has_the_known_answer() {
    let worker = KnownAtWorker::with("rate = \"1/s\"\nburst = 9");
    worker.hears(4, rejected(1_000, 3), 0);
    assert_eq!(worker.said(4, 0), Some((1_000, 3)));
    assert_eq!([3, 5].map(|cost| worker.said(cost, 0)), [None; 2], "another cost");
    let other = KeyLocation { connection: Some(2), ..worker.question(4).1 };
    let newer = KeyLocation { generation: 1, ..worker.question(4).1 };
    for (location, what) in [(other, "connection"), (newer, "generation")] {
        let asked = [(worker.question(4).0, location)].into_iter();
        assert_eq!(worker.known.look_up(&worker.memory, asked, at(0)), None, "another {what}");
    }
    let twice = [worker.question(4); 2].into_iter();
    assert_eq!(worker.known.look_up(&worker.memory, twice, at(0)), None, "another request");
}

#[test]
fn tokens_that_may_come_back_early_make_no_refusal_known() {
    for lines in [
        "rate = \"1/s\"\nwait = \"5s\"",
        "rate = \"1/s\"\ncount_when = { status = [\"401\"] }",
        "algorithm = \"concurrency\"\nlimit = 1",
    ] {
        let worker = KnownAtWorker::with(lines);
        worker.hears(1, rejected(1_000, 0), 0);
        let is_known = may_be_known(&worker.question(1).0) && worker.said(1, 1).is_some();
        assert!(!is_known, "{lines}");
    }
}

/// Otherwise the answer would name a limit that has a token again.
#[test]
fn of_two_refusals_the_first_end_counts() {
    let narrow = KnownAtWorker::with("rate = \"1/h\"");
    let wide = KnownAtWorker::with("algorithm = \"fixed-window\"\nrate = \"90000/d\"");
    let both = [wide.question(1), narrow.question(1)];
    let told = both.into_iter().zip([rejected(900, 0), rejected(500, 0)]);
    let answers: Vec<_> = told.collect();
    narrow.known.note(&narrow.memory, &answers, at(0));
    let look_up = |now| {
        let decisions = narrow.known.look_up(&narrow.memory, both.into_iter(), at(now))?;
        Some([after(decisions[0]), after(decisions[1])])
    };
    assert_eq!(look_up(499), Some([401, 1]));
    assert_eq!(look_up(500), None);
}

/// Otherwise the answer could not name a limit whose last token another worker has given meanwhile.
#[test]
fn beside_a_limit_with_room_a_refusal_is_known_for_as_long_as_nobody_can_use_the_room_up() {
    // Microseconds after the question, by the tokens that the other limit had left and those that a request takes.
    for (left, cost, lasts) in [
        (50_000, 1, 100_000),
        (20_000, 1, 100_000),
        (1_000, 1, 5_000),
        (1_000, 100, 50),
        (1_000, 600, 5),
        (1, 1, 5),
        (0, 1, 0),
    ] {
        let what = format!("{left} left, each takes {cost}");
        let narrow = KnownAtWorker::with("rate = \"1/h\"");
        let wide = KnownAtWorker::with("algorithm = \"fixed-window\"\nrate = \"90000/d\"");
        let both = [narrow.question(1), wide.question(cost)];
        let look_up = |micros: u64| {
            let now = at(0).plus(Duration::from_micros(micros));
            narrow.known.look_up(&narrow.memory, both.into_iter(), now).map(|it| it[1])
        };
        let told = both.into_iter().zip([rejected(3_600_000, 0), allowed(left)]);
        let answers: Vec<_> = told.collect();
        narrow.known.note(&narrow.memory, &answers, at(0));
        if lasts > 0 {
            assert_eq!(look_up(lasts - 1), Some(allowed(left)), "{what}");
        }
        assert_eq!(look_up(lasts), None, "{what}: this request asks");
        if lasts > 0 {
            assert_eq!(look_up(2 * lasts - 1), Some(allowed(left)), "{what}: others meanwhile");
        }
        assert_eq!(look_up(2 * lasts), None, "{what}");
    }
}

#[test]
fn a_refusal_ends_when_tokens_go_back_to_one_of_its_buckets() {
    let worker = KnownAtWorker::with("rate = \"1/s\"");
    let other = KnownAtWorker::with("rate = \"2/s\"");
    worker.hears(1, rejected(1_000, 0), 0);
    worker.known.forget(
        &worker.memory,
        &BucketAsk { key: &Key::of([Some(&b"x"[..])]).into(), ..other.question(1).0 },
    );
    assert_eq!(worker.said(1, 1), Some((999, 0)), "another bucket");
    worker.known.forget(&worker.memory, &worker.question(1).0);
    assert_eq!(worker.said(1, 1), None);
    worker.hears(1, rejected(1_000, 0), 2);
    assert_eq!(worker.said(1, 2), Some((1_000, 0)), "Redis has said so since then");
    worker.hears(4, rejected(4_000, 0), 2);
    worker.known.forget(&worker.memory, &worker.question(1).0);
    assert_eq!([1, 4].map(|cost| worker.said(cost, 3)), [None; 2], "whatever it costs");
    let never = Decision { outcome: Outcome::Reject { retry_after: None }, remaining: 0 };
    worker.hears(5, never, 3);
    assert_eq!(worker.said(5, 4), None, "one that never passes is asked");
}

#[test]
fn returns_take_a_bounded_room() {
    let worker = KnownAtWorker::with("rate = \"1/h\"");
    worker.hears(1, rejected(3_600_000, 0), 0);
    for number in 0..2 * MOST {
        let key = Key::of([Some(number.to_string().as_bytes())]).into();
        worker.known.forget(&worker.memory, &BucketAsk { key: &key, ..worker.question(1).0 });
    }
    assert!(worker.known.0.lock().returns.len() <= MOST);
    worker.hears(1, rejected(3_600_000, 0), 0);
    assert_eq!(worker.said(1, 1), Some((3_599_999, 0)));
}
