//! A limiter that proxies share with services that use Redisson: whole proxies, and the commands.

mod waiting;

use serde_json::Value;

use crate::support::client::Connection;
use crate::support::cluster::Cluster;
use crate::support::java::Java;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::tidegate::{Tidegate, program};
use crate::support::wait_until;

const HOUR_MS: u64 = 3_600_000;

/// A proxy of one worker with this limit, and a bucket that refuses on `/mixed` after one request.
fn proxy(server: &RedisServer, limit: &str) -> Tidegate {
    shared(&server.url(), limit).start()
}

fn shared(url: &str, limit: &str) -> Proxy {
    Proxy::answering()
        .server("workers = 1")
        .store(&format!("url = \"{url}\"\ntimeout = \"10s\""))
        .section("[log]\nformat = \"json\"")
        .limit("shared", &format!("algorithm = \"redisson\"\n{limit}"))
        .limit("bucket", "rate = \"1/h\"")
        .route("path = \"/{*rest}\"\nlimits = [\"shared\"]")
        .route("path = \"/mixed\"\nlimits = [\"shared\", \"bucket\"]")
}

fn told(arguments: &[&str]) -> (i32, String, String) {
    let told = program().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    (told.status.code().unwrap(), text(told.stdout), text(told.stderr))
}

#[test]
fn two_proxies_and_java_spend_one_budget() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    java.try_set_rate(5, HOUR_MS);
    let proxies = [proxy(&server, "name = \"orders\""), proxy(&server, "name = \"orders\"")];
    let mut clients = proxies.each_ref().map(|proxy| Connection::open(proxy.address));
    for (client, left) in [(0, 4), (1, 3), (0, 2)] {
        let reply = clients[client].get("/", &[]);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("ratelimit-policy").unwrap(), "\"shared\";q=5;w=3600");
        assert_eq!(reply.header("ratelimit").unwrap(), format!("\"shared\";r={left};t=3600"));
    }
    assert_eq!(java.try_acquire(2), Some(0));
    let refused = clients[1].get("/", &[]);
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
    assert_eq!(refused.json()["violated-policies"][0], "shared");
}

/// Permits left, and entries.
fn stands(server: &RedisServer) -> (String, u64) {
    let value = server.run(&["GET", "{orders}:value"]);
    (value, server.run(&["ZCARD", "{orders}:permits"]))
}

#[test]
fn what_does_not_count_is_given_back_to_the_limiter() {
    let server = RedisServer::start();
    let limit = "name = \"orders\"\nrate = \"5/h\"\ncost = 3\ncount_when = { status = [\"401\"] }";
    let proxy = proxy(&server, limit);
    let reply = Connection::open(proxy.address).get("/", &[]);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("ratelimit").unwrap(), "\"shared\";r=2;t=3600");
    wait_until("all was given back", || stands(&server) == ("5".to_owned(), 0));
}

#[test]
fn a_limiter_without_figures_follows_on_store_error() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    for (limit, status) in
        [("name = \"orders\"", 200), ("name = \"orders\"\non_store_error = \"reject\"", 503)]
    {
        server.run::<()>(&["DEL", "orders"]);
        let proxy = proxy(&server, limit);
        let mut client = Connection::open(proxy.address);
        for _ in 0..5 {
            assert_eq!(client.get("/", &[]).status, status);
        }
        let line = proxy.log.wait("limiter not configured", |_| true);
        assert_eq!(
            (&line["level"], &line["limit"]),
            (&Value::from("WARN"), &Value::from("shared"))
        );
        assert!(line["help"].as_str().unwrap().contains("tidegate redisson set"), "{line}");
        java.try_set_rate(1, HOUR_MS);
        assert_eq!(client.get("/", &[]).status, 200);
        assert_eq!(client.get("/", &[]).status, 429, "it counts from the next request on");
        assert_eq!(proxy.log.count("limiter not configured"), 1);
        assert_eq!(proxy.log.count("store unavailable"), 0);
        server.run::<()>(&["FLUSHALL"]);
    }
}

