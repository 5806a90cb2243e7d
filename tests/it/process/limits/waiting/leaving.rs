//! Requests that are held when their client leaves, the file changes, or the process ends.

use super::*;
use crate::support::redis::RedisServer;

#[test]
fn a_client_that_leaves_gives_its_place_back() {
    in_both_stores(|store| {
        let limits = format!(
            "{LEAKY}queue = 5\n[limits.try]\nkey = [\"header:x-user\"]\nrate = \"2/d\"\nmode = \"shadow\"\n"
        );
        let proxy = limited(&limits).store(store).start();
        for (user_name, head, rest) in [
            ("plain", "GET /", ""),
            ("uploading", "POST /", "content-length: 10\r\n\r\nhalf"),
            ("pipelining", "GET /", "\r\nGET /next HTTP/1.1\r\nhost: a\r\n\r\n"),
        ] {
            let rest = if rest.is_empty() { "\r\n" } else { rest };
            assert_eq!(user(proxy.address, user_name).status, 200);
            let before = delays(&proxy).len();
            let mut client = Connection::open(proxy.address);
            client.send(format!("{head} HTTP/1.1\r\nhost: a\r\nx-user: {user_name}\r\n{rest}"));
            wait_until("it is held", || held(&proxy) == 1.0 && delays(&proxy).len() > before);
            drop(client);
            wait_until("it is not held any more", || held(&proxy) == 0.0);
            let next = hold(&proxy, user_name);
            let delays = &delays(&proxy)[before..];
            assert!(delays.iter().all(|delay| is_hours(*delay, 1)), "{user_name}: {delays:?}");
            assert_eq!(said(&proxy, "try", "shadow"), 0.0, "{user_name}: the shadow's is back too");
            drop(next);
            wait_until("nobody is held", || held(&proxy) == 0.0);
        }
        proxy.log.wait("request", |line| line["status"] == 499);
    });
}

/// Clients that came and left at once kept what was taken for them, and others waited behind nobody.
#[test]
fn a_client_gone_before_redis_answers_gives_all_back() {
    let redis = RedisServer::start();
    let limits = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"2/h\"\nwait = \"1m\"\n\
                  [limits.try]\nrate = \"2/h\"\nmode = \"shadow\"\n";
    let proxy = limited(limits).store(&redis.fields()).start();
    assert_eq!(user(proxy.address, "a").status, 200);
    redis.pause();
    drop(ask(proxy.address, "a"));
    proxy.log.wait("request", |line| line["status"] == 499);
    redis.resume();
    // A try before that is refused by both.
    let mut before = 0.0;
    wait_until("what was taken is back", || {
        before = said(&proxy, "try", "shadow");
        user(proxy.address, "a").status == 200
    });
    assert_eq!(said(&proxy, "try", "shadow"), before, "the shadow's too");
}

#[test]
fn what_was_decided_without_redis_is_given_back_there() {
    let mut redis = RedisServer::start();
    let store = format!("url = \"{}\"\ntimeout = \"10s\"\n", redis.url());
    let proxy = limited(&format!("{LEAKY}queue = 5\n")).store(&store).start();
    redis.kill();
    // The process's own buckets decide.
    assert_eq!(user(proxy.address, "a").status, 200);
    let leaves = hold(&proxy, "a");
    redis.restart();
    wait_until("Redis is back", || {
        Metrics::of(proxy.admin()).value("tidegate_store_up") == 1.0
            && user(proxy.address, "z").status == 200
    });
    drop(leaves);
    wait_until("it is not held any more", || held(&proxy) == 0.0);
    redis.kill();
    let _next = hold(&proxy, "a");
    let delays = delays(&proxy);
    assert!(is_hours(*delays.last().unwrap(), 1), "{delays:?}");
}

#[test]
fn a_reload_changes_nothing_for_those_who_wait() {
    let file = |rest: &str| limited(&format!("{LEAKY}queue = 5\n{rest}")).text();
    let proxy = Tidegate::start(&file(""));
    assert_eq!(user(proxy.address, "a").status, 200);
    let mut client = hold(&proxy, "a");
    proxy.reload(&file("max_waiting = 1\n"));
    assert_eq!(held(&proxy), 1.0);
    assert_eq!(user(proxy.address, "a").status, 429, "its place is still taken");
    proxy.reload(&file("").replace("rate = \"1/h\"", "rate = \"1000000/s\""));
    assert_eq!(user(proxy.address, "a").status, 200, "the new figures hold for whoever comes");
    assert_eq!(held(&proxy), 1.0);
    proxy.signal("TERM");
    assert_eq!(client.reply("GET").status, 429);
}

#[test]
fn a_drain_lets_them_finish_whose_turn_comes_in_time() {
    let limits = "[limits.all]\nalgorithm = \"leaky-bucket\"\nrate = \"4/s\"\nqueue = 9\n";
    let mut proxy = limited(limits).server("drain_timeout = \"1h\"").start();
    let mut clients: Vec<_> = (0..4).map(|_| ask(proxy.address, "a")).collect();
    wait_until("all are decided on", || {
        said(&proxy, "all", "allowed") + said(&proxy, "all", "delayed") == 4.0
    });
    proxy.signal("TERM");
    for client in &mut clients {
        assert_eq!(client.reply("GET").status, 200);
    }
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn a_drain_rejects_them_whose_turn_does_not_come() {
    in_both_stores(|store| {
        let file =
            limited(&format!("{LEAKY}queue = 5\n")).server("drain_timeout = \"30s\"").store(store);
        let mut proxy = file.start();
        assert_eq!(user(proxy.address, "a").status, 200);
        let mut client = hold(&proxy, "a");
        proxy.signal("TERM");
        let reply = client.reply("GET");
        assert_eq!(reply.status, 429);
        let retry: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!(is_hours(retry * 1_000 - 1_000, 1), "{retry}");
        assert_eq!(reply.json()["violated-policies"], serde_json::json!(["user"]));
        assert_eq!(reply.header("connection").as_deref(), Some("close"));
        assert_eq!(proxy.wait().code(), Some(0));
        let lines = proxy.log.with("throttled");
        let decisions: Vec<_> = lines.iter().map(|line| line["decision"].clone()).collect();
        assert_eq!(decisions, ["delayed", "rejected"]);
        if !store.is_empty() {
            let other = file.start();
            let _next = hold(&other, "a");
            assert!(is_hours(delays(&other)[0], 1), "its place was given back");
        }
    });
}
