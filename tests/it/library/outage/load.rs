//! A Redis cluster that refuses while much traffic runs.

use std::cell::Cell;

use futures_util::future::join_all;
use tidegate::settings::{LimitSpec, OnStoreError};

use super::cluster::on;
use super::{Bench, ask, key, limit};
use crate::support::cluster::Cluster;
use tidegate::store::BucketKey;

/// The tokens of each bucket, which does not refill during a test.
const BURST: u64 = 1_000;

/// Requests for a bucket that are under way at once.
const AT_ONCE: usize = 4;

/// The requests of one limit and one key.
struct Lane {
    spec: LimitSpec,
    key: BucketKey,
    passed: Cell<u64>,
    refused: Cell<u64>,
    unavailable: Cell<u64>,
}

/// Requests that follow one another without a pause.
struct Traffic<'b> {
    bench: &'b Bench,
    /// For the key of each master a limit that decides locally, then a limit that rejects.
    lanes: Vec<[Lane; 2]>,
    is_over: Cell<bool>,
}

impl<'b> Traffic<'b> {
    fn new(bench: &'b Bench, keys: &[String]) -> Self {
        let lane = |name: &str, at: &String, on_store_error| Lane {
            spec: LimitSpec { on_store_error, ..limit(name) },
            key: key(at),
            passed: Cell::default(),
            refused: Cell::default(),
            unavailable: Cell::default(),
        };
        let lanes = keys.iter().map(|at| {
            [lane("local", at, OnStoreError::Local), lane("reject", at, OnStoreError::Reject)]
        });
        Self { bench, lanes: lanes.collect(), is_over: Cell::new(false) }
    }

    /// Sends requests while `script` runs, and afterwards until Redis has refused one of each lane.
    async fn during(&self, script: impl Future<Output = ()>) {
        let lanes = self.lanes.iter().flatten().flat_map(|lane| [lane; AT_ONCE]);
        let all = join_all(lanes.map(|lane| self.keep_sending(lane)));
        let script = async {
            script.await;
            self.until_each_is(|lane| &lane.refused).await;
            self.is_over.set(true);
        };
        tokio::join!(all, script);
    }

    async fn keep_sending(&self, lane: &Lane) {
        while !self.is_over.get() {
            let answer = self.bench.decide(&[ask(&lane.spec, &lane.key, BURST)]).await;
            let count = match answer {
                Ok(answer) if answer.verdict.passes() => &lane.passed,
                Ok(_) => &lane.refused,
                Err(_) => &lane.unavailable,
            };
            count.set(count.get() + 1);
            tokio::task::yield_now().await;
        }
    }

    /// Waits until a count of each lane has grown.
    async fn until_each_is(&self, count: impl Fn(&Lane) -> &Cell<u64>) {
        let lanes = || self.lanes.iter().flatten();
        let before: Vec<_> = lanes().map(|lane| count(lane).get()).collect();
        let grown = || lanes().zip(&before).all(|(lane, before)| count(lane).get() > *before);
        self.bench.until("requests of each lane", grown).await;
    }

    /// Waits until requests were refused because of a limit that rejects without its server.
    async fn until_rejected(&self, place: usize) {
        let count = &self.lanes[place][1].unavailable;
        let before = count.get();
        let is_so = || count.get() > before + 100;
        self.bench.until("requests are rejected", is_so).await;
    }
}

#[tokio::test]
async fn a_master_without_memory_touches_its_own_keys_alone() {
    let (cluster, bench, keys) = on(Cluster::of_masters()).await;
    let traffic = Traffic::new(&bench, &keys);
    let memory = |most: &str| cluster.servers[0].run::<()>(&["CONFIG", "SET", "maxmemory", most]);
    let () = cluster.servers[0].run(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let script = async {
        traffic.until_each_is(|lane| &lane.passed).await;
        memory("1");
        bench.until_redis_is(false).await;
        traffic.until_rejected(0).await;
        memory("0");
        bench.assert_recovers("memory").await;
        bench.until_all_decide(&keys).await;
    };
    traffic.during(script).await;
    for (place, [local, reject]) in traffic.lanes.iter().enumerate() {
        assert_eq!(reject.passed.get(), BURST, "{place}: Redis gave what it has");
        match place {
            0 => assert!((BURST..=2 * BURST).contains(&local.passed.get()), "Redis's and its own"),
            _ => {
                assert_eq!(local.passed.get(), BURST, "{place}");
                assert_eq!(reject.unavailable.get(), 0, "{place}");
            }
        }
    }
    let text = bench.log.text();
    let lost = format!("server=\"127.0.0.1:{}\"", cluster.servers[0].port());
    assert_eq!(text.matches(&lost).count(), 2, "one line each way: {text}");
    assert!(text.contains("OOM") && text.contains("maxmemory"), "{text}");
}

#[tokio::test]
async fn a_password_that_is_changed_and_put_right_again() {
    let cluster = Cluster::of_masters();
    let (bench, keys) = (Bench::on(&cluster.url_of_user()), cluster.keys());
    bench.until_all_decide(&keys).await;
    let traffic = Traffic::new(&bench, &keys);
    let password = |rule: &str| {
        for server in &cluster.servers {
            let () = server.run(&["ACL", "SETUSER", "tidegate", "resetpass", rule]);
        }
    };
    let script = async {
        traffic.until_each_is(|lane| &lane.passed).await;
        password(">other");
        for server in &cluster.servers {
            let _: u64 = server.run(&["CLIENT", "KILL", "USER", "tidegate"]);
        }
        let is_away = || bench.log.count("store unavailable") == 3;
        bench.until("all servers are away", is_away).await;
        for place in 0..3 {
            traffic.until_rejected(place).await;
        }
        password(">secret");
        let is_back = || bench.log.count("store recovered") == 3;
        bench.until("all servers are back", is_back).await;
        bench.until_all_decide(&keys).await;
    };
    traffic.during(script).await;
    for (place, [local, reject]) in traffic.lanes.iter().enumerate() {
        // The tokens of calls whose answer was cut off are lost.
        let given = BURST - AT_ONCE as u64..=BURST;
        assert!(given.contains(&reject.passed.get()), "{place}: {}", reject.passed.get());
        assert!((*given.start()..=2 * BURST).contains(&local.passed.get()), "{place}");
    }
    let text = bench.log.text();
    assert!(text.contains("give store.url Redis's password"), "{text}");
    assert_eq!(bench.log.count("store unavailable"), 3, "{text}");
    assert_eq!(bench.log.count("store recovered"), 3, "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// One server is known to be away, and the other one is asked without an answer.
#[tokio::test]
async fn a_request_without_two_servers_is_counted_once() {
    let (mut cluster, bench, keys) = on(Cluster::of_masters()).await;
    cluster.servers[0].kill();
    bench.until_redis_is(false).await;
    let () = cluster.servers[1].run(&["CONFIG", "SET", "maxmemory", "1"]);
    let (lost, full) = (limit("lost"), limit("full"));
    let before = bench.shared.counters().decided_without;
    bench.decide(&[ask(&lost, &key(&keys[0]), 10), ask(&full, &key(&keys[1]), 10)]).await.unwrap();
    assert_eq!(bench.shared.counters().decided_without - before, 1);
}
