//! Refusals that are known need no question to Redis, and are what Redis would have said.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::algorithm::{Difference, Receipt};
use tidegate::limit::decision::{Outcome, Verdict};
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::limit::{Mode, Scope};
use tidegate::plan::{KeyDisplay, LimitSpec, OnStoreError, StoreSpec};
use tidegate::store::{BucketAsk, BucketKey, ProcessStore, Store};

use crate::support::PATIENCE;
use crate::support::algorithms::{leaky, log, rolling, sliding, slots as slots_of};
use crate::support::bench::{Answer, decide};
use crate::support::limits::{ask, bucket, key, limit, settled};
use crate::support::redis::{RedisServer, location};

const SECOND: Duration = Duration::from_secs(1);

fn spec_of(server: &RedisServer) -> StoreSpec {
    StoreSpec {
        location: location(&server.url()),
        prefix: "tidegate".into(),
        timeout: Duration::from_secs(20),
        max_keys: 1_000,
    }
}

struct Bench {
    server: RedisServer,
    store: Arc<Store>,
    shared: Arc<ProcessStore>,
}

impl Bench {
    fn start() -> Self {
        let server = RedisServer::start();
        let spec = spec_of(&server);
        let shared = ProcessStore::new(&spec);
        let store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        Self { server, store, shared }
    }

    /// Another process with the same Redis.
    fn elsewhere(&self) -> Arc<Store> {
        let spec = spec_of(&self.server);
        Store::new(ProcessStore::new(&spec), &spec, KeyDisplay::Plain)
    }

    async fn decide(&self, asks: &[BucketAsk<'_>], after: Duration) -> Answer {
        let began = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        decide(&self.store, asks, began.plus(after)).await.unwrap()
    }

    /// What a refused request is told, once one is refused: Redis's own clock goes on, and its tokens come back.
    async fn refused(&self, asks: &[BucketAsk<'_>]) -> Answer {
        loop {
            let answer = self.decide(asks, Duration::ZERO).await;
            if !answer.verdict.passes() {
                return answer;
            }
        }
    }

    /// Whether Redis was asked about a request that is refused.
    async fn asked(&self, asks: &[BucketAsk<'_>], after: Duration) -> bool {
        let before = self.known();
        let answer = self.decide(asks, after).await;
        assert!(!answer.verdict.passes(), "{answer:?}");
        self.known() == before
    }

    /// The requests that were refused without a question to Redis.
    fn known(&self) -> u64 {
        self.shared.counters().known_refusals
    }
}

fn drained<'r>(spec: &'r LimitSpec, key: &'r BucketKey) -> BucketAsk<'r> {
    let mut one = ask(spec, key, 1);
    one.ask.algorithm = bucket("1/h", 1);
    one
}

#[tokio::test]
async fn a_flood_hardly_reaches_redis_and_is_told_what_redis_says() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    for algorithm in [bucket("1/h", 1), rolling("1/h"), sliding("1/h"), log("1/h")] {
        let mut one = ask(&spec, &key, 1);
        one.ask.algorithm = algorithm;
        assert!(bench.decide(&[one], Duration::ZERO).await.verdict.passes(), "{algorithm}");
        let said = bench.decide(&[one], Duration::ZERO).await;
        let Verdict::Refuse { retry_after: Some(first), .. } = said.verdict else { panic!() };
        for n in 1..1_000 {
            let after = Duration::from_millis(n);
            let known = bench.decide(&[one], after).await;
            let Verdict::Refuse { retry_after: Some(now), by: 0 } = known.verdict else { panic!() };
            assert_eq!(now, first - after, "{algorithm}");
            assert_eq!(known.remaining(0), said.remaining(0), "{algorithm}");
        }
    }
    assert_eq!(bench.known(), 4 * 999);
}

#[tokio::test]
async fn a_refusal_is_known_for_two_seconds() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = drained(&spec, &key);
    bench.decide(&[one], Duration::ZERO).await;
    assert!(bench.asked(&[one], Duration::ZERO).await);
    assert!(!bench.asked(&[one], SECOND).await);
    // Of a crowd that comes then, one asks.
    let before = bench.known();
    let crowd = (0..32).map(|_| bench.decide(std::slice::from_ref(&one), 2 * SECOND));
    let answers = futures_util::future::join_all(crowd).await;
    assert!(answers.iter().all(|answer| !answer.verdict.passes()));
    assert_eq!(bench.known(), before + 31);
    assert!(!bench.asked(&[one], 3 * SECOND).await);
}

#[tokio::test]
async fn a_refusal_ends_when_the_bucket_has_a_token_again() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let mut one = ask(&spec, &key, 1);
    one.ask.algorithm = bucket("1/s", 1);
    let answer = bench.refused(&[one]).await;
    let Verdict::Refuse { retry_after: Some(after), .. } = answer.verdict else { panic!() };
    bench.decide(&[one], after - Duration::from_micros(1)).await;
    assert_eq!(bench.known(), 1);
    bench.decide(&[one], after).await;
    assert_eq!(bench.known(), 1);
}

