//! A limiter that a proxy shares with services that use Redisson.

mod alone;
mod both_sides;
mod cluster;
mod figures;
mod held;
mod moved_clock;
mod older;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::algorithm::Algorithm;
use tidegate::limit::algorithm::redisson::{Params, Sharing};
use tidegate::limit::decide::Ask;
use tidegate::limit::decision::Outcome;
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::limit::waiting::MaxWait;
use tidegate::settings::{LimitSpec, OnStoreError, StoreLocation};
use tidegate::store::{BucketAsk, BucketKey, Claim, Decider, Store, Unavailable};

use crate::support::bench::{Answer, decide, store_spec, stores};
use crate::support::java::Java;
use crate::support::limits::{limit, no_key};
use crate::support::redis::{RedisServer, location};
use crate::support::until;

const HOUR_MS: u64 = 3_600_000;

struct Bench {
    server: RedisServer,
    store: Arc<Store>,
}

impl Bench {
    fn start() -> Self {
        let server = RedisServer::start();
        let store = store(&server);
        Self { server, store }
    }

    async fn decide(&self, asks: &[BucketAsk<'_>]) -> Answer {
        self.try_decide(asks).await.unwrap()
    }

    async fn try_decide(&self, asks: &[BucketAsk<'_>]) -> Result<Answer, Unavailable> {
        decide(&self.store, asks, now()).await
    }

    /// What remains after a request of this cost, or when it may come again.
    async fn take(&self, spec: &LimitSpec, cost: u64) -> Result<u64, Option<Duration>> {
        let answer = self.decide(&[ask(spec, &no_key(), cost)]).await;
        let decision = answer.decisions[0].unwrap();
        match decision.outcome {
            Outcome::Allow => Ok(decision.remaining),
            Outcome::Reject { retry_after } => Err(retry_after),
            Outcome::Delay(_) => panic!("nobody is held without max_wait"),
        }
    }

    fn value(&self, name: &str) -> Option<i64> {
        self.server.run(&["GET", &format!("{{{name}}}:value")])
    }

    fn entries(&self, name: &str) -> Vec<(Vec<u8>, u64)> {
        self.server.run(&["ZRANGE", &format!("{{{name}}}:permits"), "0", "-1", "WITHSCORES"])
    }

    /// Waits until so much is left, and so many entries are there.
    async fn until(&self, value: i64, entries: usize) {
        let what = format!("{value} is left, and {entries} entries are there");
        until(&what, async || {
            self.value("orders") == Some(value) && self.entries("orders").len() == entries
        })
        .await;
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.server.run(&["KEYS", "*"]);
        keys.retain(|key| !key.starts_with("tidegate::"));
        keys.sort();
        keys
    }
}

fn store(server: &RedisServer) -> Arc<Store> {
    store_at(location(&server.url()))
}

fn store_at(location: StoreLocation) -> Arc<Store> {
    stores(&store_spec(location)).1
}

fn now() -> Timestamp {
    Timestamp::from_micros(5_000_000_000).unwrap()
}

/// Who has decided on each claim. `None` where nobody has.
fn deciders(answer: &Answer) -> Vec<Option<Decider>> {
    answer.claims.iter().map(Claim::decider).collect()
}

/// A limit that shares the limiter of this name, and rejects where it has no figures.
fn limiter(name: &str) -> LimitSpec {
    let mut spec = limit("shared");
    spec.key.sources = Vec::new().into();
    spec.limiter = Some(name.to_owned());
    spec.on_store_error = OnStoreError::Reject;
    spec
}

fn ask<'r>(spec: &'r LimitSpec, key: &'r BucketKey, cost: u64) -> BucketAsk<'r> {
    ask_with(spec, key, cost, Params::new(None, Sharing::Overall).unwrap())
}

fn ask_with<'r>(
    spec: &'r LimitSpec,
    key: &'r BucketKey,
    cost: u64,
    params: Params,
) -> BucketAsk<'r> {
    let algorithm = Algorithm::Redisson(params);
    let cost = Cost::new(cost).unwrap();
    BucketAsk {
        spec,
        key,
        ask: Ask { algorithm, cost, max_wait: MaxWait::NONE, mode: spec.mode, takes: true },
    }
}

/// The permits of an entry.
fn permits(member: &[u8]) -> u64 {
    let length = usize::from(member[0]);
    assert_eq!(member.len(), length + 5, "{member:?}");
    u32::from_le_bytes(member[length + 1..].try_into().unwrap()).into()
}

