//! A store, and what there is to ask of it.

use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::algorithm::{Difference, Receipt};
use tidegate::limit::decision::{Outcome, Verdict};
use tidegate::limit::time::Timestamp;
use tidegate::plan::{KeyDisplay, StoreLocation, StoreSpec};
use tidegate::store::{Answer, BucketAsk, Shared, Store};
use tokio::time::Instant;

use super::redis::RedisServer;

const MILLISECOND: Duration = Duration::from_millis(1);

/// A store of its own, which is asked at any time there is.
pub(crate) struct Bench {
    pub(crate) store: Store,
    pub(crate) shared: Arc<Shared>,
    pub(crate) spec: StoreSpec,
    began: Instant,
    _server: Option<RedisServer>,
}

impl Bench {
    pub(crate) fn memory() -> Self {
        Self::at(StoreLocation::Memory, None)
    }

    /// In a server that outlives it.
    pub(crate) fn of(server: &RedisServer) -> Self {
        Self::at(StoreLocation::Redis(server.url()), None)
    }

    pub(crate) fn redis() -> Self {
        let server = RedisServer::start();
        Self::at(StoreLocation::Redis(server.url()), Some(server))
    }

    fn at(location: StoreLocation, server: Option<RedisServer>) -> Self {
        // Long enough for any machine: what waits is not the matter here.
        let timeout = Duration::from_secs(20);
        let spec = StoreSpec { location, prefix: "tidegate".into(), timeout, max_keys: 10_000 };
        let shared = Shared::new(&spec);
        let store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        Self { store, shared, spec, began: Instant::now(), _server: server }
    }

    pub(crate) fn now() -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).unwrap()
    }

    pub(crate) async fn decide(&self, asks: &[BucketAsk<'_>]) -> Answer {
        self.decide_at(asks, Self::now()).await
    }

    /// At a time that Redis does not look at.
    pub(crate) async fn decide_at(&self, asks: &[BucketAsk<'_>], now: Timestamp) -> Answer {
        let answer = self.store.decide(asks, now).await.unwrap();
        assert_ne!(self.shared.counters().redis_up, Some(false), "Redis did not decide");
        answer
    }

    /// What remains for one ask after it was decided.
    pub(crate) async fn take(&self, ask: BucketAsk<'_>) -> Option<u64> {
        let answer = self.decide(&[ask]).await;
        let decision = answer.decisions[0].unwrap();
        (answer.verdict == Verdict::PASS).then_some(decision.remaining)
    }

    /// What was noted of one ask, which passes, perhaps after a wait.
    pub(crate) async fn noted(&self, ask: BucketAsk<'_>) -> Receipt {
        let answer = self.decide(&[ask]).await;
        assert!(answer.verdict.passes(), "{answer:?}");
        answer.receipts[0]
    }

    pub(crate) async fn settle(&self, ask: BucketAsk<'_>, used: Difference, receipt: Receipt) {
        self.store.settle(&ask, (used, receipt), Self::now()).await.unwrap();
    }

    pub(crate) async fn left(&self, ask: BucketAsk<'_>) -> u64 {
        self.store.peek(&ask, Self::now()).await.unwrap().remaining
    }

    /// The same outcome, but that the wait may be shorter by the time that went on in Redis, to the
    /// millisecond in which Redisson counts.
    pub(crate) fn agrees(&self, outcome: Outcome, expected: Outcome) -> bool {
        match (outcome, expected) {
            (Outcome::Delay(promised), Outcome::Delay(expected))
            | (
                Outcome::Reject { retry_after: Some(promised) },
                Outcome::Reject { retry_after: Some(expected) },
            ) => promised <= expected && promised + self.began.elapsed() + MILLISECOND >= expected,
            (outcome, expected) => outcome == expected,
        }
    }

    pub(crate) fn assert_wait(&self, promised: Option<Duration>, expected: Duration) {
        let promised = promised.expect("it passes some day");
        let agrees = self.agrees(Outcome::Delay(promised), Outcome::Delay(expected));
        assert!(agrees, "{promised:?} instead of {expected:?}");
    }
    /// What is given back on the side is told in the order in which it was given.
    pub(crate) async fn left_soon(&self, ask: BucketAsk<'_>, expected: u64) {
        while self.left(ask).await != expected {
            assert!(self.began.elapsed() < super::PATIENCE, "never {expected}");
            tokio::task::yield_now().await;
        }
    }
}
