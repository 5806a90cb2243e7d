//! Proxies that hold requests for a limiter.

use super::HOUR_MS;
use crate::process::limits::waiting::{
    ask as send, delays, held, hold, is_hours, limited, said, user,
};
use crate::support::client::Connection;
use crate::support::java::Java;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

const ORDERS: &str =
    "[limits.orders]\nalgorithm = \"redisson\"\nname = \"orders\"\nwait = \"9h\"\n";

fn proxy(server: &RedisServer, limits: &str) -> Tidegate {
    limited(limits).server("drain_timeout = \"30s\"").store(&server.fields()).start()
}

fn value(server: &RedisServer) -> i64 {
    server.run(&["GET", "{orders}:value"])
}

#[test]
fn two_proxies_hold_in_one_order_and_who_leaves_gives_back() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    java.try_set_rate(1, HOUR_MS);
    let proxies = [proxy(&server, ORDERS), proxy(&server, &format!("{ORDERS}max_waiting = 1\n"))];
    let [one, other] = &proxies;
    assert_eq!(java.try_acquire(1), Some(0));
    let (_first, second, third) = (hold(one, "a"), hold(other, "a"), hold(one, "a"));
    for (proxy, expected) in [(one, &[1, 3][..]), (other, &[2][..])] {
        let delays = delays(proxy);
        assert!(delays.iter().zip(expected).all(|(delay, hours)| is_hours(*delay, *hours)));
        assert_eq!((delays.len(), held(proxy)), (expected.len(), delays.len() as f64));
        assert_eq!(said(proxy, "orders", "delayed"), delays.len() as f64);
    }
    assert_eq!((value(&server), java.try_acquire(1)), (-3, None));
    let refused = user(other.address, "a");
    assert_eq!(refused.status, 429, "all of its places are taken");
    assert!(refused.header("ratelimit").unwrap().starts_with("\"orders\";r=0;t="));
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(is_hours(retry * 1_000 - 1_000, 4), "{retry}");
    drop(third);
    wait_until("its place is given back", || value(&server) == -2);
    drop(second);
    wait_until("so is this one's", || value(&server) == -1 && held(other) == 0.0);
    let _next = hold(other, "a");
    assert!(is_hours(delays(other)[1], 2), "{:?}", delays(other));
    for proxy in &proxies {
        assert_eq!(proxy.log.count("limiter used by a clock that is ahead"), 0);
    }
}

/// A request that is held for as long as a machine is fast, for a limiter whose only permit Java took an hour
/// ago, nearly.
fn held_shortly(server: &RedisServer, java: &mut Java, proxy: &Tidegate) -> Connection {
    loop {
        server.run::<()>(&["FLUSHALL"]);
        java.try_set_rate(1, HOUR_MS);
        let decided = || [said(proxy, "orders", "delayed"), said(proxy, "orders", "allowed")];
        let before = decided();
        let leaves = java.redis_ms() - HOUR_MS + 500;
        java.try_acquire_at(1, leaves);
        let client = send(proxy.address, "a");
        wait_until("it is decided on", || decided() != before);
        if decided()[0] > before[0] {
            return client;
        }
    }
}

#[test]
fn a_held_request_is_answered_and_keeps_its_permit() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    let proxy = proxy(&server, &ORDERS.replace("9h", "30m"));
    let mut client = held_shortly(&server, &mut java, &proxy);
    let reply = client.reply("GET");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("ratelimit").unwrap(), "\"orders\";r=0;t=3600");
    assert_eq!(reply.header("retry-after"), None);
    // It went on for the hour that begins then.
    let refused = user(proxy.address, "a");
    assert_eq!(refused.status, 429);
    let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(is_hours(retry * 1_000 - 1_000, 1), "{retry}");
    assert_eq!((value(&server), java.try_acquire(1)), (0, None));
}

#[test]
fn whoever_waits_goes_on_whatever_java_sets_meanwhile() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    let proxy = proxy(&server, ORDERS);
    let mut client = held_shortly(&server, &mut java, &proxy);
    java.set_rate(5, HOUR_MS);
    assert_eq!(client.reply("GET").status, 200);
    assert_eq!(java.try_acquire(4), Some(1), "the new figures count from anew");
    assert_eq!(user(proxy.address, "a").status, 200);
    assert_eq!(value(&server), 0);
}

#[test]
fn a_drain_gives_the_places_back() {
    let server = RedisServer::start();
    let limits = format!("{ORDERS}rate = \"1/h\"\n");
    let mut proxy = proxy(&server, &limits);
    assert_eq!(user(proxy.address, "a").status, 200);
    let mut clients = [hold(&proxy, "a"), hold(&proxy, "a")];
    proxy.signal("TERM");
    for client in &mut clients {
        assert_eq!(client.reply("GET").status, 429);
    }
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(value(&server), 0);
    assert_eq!(server.run::<u64>(&["ZCARD", "{orders}:permits"]), 1);
}

#[test]
fn without_redis_the_process_holds_by_the_rate_of_the_file() {
    let server = RedisServer::absent();
    let proxy = proxy(&server, &format!("{ORDERS}rate = \"1/h\"\n"));
    proxy.log.wait("store unavailable", |_| true);
    assert_eq!(user(proxy.address, "a").status, 200);
    let leaves = hold(&proxy, "a");
    drop(leaves);
    wait_until("nobody is held", || held(&proxy) == 0.0);
    let _next = hold(&proxy, "a");
    assert!(delays(&proxy).iter().all(|delay| is_hours(*delay, 1)), "{:?}", delays(&proxy));
}

#[test]
fn a_clock_ahead_is_told_apart_from_those_who_wait() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    java.try_set_rate(2, HOUR_MS);
    java.try_acquire(1);
    let proxy = proxy(&server, ORDERS);
    assert_eq!(user(proxy.address, "a").status, 200);
    let _held: Vec<_> = (0..3).map(|_| hold(&proxy, "a")).collect();
    assert_eq!(proxy.log.count("limiter used by a clock that is ahead"), 0);
    // Java's figures make room for an entry of its clock.
    server.run::<()>(&["HSET", "orders", "rate", "20"]);
    server.run::<()>(&["SET", "{orders}:value", "15"]);
    let ahead = java.redis_ms() + 5_000;
    assert_eq!(java.try_acquire_at(1, ahead), Some(14));
    let _one_more = hold(&proxy, "a");
    let line = proxy.log.wait("limiter used by a clock that is ahead", |_| true);
    assert!((1..=5_000).contains(&line["ahead_ms"].as_u64().unwrap()), "{line}");
}

#[test]
fn a_limiter_whose_keys_end_too_soon_is_told() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    java.try_set_rate(1, HOUR_MS);
    server.run::<()>(&["HSET", "orders", "keepAliveTime", &HOUR_MS.to_string()]);
    java.try_acquire(1);
    let proxy = proxy(&server, ORDERS);
    for _ in 0..2 {
        assert_eq!(user(proxy.address, "a").status, 429);
    }
    let line = proxy.log.wait("limiter ends too soon to wait for", |_| true);
    assert!(line["help"].as_str().unwrap().contains("keepAliveTime"), "{line}");
    assert_eq!(proxy.log.count("limiter ends too soon to wait for"), 1);
}
