//! `algorithm = "sliding-log"`, as clients and operators meet it.

use crate::support::client::get;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;

fn proxy() -> Proxy {
    let overrides = "overrides = [{ key = [\"192.0.2.1\"], rate = \"9/h\" }]";
    let limit = format!("key = [\"ip\"]\nalgorithm = \"sliding-log\"\nrate = \"3/h\"\n{overrides}");
    Proxy::answering().limit("log", &limit).limit("tokens", "key = [\"ip\"]\nrate = \"100/h\"")
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
    counts_and_says_so(&proxy().start());
}

#[test]
fn in_redis_as_a_sorted_set_that_expires() {
    let server = RedisServer::start();
    let file = proxy().store(&server.fields());
    counts_and_says_so(&file.start());
    let other = file.start();
    assert_eq!(get(other.address, "/", &[]).status, 429, "shared by all processes");
    let key = "tidegate:{127.0.0.1}:log:sliding-log";
    assert_eq!(server.run::<String>(&["TYPE", key]), "zset");
    assert_eq!(server.run::<u64>(&["ZCARD", key]), 3);
    let expiry: u64 = server.run(&["PTTL", key]);
    assert!((3_500_000..=3_600_001).contains(&expiry), "{expiry}");
}
