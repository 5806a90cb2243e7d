//! What the admin endpoint says of limits, and what it refuses.

use serde_json::json;

use super::{all, ask, by_user, passes, set};
use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;

const OVERRIDE: &str = "/user/keys/b/override?plain";

fn limited() -> Proxy {
    let limits = "[limits.slots]\nkey = []\nalgorithm = \"concurrency\"\nlimit = 3\n\
                  [limits.dear]\nkey = [\"ip\"]\nrate = \"9/h\"\ncost = 5\n\
                  [limits.said]\nkey = [\"ip\"]\nrate = \"9/h\"\n\
                  cost = { header = \"x-cost\", default = 4 }\n\
                  [limits.calendar]\nkey = [\"ip\"]\nrate = \"9/d\"\nalgorithm = \"fixed-window\"\n\
                  align = \"clock\"\ncost = { header = \"x-cost\", default = 4 }\n\
                  [limits.leaky]\nkey = [\"ip\"]\nrate = \"9/h\"\nalgorithm = \"leaky-bucket\"\n\
                  cost = { response_header = \"x-cost\", estimate = 4 }\n\
                  [limits.off]\nkey = [\"ip\"]\nrate = \"9/h\"\nmode = \"off\"\n\
                  [limits.log]\nkey = [\"ip\"]\nalgorithm = \"sliding-log\"\nrate = \"100/h\"\n\
                  [limits.twice]\nkey = [\"ip\", \"method\"]\nrate = \"9/h\"";
    by_user("rate = \"2/h\"\nburst = 3", "").limits(limits)
}

#[test]
fn the_limits_are_listed_with_their_figures() {
    let proxy = limited().start();
    let told = all(&proxy);
    assert_eq!(
        told["limits"][0],
        json!({
            "name": "user", "key": ["header:x-user"], "hashed": true, "algorithm": "token-bucket",
            "rate": "2/h", "burst": 3, "mode": "enforce", "scope": "cluster",
        })
    );
    assert_eq!(told["limits"][1]["algorithm"], "concurrency");
    assert_eq!(
        (&told["limits"][1]["burst"], told["overrides"].as_array().unwrap().len()),
        (&json!(3), 0)
    );
    let slots = ask(proxy.admin(), "GET", "/slots/keys/", "").json();
    assert_eq!((&slots["remaining"], &slots["reset_ms"]), (&json!(3), &json!(null)));
    let log = || ask(proxy.admin(), "GET", "/log/keys/127.0.0.1", "").json();
    assert_eq!((&log()["remaining"], &log()["reset_ms"]), (&json!(100), &json!(0)));
    assert!(passes(&proxy, "b"));
    let told = log();
    assert_eq!(told["remaining"], 99);
    let reset = told["reset_ms"].as_u64().unwrap();
    assert!((3_540_000..=3_600_000).contains(&reset), "when the newest entry is over: {reset}");
    let head = ask(proxy.admin(), "HEAD", "", "");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("cache-control").unwrap(), "no-store");
}

