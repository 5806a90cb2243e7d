//! A store, and what there is to ask of it.

use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::algorithm::{Algorithm, Difference, Receipt};
use tidegate::limit::decision::{Decision, Outcome, Verdict};
use tidegate::limit::time::Timestamp;
use tidegate::settings::{KeyDisplay, StoreLocation, StoreSpec};
use tidegate::store::{self, BucketAsk, Claim, ClockReading, ProcessStore, Store, Unavailable};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::redis::{RedisServer, location};

const MILLISECOND: Duration = Duration::from_millis(1);

/// What a store has decided on a request. Dropped, it gives back slots, and permits of a limiter that the
/// request waits for. Tokens are kept.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) verdict: Verdict,
    pub(crate) decisions: Vec<Option<Decision>>,
    pub(crate) claims: Vec<Claim<'static>>,
    /// What was noted of each claim of which something may come back.
    pub(crate) receipts: Vec<Option<Receipt>>,
}

impl Answer {
    /// The request goes on, also with what it has of limiters.
    pub(crate) fn keep(mut self) {
        for claim in &mut self.claims {
            claim.take_held().into_iter().for_each(|mut grant| grant.spend());
        }
    }

    /// The request does not go on. Waits until Redis knows it.
    pub(crate) async fn give_back(self, store: &Store) {
        drop(self);
        store.settled().await;
    }

    /// What remains of the limit at this place.
    pub(crate) fn remaining(&self, place: usize) -> u64 {
        self.decisions[place].unwrap().remaining
    }
}

/// Two requests were told the same.
impl PartialEq for Answer {
    fn eq(&self, other: &Self) -> bool {
        (self.verdict, &self.decisions) == (other.verdict, &other.decisions)
    }
}

/// Asks a store on behalf of one request.
pub(crate) async fn decide(
    store: &Arc<Store>,
    asks: &[BucketAsk<'_>],
    now: Timestamp,
) -> Result<Answer, Unavailable> {
    // A claim borrows its limit from the settings, which outlive it. Here a limit lives as long as the process.
    let spec = |ask: &BucketAsk<'_>| &*Box::leak(Box::new(Arc::new(ask.spec.clone())));
    let claim = |ask: &BucketAsk<'_>| Claim::new(store, spec(ask), ask.key.clone(), ask.ask);
    let mut claims: Vec<_> = asks.iter().map(claim).collect();
    let mut all: Vec<_> = claims.iter_mut().collect();
    store.take(&mut all, ClockReading::now(now)).await?;
    let decisions = claims.iter().map(Claim::decision).collect();
    let receipts = claims.iter().map(Claim::receipt).collect();
    for claim in &mut claims {
        let is_slot = matches!(claim.ask.algorithm, Algorithm::Concurrency(_));
        if !is_slot && claim.figures().is_none() {
            claim.take_held().into_iter().for_each(|mut grant| grant.spend());
        }
    }
    Ok(Answer { verdict: store::verdict(&claims), decisions, claims, receipts })
}

/// `[store]` of a process that keeps its buckets there, with time for any machine.
pub(crate) fn store_spec(location: StoreLocation) -> StoreSpec {
    let (prefix, timeout) = ("tidegate".into(), Duration::from_secs(20));
    StoreSpec { location, prefix, timeout, max_keys: 10_000 }
}

/// What the workers of such a process share, and the store of one of them.
pub(crate) fn stores(spec: &StoreSpec) -> (Arc<ProcessStore>, Arc<Store>) {
    let shared = ProcessStore::new(spec);
    (Arc::clone(&shared), Store::new(shared, spec, KeyDisplay::Plain))
}

/// A store of its own, which is asked at any time there is.
pub(crate) struct Bench {
    pub(crate) store: Arc<Store>,
    pub(crate) shared: Arc<ProcessStore>,
    pub(crate) spec: StoreSpec,
    began: Instant,
    _server: Option<RedisServer>,
    _cluster: Option<Cluster>,
}

impl Bench {
    pub(crate) fn memory() -> Self {
        Self::at(StoreLocation::Memory, None)
    }

    /// In a server that outlives it.
    pub(crate) fn of(server: &RedisServer) -> Self {
        Self::at(location(&server.url()), None)
    }

    pub(crate) fn redis() -> Self {
        let server = RedisServer::start();
        Self::at(location(&server.url()), Some(server))
    }

    /// In a server, as a user who has only the rights that the manual names.
    pub(crate) fn user() -> Self {
        let server = RedisServer::start();
        let location = server.as_user();
        Self::at(location, Some(server))
    }

    /// In a cluster, as a user who has only the rights that the manual names.
    pub(crate) fn cluster() -> Self {
        let cluster = Cluster::of_masters();
        let mut bench = Self::at(location(&cluster.url_of_user()), None);
        bench._cluster = Some(cluster);
        bench
    }

    fn at(location: StoreLocation, server: Option<RedisServer>) -> Self {
        let spec = store_spec(location);
        let (shared, store) = stores(&spec);
        Self { store, shared, spec, began: Instant::now(), _server: server, _cluster: None }
    }

    pub(crate) fn now() -> Timestamp {
        Timestamp::from_micros(1_700_000_000_000_000).unwrap()
    }

    pub(crate) async fn decide(&self, asks: &[BucketAsk<'_>]) -> Answer {
        self.decide_at(asks, Self::now()).await
    }

    /// At a time that Redis does not look at.
    pub(crate) async fn decide_at(&self, asks: &[BucketAsk<'_>], now: Timestamp) -> Answer {
        let answer = decide(&self.store, asks, now).await.unwrap();
        assert_ne!(self.shared.counters().redis_up, Some(false), "Redis did not decide");
        answer
    }

    /// What remains for one ask after it was decided.
    pub(crate) async fn take(&self, ask: BucketAsk<'_>) -> Option<u64> {
        let answer = self.decide(&[ask]).await;
        (answer.verdict == Verdict::PASS).then_some(answer.remaining(0))
    }

    /// What was noted of one ask, which passes, perhaps after a wait.
    pub(crate) async fn noted(&self, ask: BucketAsk<'_>) -> Receipt {
        let answer = self.decide(&[ask]).await;
        assert!(answer.verdict.passes(), "{answer:?}");
        answer.receipts[0].unwrap()
    }

    pub(crate) async fn settle(&self, ask: BucketAsk<'_>, used: Difference, receipt: Receipt) {
        self.store.settle(&ask, used, receipt, Self::now());
        self.store.settled().await;
    }

    pub(crate) async fn left(&self, ask: BucketAsk<'_>) -> u64 {
        self.store.look(&ask, Self::now()).await.unwrap().remaining
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
