//! Answers to throttled clients that an operator has written for the clients' libraries.

use crate::support::client::{Connection, Reply};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, nobody};

/// The first rejection of a proxy with these lines of `[reject]` and this rate.
fn rejected(rate: &str, reject: &str, headers: &[(&str, &str)]) -> Reply {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .limit("per-client", &format!("key = [\"ip\"]\nrate = \"{rate}\""))
        .section(&format!("[reject]\n{reject}"))
        .start();
    let mut client = Connection::open(proxy.address);
    if rate != "0/s" {
        assert_eq!(client.request("POST", "/", headers, b"").status, 200);
    }
    client.request("POST", "/", headers, b"")
}

fn number(reply: &Reply, name: &str) -> u64 {
    let value = reply.header(name).unwrap_or_else(|| panic!("no {name} in {reply:?}"));
    value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
}

#[test]
fn a_body_of_ones_own_names_limit_status_and_times() {
    let body = r#"body = '{"error":{"code":{status},"limit":"{limit}","s":{retry_after},"ms":{retry_after_ms}},"a":"{}"}'"#;
    let reject = format!("status = 503\ncontent_type = \"application/json\"\n{body}");
    let reply = rejected("1/h", &reject, &[]);
    assert_eq!(reply.status, 503);
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    let error = reply.json()["error"].clone();
    assert_eq!((&error["code"], &error["limit"]), (&503.into(), &"per-client".into()));
    assert_eq!(reply.json()["a"], "{}", "other braces stay");
    assert_eq!(error["s"].as_u64(), Some(number(&reply, "retry-after")));
    let exact = error["ms"].as_u64().unwrap();
    assert_eq!(exact.div_ceil(1_000), number(&reply, "retry-after"), "{exact}");
}

#[test]
fn times_are_empty_where_nothing_will_ever_pass() {
    let body = "body = \"{limit},{retry_after},{retry_after_ms},{status}\"";
    assert_eq!(rejected("0/s", body, &[]).text(), "per-client,,,429");
}

#[test]
fn the_first_limit_that_refuses_is_named() {
    let proxy = Proxy::answering()
        .limit("shadowed", "rate = \"0/s\"\nmode = \"shadow\"")
        .limit("open", "rate = \"1000/s\"")
        .limit("one", "rate = \"0/s\"")
        .limit("other", "rate = \"0/s\"")
        .section("[reject]\nbody = \"<{limit}>\"")
        .start();
    assert_eq!(Connection::open(proxy.address).get("/", &[]).text(), "<one>");
}

/// The wait shrinks from one rejection to the next, also within a second.
#[test]
fn the_exact_wait_is_told_in_milliseconds() {
    let reply = rejected("1/h", "headers = [\"retry-after\", \"retry-after-ms\"]", &[]);
    let exact = number(&reply, "retry-after-ms");
    assert!((3_590_000..=3_600_000).contains(&exact), "{exact}");
    assert_eq!(exact.div_ceil(1_000), number(&reply, "retry-after"));
    assert_eq!(reply.header("ratelimit"), None);

    let alone = rejected("1/h", "headers = [\"retry-after-ms\"]", &[]);
    assert_eq!(alone.header("retry-after"), None);
    assert!(number(&alone, "retry-after-ms") > 3_000_000);

    let never = rejected("0/s", "headers = [\"retry-after-ms\"]", &[]);
    assert_eq!(never.header("retry-after-ms"), None);
}

#[test]
fn a_wait_longer_than_the_longest_is_not_told() {
    let headers = "headers = [\"retry-after\", \"retry-after-ms\", \"ratelimit\"]";
    for (rate, longest, told) in [("1/h", "1h", true), ("1/h", "59m", false), ("1/d", "1h", false)]
    {
        let reject = format!("{headers}\nlongest_retry_after = \"{longest}\"");
        let reply = rejected(rate, &reject, &[]);
        assert_eq!(reply.header("retry-after").is_some(), told, "{rate} {longest}");
        assert_eq!(reply.header("retry-after-ms").is_some(), told, "{rate} {longest}");
        assert!(reply.header("ratelimit").unwrap().contains(";t="), "{reply:?}");
    }
}

