//! What is left, asked by whoever wants to know: `respond = { usage = […] }`.

use serde_json::{Value, json};

use crate::support::client::{Connection, Reply, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, in_both_stores, own_calls};
use crate::support::upstream::Upstream;
use crate::support::{now, wait_until};

/// A proxy whose requests use what they say, and whose route `/usage` tells of these limits.
fn telling(api: &Upstream, store: &str, limits: &[(&str, &str)]) -> Proxy {
    let proxy = Proxy::of_one_worker(api).admin().store(store);
    let proxy = limits.iter().fold(proxy, |proxy, (name, lines)| proxy.limit(name, lines));
    let names: Vec<_> = limits.iter().map(|(name, _)| *name).collect();
    proxy
        .route(&format!("path = \"/{{*rest}}\"\nlimits = {names:?}"))
        .route(&format!("path = \"/usage\"\nrespond = {{ usage = {names:?} }}"))
}

/// An API whose answers say that they used what the request says.
fn api() -> Upstream {
    Upstream::answering(|got| {
        let used = got.header("x-use").unwrap_or_default();
        format!("HTTP/1.1 200 OK\r\nx-used: {used}\r\ncontent-length: 0\r\n\r\n").into_bytes()
    })
}

/// What is told of the limit at this index.
fn left(reply: &Reply, limit: usize) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["limits"][limit].clone()
}

/// A number that falls while the test runs: at most this, and more than a minute less.
fn falls_from(value: &Value, most: u64) -> bool {
    (most.saturating_sub(60_000)..=most).contains(&value.as_u64().unwrap())
}

const HOUR: u64 = 3_600_000;

/// The members of a limit, in the order of the documents.
const ORDER: [&str; 8] =
    ["name", "limit", "remaining", "used", "reset_ms", "retry_after_ms", "window", "unit"];

/// Nothing is taken, however often one asks.
#[test]
fn every_algorithm_tells_what_is_left_in_both_stores() {
    in_both_stores(|store| {
        let (api, said) = (api(), "cost = { response_header = \"x-used\", estimate = 1 }");
        for (algorithm, below_zero) in [
            // Until 25 tokens have come back, and until one of ten is there.
            ("token-bucket", [25 * HOUR / 10, 16 * HOUR / 10]),
            ("leaky-bucket\"\nqueue = 9\nwait = \"0s", [25 * HOUR / 10, 25 * HOUR / 10]),
            ("fixed-window", [3 * HOUR, 2 * HOUR]),
            ("sliding-window", [2 * HOUR, 2 * HOUR]),
            ("sliding-log", [HOUR, HOUR]),
        ] {
            let lines =
                format!("key = [\"ip\"]\nrate = \"10/h\"\nalgorithm = \"{algorithm}\"\n{said}");
            let proxy = telling(&api, store, &[("budget", &lines)]).start();
            let mut client = Connection::open(proxy.address);
            let fresh = client.get("/usage", &[]);
            let expected = json!({
                "name": "budget", "limit": 10, "remaining": 10, "used": 0, "reset_ms": 0,
                "retry_after_ms": 0, "window": 3_600, "unit": "requests",
            });
            assert_eq!(fresh.json(), json!({ "limits": [expected] }), "{store} {algorithm}");
            let members = fresh.text();
            let members = ORDER.map(|name| members.find(&format!("\"{name}\":")).unwrap());
            assert!(members.is_sorted(), "{}", fresh.text());
            assert_eq!(fresh.header("content-type").unwrap(), "application/json");
            assert_eq!(fresh.header("cache-control").unwrap(), "no-store");
            assert!(fresh.header("ratelimit").unwrap().starts_with("\"budget\";r=10;t=3600"));
            assert_eq!(client.get("/use", &[("x-use", "3")]).status, 200);
            for _ in 0..3 {
                let told = left(&client.get("/usage", &[]), 0);
                assert_eq!(
                    (&told["remaining"], &told["used"]),
                    (&json!(7), &json!(3)),
                    "{store} {algorithm}"
                );
                assert_ne!(told["reset_ms"], 0, "{store} {algorithm}");
            }
            if algorithm.starts_with("leaky") {
                continue;
            }
            assert_eq!(client.get("/use", &[("x-use", "22")]).status, 200);
            let reply = client.get("/usage", &[]);
            let told = left(&reply, 0);
            assert_eq!(
                (&told["limit"], &told["remaining"], &told["used"]),
                (&json!(10), &json!(0), &json!(25)),
                "{store} {algorithm} {told}"
            );
            let [reset, retry] = below_zero;
            assert!(
                falls_from(&told["retry_after_ms"], retry) || algorithm == "sliding-window",
                "{store} {algorithm} {told}"
            );
            assert!(
                falls_from(&told["reset_ms"], reset) || algorithm == "sliding-window",
                "{store} {algorithm} {told}"
            );
            assert!(
                reply.header("ratelimit").unwrap().starts_with("\"budget\";r=0"),
                "{algorithm}"
            );
            assert_eq!(client.get("/use", &[]).status, 429, "{store} {algorithm}");
        }
    });
}

