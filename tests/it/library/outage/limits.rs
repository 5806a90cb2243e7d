//! What the limits of a request do while Redis is out of reach, and those that are kept here.

use std::time::Duration;

use tidegate::limit::Scope;
use tidegate::limit::decision::{Outcome, Verdict};
use tidegate::settings::{KeyDisplay, LimitSpec};
use tidegate::store::{ProcessStore, Store};

use super::{Bench, now};
use crate::support::algorithms::slots;
use crate::support::bench::decide;
use crate::support::limits::{ask, key, limit};
use crate::support::redis::RedisServer;

fn node(name: &str) -> LimitSpec {
    LimitSpec { scope: Scope::Node, ..limit(name) }
}

#[tokio::test]
async fn local_buckets_live_on_between_outages() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let (spec, key) = (limit("per-client"), key("192.0.2.1"));
    for left in [9, 8] {
        server.kill();
        bench.until_redis_is(false).await;
        assert_eq!(bench.left(ask(&spec, &key, 10)).await, left);
        server.restart();
        bench.until_redis_decides().await;
    }
}

#[tokio::test]
async fn a_node_limit_gives_back_what_redis_refuses() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let (node, cluster, key) = (node("node"), limit("cluster"), key("192.0.2.1"));
    let asks = [ask(&node, &key, 10), ask(&cluster, &key, 1)];
    let answer = bench.decide(&asks).await.unwrap();
    assert_eq!(answer.verdict, Verdict::PASS);
    for _ in 0..3 {
        let answer = bench.decide(&asks).await.unwrap();
        assert!(matches!(answer.verdict, Verdict::Refuse { by: 1, .. }));
        assert_eq!(answer.remaining(0), 9);
    }
    assert_eq!(bench.store.look(&asks[0], now()).await.unwrap().remaining, 9);
    let keys: Vec<String> = server.run(&["KEYS", "*:node"]);
    assert!(keys.is_empty(), "a node's bucket stays in the process");
}

#[tokio::test]
async fn redis_gives_nothing_where_a_node_limit_refuses() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let (node, cluster, key) = (node("node"), limit("cluster"), key("192.0.2.1"));
    let asks = [ask(&cluster, &key, 3), ask(&node, &key, 1)];
    bench.decide(&asks).await.unwrap();
    for _ in 0..3 {
        let answer = bench.decide(&asks).await.unwrap();
        assert!(matches!(answer.verdict, Verdict::Refuse { by: 1, .. }));
        let cluster = answer.decisions[0].unwrap();
        assert_eq!((cluster.outcome, cluster.remaining), (Outcome::Allow, 2));
    }
}

#[tokio::test]
async fn a_client_that_leaves_leaves_its_tokens_in_the_process() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    server.pause();
    let (node, cluster, key) = (node("node"), limit("cluster"), key("192.0.2.1"));
    let asks = [ask(&node, &key, 10), ask(&cluster, &key, 10)];
    let left = || bench.store.look(&asks[0], now());
    {
        let mut request = std::pin::pin!(decide(&bench.store, &asks, now()));
        let first_poll = std::future::poll_fn(|context| {
            std::task::Poll::Ready(request.as_mut().poll(context).is_ready())
        });
        assert!(!first_poll.await, "it waits for Redis");
        assert_eq!(left().await.unwrap().remaining, 9);
    }
    assert_eq!(left().await.unwrap().remaining, 10);
}

/// Each process thought that it was alone, and said nothing.
#[tokio::test]
async fn processes_that_cannot_be_counted_stay_as_many() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    let _other = Store::new(ProcessStore::new(&bench.spec), &bench.spec, KeyDisplay::Plain);
    bench.until("two are known", || bench.shared.counters().processes == 2).await;
    let () = server.run(&["SET", "tidegate::processes", "x"]);
    bench.until_log("processes not counted").await;
    assert!(bench.log.text().contains("another type"), "{}", bench.log.text());
    assert_eq!(bench.shared.counters().processes, 2);
}

/// A held slot was written again only after a third of its lease. Until then others got it too.
#[tokio::test]
async fn slots_whose_data_is_deleted_are_held_again_soon() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let (spec, key) = (limit("slots"), key("x"));
    let mut one = ask(&spec, &key, 10);
    one.ask.algorithm = slots(1, Duration::from_secs(3_600));
    let _held = bench.decide(&[one]).await.unwrap();
    let () = server.run(&["FLUSHALL"]);
    let is_held = || server.run::<u64>(&["EXISTS", "tidegate:{x}:slots:concurrency"]) == 1;
    bench.until("the slot is held again", is_held).await;
}

/// The request that had waited for another one's answer had as much time again for its own question.
#[tokio::test]
async fn a_lease_from_before_the_clock_was_set_back_ends_as_soon_as_any() {
    let server = RedisServer::start();
    let bench = Bench::on(&server.url());
    bench.until_redis_decides().await;
    let (spec, key) = (limit("slots"), key("x"));
    let (seconds, _): (u64, u64) = server.run(&["TIME"]);
    let (lease, name) = (60, "tidegate:{x}:slots:concurrency");
    let ahead = ((seconds + 86_400) * 1_000_000).to_string();
    let soon = ((seconds + lease) * 1_000_000).to_string();
    let _: u64 = server.run(&["ZADD", name, &ahead, "dead", &ahead, "dead too", &soon, "alive"]);
    let mut one = ask(&spec, &key, 10);
    one.ask.algorithm = slots(3, Duration::from_secs(lease));
    let answer = bench.decide(&[one]).await.unwrap();
    assert!(!answer.verdict.passes(), "they may live");
    let ends: Vec<(String, f64)> = server.run(&["ZRANGE", name, "0", "-1", "WITHSCORES"]);
    let (now, _): (u64, u64) = server.run(&["TIME"]);
    assert_eq!(ends.len(), 3);
    assert_eq!(ends[0], ("alive".to_owned(), soon.parse().unwrap()));
    let most = ((now + lease + 1) * 1_000_000) as f64;
    assert!(ends.iter().all(|(_, end)| *end <= most), "{ends:?}");
}