/// A crowd asked for each token that came back.
#[tokio::test]
async fn of_a_crowd_at_the_end_of_a_wait_one_request_asks() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    // A log does not say when it has room for a second request, so a second one asks.
    for (algorithm, askers) in [(bucket("1/h", 1), 1), (leaky("1/h", 0), 1), (log("1/h"), 2)] {
        let mut one = ask(&spec, &key, 1);
        one.ask.algorithm = algorithm;
        let crowd = async |after: Duration| {
            let before = bench.known();
            let crowd = (0..32).map(|_| bench.decide(std::slice::from_ref(&one), after));
            let answers = futures_util::future::join_all(crowd).await;
            let passed = answers.iter().filter(|answer| answer.verdict.passes()).count();
            (passed, 32 - (bench.known() - before))
        };
        assert!(bench.decide(&[one], Duration::ZERO).await.verdict.passes(), "{algorithm}");
        assert!(bench.asked(&[one], Duration::ZERO).await, "{algorithm}");
        assert_eq!(crowd(3_600 * SECOND).await, (0, 1), "{algorithm}: not yet by Redis's clock");
        let (): () = bench.server.run(&["FLUSHALL"]);
        assert_eq!(crowd(2 * 3_600 * SECOND).await, (1, askers), "{algorithm}: it is new");
        let (): () = bench.server.run(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn only_what_is_sure_is_known() {
    let bench = Bench::start();
    let (spec, other, late) = (limit("per-client"), limit("other"), settled("settled"));
    let (mine, yours) = (key("192.0.2.1"), key("192.0.2.2"));
    let one = drained(&spec, &mine);
    bench.decide(&[one], Duration::ZERO).await;
    assert!(bench.asked(&[one], Duration::ZERO).await);
    assert!(!bench.asked(&[one], Duration::ZERO).await);

    assert!(bench.decide(&[drained(&spec, &yours)], Duration::ZERO).await.verdict.passes());
    let mut figures = one;
    figures.ask.algorithm = bucket("2/h", 2);
    let before = bench.known();
    bench.decide(&[figures], Duration::ZERO).await;
    assert_eq!(bench.known(), before, "other figures");

    // Each of these is asked each time.
    let change = |change: &dyn Fn(&mut BucketAsk<'_>)| {
        let mut ask = drained(&other, &mine);
        change(&mut ask);
        ask
    };
    let waits = change(&|ask| ask.ask.max_wait = MaxWait::of(SECOND));
    let shadow = change(&|ask| ask.ask.mode = Mode::Shadow);
    bench.decide(&[drained(&other, &mine)], Duration::ZERO).await;
    bench.decide(&[drained(&late, &mine)], Duration::ZERO).await;
    for (asks, what) in [
        (&[waits][..], "a limit that holds requests"),
        (&[drained(&late, &mine)], "tokens that may come back"),
        (&[one, shadow], "a limit in shadow"),
    ] {
        for _ in 0..3 {
            assert!(bench.asked(asks, Duration::ZERO).await, "{what}");
        }
    }
    // Two limits that refuse.
    let both = [one, drained(&other, &mine)];
    bench.asked(&both, Duration::ZERO).await;
    assert!(!bench.asked(&both, Duration::ZERO).await);
}

#[tokio::test]
async fn a_key_that_was_deleted_is_new_when_redis_is_asked_again() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let mut one = ask(&spec, &key, 3);
    one.ask.algorithm = bucket("3/h", 3);
    while bench.decide(&[one], Duration::ZERO).await.verdict.passes() {}
    let (): () = bench.server.run(&["FLUSHALL"]);
    assert!(!bench.asked(&[one], SECOND).await);
    for _ in 0..3 {
        assert!(bench.decide(&[one], 2 * SECOND).await.verdict.passes());
    }
}

/// What Redis said before it went does not bind those who decide without it.
#[tokio::test]
async fn without_redis_nothing_is_known() {
    let mut bench = Bench::start();
    let (mut spec, key) = (limit("per-client"), key("192.0.2.1"));
    spec.on_store_error = OnStoreError::Allow;
    let one = drained(&spec, &key);
    bench.decide(&[one], Duration::ZERO).await;
    assert!(bench.asked(&[one], Duration::ZERO).await);
    bench.server.kill();
    while bench.shared.counters().redis_up != Some(false) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for after in [Duration::ZERO, SECOND, 3 * SECOND] {
        for _ in 0..100 {
            assert!(bench.decide(&[one], after).await.verdict.passes(), "{after:?}");
        }
    }
}

#[tokio::test]
async fn a_new_connection_knows_nothing() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = drained(&spec, &key);
    bench.decide(&[one], Duration::ZERO).await;
    bench.asked(&[one], Duration::ZERO).await;
    let (): () = bench.server.run(&["FLUSHALL"]);
    let _: u64 = bench.server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let max_wait = tokio::time::Instant::now() + crate::support::PATIENCE;
    while !bench.decide(&[one], Duration::ZERO).await.verdict.passes() {
        assert!(tokio::time::Instant::now() < max_wait, "still refused");
        tokio::task::yield_now().await;
    }
}

