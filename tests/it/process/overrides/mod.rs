//! Overrides that are set while the proxy runs.

mod all_keys;
mod bans;
mod command;
mod endpoint;
mod shared;

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::client::{Connection, Reply, get};
use crate::support::proxy::Proxy;
use crate::support::redis::in_both_stores;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

/// As a key has the value `secret-a`.
const HASH: &str = "h2a5ywjmBAtwTx4-4eGG7w";

fn ask(admin: SocketAddr, method: &str, path: &str, body: &str) -> Reply {
    let path = format!("/api/limits{path}");
    let headers = [("host", "localhost"), ("content-type", "application/json")];
    Connection::open(admin).request(method, &path, &headers, body.as_bytes())
}

/// Sets an override for the user with this plain name, which must succeed.
fn set(proxy: &Tidegate, user: &str, body: &str) -> Value {
    let path = format!("/user/keys/{user}/override?plain");
    let reply = ask(proxy.admin(), "PUT", &path, body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn bucket(proxy: &Tidegate, user: &str) -> Value {
    let reply = ask(proxy.admin(), "GET", &format!("/user/keys/{user}?plain"), "");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn all(proxy: &Tidegate) -> Value {
    ask(proxy.admin(), "GET", "", "").json()
}

/// Whether a request of this user passes.
fn passes(proxy: &Tidegate, user: &str) -> bool {
    get(proxy.address, "/", &[("x-user", user)]).status == 200
}

fn by_user(lines: &str, store: &str) -> Proxy {
    let lines = format!("key = [\"header:x-user\"]\n{lines}");
    Proxy::answering().admin().limit("user", &lines).store(store)
}

#[test]
fn an_override_holds_for_its_key_until_it_is_reset() {
    in_both_stores(|store| {
        let proxy = by_user("rate = \"1/h\"", store).start();
        for user in ["secret-a", "b"] {
            assert!(passes(&proxy, user) && !passes(&proxy, user));
        }
        let told = set(&proxy, "secret-a", r#"{"rate":"500/h","reason":"load test"}"#);
        assert_eq!(told["key"], HASH);
        assert_eq!((&told["in_force"], &told["until"]), (&true.into(), &Value::Null));
        assert!((0..50).all(|_| passes(&proxy, "secret-a")));
        assert!(!passes(&proxy, "b"), "another key");
        let line = proxy.log.wait("override set", |_| true);
        assert_eq!((&line["limit"], &line["key"]), (&"user".into(), &HASH.into()));
        assert_eq!((&line["rate"], &line["reason"]), (&"500/h".into(), &"load test".into()));
        assert_eq!(line["level"], "INFO");
        let path = format!("/user/keys/{HASH}/override");
        assert_eq!(ask(proxy.admin(), "DELETE", &path, "").status, 204);
        assert!(!passes(&proxy, "secret-a"));
        proxy.log.wait("override ended", |_| true);
        assert_eq!(ask(proxy.admin(), "DELETE", &path, "").status, 404, "there is none");
        assert_eq!(proxy.log.count("override set"), 1, "told once");
        assert!(!proxy.log.text().contains("secret-a"));
    });
}

#[test]
fn an_override_ends_by_itself() {
    in_both_stores(|store| {
        let proxy = by_user("rate = \"1/h\"", store).start();
        let told = set(&proxy, "b", r#"{"rate":"unlimited","for":"1s"}"#);
        assert!(told["ends_in_ms"].as_u64().unwrap() <= 1_000, "{told}");
        assert!((0..3).all(|_| passes(&proxy, "b")));
        wait_until("the limit's own rate holds again", || !passes(&proxy, "b"));
        proxy.log.wait("override ended", |_| true);
        assert_eq!(all(&proxy)["overrides"], serde_json::json!([]));
    });
}

#[test]
fn what_was_used_stays_used_under_other_figures() {
    in_both_stores(|store| {
        let proxy = by_user("rate = \"5/h\"", store).start();
        assert!((0..3).all(|_| passes(&proxy, "b")));
        assert_eq!(bucket(&proxy, "b")["remaining"], 2);
        set(&proxy, "b", r#"{"rate":"5/h","burst":9}"#);
        let seen = bucket(&proxy, "b");
        assert_eq!((&seen["remaining"], &seen["burst"]), (&6.into(), &9.into()), "{seen}");
        assert_eq!((&seen["rate"], &seen["override"]["burst"]), (&"5/h".into(), &9.into()));
        let reset = seen["reset_ms"].as_u64().unwrap();
        assert!((2_150_000..=2_160_000).contains(&reset), "three tokens at five an hour: {seen}");
        assert_eq!(seen["retry_after_ms"], 0);
        set(&proxy, "b", r#"{"rate":"0/s"}"#);
        assert!(!passes(&proxy, "b"));
        assert_eq!(bucket(&proxy, "b")["remaining"], 0);
        set(&proxy, "b", r#"{"rate":"unlimited"}"#);
        assert!(passes(&proxy, "b"));
        assert_eq!(bucket(&proxy, "b")["remaining"], Value::Null);
    });
}

#[test]
fn an_override_wins_over_the_file_s_and_no_candidate_is_tried() {
    let limit = "rate = \"1/h\"\ncandidate = { rate = \"2/h\" }\n\
                 overrides = [{ key = [\"b\"], rate = \"2/h\" }]";
    let proxy = by_user(limit, "").start();
    assert_eq!(bucket(&proxy, "b")["rate"], "2/h");
    set(&proxy, "b", r#"{"rate":"4/h"}"#);
    set(&proxy, "c", r#"{"rate":"4/h"}"#);
    for user in ["b", "c"] {
        assert_eq!((0..9).filter(|_| passes(&proxy, user)).count(), 4, "{user}");
    }
    let tried = proxy.log.with("throttled").iter().any(|line| line["limit"] == "user:candidate");
    assert!(!tried, "{}", proxy.log.text());
}

#[test]
fn a_bucket_that_is_deleted_is_new() {
    in_both_stores(|store| {
        let proxy = by_user("rate = \"1/h\"", store).start();
        assert!(passes(&proxy, "b") && !passes(&proxy, "b"));
        let path = "/user/keys/b?plain";
        assert_eq!(ask(proxy.admin(), "DELETE", path, "").status, 204);
        assert_eq!(bucket(&proxy, "b")["reset_ms"], 0);
        assert!(passes(&proxy, "b") && !passes(&proxy, "b"));
    });
}

/// A regression: in the process a bucket was found by the plain values of its key alone, and the log has hashes.
#[test]
fn a_bucket_is_found_by_the_key_that_the_log_has() {
    in_both_stores(|store| {
        let proxy = by_user("rate = \"3/h\"", store).start();
        assert!(passes(&proxy, "secret-a"));
        let path = format!("/user/keys/{HASH}");
        let left = || ask(proxy.admin(), "GET", &path, "").json()["remaining"].clone();
        assert_eq!(left(), 2);
        assert!(passes(&proxy, "secret-a") && passes(&proxy, "secret-a"));
        assert!(!passes(&proxy, "secret-a"));
        assert_eq!(left(), 0);
        assert_eq!(ask(proxy.admin(), "DELETE", &path, "").status, 204);
        assert!(left() == 3 && passes(&proxy, "secret-a"));
    });
}

#[test]
fn a_limit_without_a_key_has_the_empty_one() {
    in_both_stores(|store| {
        let limit = "key = []\nrate = \"1/h\"";
        let proxy = Proxy::answering().admin().limit("all", limit).store(store).start();
        assert!(passes(&proxy, "") && !passes(&proxy, ""));
        let put = ask(proxy.admin(), "PUT", "/all/keys//override", r#"{"rate":"9/h"}"#);
        assert_eq!(put.status, 200, "{}", put.text());
        assert!(passes(&proxy, ""));
        assert_eq!(ask(proxy.admin(), "GET", "/all/keys/", "").json()["remaining"], 7);
        assert_eq!(ask(proxy.admin(), "DELETE", "/all/keys//override", "").status, 204);
        assert!(!passes(&proxy, ""));
    });
}

#[test]
fn an_override_rests_while_its_limit_is_gone() {
    let here = by_user("rate = \"1/h\"", "");
    let proxy = here.start();
    set(&proxy, "b", r#"{"rate":"9/h"}"#);
    assert!((0..3).all(|_| passes(&proxy, "b")));
    let window = "algorithm = \"fixed-window\"\nrate = \"1/h\"";
    for (other, why) in [
        (by_user("rate = \"1/h\"", "").text().replace("x-user", "x-other"), "another key"),
        (by_user("rate = \"1/h\"", "").text().replace("user", "users"), "another limit"),
    ] {
        let before = proxy.log.count("override ended");
        proxy.reload(&other);
        assert_eq!(proxy.log.count("override ended"), before + 1, "{why}");
        assert_eq!(all(&proxy)["overrides"][0]["in_force"], false, "{why}");
        proxy.reload(&here.text());
        assert_eq!(all(&proxy)["overrides"][0]["in_force"], true, "it came back");
    }
    // Another algorithm reads the same words.
    proxy.reload(&by_user(window, "").text());
    assert_eq!((0..20).filter(|_| passes(&proxy, "b")).count(), 9);
    proxy.reload(&by_user("rate = \"1/h\"", "").text().replace("user", "users"));
    let key = all(&proxy)["overrides"][0]["key"].as_str().unwrap().to_owned();
    let path = format!("/user/keys/{key}/override");
    assert_eq!(ask(proxy.admin(), "DELETE", &path, "").status, 204, "without its limit");
    assert_eq!(all(&proxy)["overrides"], serde_json::json!([]));
}

/// The key was refused for ever, and no line said why.
#[test]
fn a_cost_that_a_reload_raises_above_an_override_is_told() {
    for (cost, dear) in [
        ("cost = 1", "cost = 4"),
        ("cost = { header = \"x-cost\" }", "cost = { header = \"x-cost\", default = 4 }"),
        (
            "cost = { response_header = \"x-cost\", estimate = 1 }",
            "cost = { response_header = \"x-cost\", estimate = 4 }",
        ),
    ] {
        in_both_stores(|store| {
            let file = |cost| by_user(&format!("rate = \"9/h\"\n{cost}"), store);
            let proxy = file(cost).start();
            set(&proxy, "b", r#"{"rate":"3/h"}"#);
            set(&proxy, "c", r#"{"rate":"4/h"}"#);
            proxy.log.wait("override set", |line| line["rate"] == "4/h");
            assert_eq!(proxy.log.count("override too small"), 0);
            proxy.reload(&file(dear).text());
            let line = proxy.log.wait("override too small", |_| true);
            assert_eq!((&line["level"], &line["limit"]), (&"WARN".into(), &"user".into()));
            assert_eq!((&line["rate"], line["holds"].as_u64()), (&"3/h".into(), Some(3)));
            assert_eq!(line["cost"], 4);
            assert!(!passes(&proxy, "b") && passes(&proxy, "c"), "{dear}");
            assert_eq!(proxy.log.count("override too small"), 1, "{dear}");
        });
    }
}

#[test]
fn a_settlement_goes_by_the_override_s_figures() {
    let limit = "rate = \"1/h\"\nburst = 5\ncount_when = { status = [\"404\"] }";
    in_both_stores(|store| {
        let proxy = by_user(limit, store).start();
        set(&proxy, "b", r#"{"rate":"1/h","burst":2}"#);
        // Each answer is a 200, and gives its token back.
        assert!((0..9).all(|_| passes(&proxy, "b")));
        wait_until("all is given back", || bucket(&proxy, "b")["remaining"] == 2);
    });
}
