//! Overrides of several proxies that share Redis.

use std::collections::HashMap;

use serde_json::json;

use super::{HASH, all, ask, bucket, by_user, passes, set};
use crate::support::cluster::Cluster;
use crate::support::metrics::Metrics;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

const NAME: &str = "tidegate::overrides";

fn two(server: &RedisServer) -> [Tidegate; 2] {
    let proxy = by_user("rate = \"1/h\"", &server.fields());
    [proxy.start(), proxy.start()]
}

fn fields(server: &RedisServer) -> HashMap<String, String> {
    server.run(&["HGETALL", NAME])
}

#[test]
fn an_override_of_one_proxy_holds_on_all() {
    let server = RedisServer::start();
    let [one, other] = two(&server);
    assert!(passes(&one, "secret-a"));
    assert!(!passes(&other, "secret-a"));
    set(&one, "secret-a", r#"{"rate":"900/h","reason":"tonight"}"#);
    assert!(passes(&one, "secret-a"), "at once");
    wait_until("the other has it too", || passes(&other, "secret-a"));
    assert_eq!(other.log.wait("override set", |_| true)["reason"], "tonight");
    let written = fields(&server);
    assert_eq!(written.len(), 3, "with the generation and the time: {written:?}");
    assert!(written.contains_key(&format!("user:{HASH}")), "{written:?}");
    assert!(server.goes_at(NAME).is_some(), "it expires");
    // One that starts later has it from the start.
    let third = by_user("rate = \"1/h\"", &server.fields()).start();
    wait_until("the third has it", || passes(&third, "secret-a"));
    let path = format!("/user/keys/{HASH}/override");
    assert_eq!(ask(third.admin(), "DELETE", &path, "").status, 204);
    for proxy in [&one, &other] {
        wait_until("it has ended everywhere", || !passes(proxy, "secret-a"));
        proxy.log.wait("override ended", |_| true);
        assert_eq!(proxy.log.count("override set"), 1, "told once");
    }
}

/// If Redis's clock is set back by a day, what it wrote before is a day ahead. The override lasted a day longer.
#[test]
fn an_override_lasts_no_longer_when_redis_s_clock_steps_back() {
    let server = RedisServer::start();
    let proxy = by_user("rate = \"1/h\"", &server.fields());
    let one = proxy.start();
    set(&one, "b", r#"{"rate":"900/h","for":"1h"}"#);
    let mut write = vec!["HSET".to_owned(), NAME.to_owned()];
    for (name, value) in fields(&server).into_iter().filter(|(name, _)| name != "generation") {
        let time = value.split(' ').next().unwrap();
        let ahead = time.parse::<u64>().unwrap() + 86_400_000_000;
        let value = format!("{ahead}{}", &value[time.len()..]);
        write.extend([name, value]);
    }
    let write: Vec<_> = write.iter().map(String::as_str).collect();
    assert_eq!(server.run::<u64>(&write), 0, "no field is new");
    let hour = 3_600_000;
    let left = |proxy: &Tidegate| bucket(proxy, "b")["override"]["ends_in_ms"].as_u64().unwrap();
    // One that starts reads all, and so does each when there is a change.
    let other = proxy.start();
    wait_until("the other has it", || passes(&other, "b") && passes(&other, "b"));
    assert!(left(&other) <= hour, "{}", left(&other));
    set(&one, "c", r#"{"rate":"900/h"}"#);
    assert!((hour / 2..=hour).contains(&left(&one)), "{}", left(&one));
}

/// It stayed for up to a minute. If Redis's clock was set back meanwhile, it came back.
#[test]
fn an_override_that_has_ended_is_soon_gone_from_redis() {
    let server = RedisServer::start();
    let time = || server.run::<(u64, u64)>(&["TIME"]).0;
    let proxy = by_user("rate = \"1/h\"", &server.fields()).start();
    set(&proxy, "b", r#"{"rate":"900/h"}"#);
    let began = time();
    set(&proxy, "c", r#"{"rate":"900/h","for":"1s"}"#);
    let overrides = || fields(&server).keys().filter(|name| name.starts_with("user:")).count();
    assert_eq!(overrides(), 2);
    wait_until("it is gone", || overrides() == 1);
    assert!(time() - began < 40, "{} seconds", time() - began);
}

#[test]
fn a_bucket_made_new_by_one_proxy_is_new_for_all() {
    let server = RedisServer::start();
    let [one, other] = two(&server);
    assert!(passes(&other, "b") && !passes(&other, "b"));
    assert_eq!(ask(one.admin(), "DELETE", "/user/keys/b?plain", "").status, 204);
    wait_until("it passes there", || passes(&other, "b"));
}

#[test]
fn without_redis_overrides_stay_and_none_is_set() {
    let mut server = RedisServer::start();
    let proxy = by_user("rate = \"1/h\"", &server.fields().replace("20s", "1s")).start();
    set(&proxy, "b", r#"{"rate":"900/h"}"#);
    set(&proxy, "c", r#"{"rate":"900/h","for":"4s"}"#);
    server.kill();
    let up = || Metrics::of(proxy.admin()).value("tidegate_store_up") == 1.0;
    wait_until("Redis counts as away", || {
        passes(&proxy, "d");
        !up()
    });
    assert!((0..20).all(|_| passes(&proxy, "b")));
    let put = ask(proxy.admin(), "PUT", "/user/keys/b/override?plain", r#"{"rate":"1/h"}"#);
    assert_eq!(put.status, 503, "{}", put.text());
    assert!(put.text().contains("Redis is out of reach, so nothing was done"), "{}", put.text());
    let end = ask(proxy.admin(), "DELETE", "/user/keys/b/override?plain", "");
    assert_eq!(end.status, 503, "{}", end.text());
    let bucket = ask(proxy.admin(), "GET", "/user/keys/b?plain", "");
    assert_eq!((bucket.status, &bucket.json()["here"]), (200, &true.into()), "{}", bucket.text());
    proxy.log.wait("override ended", |_| true);
    assert_eq!(all(&proxy)["overrides"].as_array().unwrap().len(), 1, "the other one ends");
    // An empty Redis has no overrides.
    server.restart();
    wait_until("the other one ends", || proxy.log.count("override ended") == 2);
    assert_eq!(all(&proxy)["overrides"], json!([]));
}

#[test]
fn in_a_cluster_overrides_follow_their_slot() {
    let cluster = Cluster::of_masters();
    let store = format!("url = \"{}\"\ntimeout = \"20s\"", cluster.url_of_user());
    let proxies = [(); 2].map(|()| by_user("rate = \"1/h\"", &store).start());
    let [one, other] = &proxies;
    for user in ["a", "b", "c", "d"] {
        assert!(passes(one, user) && !passes(other, user));
        set(one, user, r#"{"rate":"900/h"}"#);
        wait_until("the other has it", || passes(other, user));
    }
    let path = "/user/keys/e?plain";
    assert!(passes(other, "e") && !passes(other, "e"));
    assert_eq!(ask(one.admin(), "DELETE", path, "").status, 204);
    wait_until("the bucket is new there", || passes(other, "e"));
    let (slot, from) = (cluster.slot(NAME), cluster.master_of(NAME));
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, from, to);
    cluster.move_key(NAME, from, to);
    cluster.end_move(slot, to);
    set(other, "f", r#"{"rate":"900/h"}"#);
    wait_until("it holds on both", || (0..4).all(|_| passes(one, "f") && passes(other, "f")));
    assert_eq!(all(one)["overrides"].as_array().unwrap().len(), 5);
    for proxy in &proxies {
        assert_eq!(proxy.log.count("override ended"), 0, "none was lost");
    }
}

/// The answer was 503 and "nothing was done", and the bucket was new.
#[test]
fn in_a_cluster_a_bucket_is_reset_without_the_server_of_the_overrides() {
    let mut cluster = Cluster::of_masters();
    let store = format!("url = \"{}\"\ntimeout = \"20s\"", cluster.url());
    let [one, other] = [(); 2].map(|()| by_user("rate = \"1/h\"", &store).start());
    let lost = cluster.master_of(NAME);
    let is_elsewhere = |user: &String| {
        let key = bucket(&one, user)["key"].as_str().unwrap().to_owned();
        cluster.master_of(&key) != lost
    };
    let users: Vec<_> =
        (0..).map(|number| format!("u{number}")).filter(is_elsewhere).take(2).collect();
    for user in &users {
        assert!(passes(&one, user) && !passes(&one, user) && !passes(&other, user));
    }
    cluster.servers[lost].kill();
    for user in &users {
        let path = format!("/user/keys/{user}?plain");
        let reply = ask(one.admin(), "DELETE", &path, "");
        assert_eq!(reply.status, 204, "{}", reply.text());
        one.log.wait("bucket reset", |_| true);
        wait_until("it passes in another process", || passes(&other, user));
    }
    let put = ask(one.admin(), "PUT", "/user/keys/b/override?plain", r#"{"rate":"1/h"}"#);
    assert_eq!(put.status, 503, "{}", put.text());
}

#[test]
fn something_else_at_the_overrides_key_harms_no_request() {
    let server = RedisServer::start();
    let _: () = server.run(&["SET", NAME, "x"]);
    let proxy = by_user("rate = \"2/h\"", &server.fields()).start();
    assert!(passes(&proxy, "b") && passes(&proxy, "b") && !passes(&proxy, "b"));
    let put = ask(proxy.admin(), "PUT", "/user/keys/b/override?plain", r#"{"rate":"1/h"}"#);
    assert_eq!(put.status, 503);
    assert!(put.text().contains("WRONGTYPE"), "{}", put.text());
    assert_eq!(ask(proxy.admin(), "DELETE", "/user/keys/b?plain", "").status, 204);
    assert!(passes(&proxy, "b"), "a new bucket, at once in all workers");
    let advises =
        |line: &serde_json::Value| line["help"].as_str().unwrap().contains("delete the key");
    proxy.log.wait("overrides not read", advises);
    assert_eq!(Metrics::of(proxy.admin()).value("tidegate_store_up"), 1.0);
}

#[test]
fn the_documented_rights_are_enough() {
    let server = RedisServer::start();
    server.as_user();
    let user = server.fields().replace("redis://", "redis://tidegate:secret@");
    let proxy = by_user("rate = \"1/h\"", &user).start();
    assert!(passes(&proxy, "b") && !passes(&proxy, "b"));
    set(&proxy, "b", r#"{"rate":"9/h","for":"1h"}"#);
    assert!(passes(&proxy, "b"));
    for path in ["/user/keys/b/override?plain", "/user/keys/b?plain"] {
        assert_eq!(ask(proxy.admin(), "DELETE", path, "").status, 204, "{path}");
    }
    assert!(passes(&proxy, "b") && !passes(&proxy, "b"));
    // Without the new rights requests are decided as before, and the log says what is missing.
    let _: () = server.run(&["ACL", "SETUSER", "tidegate", "-hget", "-hgetall"]);
    let without = by_user("rate = \"1/h\"", &user).start();
    without.log.wait("overrides not read", |line| line["error"].as_str().unwrap().contains("hget"));
    assert!(passes(&without, "c") && !passes(&without, "c"));
}
