//! `algorithm = "sliding-log"`, as clients and operators meet it.

use tidegate::limit::algorithm::Difference;
use tidegate::limit::rate::Cost;

use crate::support::algorithms::log;
use crate::support::bench::Bench;
use crate::support::client::get;
use crate::support::limits::{ask, key, settled};
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;

fn config(store: &str) -> String {
    format!(
        "[server]\nlisten = \"LISTEN\"\n{store}\n\
         [limits.log]\nkey = [\"ip\"]\nalgorithm = \"sliding-log\"\nrate = \"3/h\"\n\
         overrides = [{{ key = [\"192.0.2.1\"], rate = \"9/h\" }}]\n\
         [limits.tokens]\nkey = [\"ip\"]\nrate = \"100/h\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nrespond = {{ status = 200 }}\n\
         limits = [\"log\", \"tokens\"]\n"
    )
}

fn counts_and_says_so(proxy: &Tidegate) {
    for left in [2, 1, 0] {
        let reply = get(proxy.address, "/", &[]);
        assert_eq!(reply.status, 200);
        let policy = reply.header("ratelimit-policy").unwrap();
        assert_eq!(policy, "\"log\";q=3;w=3600, \"tokens\";q=100;w=3600");
        let said = reply.header("ratelimit").unwrap();
        assert!(said.starts_with(&format!("\"log\";r={left};t=3600, ")), "{said}");
    }
    let reply = get(proxy.address, "/", &[]);
    assert_eq!(reply.status, 429);
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    let said = reply.header("ratelimit").unwrap();
    assert!(said.contains("\"tokens\";r=97;"), "nothing was taken from the other: {said}");
}

#[test]
fn in_the_process() {
    counts_and_says_so(&Tidegate::start(&config("")));
}

#[test]
fn in_redis_as_a_sorted_set_that_expires() {
    let server = RedisServer::start();
    let store = format!("[store]\nurl = \"{}\"\ntimeout = \"20s\"\n", server.url());
    let proxy = Tidegate::start(&config(&store));
    counts_and_says_so(&proxy);
    let other = Tidegate::start(&config(&store));
    assert_eq!(get(other.address, "/", &[]).status, 429, "shared by all processes");
    let key = "tidegate:{127.0.0.1}:log:sliding-log";
    assert_eq!(server.run::<String>(&["TYPE", key]), "zset");
    assert_eq!(server.run::<u64>(&["ZCARD", key]), 3);
    let expiry: u64 = server.run(&["PTTL", key]);
    assert!((3_500_000..=3_600_001).contains(&expiry), "{expiry}");
}

/// What a small cost takes are entries, one for each permit; what a large one takes is one with a weight.
#[tokio::test]
async fn what_costs_much_is_not_written_permit_by_permit() {
    let server = RedisServer::start();
    let bench = Bench::of(&server);
    let (spec, key) = (settled("log"), key("192.0.2.1"));
    let of = |cost| {
        let mut of = ask(&spec, &key, 1);
        of.ask.algorithm = log("100000/h");
        of.ask.cost = Cost::new(cost).unwrap();
        of
    };
    let entries = || server.run::<u64>(&["ZCARD", "tidegate:{192.0.2.1}:log:sliding-log"]);
    for (cost, left, written) in [(1, 99_999, 1), (30, 99_969, 31), (99_000, 969, 34)] {
        assert_eq!(bench.take(of(cost)).await, Some(left));
        assert_eq!(entries(), written, "behind a cost of {cost}");
    }
    assert_eq!(bench.take(of(970)).await, None);
    let receipt = bench.noted(of(900)).await;
    assert_eq!((bench.left(of(1)).await, entries()), (69, 36));
    bench.settle(of(900), Difference::Less(100), receipt).await;
    assert_eq!((bench.left(of(1)).await, entries()), (169, 36));
    bench.settle(of(900), Difference::Less(790), receipt).await;
    assert_eq!((bench.left(of(1)).await, entries()), (959, 44), "ten single ones are left");
    bench.settle(of(900), Difference::Less(10), receipt).await;
    assert_eq!((bench.left(of(1)).await, entries()), (969, 34));
    bench.settle(of(1), Difference::More(99_000), receipt).await;
    assert_eq!((bench.left(of(1)).await, entries()), (0, 36), "above its count");
    assert_eq!(bench.take(of(1)).await, None);
}
