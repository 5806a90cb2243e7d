//! Slots of a cluster that move, and slots that no server has.

use tidegate::limit::algorithm::{Difference, Receipt};
use tidegate::limit::decision::Verdict;

use super::cluster::{on, stored};
use super::{Bench, ask, key, limit};
use crate::support::cluster::Cluster;

/// Some of a slot's keys are in its old place and others in its new one. Then a call with several keys is
/// refused.
#[tokio::test]
async fn a_slot_moves_while_its_keys_are_asked() {
    let (cluster, bench, keys) = on(Cluster::of_masters()).await;
    let (name, slot) = (keys[0].as_str(), cluster.slot(&keys[0]));
    let (stays, moves, new) = (limit("stays"), limit("moves"), limit("new"));
    let bucket_key = |limit: &str| format!("tidegate:{{{name}}}:{limit}");
    let of = key(name);
    let asks = [ask(&stays, &of, 10), ask(&moves, &of, 10), ask(&new, &of, 10)];
    assert_eq!(bench.decide(&asks[..2]).await.unwrap().verdict, Verdict::PASS);
    cluster.begin_to_move(slot, 0, 1);
    cluster.move_key(&bucket_key("moves"), 0, 1);
    for left in [8, 7, 6] {
        let answer = bench.decide(&asks).await.unwrap();
        assert_eq!(answer.verdict, Verdict::PASS, "{answer:?}");
        assert_eq!((answer.remaining(0), answer.remaining(1)), (left, left));
    }
    assert_eq!(stored(&cluster, 0, "*:stays"), 1);
    assert_eq!((stored(&cluster, 1, "*:moves"), stored(&cluster, 1, "*:new")), (1, 1));
    cluster.move_key(&bucket_key("stays"), 0, 1);
    cluster.end_move(slot, 1);
    let answer = bench.decide(&asks).await.unwrap();
    let left: Vec<_> = (0..3).map(|place| answer.remaining(place)).collect();
    assert_eq!(left, [5, 5, 6]);
    bench.until_redis_is(true).await;
    assert_eq!(bench.log.count("store unavailable"), 0, "{}", bench.log.text());
}

#[tokio::test]
async fn a_settlement_finds_a_slot_that_moves() {
    let (cluster, bench, keys) = on(Cluster::of_masters()).await;
    let (name, slot) = (keys[0].as_str(), cluster.slot(&keys[0]));
    let (one, two, of) = (limit("one"), limit("two"), key(name));
    let asks = [ask(&one, &of, 10), ask(&two, &of, 10)];
    bench.decide(&asks).await.unwrap();
    cluster.begin_to_move(slot, 0, 1);
    cluster.move_key(&format!("tidegate:{{{name}}}:two"), 0, 1);
    // Both go in one call, which no server can carry out.
    for one in &asks {
        let used = Difference::More(3);
        bench.store.settle(one, used, Receipt::NONE, super::now());
    }
    bench.store.settled().await;
    for one in asks {
        assert_eq!(bench.store.look(&one, super::now()).await.unwrap().remaining, 6);
    }
    assert_eq!(bench.shared.counters().unsettled, 0);
}

#[tokio::test]
async fn slots_without_a_server_are_told() {
    let (cluster, bench, keys) = on(Cluster::of_masters()).await;
    let spec = limit("one");
    let slot = cluster.slot(&keys[0]).to_string();
    for server in &cluster.servers {
        let () = server.run(&["CLUSTER", "DELSLOTS", &slot]);
    }
    let _ = bench.passed(&spec, &keys[0], 1).await;
    bench.until_log("1 of the cluster's slots have no server").await;
    assert_eq!(bench.passed(&spec, &keys[1], 12).await, 10, "other slots are served");
}

/// The map that is known stays in force, and redirections are followed.
#[tokio::test]
async fn a_right_that_is_lost_leaves_the_map_in_force() {
    let cluster = Cluster::of_masters();
    let bench = Bench::on(&cluster.url_of_user());
    let (keys, spec) = (cluster.keys(), limit("one"));
    bench.until_all_decide(&keys).await;
    let slot = cluster.slot(&keys[0]);
    for server in &cluster.servers {
        let () = server.run(&["ACL", "SETUSER", "tidegate", "-cluster|slots"]);
    }
    let refused = || cluster.servers[2].stat("cluster|slots", "rejected_calls");
    for to in [1, 0, 1, 0] {
        let before = refused();
        // A server gives up a slot only where it has no keys of it.
        let () = cluster.servers[1 - to].run(&["FLUSHALL"]);
        cluster.end_move(slot, to);
        assert_eq!(bench.passed(&limit(&format!("to{to}")), &keys[0], 1).await, 1);
        bench.until("the servers are asked again", || refused() > before).await;
    }
    assert_eq!(bench.passed(&spec, &keys[0], 12).await, 10);
    assert_eq!(bench.log.count("store unavailable"), 0, "{}", bench.log.text());
}
