//! A Redis cluster: each server decides on its own keys, and a server that is away, replaced, or loses a slot
//! touches no other keys.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use tidegate::limit::decision::Verdict;
use tidegate::settings::LimitSpec;

use super::{Bench, ask, key, limit, until_decides};
use crate::support::cluster::Cluster;
use crate::support::limits::bucket;
use crate::support::redis::RedisServer;
use crate::support::until;

impl Bench {
    /// Waits until the server of each of these keys decides.
    pub(super) async fn until_all_decide(&self, keys: &[String]) {
        for name in keys {
            until_decides(&self.store, name).await;
        }
    }

    /// How many of these requests pass.
    pub(super) async fn passed(&self, spec: &LimitSpec, name: &str, requests: usize) -> usize {
        let mut passed = 0;
        for _ in 0..requests {
            let answer = self.decide(&[ask(spec, &key(name), 10)]).await.unwrap();
            passed += usize::from(answer.verdict == Verdict::PASS);
        }
        passed
    }
}

/// With a store whose servers all decide, and a key of each master.
pub(super) async fn on(cluster: Cluster) -> (Cluster, Bench, Vec<String>) {
    let (bench, keys) = (Bench::on(&cluster.url()), cluster.keys());
    bench.until_all_decide(&keys).await;
    (cluster, bench, keys)
}

pub(super) fn stored(cluster: &Cluster, place: usize, pattern: &str) -> usize {
    let keys: Vec<String> = cluster.servers[place].run(&["KEYS", pattern]);
    keys.len()
}

#[tokio::test]
async fn each_key_is_decided_by_its_server() {
    let cluster = Cluster::of_masters();
    let bench = Bench::on(&cluster.url());
    let (keys, spec) = (cluster.keys(), limit("one"));
    for (place, name) in keys.iter().enumerate() {
        assert_eq!(bench.passed(&spec, name, 12).await, 10, "{name}");
        assert_eq!(stored(&cluster, place, "*:one"), 1, "{name}");
    }
    assert_eq!(bench.shared.counters().redis_up, Some(true));
    assert_eq!(bench.shared.cluster_servers().len(), 3);
    assert_eq!(bench.log.text(), "");
}

/// It does not know its own address yet.
#[tokio::test]
async fn a_server_that_has_met_no_other_is_a_cluster() {
    let server = RedisServer::start_in_cluster(&["--cluster-enabled", "yes"]);
    let () = server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let bench = Bench::on(&server.url().replace("redis://", "redis-cluster://"));
    bench.until_all_decide(&["a".to_owned()]).await;
    assert_eq!(bench.passed(&limit("one"), "a", 12).await, 10);
}

/// Its slots went without Redis: the server without an address was sought at the host of the one that was asked.
#[tokio::test]
async fn an_answer_that_names_a_server_without_its_address_is_none() {
    for master in
        ["$0\r\n\r\n:1\r\n", "$1\r\n?\r\n:1\r\n", "$9\r\n127.0.0.1\r\n:0\r\n", "$-1\r\n:0\r\n"]
    {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for mut connection in listener.incoming().map_while(Result::ok) {
                let mut asked = [0; 4_096];
                while let Ok(read @ 1..) = connection.read(&mut asked) {
                    let asked = String::from_utf8_lossy(&asked[..read]);
                    let answer = match () {
                        () if asked.contains("INFO") => "$16\r\ncluster_state:ok\r\n".to_owned(),
                        () if asked.contains("SLOTS") => {
                            format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n{master}$2\r\nid\r\n")
                        }
                        () => "+OK\r\n".to_owned(),
                    };
                    let _ = connection.write_all(answer.as_bytes());
                }
            }
        });
        let server = RedisServer::start_in_cluster(&["--cluster-enabled", "yes"]);
        let () = server.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        let second = server.port();
        let bench = Bench::on(&format!("redis-cluster://127.0.0.1:{port},127.0.0.1:{second}"));
        bench.until_all_decide(&["a".to_owned()]).await;
        assert_eq!(bench.passed(&limit("one"), "a", 12).await, 10, "{master}");
        let stored: Vec<String> = server.run(&["KEYS", "*:one"]);
        assert_eq!(stored.len(), 1, "{master}");
    }
}