/// Five requests passed although Java had used up the budget, and no line said why.
#[test]
fn an_older_redisson_follows_on_store_error_and_is_told_once() {
    let server = RedisServer::start();
    let url = server.url();
    let get = |more: &[&str]| told(&[&["redisson", "get", "old", "--url", &url], more].concat()).1;
    server.run::<u64>(&["HSET", "old", "rate", "5", "interval", "3600000", "type", "0"]);
    assert!(get(&["--json"]).contains("\"older\":false"), "{}", get(&["--json"]));
    server.run::<()>(&["SET", "{old}:value", "0", "PX", "3600000"]);
    let proxies = [("allow", 200), ("reject", 503)].map(|(word, status)| {
        (proxy(&server, &format!("name = \"old\"\non_store_error = \"{word}\"")), status)
    });
    for (proxy, status) in &proxies {
        let mut client = Connection::open(proxy.address);
        for _ in 0..6 {
            assert_eq!(client.get("/", &[]).status, *status);
        }
        let line = proxy.log.wait("limiter used by a redisson before 3.17", |_| true);
        assert_eq!((&line["level"], &line["limiter"]), (&"WARN".into(), &"old".into()));
        assert!(line["help"].as_str().unwrap().contains("3.17 or later"), "{line}");
        assert_eq!(proxy.log.count("limiter used by a redisson before 3.17"), 1);
        assert_eq!(proxy.log.count("store unavailable"), 0);
    }
    assert_eq!(server.run::<u64>(&["EXISTS", "{old}:permits"]), 0);
    assert!(get(&[]).contains("used by     a Redisson before 3.17"), "{}", get(&[]));
    assert!(get(&["--json"]).contains("\"older\":true"), "{}", get(&["--json"]));
    assert_eq!(told(&["redisson", "set", "old", "5/h", "--url", &url]).0, 0);
    let mut client = Connection::open(proxies[1].0.address);
    assert_eq!(client.get("/", &[]).status, 200, "what the old one wrote is forgotten");
}

#[test]
fn a_clock_that_is_ahead_and_other_figures_are_told() {
    let server = RedisServer::start();
    let mut java = Java::new(&server, "orders");
    java.try_set_rate(10, 60_000);
    let ahead = java.redis_ms() + 5_000;
    java.try_acquire_at(1, ahead);
    let proxy = proxy(&server, "name = \"orders\"\nrate = \"5/s\"");
    let mut client = Connection::open(proxy.address);
    for _ in 0..3 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let line = proxy.log.wait("limiter used by a clock that is ahead", |_| true);
    assert!(line["help"].as_str().unwrap().contains("clocks"));
    assert!((1..=5_000).contains(&line["ahead_ms"].as_u64().unwrap()), "{line}");
    let line = proxy.log.wait("limiter has other figures in redis", |_| true);
    assert_eq!((&line["in_force"], &line["type"]), (&"10/m".into(), &"overall".into()));
    assert_eq!(proxy.log.count("limiter has other figures in redis"), 1);
}

/// The figures in Redis count, so keys that were made without it would stay, and nobody would know.
#[test]
fn a_keep_alive_time_that_redis_does_not_have_is_told() {
    let server = RedisServer::start();
    Java::new(&server, "orders").try_set_rate(5, HOUR_MS);
    let limit = "name = \"orders\"\nrate = \"5/h\"";
    let (without, with) =
        (proxy(&server, limit), proxy(&server, &format!("{limit}\nkeep_alive = \"2h\"")));
    for proxy in [&without, &with] {
        assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 200);
    }
    let line = with.log.wait("limiter has other figures in redis", |_| true);
    assert_eq!((&line["in_force"], &line["keep_alive_ms"]), (&"5/h".into(), &0.into()));
    assert_eq!(without.log.count("limiter has other figures in redis"), 0);
}

