//! Refusals that are known need no question to Redis, and are what Redis would have said.

mod other_limits;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::limit::algorithm::{Algorithm, Difference, Receipt};
use tidegate::limit::decision::{Outcome, Verdict};
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::limit::{Mode, Scope};
use tidegate::settings::{LimitSpec, OnStoreError, StoreSpec};
use tidegate::store::{BucketAsk, BucketKey, ProcessStore, Store};

use crate::support::algorithms::{leaky, log, rolling, sliding, slots};
use crate::support::bench::{Answer, decide, store_spec, stores};
use crate::support::limits::{ask, bucket, key, limit, settled};
use crate::support::redis::{RedisServer, location};
use crate::support::until;

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    server: RedisServer,
    store: Arc<Store>,
    shared: Arc<ProcessStore>,
    /// The limit and the key that most tests ask about.
    spec: LimitSpec,
    key: BucketKey,
}

impl Bench {
    fn start() -> Self {
        let server = RedisServer::start();
        let (shared, store) = stores(&store_spec(location(&server.url())));
        Self { server, store, shared, spec: limit("per-client"), key: key("192.0.2.1") }
    }

    /// Another process with the same Redis.
    fn elsewhere(&self) -> Arc<Store> {
        stores(&store_spec(location(&self.server.url()))).1
    }