/// Known refusals would hold for hours more here: this test's clock stands still.
#[tokio::test]
async fn a_bucket_made_new_elsewhere_is_no_longer_refused_here() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    let one = drained(&spec, &key);
    assert!(bench.decide(&[one], Duration::ZERO).await.verdict.passes());
    assert!(bench.asked(&[one], Duration::ZERO).await);
    assert!(!bench.asked(&[one], Duration::ZERO).await, "known from now on");
    let elsewhere = bench.elsewhere();
    elsewhere.forget(&one).await.unwrap();
    let max_wait = tokio::time::Instant::now() + PATIENCE;
    while !bench.decide(&[one], Duration::ZERO).await.verdict.passes() {
        assert!(tokio::time::Instant::now() < max_wait, "it is still refused");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A regression: a client that named another cost each time had each request asked of Redis.
#[tokio::test]
async fn a_refusal_of_one_cost_tells_about_the_others() {
    let bench = Bench::start();
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    // 3/2h gives several tokens at a time, so times are rounded.
    for rate in ["1/h", "3/2h"] {
        let of = |cost| {
            let mut one = ask(&spec, &key, 10);
            (one.ask.algorithm, one.ask.cost) = (bucket(rate, 10), Cost::new(cost).unwrap());
            [one]
        };
        bench.decide(&of(4), Duration::ZERO).await;
        bench.decide(&of(3), Duration::ZERO).await;
        let before = bench.known();
        for cost in [6, 9, 10, 4, 5] {
            let known = bench.decide(&of(cost), Duration::ZERO).await;
            let said = bench.store.peek(&of(cost)[0], Timestamp::MIN).await.unwrap();
            assert_eq!((known.remaining(0), known.verdict.passes()), (3, false));
            let Outcome::Reject { retry_after: Some(said) } = said.outcome else { panic!() };
            let Verdict::Refuse { retry_after: Some(known), by: 0 } = known.verdict else {
                panic!()
            };
            // No time passes here, and by Redis's clock little.
            assert!(known >= said && known - said < PATIENCE, "{cost}: {known:?} {said:?}");
        }
        assert_eq!(bench.known(), before + 4, "only the first was asked");
        assert!(bench.asked(&of(11), Duration::ZERO).await, "it never passes");
        assert!(bench.decide(&of(2), Duration::ZERO).await.verdict.passes(), "enough was left");
        assert!(bench.asked(&of(5), Duration::ZERO).await, "two tokens fewer are left");
        assert!(!bench.asked(&of(6), Duration::ZERO).await);
        bench.store.forget(&of(5)[0]).await.unwrap();
        assert!(bench.decide(&of(5), Duration::ZERO).await.verdict.passes());
        bench.store.forget(&of(5)[0]).await.unwrap();
    }
}

/// A regression: each refused request was asked of Redis where another limit had room, as with a limit a second
/// and one a day.
#[tokio::test]
async fn beside_a_limit_with_much_room_one_request_in_a_tenth_of_a_second_asks() {
    let bench = Bench::start();
    let (spec, wide, key) = (limit("a-second"), limit("a-day"), key("192.0.2.1"));
    let slots = limit("slots");
    for room in [bucket("1/h", 30_000), rolling("30000/d"), log("30000/d"), sliding("30000/d")] {
        let mut asks = [ask(&wide, &key, 1), drained(&spec, &key), ask(&slots, &key, 1)];
        asks[0].ask.algorithm = room;
        asks[2].ask.algorithm = slots_of(30_000, 60 * SECOND);
        let asks = &asks[..if room == bucket("1/h", 30_000) { 3 } else { 2 }];
        bench.decide(asks, Duration::ZERO).await;
        let said = bench.decide(asks, Duration::ZERO).await;
        let before = bench.known();
        for millis in [0, 1, 99] {
            let known = bench.decide(asks, Duration::from_millis(millis)).await;
            assert_eq!(known.remaining(0), said.remaining(0), "{room}");
            assert_eq!(known.decisions[0].unwrap().outcome, Outcome::Allow, "{room}");
            assert!(!known.verdict.passes(), "{room}");
        }
        assert_eq!(bench.known(), before + 3, "{room}");
        let millis = Duration::from_millis;
        let crowd = (0..32).map(|_| bench.decide(asks, millis(100)));
        let answers = futures_util::future::join_all(crowd).await;
        assert!(answers.iter().all(|answer| !answer.verdict.passes()), "{room}");
        assert_eq!(bench.known(), before + 3 + 31, "{room}: one of them asks");
        let before = bench.known();
        // A request of another route takes, and the room is known to be smaller.
        assert!(bench.decide(&asks[..1], millis(150)).await.verdict.passes(), "{room}");
        let known = bench.decide(asks, millis(150)).await;
        assert_eq!(known.remaining(0) + 1, said.remaining(0), "{room}");
        assert_eq!(bench.known(), before + 1, "{room}");
        // After a pause nothing of it is believed.
        let crowd = (0..3).map(|_| bench.decide(asks, millis(900)));
        futures_util::future::join_all(crowd).await;
        assert_eq!(bench.known(), before + 1, "{room}: each of them asks");
        for ask in asks {
            bench.store.forget(ask).await.unwrap();
        }
    }
}

/// A regression: for a tenth of a second an answer did not name the limit whose last token another worker had given.
#[tokio::test]
async fn a_limit_that_another_process_has_emptied_is_named_at_once() {
    let bench = Bench::start();
    let elsewhere = bench.elsewhere();
    let (spec, team, key) = (limit("user"), limit("team"), key("192.0.2.1"));
    for room in [bucket("1/h", 20), rolling("20/d"), log("20/d"), sliding("20/d")] {
        let mut asks = [drained(&spec, &key), ask(&team, &key, 1)];
        asks[1].ask.algorithm = room;
        assert!(bench.decide(&asks, Duration::ZERO).await.verdict.passes(), "{room}");
        let before = bench.decide(&asks, Duration::ZERO).await;
        assert!(before.decisions[1].unwrap().outcome.passes(), "{room}");
        elsewhere.settle(&asks[1], Difference::More(19), Receipt::NONE, Timestamp::MIN);
        elsewhere.settled().await;
        let after = bench.decide(&asks, Duration::from_millis(1)).await;
        assert!(!after.decisions[1].unwrap().outcome.passes(), "{room}");
        for ask in &asks {
            bench.store.forget(ask).await.unwrap();
        }
    }
}

#[tokio::test]
async fn at_the_end_of_a_wait_one_request_asks_also_beside_a_limit_with_room() {
    let bench = Bench::start();
    let (spec, wide, key) = (limit("a-second"), limit("a-day"), key("192.0.2.1"));
    let mut asks = [drained(&spec, &key), ask(&wide, &key, 1_000_000)];
    asks[0].ask.algorithm = bucket("1/50ms", 1);
    let answer = bench.refused(&asks).await;
    let Verdict::Refuse { retry_after: Some(after), .. } = answer.verdict else { panic!() };
    let before = bench.known();
    // While the others wait for the answer, no time passes: the clock stands, because this test is never idle.
    tokio::time::pause();
    let has_ended = Cell::new(false);
    let crowd = async {
        let crowd = (0..32).map(|_| bench.decide(&asks, after));
        let answers = futures_util::future::join_all(crowd).await;
        has_ended.set(true);
        answers
    };
    let is_busy = async {
        while !has_ended.get() {
            tokio::task::yield_now().await;
        }
    };
    let (answers, ()) = futures_util::future::join(crowd, is_busy).await;
    let passed = answers.iter().filter(|answer| answer.verdict.passes()).count();
    assert!(passed <= 1, "{passed}");
    assert_eq!(bench.known(), before + 31);
}

#[tokio::test]
async fn a_limit_of_the_node_is_asked_without_redis() {
    let bench = Bench::start();
    let (spec, node, key) = (limit("shared"), limit("node"), key("192.0.2.1"));
    let node = LimitSpec { scope: Scope::Node, ..node };
    let asks = [ask(&node, &key, 3), drained(&spec, &key)];
    assert!(bench.decide(&asks, Duration::ZERO).await.verdict.passes());
    let said = bench.decide(&asks, Duration::ZERO).await;
    for _ in 0..5 {
        let known = bench.decide(&asks, Duration::ZERO).await;
        assert_eq!(known, said);
        assert_eq!(known.remaining(0), 2, "nothing was taken");
    }
    assert_eq!(bench.known(), 5);
}

#[tokio::test]
async fn a_leaky_bucket_that_holds_nobody_refuses_without_redis() {
    let bench = Bench::start();
    let (spec, key) = (limit("even"), key("192.0.2.1"));
    let mut one = ask(&spec, &key, 3);
    one.ask.algorithm = leaky("1/h", 2);
    assert!(bench.decide(&[one], Duration::ZERO).await.verdict.passes());
    assert!(bench.asked(&[one], Duration::ZERO).await);
    assert!(!bench.asked(&[one], Duration::ZERO).await);
}

/// A regression: the request that asked for the others would have had the token, and another limit refused it. The
/// bucket counted as one from which a token was taken, and its refusal lasted for too long.
#[tokio::test]
async fn an_asker_that_another_limit_refuses_has_taken_nothing() {
    let bench = Bench::start();
    let (spec, wide, key) = (limit("narrow"), limit("wide"), key("192.0.2.1"));
    let of = |cost| {
        let mut narrow = ask(&spec, &key, 10);
        narrow.ask.algorithm = bucket("1/50ms", 10);
        narrow.ask.cost = Cost::new(cost).unwrap();
        narrow
    };
    let millis = Duration::from_millis;
    bench.decide(&[of(10)], Duration::ZERO).await;
    let of_wide = ask(&wide, &key, 1_000_000);
    let left = bench.refused(&[of(2), of_wide]).await.remaining(1);
    // Other processes leave one token here, and none there.
    let () = bench.server.run(&["DEL", "tidegate:{192.0.2.1}:narrow"]);
    let elsewhere = bench.elsewhere();
    let mut rest = of_wide;
    rest.ask.cost = Cost::new(left).unwrap();
    for one in [of(9), rest] {
        assert!(decide(&elsewhere, &[one], Timestamp::MIN).await.unwrap().verdict.passes());
    }
    let known = bench.known();
    let asker = bench.decide(&[of(1), of_wide], millis(60)).await;
    assert!(!asker.verdict.passes() && asker.decisions[0].unwrap().outcome.passes());
    assert_eq!(bench.known(), known, "the wait for one token has ended");
    // Two tokens are there a tenth of a second after the first question.
    bench.decide(&[of(2)], millis(101)).await;
    assert_eq!(bench.known(), known, "Redis is asked");
}
