//! Tests of known refusals. The tests say what Redis answers, and time moves only where a test says so.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::limit::decide::Ask;
use crate::limit::key::Key;
use crate::limit::rate::Cost;
use crate::plan::LimitSpec;
use crate::plan::testing::limit;
use crate::store::bucket::KeyLocation;
use crate::store::name::BucketKey;

/// One worker, and a limit of this rate with one key.
struct KnownAtWorker {
    known: KnownRefusals,
    memory: Memory,
    spec: Arc<LimitSpec>,
    key: BucketKey,
}

/// The outcome of a request.
#[derive(Debug, PartialEq)]
enum Said {
    Refused { after_ms: u128, remaining: u64 },
    Asks { for_others: bool },
    Waits,
}

const REFUSED: fn(u128) -> Said = |after_ms| Said::Refused { after_ms, remaining: 0 };

impl KnownAtWorker {
    fn with(lines: &str) -> Self {
        let (known, key) = (KnownRefusals::default(), Key::of([None]).into());
        Self { known, memory: Memory::new(10), spec: limit(lines), key }
    }

    fn question(&self, cost: u64) -> RedisAsk<'_> {
        let algorithm = self.spec.figures.at(Timestamp::MIN).unwrap();
        let ask = Ask { cost: Cost::new(cost).unwrap(), ..Ask::for_one(algorithm) };
        let ask = BucketAsk { spec: &self.spec, key: &self.key, ask };
        RedisAsk { ask, location: KeyLocation { connection: Some(1), ..KeyLocation::default() } }
    }

    /// The outcome of a request for `cost` tokens. `Some` leader if the request asks for others.
    fn comes(&self, cost: u64, now: u64) -> (Said, Option<Leader<'_>>) {
        let limits = [LookedUp::InRedis(self.question(cost))].into_iter();
        match self.known.look_up(&self.memory, limits, at(now)) {
            Ok(decisions) => {
                let Decision { outcome, remaining } = decisions[0].unwrap();
                let Outcome::Reject { retry_after: Some(after) } = outcome else { panic!() };
                (Said::Refused { after_ms: after.as_millis(), remaining }, None)
            }
            Err(NotKnown::Ask(leader)) => (Said::Asks { for_others: leader.is_some() }, leader),
            Err(NotKnown::Wait(_)) => (Said::Waits, None),
        }
    }

    fn said(&self, cost: u64, now: u64) -> Said {
        self.comes(cost, now).0
    }

    /// Redis answers a question that was sent at `asked`.
    fn hears(&self, cost: u64, decision: Decision, asked: u64, leader: Option<&Leader<'_>>) {
        let answer = RedisAnswer { asked: self.question(cost), decision };
        self.known.note(&self.memory, &[answer], at(asked), leader);
    }
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
fn a_refusal_is_known_until_its_moment_and_then_one_request_asks_for_all() {
    let worker = KnownAtWorker::with("rate = \"1/s\"");
    assert_eq!(worker.said(1, 0), Said::Asks { for_others: false }, "nothing is known yet");
    worker.hears(1, rejected(1_000, 0), 0, None);
    assert_eq!(worker.said(1, 1), REFUSED(999));
    assert_eq!(worker.said(1, 999), REFUSED(1));
    let (said, leader) = worker.comes(1, 1_000);
    assert_eq!(said, Said::Asks { for_others: true });
    assert_eq!(worker.said(1, 1_001), Said::Waits);
    // It takes the token, and none is left. The next one comes a second after the moment.
    worker.hears(1, allowed(0), 1_002, leader.as_ref());
    drop(leader);
    assert_eq!(worker.said(1, 1_500), REFUSED(500));
}

#[test]
fn a_leader_that_is_lost_leaves_the_question_to_the_next_request() {
    let worker = KnownAtWorker::with("rate = \"1/s\"");
    worker.hears(1, rejected(1_000, 0), 0, None);
    drop(worker.comes(1, 1_000));
    assert_eq!(worker.said(1, 1_001), Said::Asks { for_others: true });
}

#[test]
fn of_a_long_wait_one_request_in_two_seconds_asks_while_others_are_refused() {
    let worker = KnownAtWorker::with("rate = \"1/h\"");
    worker.hears(1, rejected(3_600_000, 0), 0, None);
    assert_eq!(worker.said(1, 1_999), REFUSED(3_598_001));
    assert_eq!(worker.said(1, 2_000), Said::Asks { for_others: false });
    assert_eq!(worker.said(1, 2_001), REFUSED(3_597_999));
}

#[test]
fn a_token_bucket_tells_about_other_costs_and_a_window_does_not() {
    let bucket = KnownAtWorker::with("rate = \"1/s\"\nburst = 9");
    bucket.hears(4, rejected(1_000, 3), 0, None);
    assert_eq!(bucket.said(6, 0), Said::Refused { after_ms: 3_000, remaining: 3 });
    assert_eq!(bucket.said(3, 0), Said::Asks { for_others: false }, "three tokens are left");
    let window = KnownAtWorker::with("algorithm = \"fixed-window\"\nrate = \"9/s\"");
    window.hears(4, rejected(1_000, 3), 0, None);
    assert_eq!(window.said(6, 0), Said::Asks { for_others: false });
    assert_eq!(window.said(4, 0), Said::Refused { after_ms: 1_000, remaining: 3 });
}

#[test]
fn tokens_that_may_come_back_early_make_no_refusal_known() {
    for lines in [
        "rate = \"1/s\"\nwait = \"5s\"",
        "rate = \"1/s\"\ncount_when = { status = [\"401\"] }",
        "algorithm = \"concurrency\"\nlimit = 1",
    ] {
        let worker = KnownAtWorker::with(lines);
        worker.hears(1, rejected(1_000, 0), 0, None);
        assert_eq!(worker.said(1, 1), Said::Asks { for_others: false }, "{lines}");
    }
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
            let limits = both.iter().map(|asked| LookedUp::InRedis(*asked));
            let now = at(0).plus(Duration::from_micros(micros));
            narrow.known.look_up(&narrow.memory, limits, now).ok().map(|it| it[1].unwrap())
        };
        let told = both.into_iter().zip([rejected(3_600_000, 0), allowed(left)]);
        let answers: Vec<_> =
            told.map(|(asked, decision)| RedisAnswer { asked, decision }).collect();
        narrow.known.note(&narrow.memory, &answers, at(0), None);
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
fn a_rejection_is_forgotten_after_a_reset_or_a_loss() {
    let worker = KnownAtWorker::with("rate = \"1/s\"");
    worker.hears(1, rejected(1_000, 0), 0, None);
    worker.known.forget(&worker.memory, &worker.question(1).ask);
    assert_eq!(worker.said(1, 1), Said::Asks { for_others: false });
    worker.hears(1, rejected(1_000, 0), 0, None);
    let elsewhere = KeyLocation { connection: Some(2), ..worker.question(1).location };
    let asked = RedisAsk { location: elsewhere, ..worker.question(1) };
    let limits = [LookedUp::InRedis(asked)].into_iter();
    let lookup = worker.known.look_up(&worker.memory, limits, at(1));
    assert!(matches!(lookup, Err(NotKnown::Ask(None))), "another connection knows nothing");
}