    /// An ask of one token.
    fn one(&self, algorithm: Algorithm) -> BucketAsk<'_> {
        by(algorithm, ask(&self.spec, &self.key, 1))
    }

    /// An ask of the only token of an hour.
    fn drained(&self) -> BucketAsk<'_> {
        self.one(bucket("1/h", 1))
    }

    async fn decide(&self, asks: &[BucketAsk<'_>], after: Duration) -> Answer {
        let began = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        decide(&self.store, asks, began.plus(after)).await.unwrap()
    }

    /// Whether Redis was asked about a request that is refused.
    async fn asked(&self, asks: &[BucketAsk<'_>], after: Duration) -> bool {
        let before = self.known();
        let answer = self.decide(asks, after).await;
        assert!(!answer.verdict.passes(), "{answer:?}");
        self.known() == before
    }

    /// Of so many requests that come at once, those that pass, and those that Redis was asked about.
    async fn crowd(&self, asks: &[BucketAsk<'_>], size: u64, after: Duration) -> (usize, u64) {
        let before = self.known();
        let answers = join_all((0..size).map(|_| self.decide(asks, after))).await;
        let passed = answers.iter().filter(|answer| answer.verdict.passes()).count();
        (passed, size - (self.known() - before))
    }

    /// The requests that were refused without a question to Redis.
    fn known(&self) -> u64 {
        self.shared.counters().known_refusals
    }

    /// Every bucket is new in Redis.
    fn flush(&self) {
        let (): () = self.server.run(&["FLUSHALL"]);
    }
}

/// The same ask of a limit by another algorithm.
fn by(algorithm: Algorithm, mut ask: BucketAsk<'_>) -> BucketAsk<'_> {
    ask.ask.algorithm = algorithm;
    ask
}

#[tokio::test]
async fn a_flood_hardly_reaches_redis_and_is_told_what_redis_says() {
    let bench = Bench::start();
    for algorithm in [bucket("1/h", 1), rolling("1/h"), sliding("1/h"), log("1/h")] {
        let one = bench.one(algorithm);
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
async fn a_crowd_at_the_end_of_a_wait_is_one_call() {
    let bench = Bench::start();
    for algorithm in [bucket("1/h", 1), leaky("1/h", 0), log("1/h")] {
        let one = bench.one(algorithm);
        let crowd = async |after| {
            let before = bench.server.calls("evalsha");
            let (passed, asked) = bench.crowd(&[one], 32, after).await;
            (passed, asked, bench.server.calls("evalsha") - before)
        };
        assert!(bench.decide(&[one], Duration::ZERO).await.verdict.passes(), "{algorithm}");
        assert!(bench.asked(&[one], Duration::ZERO).await, "{algorithm}");
        assert_eq!(crowd(SECOND).await, (0, 0, 0), "{algorithm}: known");
        assert_eq!(crowd(3_600 * SECOND).await, (0, 32, 1), "{algorithm}: not yet in Redis");
        assert_eq!(crowd(3_601 * SECOND).await, (0, 0, 0), "{algorithm}: known again");
        bench.flush();
        assert_eq!(crowd(2 * 3_601 * SECOND).await, (1, 32, 1), "{algorithm}: it is new");
        bench.flush();
    }
}

#[tokio::test]
async fn only_what_is_sure_is_known() {
    let bench = Bench::start();
    let (other, late) = (limit("other"), settled("settled"));
    let drained = |spec| by(bucket("1/h", 1), ask(spec, &bench.key, 1));
    let (one, mut waits, mut shadow) = (bench.drained(), drained(&other), drained(&other));
    (waits.ask.max_wait, shadow.ask.mode) = (MaxWait::of(SECOND), Mode::Shadow);
    for ask in [one, drained(&other), drained(&late)] {
        bench.decide(&[ask], Duration::ZERO).await;
    }
    for (asks, is_known, what) in [
        (&[waits][..], false, "a limit that holds requests"),
        (&[drained(&late)], false, "tokens that may come back"),
        (&[one, shadow], false, "a limit in shadow"),
        (&[one, drained(&other)], true, "two limits that refuse"),
    ] {
        for again in [false, true] {
            let asked = bench.asked(asks, Duration::ZERO).await;
            assert_eq!(asked, !(again && is_known), "{what}");
        }
    }
}

/// What Redis said before it went does not bind those who decide without it.
#[tokio::test]
async fn without_redis_nothing_is_known() {
    let mut bench = Bench::start();
    bench.spec.on_store_error = OnStoreError::Allow;
    bench.decide(&[bench.drained()], Duration::ZERO).await;
    assert!(bench.asked(&[bench.drained()], Duration::ZERO).await);
    bench.server.kill();
    until("Redis is away", async || bench.shared.counters().redis_up == Some(false)).await;
    for after in [Duration::ZERO, SECOND, 3 * SECOND] {
        for _ in 0..100 {
            assert!(bench.decide(&[bench.drained()], after).await.verdict.passes(), "{after:?}");
        }
    }
}

/// One answer that is late breaks no connection, and Redis does not count as away. But those who decide without it must
/// not refuse by what it said before.
#[tokio::test]
async fn after_a_question_that_is_lost_the_next_request_asks() {
    let mut bench = Bench::start();
    bench.spec.on_store_error = OnStoreError::Allow;
    let patience = StoreSpec { timeout: 2 * SECOND, ..store_spec(location(&bench.server.url())) };
    (bench.shared, bench.store) = stores(&patience);
    let one = bench.drained();
    bench.decide(&[one], Duration::ZERO).await;
    assert!(bench.asked(&[one], Duration::ZERO).await);
    assert!(!bench.asked(&[one], SECOND).await, "it is known");
    bench.server.pause();
    assert!(bench.decide(&[one], 2 * SECOND).await.verdict.passes(), "Redis did not answer");
    bench.server.resume();
    assert_eq!(bench.shared.counters().redis_up, Some(true));
    assert!(bench.asked(&[one], 2 * SECOND).await, "nothing is known any more");
    assert!(!bench.asked(&[one], 2 * SECOND).await, "over the same connection");
}

#[tokio::test]
async fn a_new_connection_knows_nothing() {
    let bench = Bench::start();
    let one = bench.drained();
    bench.decide(&[one], Duration::ZERO).await;
    bench.asked(&[one], Duration::ZERO).await;
    bench.flush();
    let _: u64 = bench.server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let passes = async || bench.decide(&[one], Duration::ZERO).await.verdict.passes();
    until("it passes", passes).await;
}

/// Known refusals would hold for hours more here: this test's clock stands still.
#[tokio::test]
async fn a_bucket_made_new_elsewhere_is_no_longer_refused_here() {
    let bench = Bench::start();
    let one = bench.drained();
    assert!(bench.decide(&[one], Duration::ZERO).await.verdict.passes());
    assert!(bench.asked(&[one], Duration::ZERO).await);
    assert!(!bench.asked(&[one], Duration::ZERO).await, "known from now on");
    bench.elsewhere().forget(&one).await.unwrap();
    let passes = async || bench.decide(&[one], Duration::ZERO).await.verdict.passes();
    until("it passes", passes).await;
}
