//! Tokens of a busy key that are taken from Redis in batches: fewer questions, and never more than the limit.

use std::sync::Arc;
use std::time::Duration;

use tidegate::limit::algorithm::Algorithm;
use tidegate::limit::decision::Verdict;
use tidegate::limit::rate::Cost;
use tidegate::limit::time::Timestamp;
use tidegate::plan::{CostSpec, KeyDisplay, LimitSpec, PrefetchMode, StoreSpec};
use tidegate::store::{BucketAsk, BucketKey, ProcessStore, Store};
use tokio::time::{Instant, sleep};

use crate::support::PATIENCE;
use crate::support::bench::decide;
use crate::support::limits::{ask, bucket, key, limit};
use crate::support::redis::{RedisServer, location};

/// A bucket of this many tokens, of which none comes back during a test.
const BURST: u64 = 160_000;

/// What requests and batches can take of it. The rest is set aside.
const USABLE: u64 = BURST - BURST / 8;

/// One process with one worker.
struct Process {
    shared: Arc<ProcessStore>,
    store: Arc<Store>,
    passed: u64,
}

impl Process {
    fn of(server: &RedisServer) -> Self {
        let spec = StoreSpec {
            location: location(&server.url()),
            prefix: "tidegate".into(),
            timeout: Duration::from_secs(20),
            max_keys: 1_000,
            prefetch: PrefetchMode::Auto,
        };
        let shared = ProcessStore::new(&spec);
        let store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        Self { shared, store, passed: 0 }
    }

    async fn take(&mut self, ask: BucketAsk<'_>) -> bool {
        let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        let passes = decide(&self.store, &[ask], now).await.unwrap().verdict == Verdict::PASS;
        self.passed += u64::from(passes);
        passes
    }

    /// Keeps the key busy until tokens are held.
    async fn until_tokens_are_held(&mut self, ask: BucketAsk<'_>) {
        let max_wait = Instant::now() + PATIENCE;
        while self.shared.counters().prefetched_keys == 0 {
            assert!(Instant::now() < max_wait, "no tokens are fetched");
            for _ in 0..20 {
                self.take(ask).await;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn script_calls(server: &RedisServer) -> u64 {
    let info: String = server.run(&["INFO", "commandstats"]);
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:calls=")).unwrap();
    line["cmdstat_evalsha:calls=".len()..].split(',').next().unwrap().parse().unwrap()
}

fn busy<'r>(spec: &'r LimitSpec, key: &'r BucketKey) -> BucketAsk<'r> {
    let one = ask(spec, key, 10);
    let algorithm: Algorithm = bucket("1/h", BURST);
    BucketAsk { ask: tidegate::limit::decide::Ask { algorithm, ..one.ask }, ..one }
}

async fn left(process: &Process, ask: BucketAsk<'_>) -> u64 {
    let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
    process.store.peek(&ask, now).await.unwrap().remaining
}

#[tokio::test]
async fn a_busy_key_hardly_asks_redis() {
    let server = RedisServer::start();
    let mut process = Process::of(&server);
    let (spec, key) = (limit("busy"), key("x"));
    let ask = busy(&spec, &key);
    process.until_tokens_are_held(ask).await;
    let (before, requests) = (script_calls(&server), 20_000);
    for _ in 0..requests {
        assert!(process.take(ask).await);
        // The task that fetches has its turn.
        tokio::task::yield_now().await;
    }
    let calls = script_calls(&server) - before;
    assert!(calls <= requests / 20, "{calls} calls for {requests} requests");
}

#[tokio::test]
async fn what_is_not_spent_goes_back() {
    let server = RedisServer::start();
    let mut process = Process::of(&server);
    let (spec, key) = (limit("busy"), key("x"));
    let ask = busy(&spec, &key);
    process.until_tokens_are_held(ask).await;
    let max_wait = Instant::now() + PATIENCE;
    while left(&process, ask).await != USABLE - process.passed {
        assert!(Instant::now() < max_wait, "{} are missing", USABLE - process.passed);
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(process.shared.counters().prefetched_keys, 0);
}

#[tokio::test]
async fn a_worker_that_ends_gives_back_what_it_holds() {
    let server = RedisServer::start();
    let mut process = Process::of(&server);
    let (spec, key) = (limit("busy"), key("x"));
    let ask = busy(&spec, &key);
    process.until_tokens_are_held(ask).await;
    process.store.settled().await;
    assert_eq!(left(&process, ask).await, USABLE - process.passed);
}

#[tokio::test]
async fn several_processes_let_pass_no_more_than_the_limit() {
    let server = RedisServer::start();
    let mut processes = [Process::of(&server), Process::of(&server), Process::of(&server)];
    let (spec, key) = (limit("busy"), key("x"));
    let ask = busy(&spec, &key);
    for process in &mut processes {
        process.until_tokens_are_held(ask).await;
    }
    let mut refused_in_a_row = 0;
    while refused_in_a_row < 100 {
        refused_in_a_row += 1;
        for process in &mut processes {
            for _ in 0..100 {
                if process.take(ask).await {
                    refused_in_a_row = 0;
                }
            }
        }
        // The tasks that fetch have their turn, and so has Redis.
        sleep(Duration::from_millis(1)).await;
    }
    let passed: u64 = processes.iter().map(|process| process.passed).sum();
    for process in &processes {
        process.store.settled().await;
    }
    assert_eq!(passed + left(&processes[0], ask).await, USABLE, "nothing more, and nothing lost");
}

#[tokio::test]
async fn a_key_that_is_made_new_has_no_old_tokens() {
    let server = RedisServer::start();
    let mut process = Process::of(&server);
    let (spec, key) = (limit("busy"), key("x"));
    let ask = busy(&spec, &key);
    process.until_tokens_are_held(ask).await;
    process.store.forget(&ask).await.unwrap();
    let before = script_calls(&server);
    assert!(process.take(ask).await);
    assert!(script_calls(&server) > before, "Redis is asked");
    assert_eq!(left(&process, ask).await, USABLE - 1);
}

/// Of a small burst, and where one request needs nearly the whole burst.
#[tokio::test]
async fn only_what_can_be_set_aside_is_fetched() {
    let server = RedisServer::start();
    let mut process = Process::of(&server);
    let small = limit("small");
    let key = key("x");
    let small_ask = ask(&small, &key, 63);
    for _ in 0..63 {
        assert!(process.take(small_ask).await, "the whole burst is for requests");
    }
    assert!(!process.take(small_ask).await);
    let mut dear = limit("dear");
    let cost = Cost::new(95).unwrap();
    dear.cost = CostSpec::Fixed(cost);
    let mut dear_ask = ask(&dear, &key, 100);
    dear_ask.ask.cost = cost;
    assert!(process.take(dear_ask).await);
}

/// Batches that were taken by other figures must not fill the bucket.
#[tokio::test]
async fn lower_figures_hold_while_batches_go_back() {
    let server = RedisServer::start();
    let mut process = Process::of(&server);
    let (spec, key) = (limit("busy"), key("x"));
    let ask = busy(&spec, &key);
    process.until_tokens_are_held(ask).await;
    let mut lower = ask;
    lower.ask.algorithm = bucket("1/h", 64);
    for _ in 0..100 {
        process.take(lower).await;
    }
    let before = process.passed;
    process.store.settled().await;
    for _ in 0..100 {
        assert!(!process.take(lower).await, "much more than 64 tokens are missing");
    }
    assert_eq!(process.passed, before);
}