#[tokio::test]
async fn what_a_proxy_takes_stands_there_as_if_java_had_taken_it() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(10, HOUR_MS);
    let before = java.redis_ms();
    assert_eq!(bench.take(&limiter("orders"), 3).await, Ok(7));
    let after = java.redis_ms();
    assert_eq!(bench.keys(), ["orders", "{orders}:permits", "{orders}:value"]);
    assert_eq!(bench.value("orders"), Some(7));
    let entries = bench.entries("orders");
    let (member, score) = &entries[0];
    assert_eq!((entries.len(), member.len(), member[0]), (1, 21, 16));
    assert_eq!(&member[17..], [3, 0, 0, 0]);
    assert!((before..=after).contains(score), "{before} {score} {after}");
    assert_eq!(java.try_acquire(5), Some(2), "Java goes on from there");
    assert_eq!(bench.take(&limiter("orders"), 1).await, Ok(1));
    assert_eq!(java.try_acquire(2), None);
    for key in bench.keys() {
        assert_eq!(bench.server.run::<i64>(&["PTTL", &key]), -1, "{key}");
    }
}

#[tokio::test]
async fn what_java_took_is_there_again_when_its_interval_is_over() {
    for bytes in [8, 16, 255] {
        let bench = Bench::start();
        let mut java = Java::with_ids_of(&bench.server, "orders", bytes);
        java.try_set_rate(10, HOUR_MS);
        let now = java.redis_ms();
        java.try_acquire_at(4, now - HOUR_MS - 1);
        java.try_acquire_at(3, now - HOUR_MS / 2);
        assert_eq!(bench.value("orders"), Some(3));
        assert_eq!(bench.take(&limiter("orders"), 1).await, Ok(6), "ids of {bytes} bytes");
        assert_eq!(bench.entries("orders").len(), 2);
    }
}

#[tokio::test]
async fn the_wait_reaches_over_many_entries() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(350, HOUR_MS);
    let now = java.redis_ms();
    for entry in 0..350 {
        assert!(java.try_acquire_at(1, now - HOUR_MS + 10_000_000 / 100 * 10 + entry).is_some());
    }
    let wait = bench.take(&limiter("orders"), 300).await.unwrap_err().unwrap();
    let exact = Duration::from_millis(1_000_000 + 299);
    assert!(wait <= exact && wait > exact - Duration::from_secs(30), "{wait:?}");
}

#[tokio::test]
async fn value_and_entries_that_disagree_are_repaired() {
    let rate = 10;
    for (name, value, taken, expected) in [
        ("value gone", None, &[3, 2][..], 4),
        ("entries gone: an error for ever in Java", Some("0"), &[], 9),
        ("too much", Some("9"), &[5], 4),
        ("too little", Some("1"), &[2], 7),
        ("more than the rate", Some("55"), &[1], 8),
        ("no number", Some("many"), &[4], 5),
        ("a fraction", Some("3.5"), &[4], 5),
    ] {
        let bench = Bench::start();
        let mut java = Java::new(&bench.server, "orders");
        java.try_set_rate(rate, HOUR_MS);
        for permits in taken {
            java.try_acquire(*permits);
        }
        match value {
            Some(value) => bench.server.run::<()>(&["SET", "{orders}:value", value]),
            None => bench.server.run::<()>(&["DEL", "{orders}:value"]),
        }
        assert_eq!(bench.take(&limiter("orders"), 1).await, Ok(expected), "{name}");
        let used: u64 = bench.entries("orders").iter().map(|(member, _)| permits(member)).sum();
        assert_eq!(bench.value("orders"), Some((rate - used).cast_signed()), "{name}");
    }
}

/// Redisson's `release` up to 4.7.0 removes no entries, so what it gives is taken back. 4.8.0 was not tried.
#[tokio::test]
async fn what_is_given_back_together_with_its_entries_stays_given() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(10, HOUR_MS);
    let now = java.redis_ms();
    for (permits, at_ms) in [(2, now - 1_000), (5, now)] {
        java.try_acquire_at(permits, at_ms);
    }
    bench.server.run::<u64>(&["ZREMRANGEBYRANK", "{orders}:permits", "0", "0"]);
    bench.server.run::<i64>(&["INCRBY", "{orders}:value", "2"]);
    assert_eq!(bench.take(&limiter("orders"), 1).await, Ok(4));
}

#[tokio::test]
async fn a_large_set_is_repaired_too() {
    let bench = Bench::start();
    let mut java = Java::new(&bench.server, "orders");
    java.try_set_rate(1_000, HOUR_MS);
    for _ in 0..100 {
        java.try_acquire(2);
    }
    bench.server.run::<()>(&["SET", "{orders}:value", "950"]);
    assert_eq!(bench.take(&limiter("orders"), 1).await, Ok(799), "the value was too high");
    bench.server.run::<()>(&["SET", "{orders}:value", "0"]);
    // One that is too low is found out now and then.
    let mut tries = 0;
    while bench.take(&limiter("orders"), 1).await.is_err() {
        tries += 1;
        assert!(tries < 10_000, "never repaired");
    }
}