#[tokio::test]
async fn limits_in_several_slots_take_all_or_nothing() {
    let cluster = Cluster::of_masters();
    let bench = Bench::on(&cluster.url());
    let keys = cluster.keys();
    let (wide, narrow, other) = (limit("wide"), limit("narrow"), limit("other"));
    let (a, b, c) = (key(&keys[0]), key(&keys[1]), key(&keys[2]));
    let asks = [ask(&wide, &a, 10), ask(&narrow, &b, 2), ask(&other, &c, 10)];
    for expected in [true, true, false, false, false] {
        let answer = bench.decide(&asks).await.unwrap();
        assert_eq!(answer.verdict == Verdict::PASS, expected, "{answer:?}");
        bench.store.settled().await;
    }
    for (spec, key) in [(&wide, &a), (&other, &c)] {
        let left = bench.store.look(&ask(spec, key, 10), super::now()).await.unwrap().remaining;
        assert_eq!(left, 8, "a refused request took from {}", spec.name);
    }
}

#[tokio::test]
async fn a_refused_request_is_told_what_is_left_without_it() {
    let cluster = Cluster::of_masters();
    let bench = Bench::on(&cluster.url());
    let keys = cluster.keys();
    let (wide, narrow) = (limit("wide"), limit("narrow"));
    let (a, b) = (key(&keys[0]), key(&keys[1]));
    for left in [9, 9, 9] {
        let answer = bench.decide(&[ask(&wide, &a, 10), ask(&narrow, &b, 1)]).await.unwrap();
        assert_eq!(answer.remaining(0), left);
        bench.store.settled().await;
    }
}

/// One server has answered and the other one has not.
#[tokio::test]
async fn a_client_that_leaves_gets_back_what_one_slot_gave() {
    let (cluster, bench, keys) = on(Cluster::of_masters()).await;
    let (given, silent) = (limit("given"), limit("silent"));
    let (a, b) = (key(&keys[0]), key(&keys[1]));
    cluster.servers[1].pause();
    let asks = [ask(&given, &a, 10), ask(&silent, &b, 10)];
    let has_given = async {
        until("one has given", async || stored(&cluster, 0, "*:given") > 0).await;
        // The answer is on its way to the same thread.
        bench.store.look(&ask(&limit("other"), &a, 10), super::now()).await.unwrap();
    };
    tokio::select! {
        answer = bench.decide(&asks) => panic!("{answer:?}"),
        () = has_given => {}
    }
    cluster.servers[1].resume();
    bench.store.settled().await;
    let left = bench.store.look(&asks[0], super::now()).await.unwrap().remaining;
    assert_eq!(left, 10);
}

#[tokio::test]
async fn a_limit_that_rejects_without_its_server_costs_the_others_nothing() {
    let (mut cluster, bench, keys) = on(Cluster::of_masters()).await;
    cluster.servers[0].kill();
    bench.until_redis_is(false).await;
    let (mut lost, kept) = (limit("lost"), limit("kept"));
    lost.on_store_error = tidegate::settings::OnStoreError::Reject;
    let (a, b) = (key(&keys[0]), key(&keys[1]));
    for _ in 0..5 {
        let answer = bench.decide(&[ask(&kept, &b, 10), ask(&lost, &a, 10)]).await;
        assert_eq!(answer.err(), Some(tidegate::store::Unavailable { by: 1 }));
    }
    bench.store.settled().await;
    let left = bench.store.look(&ask(&kept, &b, 10), super::now()).await.unwrap().remaining;
    assert_eq!(left, 10);
}

/// A client whose own limit refuses must not hold what others need. Its refusals are known, so that they reach no slot.
#[tokio::test]
async fn a_flood_that_one_slot_refuses_takes_nothing_from_the_others() {
    let (_cluster, bench, keys) = on(Cluster::of_masters()).await;
    let (own, everyone) = (limit("own"), limit("everyone"));
    let (a, b) = (key(&keys[0]), key(&keys[1]));
    let asks = [ask(&own, &a, 1), ask(&everyone, &b, 1_000)];
    for _ in 0..2 {
        bench.decide(&asks).await.unwrap();
    }
    bench.store.settled().await;
    for _ in 0..50 {
        assert!(!bench.decide(&asks).await.unwrap().verdict.passes());
        let left = bench.store.look(&asks[1], super::now()).await.unwrap().remaining;
        assert_eq!(left, 999);
    }
    assert_eq!(bench.shared.counters().known_refusals, 50);
}