#[test]
fn slots_and_limits_without_figures_tell_what_they_can() {
    in_both_stores(|store| {
        let (api, _held) = Upstream::holding();
        let proxy = telling(
            &api,
            store,
            &[
                ("slots", "key = [\"ip\"]\nalgorithm = \"concurrency\"\nlimit = 2"),
                ("free", "key = [\"ip\"]\nrate = \"unlimited\""),
            ],
        );
        let proxy = proxy
            .limit("closed", "key = [\"ip\"]\nrate = \"0/s\"")
            .limit("shadow", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"shadow\"")
            .limit("mark", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"mark\"")
            .limit("off", "key = [\"ip\"]\nrate = \"1/h\"\nmode = \"off\"")
            .limit("skips", "key = [\"header:x-user\"]\nmissing = \"skip\"\nrate = \"1/h\"")
            .limit("exempts", "key = [\"ip\"]\nrate = \"1/h\"\nexempt = { path = [\"/others\"] }")
            .route("path = \"/others\"\nrespond = { usage = [\"closed\", \"shadow\", \"mark\", \"off\", \"skips\", \"exempts\"] }")
            .start();
        let mut waiting = Connection::open(proxy.address);
        waiting.send("GET /silent HTTP/1.1\r\nhost: a\r\n\r\n");
        wait_until("a slot is taken", || left(&get(proxy.address, "/usage", &[]), 0)["used"] == 1);
        let reply = get(proxy.address, "/usage", &[]);
        let slots = json!({
            "name": "slots", "limit": 2, "remaining": 1, "used": 1, "reset_ms": null,
            "retry_after_ms": 0, "window": null, "unit": "concurrent-requests",
        });
        let free = json!({
            "name": "free", "limit": null, "remaining": null, "used": 0, "reset_ms": 0,
            "retry_after_ms": 0, "window": null, "unit": "requests",
        });
        assert_eq!(reply.json(), json!({ "limits": [slots, free] }), "{store}");
        assert_eq!(reply.header("ratelimit").unwrap(), "\"slots\";r=1");
        let others = get(proxy.address, "/others", &[]);
        let closed = json!({
            "name": "closed", "limit": 0, "remaining": 0, "used": 0, "reset_ms": null,
            "retry_after_ms": null, "window": null, "unit": "requests",
        });
        assert_eq!(others.json(), json!({ "limits": [closed] }), "{store}");
    });
}

/// A request that a limit would hold does not pass now. The page, the admin endpoint and `why` say the same.
#[test]
fn a_limit_that_holds_requests_tells_when_the_next_one_would_go() {
    in_both_stores(|store| {
        for algorithm in [
            "\"token-bucket\"\nwait = \"1h\"",
            "\"leaky-bucket\"\nqueue = 1",
            "\"fixed-window\"\nwait = \"1h\"",
            // Its wait depends on the time of day: one or two hours.
            "\"sliding-window\"\nwait = \"50m\"",
            "\"sliding-log\"\nwait = \"1h\"",
            "\"redisson\"\nname = \"orders\"\nwait = \"1h\"",
        ] {
            if store.is_empty() && algorithm.contains("redisson") {
                continue;
            }
            let lines = format!("key = [\"ip\"]\nrate = \"1/h\"\nalgorithm = {algorithm}");
            let api = Upstream::echoing();
            let proxy = telling(&api, store, &[("budget", &lines)]).start();
            let usage = || left(&get(proxy.address, "/usage", &[]), 0);
            let read = |path: &str| get(proxy.admin(), path, &[("host", "localhost")]).json();
            assert_eq!(get(proxy.address, "/use", &[]).status, 200);
            let (told, holds) = (usage(), !algorithm.contains("sliding-window"));
            let mut held = Connection::open(proxy.address);
            if holds {
                assert!(falls_from(&told["retry_after_ms"], HOUR), "{store} {algorithm} {told}");
                held.send("GET /use HTTP/1.1\r\nhost: a\r\n\r\n");
                proxy.log.wait("throttled", |line| line["decision"] == "delayed");
            }
            let rejected = get(proxy.address, "/use", &[]);
            assert_eq!(rejected.status, 429, "{store} {algorithm}");
            let id = rejected.json()["instance"].as_str().unwrap().replace("urn:uuid:", "");
            // The times fall while the test asks.
            let told = [
                usage()["retry_after_ms"].take(),
                read("/api/limits/budget/keys/127.0.0.1")["retry_after_ms"].take(),
                read(&format!("/api/why/{id}"))["now"]["retry_after_ms"].take(),
                usage()["retry_after_ms"].take(),
            ];
            assert!(!holds || falls_from(&told[0], 2 * HOUR), "{store} {algorithm} {told:?}");
            let told = told.map(|time| time.as_u64().unwrap());
            assert!(told.is_sorted_by(|one, next| one >= next), "{store} {algorithm} {told:?}");
            assert!(told[0] - told[3] < 60_000, "{store} {algorithm} {told:?}");
        }
    });
}