#[test]
fn what_cannot_be_is_refused_in_plain_words() {
    let proxy = limited().start();
    let long = format!("{{\"rate\":\"1/s\",\"reason\":\"{}\"}}", "a".repeat(201));
    let huge = format!("{{\"rate\":\"{}\"}}", "1".repeat(20_000));
    let fine = "{\"rate\":\"1/s\"}";
    for (method, path, body, status, words) in [
        ("PUT", "/none/keys/b/override", fine, 404, "no limit `none`: there are `"),
        ("GET", "/off/keys/192.0.2.1", "", 404, "mode = \\\"off\\\""),
        ("GET", "/user", "", 404, "/api/limits"),
        ("PUT", "/user/keys/b/override", fine, 422, "?plain"),
        ("PUT", "/user/keys/*/override?plain", fine, 422, "more than one key"),
        ("PUT", "/twice/keys/192.0.2.1/override", fine, 422, "1 of 2 values"),
        ("GET", "/dear/keys/nowhere", "", 422, "no address"),
        ("PUT", "/slots/keys//override", fine, 422, "takes `limit`"),
        ("PUT", "/dear/keys/192.0.2.1/override", "{\"rate\":\"4/h\"}", 422, "takes 5 tokens"),
        (
            "PUT",
            "/said/keys/192.0.2.1/override",
            "{\"rate\":\"3/h\"}",
            422,
            "`x-cost` takes 4 tokens",
        ),
        (
            "PUT",
            "/calendar/keys/192.0.2.1/override",
            "{\"rate\":\"3/d\"}",
            422,
            "bucket would hold 3",
        ),
        (
            "PUT",
            "/leaky/keys/192.0.2.1/override",
            "{\"rate\":\"9/h\",\"queue\":2}",
            422,
            "bucket would hold 3",
        ),
        ("PUT", OVERRIDE, "", 400, "no JSON"),
        ("PUT", OVERRIDE, "{", 400, "no JSON"),
        ("PUT", OVERRIDE, "[]", 422, "expected an object"),
        ("PUT", OVERRIDE, "{}", 422, "expected `rate`"),
        ("PUT", OVERRIDE, "{\"rate\":7}", 422, "`rate` must be a text"),
        ("PUT", OVERRIDE, "{\"rate\":\"7\"}", 422, "`7` is no rate"),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"burst\":-1}", 422, "`burst` must be a whole number"),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"burst\":0}", 422, "of 0 tokens cannot be"),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"queue\":1}", 422, "leaky-bucket"),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"for\":\"soon\"}", 422, "`soon` is no time"),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"for\":\"3651d\"}", 422, "at most \\\"3650d\\\""),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"for\":\"0s\"}", 422, "`0s` would end at once"),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"bust\":1}", 422, "`bust` is none of `rate`"),
        ("PUT", OVERRIDE, &long, 422, "201 characters: expected at most 200"),
        (
            "PUT",
            OVERRIDE,
            "{\"rate\":\"1/s\",\"reason\":\"a\\nb\"}",
            422,
            "U+000A, which breaks a line",
        ),
        ("PUT", OVERRIDE, "{\"rate\":\"1/s\",\"reason\":\"a\u{202e}b\"}", 422, "one line"),
        ("PUT", OVERRIDE, &huge, 413, "16384 bytes"),
        ("DELETE", OVERRIDE, "", 404, "no override was set"),
    ] {
        let reply = ask(proxy.admin(), method, path, body);
        assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.text());
        assert_eq!(reply.header("content-type").unwrap(), "application/problem+json");
        assert_eq!(reply.json()["status"], status);
        assert!(reply.text().contains(words), "{words} in {}", reply.text());
    }
    assert_eq!(all(&proxy)["overrides"], json!([]), "nothing was set");
    for (path, body) in [
        ("/said/keys/192.0.2.1/override", "{\"rate\":\"3/h\",\"burst\":4}"),
        ("/calendar/keys/192.0.2.1/override", "{\"rate\":\"0/s\"}"),
        ("/leaky/keys/192.0.2.1/override", "{\"rate\":\"9/h\",\"queue\":3}"),
    ] {
        assert_eq!(ask(proxy.admin(), "PUT", path, body).status, 200, "{path} {body}");
    }
}

#[test]
fn a_path_has_its_methods() {
    let proxy = limited().start();
    for (method, path, allow) in [
        ("POST", "", "GET, HEAD"),
        ("DELETE", "", "GET, HEAD"),
        ("PUT", "/user/keys/b", "GET, HEAD, DELETE"),
        ("GET", OVERRIDE, "PUT, DELETE"),
    ] {
        let reply = ask(proxy.admin(), method, path, "");
        assert_eq!((reply.status, reply.header("allow").as_deref()), (405, Some(allow)), "{path}");
    }
    for path in ["/", "/user", "/user/keys", "/user/keys/b/c", "/user/keys/b/override/c", "s"] {
        assert_eq!(ask(proxy.admin(), "GET", path, "").status, 404, "{path}");
    }
}

#[test]
fn a_redisson_limiter_is_changed_in_redis_alone() {
    let server = RedisServer::start();
    let limit = "key = []\nalgorithm = \"redisson\"\nname = \"orders\"\nrate = \"2/h\"";
    let store = server.fields();
    let proxy = Proxy::answering().admin().limit("orders", limit).store(&store).start();
    assert!(passes(&proxy, "b"));
    let seen = ask(proxy.admin(), "GET", "/orders/keys/", "").json();
    assert_eq!(seen["remaining"], 1, "{seen}");
    let put = ask(proxy.admin(), "PUT", "/orders/keys//override", "{\"rate\":\"1/s\"}");
    assert_eq!(put.status, 422);
    assert!(put.text().contains("tidegate redisson set"), "{}", put.text());
    assert_eq!(ask(proxy.admin(), "DELETE", "/orders/keys/", "").status, 204);
    let line = proxy.log.wait("bucket reset", |_| true);
    assert_eq!((&line["limit"], &line["key"]), (&json!("orders"), &json!("")));
    assert_eq!(ask(proxy.admin(), "GET", "/orders/keys/", "").json()["remaining"], 2);
}

#[test]
fn there_is_room_for_a_thousand() {
    let proxy = limited().start();
    let mut admin = Connection::open(proxy.admin());
    let headers = [("host", "localhost"), ("content-type", "application/json")];
    let mut put = |n: usize| {
        let path = format!("/api/limits/user/keys/{n}/override?plain");
        admin.request("PUT", &path, &headers, b"{\"rate\":\"1/s\"}").status
    };
    assert!((0..1_000).all(|n| put(n) == 200));
    assert_eq!((put(1_000), put(999)), (409, 200));
    set(&proxy, "0", "{\"rate\":\"2/s\"}");
}