#[test]
fn without_redis_the_file_or_on_store_error_decides() {
    for (limit, expected) in [
        ("rate = \"2/h\"", [200, 200, 429]),
        ("", [200, 200, 200]),
        ("on_store_error = \"allow\"\nrate = \"2/h\"", [200, 200, 200]),
        ("on_store_error = \"reject\"", [503, 503, 503]),
    ] {
        let server = RedisServer::absent();
        let proxy = proxy(&server, &format!("name = \"orders\"\n{limit}"));
        proxy.log.wait("store unavailable", |_| true);
        let mut client = Connection::open(proxy.address);
        let statuses = expected.map(|_| client.get("/", &[]).status);
        assert_eq!(statuses, expected, "{limit}");
    }
}

#[test]
fn the_commands_find_a_limiter_in_a_cluster() {
    let cluster = Cluster::of_masters();
    let url = cluster.url();
    for name in ["orders", "payments", "logins"] {
        let run = |arguments: &[&str]| told(&[&["redisson"], arguments, &["--url", &url]].concat());
        assert_eq!(run(&["try-set", name, "100/s"]), (0, "set".to_owned(), String::new()));
        assert_eq!(run(&["get", name]).0, 0);
        let there: u64 = cluster.servers[cluster.master_of(name)].run(&["EXISTS", name]);
        assert_eq!(there, 1);
    }
}

/// `expire` needed a right that the manual does not name.
#[test]
fn the_commands_need_no_right_but_those_of_the_manual() {
    let server = RedisServer::start();
    server.as_user();
    let url = format!("redis://tidegate:secret@127.0.0.1:{}", server.port());
    for command in [
        "try-set orders 5/s",
        "set orders 100/s",
        "get orders",
        "expire orders 1h",
        "clear-expire orders",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        let (code, _, error) = told(&[&["redisson"], &words[..], &["--url", &url]].concat());
        assert_eq!((code, error.as_str()), (0, ""), "{command}");
    }
}