#[test]
fn plans_overrides_and_bans_hold() {
    in_both_stores(|store| {
        let user = "key = [\"header:x-user\"]\nrate = \"2/h\"\nplans = { pro = \"50/h\" }\n\
                    overrides = [{ key = [\"vip\"], rate = \"70/h\" }]\n\
                    ban = { after = 1, within = \"1h\", for = \"2h\" }";
        let proxy = telling(&api(), store, &[("user", user)])
            .section("[plans]\nby = \"header:x-plan\"")
            .start();
        let ask = |path: &str, user: &str, plan: &str| {
            get(proxy.address, path, &[("x-user", user), ("x-plan", plan)])
        };
        let limit = |user: &str, plan: &str| left(&ask("/usage", user, plan), 0)["limit"].clone();
        let limits = || [limit("a", "free"), limit("a", "pro"), limit("vip", "pro")];
        assert_eq!(limits(), [2, 50, 70]);
        let of_all = |method: &str| {
            let fields = [("host", "localhost"), ("content-type", "application/json")];
            let (path, body) = ("/api/limits/user/override", br#"{"rate":"9/h"}"#);
            Connection::open(proxy.admin()).request(method, path, &fields, body).status
        };
        assert_eq!((of_all("PUT"), limits()), (200, [9, 50, 70].map(Value::from)));
        assert_eq!((of_all("DELETE"), limits()), (204, [2, 50, 70].map(Value::from)));
        assert_eq!([(); 3].map(|()| ask("/use", "b", "free").status), [200, 200, 429]);
        let told = left(&ask("/usage", "b", "free"), 0);
        assert_eq!((&told["limit"], &told["reset_ms"]), (&json!(0), &Value::Null), "{told}");
        assert!(falls_from(&told["retry_after_ms"], 2 * HOUR), "{told}");
    });
}

#[test]
fn a_key_that_is_missing_is_refused_as_on_every_route() {
    let key = "key = [\"header:x-user\"]\nmissing = \"reject\"\nrate = \"2/h\"";
    let proxy = telling(&api(), "", &[("user", key)]).start();
    assert_eq!(get(proxy.address, "/usage", &[]).status, 400);
    assert_eq!(get(proxy.address, "/usage", &[("x-user", "a")]).status, 200);
}

#[test]
fn the_own_limits_of_the_route_count_the_question_and_those_of_the_server_do_not() {
    in_both_stores(|store| {
        let proxy = Proxy::answering()
            .store(store)
            .server("limits = [\"all\"]")
            .limit("all", "key = []\nrate = \"1/h\"")
            .limit("asking", "key = [\"ip\"]\nrate = \"2/h\"")
            .route("path = \"/usage\"\nrespond = { usage = [\"all\", \"asking\"] }\nlimits = [\"asking\"]")
            .start();
        let mut client = Connection::open(proxy.address);
        for remaining in [1, 0] {
            let reply = client.get("/usage", &[]);
            assert_eq!(left(&reply, 0)["remaining"], 1, "{store}");
            assert_eq!(left(&reply, 1)["remaining"], remaining, "{store}");
            let field = reply.header("ratelimit").unwrap();
            assert_eq!(field.matches("\"asking\"").count(), 1, "{field}");
        }
        assert_eq!(client.get("/usage", &[]).violated(), ["asking"], "{store}");
    });
}

#[test]
fn every_protocol_and_method_is_told() {
    let proxy = telling(&api(), "", &[("user", "key = [\"ip\"]\nrate = \"2/h\"")]).start();
    let told = get(proxy.address, "/usage", &[]);
    assert_eq!(Client::open(proxy.address).get("/usage", &[]).json(), told.json());
    let head = Connection::open(proxy.address).request("HEAD", "/usage", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("ratelimit"), told.header("ratelimit"));
    assert_eq!(head.header("content-length"), told.header("content-length"));
}

/// A route that spends at two costs, and a key that is read from a body.
#[test]
fn what_a_route_spends_at_its_own_cost_is_told_in_tokens() {
    let proxy = Proxy::answering()
        .limit("budget", "key = [\"body:user\"]\nrate = \"100/365d\"")
        .route("path = \"/dear\"\nlimits = [{ name = \"budget\", cost = 5 }]")
        .route("path = \"/cheap\"\nlimits = [\"budget\"]")
        .route("path = \"/usage\"\nrespond = { usage = [\"budget\"] }")
        .start();
    let ask = |path: &str, user: &str| {
        let body = format!("{{\"user\":\"{user}\"}}");
        let json = [("content-type", "application/json")];
        Connection::open(proxy.address).request("POST", path, &json, body.as_bytes())
    };
    for path in ["/dear", "/cheap", "/dear"] {
        assert_eq!(ask(path, "a").status, 200);
    }
    let told = left(&ask("/usage", "a"), 0);
    assert_eq!(
        (&told["used"], &told["remaining"], &told["retry_after_ms"]),
        (&json!(11), &json!(89), &json!(0))
    );
    assert_eq!(left(&ask("/usage", "b"), 0)["used"], 0);
}

/// A log is looked at with other figures than its own.
#[test]
fn a_question_forgets_nothing_of_a_large_log() {
    in_both_stores(|store| {
        let proxy = Proxy::of_one_worker(&api())
            .store(store)
            .limit("log", "key = []\nrate = \"300/h\"\nalgorithm = \"sliding-log\"\ncost = 32")
            .route("path = \"/use\"\nlimits = [\"log\"]")
            .route("path = \"/usage\"\nrespond = { usage = [\"log\"] }")
            .start();
        let mut client = Connection::open(proxy.address);
        for used in [32, 64, 96, 128, 160, 192, 224, 256] {
            assert_eq!(client.get("/use", &[]).status, 200, "{store}");
            let told = left(&client.get("/usage", &[]), 0);
            assert_eq!(
                (&told["used"], &told["remaining"]),
                (&json!(used), &json!(300 - used)),
                "{store}"
            );
        }
    });
}

/// All limits of one key are asked in one call.
#[test]
fn redis_is_asked_once() {
    let redis = RedisServer::start();
    let names: Vec<_> = (0..5).map(|n| format!("l{n}")).collect();
    let line = "key = [\"ip\"]\nrate = \"10/h\"";
    let limits: Vec<_> = names.iter().map(|name| (&**name, line)).collect();
    let proxy = telling(&api(), &redis.fields(), &limits).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/usage", &[]).status, 200);
    let calls = || -> u64 {
        let told: String = redis.run(&["INFO", "commandstats"]);
        let calls = told.lines().filter(|line| line.starts_with("cmdstat_evalsha"));
        calls
            .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok())
            .sum()
    };
    let (before, begin) = (calls(), now());
    for _ in 0..50 {
        assert_eq!(client.get("/usage", &[]).status, 200);
    }
    let made = calls() - before;
    assert!(made <= 50 + own_calls(begin.elapsed()), "{made} calls for 50 questions");
}