#[test]
fn a_client_of_grpc_is_told_the_exact_wait() {
    let call = [("content-type", "application/grpc"), ("te", "trailers")];
    let reply = rejected("1/h", "longest_retry_after = \"1s\"", &call);
    assert_eq!(reply.header("grpc-status").as_deref(), Some("8"));
    let exact = number(&reply, "grpc-retry-pushback-ms");
    assert!((3_590_000..=3_600_000).contains(&exact), "{exact}");
    let never = rejected("0/s", "", &call);
    assert_eq!(never.header("grpc-retry-pushback-ms").as_deref(), Some("-1"));
    let plain = rejected("1/h", "", &[]);
    assert_eq!(plain.header("grpc-retry-pushback-ms"), None);
}

#[test]
fn a_problem_is_plain_json_for_a_client_that_takes_no_problem() {
    let takes = |accept| rejected("1/h", "", &[("accept", accept)]).header("content-type").unwrap();
    assert_eq!(takes("application/json"), "application/json");
    assert_eq!(takes("application/vnd.elasticsearch+json;compatible-with=8"), "application/json");
    assert_eq!(takes("application/json, */*;q=0.1"), "application/problem+json");
    assert_eq!(takes("text/html"), "application/problem+json");
    // The same holds for the other answers of the proxy.
    let proxy = Proxy::answering().route("path = \"/a\"").start();
    let reply = Connection::open(proxy.address).get("/b", &[("accept", "application/json")]);
    assert_eq!((reply.status, reply.json()["status"].as_u64()), (404, Some(404)));
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
}

#[test]
fn a_limit_has_its_own_type_and_longest_wait() {
    let own = "rate = \"1/h\"\nreject = { body = \"{}\", content_type = \"application/json\", \
               longest_retry_after = \"1s\" }";
    let proxy = Proxy::answering().limit("own", own).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    let reply = client.get("/", &[]);
    assert_eq!((reply.status, reply.text().as_str()), (429, "{}"));
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    assert_eq!(reply.header("retry-after"), None);
}

/// A regression: a cache in front kept an error, and gave it to all others. A route's fields for the answers of its API
/// are no reason to keep an error.
#[test]
fn no_cache_may_keep_what_the_proxy_answers_itself() {
    let kept = "response_headers = { set = { cache-control = \"max-age=60\" } }";
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .section(&format!("[upstreams.dead]\nservers = [\"{}\"]", nobody()))
        .limit("none", "rate = \"0/s\"")
        .limit("keyed", "key = [\"header:x-key\"]\nrate = \"9/h\"\nmissing = \"reject\"")
        .route("path = \"/api\"")
        .route("path = \"/limited\"\nlimits = [\"none\"]")
        .route(&format!("path = \"/changed\"\nlimits = [\"none\"]\n{kept}"))
        .route("path = \"/keyed\"\nlimits = [\"keyed\"]")
        .route(&format!("path = \"/dead\"\nupstream = \"dead\"\n{kept}"))
        .section("[[routes]]\npath = \"/own\"\nrespond = { status = 404, body = \"gone\" }")
        .section(&format!("[[routes]]\npath = \"/kept\"\nrespond = {{ body = \"a\" }}\n{kept}"))
        .section("[[routes]]\npath = \"/put\"\nmethods = [\"PUT\"]\nrespond = {}")
        .start();
    let (mut old, mut new) = (Connection::open(proxy.address), Client::open(proxy.address));
    let none = Some("no-store");
    for (method, path, status, expected) in [
        ("GET", "/limited", 429, none),
        ("HEAD", "/limited", 429, none),
        ("GET", "/changed", 429, none),
        ("GET", "/keyed", 400, none),
        ("GET", "/dead", 502, none),
        ("GET", "/nowhere", 404, none),
        ("GET", "/put", 405, none),
        ("GET", "/a%2fb", 400, none),
        ("GET", "/own", 404, none),
        ("GET", "/kept", 200, Some("max-age=60")),
        ("GET", "/api", 200, None),
    ] {
        for reply in [old.request(method, path, &[], b""), new.begin(method, path, &[]).reply()] {
            assert_eq!(reply.status, status, "{path}");
            assert_eq!(reply.header("cache-control").as_deref(), expected, "{path}");
        }
    }
    let call = [("content-type", "application/grpc"), ("te", "trailers")];
    for path in ["/limited", "/dead", "/nowhere"] {
        let reply = new.post(path, &call, b"x");
        assert_eq!((reply.status, reply.header("cache-control").as_deref()), (200, none), "{path}");
    }
}