#[test]
fn the_commands_read_and_write_limiters() {
    let server = RedisServer::start();
    let url = server.url();
    let run = |arguments: &[&str]| told(&[&["redisson"], arguments, &["--url", &url]].concat());
    let ok = |text: &str| (0, text.to_owned(), String::new());
    let (code, _, error) = run(&["get", "orders"]);
    assert_eq!(code, 1);
    assert!(error.contains("\"orders\" is not configured"), "{error}");
    assert_eq!(run(&["expire", "orders", "1h"]).0, 1);
    assert_eq!(run(&["try-set", "orders", "100/s"]), ok("set"));
    assert_eq!(run(&["try-set", "orders", "5/s", "--type", "per-client"]), ok("kept"));
    let plain = "rate        100/s\ntype        overall\nkeep-alive  none\nexpires in  never";
    assert_eq!(run(&["get", "orders"]), ok(plain));

    let mut java = Java::new(&server, "orders");
    assert_eq!(java.try_acquire(40), Some(60));
    assert_eq!(run(&["set", "orders", "1000/10m", "--keep-alive", "1h"]), ok("set"));
    assert_eq!(server.run::<u64>(&["EXISTS", "{orders}:value", "{orders}:permits"]), 0);
    let (_, out, _) = run(&["get", "orders", "--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&json["rate"], &json["interval"]), (&1_000.into(), &600_000.into()));
    assert_eq!((&json["type"], &json["keepAliveTime"]), (&"overall".into(), &HOUR_MS.into()));
    assert!(json["expiresIn"].as_u64().unwrap() > HOUR_MS - 60_000, "{json}");
    assert_eq!(java.try_acquire(1), Some(999));

    assert_eq!(run(&["expire", "orders", "2h"]), ok("expires in 2h"));
    for key in ["orders", "{orders}:value", "{orders}:permits"] {
        let ttl: u64 = server.run(&["PTTL", key]);
        assert!((HOUR_MS + 1..=2 * HOUR_MS).contains(&ttl), "{key}: {ttl}");
    }
    let mut hash: Vec<(String, String)> = server.run(&["HGETALL", "orders"]);
    hash.sort();
    let values: Vec<_> = hash.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["600000", "3600000", "1000", "0"]);

    for said in ["cleared", "kept"] {
        assert_eq!(run(&["clear-expire", "orders"]), ok(said));
        for key in ["orders", "{orders}:value", "{orders}:permits"] {
            assert_eq!(server.run::<i64>(&["PTTL", key]), -1, "{key} stays for ever");
        }
    }
    assert_eq!(java.try_acquire(1), Some(998), "what was used stays used");
}

#[test]
fn what_was_typed_wrong_is_2_and_a_failure_is_1() {
    let (server, gone) = (RedisServer::start(), RedisServer::absent());
    server.run::<()>(&["SET", "text", "x"]);
    server.run::<()>(&["HSET", "session", "user", "x"]);
    let (url, absent) = (server.url(), gone.url());
    for (arguments, code, says) in [
        (&["set", "orders", "100"][..], 2, "is no rate"),
        (&["set", "orders", "unlimited"], 2, "is no rate"),
        (&["set", "orders", "5/1500us"], 2, "whole milliseconds"),
        (&["set", "orders", "99999999999/s"], 2, "at most 1000000000"),
        (&["set", "orders", "5/h", "--keep-alive", "1m"], 2, "at least the rate's interval"),
        (&["set", "orders", "5/h", "--keep-alive", "soon"], 2, "is no time"),
        (&["expire", "orders", "0s"], 2, "is no time"),
        (&["expire", "orders", "3651d"], 2, "expected at most \"3650d\""),
        (&["get", "text"], 1, "holds something that is no limiter"),
        (&["set", "text", "1/s"], 1, "holds something that is no limiter"),
        (&["expire", "text", "1h"], 1, "holds something that is no limiter"),
        (&["expire", "session", "1h"], 1, "is not configured"),
        (&["clear-expire", "text"], 1, "holds something that is no limiter"),
        (&["clear-expire", "session"], 1, "is not configured"),
        (&["get", ""], 2, "a value is required"),
    ] {
        let (found, out, error) = told(&[&["redisson"], arguments, &["--url", &url]].concat());
        assert_eq!((found, out.as_str()), (code, ""), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
    for key in ["text", "session"] {
        assert_eq!(server.run::<i64>(&["TTL", key]), -1, "{key} stays");
    }
    let (code, _, error) = told(&["redisson", "get", "orders", "--url", &absent]);
    assert_eq!(code, 1);
    let address = absent.strip_prefix("redis://").unwrap().split('/').next().unwrap();
    assert!(error.contains(&format!("{address} does not answer")), "{error}");
    assert_eq!(error.matches("Connection refused").count(), 1, "{error}");
    let (code, _, error) = told(&["redisson", "get", "orders", "--url", "http://x"]);
    assert_eq!(code, 2, "{error}");
    assert_eq!(told(&["redisson"]).0, 2);
}

#[test]
fn the_commands_find_the_server_in_the_file() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proxy.toml");
    let file = file.to_str().unwrap();
    let limit = "name = \"orders\"\nwait = \"2s\"";
    let text = shared(&server.url(), limit).text().replace("LISTEN", "127.0.0.1:8080");
    std::fs::write(file, &text).unwrap();
    let set = told(&["redisson", "set", "orders", "5/s", "--config", file]);
    assert_eq!(set, (0, "set".into(), String::new()));
    assert_eq!(server.run::<String>(&["HGET", "orders", "rate"]), "5");
    let (code, out, error) = told(&["explain", "GET /", "--config", file]);
    assert_eq!(code, 0, "{error}");
    assert!(out.contains("the limiter orders, with {orders}:value and {orders}:permits"), "{out}");
    assert!(out.contains("holds requests for up to 2s, 1000 at once"), "{out}");
    std::fs::write(file, text.replace(&server.url(), "memory:")).unwrap();
    let (code, _, error) = told(&["redisson", "get", "orders", "--config", file]);
    assert_eq!(code, 2);
    assert!(error.contains("there is no Redis"), "{error}");
}