#[tokio::test]
async fn a_key_of_another_type_in_one_slot_leaves_the_others_to_redis() {
    let (cluster, bench, keys) = on(Cluster::of_masters()).await;
    let (odd, good) = (limit("odd"), limit("good"));
    let (a, b) = (key(&keys[0]), key(&keys[1]));
    let _: i64 = cluster.servers[0].run(&["RPUSH", &format!("tidegate:{{{}}}:odd", keys[0]), "x"]);
    for left in [9, 8, 7] {
        let answer = bench.decide(&[ask(&odd, &a, 10), ask(&good, &b, 10)]).await.unwrap();
        assert_eq!((answer.remaining(0), answer.remaining(1)), (left, left));
    }
    assert_eq!(stored(&cluster, 1, "*:good"), 1);
}

#[tokio::test]
async fn a_lost_master_touches_its_own_keys_alone() {
    let (mut cluster, bench, keys) = on(Cluster::of_masters()).await;
    let spec = limit("alone");
    for name in &keys {
        assert_eq!(bench.passed(&spec, name, 4).await, 4, "{name}");
    }
    cluster.servers[0].kill();
    bench.until_redis_is(false).await;
    assert_eq!(bench.passed(&spec, &keys[0], 15).await, 10, "the process has one burst");
    for name in &keys[1..] {
        assert_eq!(bench.passed(&spec, name, 15).await, 6, "{name}: its server goes on");
    }
    let lost = format!("server=\"127.0.0.1:{}\"", cluster.servers[0].port());
    assert_eq!(bench.log.count("store unavailable"), 1, "{}", bench.log.text());
    assert!(bench.log.text().contains(&lost), "{}", bench.log.text());
    let up = bench.shared.cluster_servers().iter().filter(|server| server.is_up).count();
    assert_eq!(up, 2);
    cluster.servers[0].restart();
    bench.until_all_decide(&keys).await;
    bench.until_redis_is(true).await;
    assert_eq!(bench.log.count("store recovered"), 1, "{}", bench.log.text());
    assert_eq!(bench.log.count("store unavailable"), 1, "{}", bench.log.text());
}

#[tokio::test]
async fn a_lost_master_lets_the_limits_of_others_decide() {
    let (mut cluster, bench, keys) = on(Cluster::of_masters()).await;
    cluster.servers[0].kill();
    bench.until_redis_is(false).await;
    let (lost, kept) = (limit("lost"), limit("kept"));
    let (a, b) = (key(&keys[0]), key(&keys[1]));
    for passes in [true, true, true, false, false] {
        let answer = bench.decide(&[ask(&lost, &a, 10), ask(&kept, &b, 3)]).await.unwrap();
        assert_eq!(answer.verdict == Verdict::PASS, passes, "{answer:?}");
        bench.store.settled().await;
    }
    assert_eq!(bench.left(ask(&lost, &a, 10)).await, 6, "what a refused request took went back");
    assert_eq!(stored(&cluster, 1, "*:kept"), 1);
}

#[tokio::test]
async fn a_replica_takes_the_place_of_a_master_that_dies() {
    let (mut cluster, bench, keys) = on(Cluster::with_replicas()).await;
    let spec = limit("later");
    cluster.servers[0].kill();
    bench.until_redis_is(false).await;
    bench.until_redis_is(true).await;
    bench.until_all_decide(&keys).await;
    assert_eq!(bench.passed(&spec, &keys[0], 12).await, 10);
    assert_eq!(stored(&cluster, 3, "*:later"), 1, "the replica of the first master");
    bench.assert_recovers("failover").await;
}

