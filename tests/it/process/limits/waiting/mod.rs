//! Requests that are held: until their turn comes, or until something else happens.
//!
//! Where a wait is to last, it is an hour, and the test ends it by other means.

mod leaving;

use std::net::SocketAddr;

use crate::support::client::{Connection, Reply, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::redis::in_both_stores;
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
        for holds_nobody in ["wait = \"0s\"", "max_waiting = 0"] {
            let proxy = limited(&format!("{LEAKY}{holds_nobody}\n")).store(store).start();
            let statuses = [(); 2].map(|()| user(proxy.address, holds_nobody).status);
            assert_eq!(statuses, [200, 429], "{holds_nobody}");
        }
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