#[test]
fn while_redis_is_away_the_process_says_what_it_knows() {
    let redis = RedisServer::start();
    let store = format!("url = \"{}\"\ntimeout = \"2s\"", redis.url());
    let limits = [
        ("local", "key = [\"ip\"]\nrate = \"10/h\""),
        ("open", "key = [\"ip\"]\nrate = \"10/h\"\non_store_error = \"allow\""),
        ("here", "key = [\"ip\"]\nrate = \"10/h\"\nscope = \"node\""),
        ("closed", "key = [\"ip\"]\nrate = \"10/h\"\non_store_error = \"reject\""),
    ];
    let proxy = telling(&api(), &store, &limits).start();
    let mut client = Connection::open(proxy.address);
    wait_until("Redis answers", || {
        let told = client.get("/usage", &[]).json();
        told.get("exact").is_none()
    });
    assert_eq!(client.get("/use", &[]).status, 200);
    redis.pause();
    let told = client.get("/usage", &[]);
    assert_eq!(told.status, 200);
    assert_eq!(told.json()["exact"], false, "{}", told.text());
    assert_eq!(left(&told, 0)["remaining"], 10, "this process's own bucket is new");
    assert_eq!(left(&told, 2)["remaining"], 9, "and this one was always here");
    for (limit, figure, retry) in [(1, Value::Null, json!(0)), (3, json!(0), Value::Null)] {
        let told = left(&told, limit);
        let figures = [&told["limit"], &told["remaining"], &told["retry_after_ms"]];
        assert_eq!(figures, [&figure, &figure, &retry], "as `unlimited`, or as `0/s`");
    }
    assert_eq!(client.get("/use", &[]).status, 503);
    redis.resume();
    wait_until("Redis is back", || {
        let told = client.get("/usage", &[]).json();
        // Redis may have counted the request that was answered with 503, too.
        told.get("exact").is_none() && told["limits"][0]["remaining"].as_u64() < Some(10)
    });
}