#[tokio::test]
async fn a_replica_takes_the_place_of_a_master_that_falls_silent() {
    let cluster = Cluster::with_replicas();
    let bench = Bench::impatient(&cluster.url());
    let keys = cluster.keys();
    bench.until_all_decide(&keys).await;
    cluster.servers[0].pause();
    bench.decide_until_redis_is_away(&keys[0]).await;
    bench.until_redis_is(true).await;
    bench.until_all_decide(&keys).await;
    cluster.servers[0].resume();
    cluster.until("the old master is a replica", || {
        let role: Vec<redis::Value> = cluster.servers[0].run(&["ROLE"]);
        matches!(&role[0], redis::Value::BulkString(role) if role == b"slave")
    });
    bench.until_all_decide(&keys).await;
    let later = limit("later");
    assert_eq!(bench.passed(&later, &keys[0], 12).await, 10);
    bench.assert_recovers("failover").await;
}

#[tokio::test]
async fn a_master_that_gives_up_its_place_is_no_outage() {
    let (cluster, bench, keys) = on(Cluster::with_replicas()).await;
    let spec = limit("one");
    assert_eq!(bench.passed(&spec, &keys[0], 4).await, 4);
    let () = cluster.servers[3].run(&["CLUSTER", "FAILOVER"]);
    cluster.until_replica_is_master();
    assert_eq!(bench.passed(&spec, &keys[0], 12).await, 6, "nothing was lost");
    assert_eq!(bench.log.count("store unavailable"), 0, "{}", bench.log.text());
}

#[tokio::test]
async fn a_refusal_is_known_until_its_server_is_another_one() {
    let (cluster, bench, keys) = on(Cluster::with_replicas()).await;
    let spec = limit("known");
    let (of, known) = (key(&keys[0]), || bench.shared.counters().known_refusals);
    let drained = tidegate::store::BucketAsk {
        ask: tidegate::limit::decide::Ask { algorithm: bucket("1/h", 1), ..ask(&spec, &of, 1).ask },
        ..ask(&spec, &of, 1)
    };
    for _ in 0..5 {
        bench.decide(&[drained]).await.unwrap();
    }
    assert_eq!(known(), 3, "one passed and one was asked");
    let () = cluster.servers[3].run(&["CLUSTER", "FAILOVER"]);
    cluster.until_replica_is_master();
    let before = cluster.servers[3].calls("evalsha");
    until("the new master is asked", async || {
        bench.decide(&[drained]).await.unwrap();
        cluster.servers[3].calls("evalsha") > before
    })
    .await;
}

#[tokio::test]
async fn a_named_server_that_is_gone_is_no_problem() {
    let mut cluster = Cluster::of_masters();
    let keys = cluster.keys();
    cluster.servers[0].kill();
    let bench = Bench::on(&cluster.url());
    bench.until_all_decide(&keys[1..]).await;
    assert_eq!(bench.passed(&limit("one"), &keys[1], 12).await, 10);
}

#[tokio::test]
async fn a_cluster_that_is_not_there_at_the_start() {
    let mut cluster = Cluster::of_masters();
    let keys = cluster.keys();
    cluster.servers.iter_mut().for_each(|server| server.kill());
    let bench = Bench::on(&cluster.url());
    bench.until_redis_is(false).await;
    assert_eq!(bench.log.count("store unavailable"), 1, "{}", bench.log.text());
    assert_eq!(bench.passed(&limit("alone"), &keys[0], 15).await, 10);
    cluster.servers.iter_mut().for_each(|server| server.restart());
    bench.until_all_decide(&keys).await;
    bench.until_redis_is(true).await;
    // A server that joins the others later may tell of itself.
    let log = bench.log.text();
    for message in
        ["store unavailable server=\"redis-cluster:/", "store connected server=\"redis-cluster:/"]
    {
        assert_eq!(bench.log.count(message), 1, "{log}");
    }
}

#[tokio::test]
async fn scripts_and_connections_that_are_gone_come_back() {
    let (cluster, bench, keys) = on(Cluster::of_masters()).await;
    let spec = limit("one");
    for server in &cluster.servers {
        let () = server.run(&["SCRIPT", "FLUSH"]);
    }
    for name in &keys {
        assert_eq!(bench.passed(&spec, name, 4).await, 4, "{name}");
    }
    for server in &cluster.servers {
        let _: i64 = server.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    bench.until_all_decide(&keys).await;
    for name in &keys {
        let left = bench.store.look(&ask(&spec, &key(name), 10), super::now()).await.unwrap();
        assert_eq!(left.remaining, 6, "{name}");
    }
}
