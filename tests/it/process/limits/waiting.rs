//! Requests that are held: until their turn comes, or until something else happens.
//!
//! Where a wait is to last, it is an hour, and the test ends it by other means.

use std::net::SocketAddr;

use crate::support::client::{Connection, Reply, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;
use serde_json::Value;

/// Bounds of an hour in milliseconds, for what began less than the first of them ago.
pub(crate) const HOUR: u64 = 3_600_000;
const WHILE: u64 = 600_000;

/// A proxy with these limits for everything, which answers by itself.
pub(crate) fn limited(limits: &str) -> Proxy {
    Proxy::answering()
        .server("workers = 1")
        .admin()
        .section("[log]\nthrottle = \"each\"\naccess = true")
        .limits(limits)
}

/// One an hour for each user, and others behind it.
const LEAKY: &str =
    "[limits.user]\nkey = [\"header:x-user\"]\nalgorithm = \"leaky-bucket\"\nrate = \"1/h\"\n";

pub(crate) fn held(proxy: &Tidegate) -> f64 {
    Metrics::of(proxy.admin()).value("tidegate_waiting")
}

pub(crate) fn said(proxy: &Tidegate, limit: &str, decision: &str) -> f64 {
    let name = format!("tidegate_decisions_total{{limit=\"{limit}\",decision=\"{decision}\"}}");
    Metrics::of(proxy.admin()).value(&name)
}

/// A request of a user that is sent and not answered yet.
pub(crate) fn ask(address: SocketAddr, user: &str) -> Connection {
    let mut client = Connection::open(address);
    client.send(format!("GET /{user} HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n"));
    client
}

/// The same from this address of loopback.
fn ask_from(client: [u8; 4], proxy: &Tidegate, user: &str) -> Connection {
    let mut client = Connection::open_from(client, proxy.address);
    client.send(format!("GET /{user} HTTP/1.1\r\nhost: a\r\nx-user: {user}\r\n\r\n"));
    client
}

/// A request of a user, once it is held. No other request goes or leaves meanwhile.
pub(crate) fn hold(proxy: &Tidegate, user: &str) -> Connection {
    let before = (held(proxy), delays(proxy).len());
    let client = ask(proxy.address, user);
    wait_until("a request is held", || held(proxy) > before.0 && delays(proxy).len() > before.1);
    client
}

pub(crate) fn user(address: SocketAddr, user: &str) -> Reply {
    get(address, "/", &[("x-user", user)])
}

/// The delays that the log tells of, in milliseconds.
pub(crate) fn delays(proxy: &Tidegate) -> Vec<u64> {
    let lines = proxy.log.with("throttled");
    let delayed = lines.iter().filter(|line| line["decision"] == "delayed");
    delayed.map(|line| line["delay_ms"].as_u64().unwrap()).collect()
}

pub(crate) fn is_hours(millis: u64, hours: u64) -> bool {
    (hours * HOUR - WHILE..=hours * HOUR).contains(&millis)
}

#[test]
fn a_leaky_bucket_holds_its_queue_and_rejects_one_more() {
    in_both_stores(|store| {
        let limits = format!("{LEAKY}queue = 5\n");
        let proxy = limited(&limits).store(store).start();
        let first = user(proxy.address, "a");
        assert_eq!(first.status, 200);
        assert_eq!(first.header("ratelimit-policy").unwrap(), "\"user\";q=6;w=21600");
        assert_eq!(first.header("ratelimit").unwrap(), "\"user\";r=5;t=21600");
        let _held: Vec<_> = (0..5).map(|_| hold(&proxy, "a")).collect();
        // Each goes an hour after the one before.
        let delays = delays(&proxy);
        assert!(delays.iter().zip(1..).all(|(delay, hours)| is_hours(*delay, hours)), "{delays:?}");
        assert_eq!((delays.len(), held(&proxy)), (5, 5.0));
        let one_more = user(proxy.address, "a");
        assert_eq!(one_more.status, 429);
        let retry: u64 = one_more.header("retry-after").unwrap().parse().unwrap();
        assert!(
            is_hours(retry * 1_000 - 1_000, 1),
            "there is room when the next one goes: {retry}"
        );
        assert_eq!(user(proxy.address, "b").status, 200, "another key has its own queue");
        let counts = ["allowed", "delayed", "rejected"].map(|kind| said(&proxy, "user", kind));
        assert_eq!(counts, [2.0, 5.0, 1.0]);
    });
}

#[test]
fn a_leaky_bucket_without_patience_holds_nobody() {
    in_both_stores(|store| {
        let proxy = limited(&format!("{LEAKY}wait = \"0s\"\n")).store(store).start();
        assert_eq!([(); 2].map(|()| user(proxy.address, "a").status), [200, 429]);
    });
}

#[test]
fn requests_of_a_key_leave_in_the_order_in_which_they_came() {
    in_both_stores(|store| {
        let limits = "[limits.all]\nalgorithm = \"leaky-bucket\"\nrate = \"1/s\"\nqueue = 3\n";
        let mut proxy = limited(limits).store(store).start();
        let clients = (0..4).map(|n| {
            let client = ask(proxy.address, &n.to_string());
            // Decided on, be it that it has gone already.
            wait_until("it has its place", || {
                said(&proxy, "all", "allowed") + said(&proxy, "all", "delayed") > f64::from(n)
            });
            client
        });
        for mut client in clients.collect::<Vec<_>>() {
            assert_eq!(client.reply("GET").status, 200);
        }
        assert_eq!(said(&proxy, "all", "rejected"), 0.0);
        assert!(proxy.stop().success());
        // Each was answered in the turn in which it went on.
        let order = proxy.log.with("request").into_iter().map(|line| line["path"].clone());
        assert_eq!(order.collect::<Vec<_>>(), (0..4).map(|n| format!("/{n}")).collect::<Vec<_>>());
    });
}

#[test]
fn a_token_bucket_holds_for_as_long_as_it_is_told() {
    in_both_stores(|store| {
        let limits = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"1/h\"\nwait = \"2h\"\n";
        let proxy = limited(limits).store(store).start();
        assert_eq!(user(proxy.address, "a").status, 200);
        let _held = [hold(&proxy, "a"), hold(&proxy, "a")];
        let delays = delays(&proxy);
        assert!(is_hours(delays[0], 1) && is_hours(delays[1], 2), "{delays:?}");
        let reply = user(proxy.address, "a");
        assert_eq!(reply.status, 429);
        let retry: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!(is_hours(retry * 1_000 - 1_000, 3), "{retry}");
        assert_eq!(delays.len(), 2);
    });
}

#[test]
fn a_request_that_was_held_is_answered_like_any_other() {
    in_both_stores(|store| {
        let limits = "[limits.all]\nrate = \"5/s\"\nburst = 1\nwait = \"10s\"\n";
        let mut proxy = limited(limits).store(store).start();
        let mut client = Connection::open(proxy.address);
        wait_until("a request was held", || {
            let reply = client.get("/there", &[]);
            assert_eq!(reply.status, 200);
            assert_eq!(reply.header("ratelimit").unwrap(), "\"all\";r=0;t=1");
            assert_eq!(reply.header("retry-after"), None);
            said(&proxy, "all", "delayed") > 0.0
        });
        let line = proxy.log.wait("throttled", |_| true);
        assert_eq!(line["decision"], "delayed");
        assert_eq!(line["level"], "INFO");
        for (field, value) in [("limit", "all"), ("path", "/there"), ("method", "GET")] {
            assert_eq!(line[field], value);
        }
        assert_eq!((&line["count"], &line["retry_after_ms"]), (&Value::from(1), &Value::Null));
        let delay = line["delay_ms"].as_u64().unwrap();
        assert!((1..=200).contains(&delay), "{line}");
        assert!(proxy.stop().success());
        // Its time is counted with the wait.
        let longest =
            proxy.log.with("request").into_iter().filter_map(|l| l["duration_ms"].as_f64());
        let longest = longest.fold(0.0, f64::max);
        assert!(longest >= f64::from(u32::try_from(delay).unwrap()) - 1.0, "{longest} of {delay}");
    });
}

#[test]
fn the_longest_wait_counts_and_a_refusal_spares_all() {
    let limits = "[limits.short]\nrate = \"1/m\"\nwait = \"9h\"\n\
                  [limits.long]\nrate = \"1/h\"\nwait = \"9h\"\n\
                  [limits.hard]\nrate = \"2/d\"\n";
    let proxy = limited(limits).start();
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    let waits = hold(&proxy, "a");
    let line = proxy.log.wait("throttled", |_| true);
    assert_eq!(line["limit"], "long");
    assert!(is_hours(line["delay_ms"].as_u64().unwrap(), 1), "{line}");
    for limit in ["short", "long"] {
        assert_eq!(said(&proxy, limit, "delayed"), 1.0, "{limit}");
    }
    let reply = get(proxy.address, "/", &[]);
    assert_eq!(reply.status, 429, "it would wait, and another limit refuses");
    assert_eq!(reply.json()["violated-policies"], serde_json::json!(["hard"]));
    drop(waits);
    wait_until("nobody waits", || held(&proxy) == 0.0);
    let _next = hold(&proxy, "a");
    assert!(is_hours(delays(&proxy)[1], 1), "the one that was refused took nothing");
}

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
fn only_so_many_wait() {
    in_both_stores(|store| {
        let limits = format!("{LEAKY}queue = 50\nmax_waiting = 4\n");
        let file = limited(&limits).store(store).text().replace("workers = 1", "workers = 3");
        let proxy = Tidegate::start(&file);
        for name in ["a", "b"] {
            assert_eq!(user(proxy.address, name).status, 200);
        }
        let (first, _second) = (hold(&proxy, "a"), hold(&proxy, "b"));
        // One client has at most half of the places.
        let all_are_taken = delays(&proxy).len();
        let mut others: Vec<_> = (0..2).map(|_| ask_from([127, 0, 0, 2], &proxy, "b")).collect();
        wait_until("another client is held", || delays(&proxy).len() == all_are_taken + 2);
        for name in ["a", "b"] {
            let reply = user(proxy.address, name);
            assert_eq!(reply.status, 429, "all keys share the places");
            let retry: u64 = reply.header("retry-after").unwrap().parse().unwrap();
            let hours = if name == "a" { 2 } else { 4 };
            assert!(is_hours(retry * 1_000 - 1_000, hours), "when nobody has to wait: {retry}");
        }
        assert_eq!(user(proxy.address, "c").status, 200, "whose turn it is needs no place");
        drop(first);
        wait_until("a place is free", || held(&proxy) == 3.0);
        let _third = hold(&proxy, "a");
        assert!(is_hours(*delays(&proxy).last().unwrap(), 1));
        assert_eq!(user(proxy.address, "a").status, 429, "this client has its half again");
        others.clear();
        wait_until("the others have left", || held(&proxy) == 2.0);
        assert_eq!(user(proxy.address, "a").status, 429, "half, though places are free");
    });
}

#[test]
fn where_nobody_may_wait_a_leaky_bucket_only_spaces() {
    let proxy = limited(&format!("{LEAKY}max_waiting = 0\n")).start();
    assert_eq!((user(proxy.address, "a").status, user(proxy.address, "a").status), (200, 429));
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

#[test]
fn a_process_that_is_told_twice_waits_for_nobody() {
    in_both_stores(|store| {
        let file =
            limited(&format!("{LEAKY}queue = 5\n")).server("drain_timeout = \"9h\"").store(store);
        let mut proxy = file.start();
        assert_eq!(user(proxy.address, "a").status, 200);
        let mut client = hold(&proxy, "a");
        proxy.signal("TERM");
        proxy.log.wait("draining", |_| true);
        proxy.signal("TERM");
        assert_eq!(proxy.wait().code(), Some(0));
        assert!(client.is_closed());
    });
}

#[test]
fn a_limit_in_shadow_holds_nobody() {
    in_both_stores(|store| {
        let limits = format!("{LEAKY}queue = 1\nmode = \"shadow\"\n");
        let proxy = limited(&limits).store(store).start();
        for _ in 0..4 {
            assert_eq!(user(proxy.address, "a").status, 200);
        }
        let counts = ["allowed", "delayed", "shadow"].map(|kind| said(&proxy, "user", kind));
        assert_eq!(counts, [1.0, 1.0, 2.0]);
        wait_until("the log tells", || proxy.log.count("throttled") == 3);
        let lines = proxy.log.with("throttled");
        assert!(lines.iter().all(|line| line["decision"] == "shadow"), "{lines:?}");
        assert!(is_hours(lines[0]["delay_ms"].as_u64().unwrap(), 1), "{lines:?}");
        assert!(lines[1]["retry_after_ms"].is_u64(), "{lines:?}");
    });
}
