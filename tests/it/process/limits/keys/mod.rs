//! What a limit counts by: every source of a key, and every spelling of one and the same value.

mod address;
mod bodies;
mod mcp;
mod parts;
mod spellings;

use std::net::SocketAddr;

use crate::support::client::Connection;
use crate::support::proxy::Proxy;

/// Method, target, headers, and the status that must come.
type Step<'s> = (&'s str, &'s str, &'s [(&'s str, &'s str)], u16);

/// One bucket holds one token for an hour: the first request of a key passes, the next do not.
fn proxy(server: &str, limit: &str, path: &str) -> Proxy {
    Proxy::answering()
        .server(server)
        .limit("one", &format!("rate = \"1/h\"\n{limit}"))
        .route(&format!("path = \"{path}\"\nlimits = [\"one\"]"))
}

fn walk(address: SocketAddr, steps: &[Step<'_>]) {
    for (place, (method, target, headers, status)) in steps.iter().enumerate() {
        let reply = Connection::open(address).request(method, target, headers, b"");
        assert_eq!(reply.status, *status, "step {place}: {method} {target} {headers:?}");
    }
}

fn check(server: &str, limit: &str, path: &str, steps: &[Step<'_>]) {
    let proxy = proxy(server, limit, path).start();
    walk(proxy.address, steps);
}

fn check_headers(server: &str, limit: &str, steps: &[(&[(&str, &str)], u16)]) {
    let steps: Vec<_> =
        steps.iter().map(|(headers, status)| ("GET", "/", *headers, *status)).collect();
    check(server, limit, "/{*rest}", &steps);
}

fn check_targets(limit: &str, path: &str, steps: &[(&str, u16)]) {
    let steps: Vec<_> =
        steps.iter().map(|(target, status)| ("GET", *target, &[][..], *status)).collect();
    check("", limit, path, &steps);
}

#[test]
fn each_source_is_read_in_any_spelling() {
    let host = |host| [("host", host)];
    let (api, upper, dot) = (host("api.test"), host("API.Test:8080"), host("api.test."));
    let (six, long) = (host("[::1]:80"), host("[0:0::1]"));
    for (key, path, steps) in [
        ("", "/{*rest}", &[("GET", "/a", &[][..], 200), ("POST", "/b", &host("x"), 429)][..]),
        (
            "path",
            "/{*rest}",
            &[
                ("GET", "/a/b", &[], 200),
                ("GET", "//x/%2e%2E/%61/./b;w?x=1", &[], 429),
                ("GET", "/a/b/", &[], 200),
                ("GET", "/A/b", &[], 200),
                // Nobody can tell what the API makes of it.
                ("GET", "/a%2Fb", &[], 400),
            ],
        ),
        (
            "method",
            "/{*rest}",
            &[
                ("GET", "/", &[], 200),
                ("GET", "/a", &[], 429),
                ("HEAD", "/", &[], 200),
                ("BREW", "/", &[], 200),
                ("MIX", "/", &[], 429),
            ],
        ),
        (
            "host",
            "/{*rest}",
            &[
                ("GET", "/", &api, 200),
                ("GET", "/", &upper, 429),
                ("GET", "/", &dot, 429),
                ("GET", "/", &six, 200),
                ("GET", "/", &long, 429),
                // An absolute target's host is the one that counts.
                ("GET", "http://api.test/", &host("two.test"), 429),
                ("GET", "http://two.test/", &api, 200),
            ],
        ),
        (
            "param:id",
            "/users/{id}/orders",
            &[
                ("GET", "/users/42/orders", &[], 200),
                ("GET", "/users/%34%32/orders", &[], 429),
                ("GET", "/users/42;v=1/orders", &[], 429),
                ("GET", "/x/../users/42/orders?a", &[], 429),
                ("GET", "/users/43/orders", &[], 200),
                ("GET", "/users/a%7Cb/orders", &[], 200),
                ("GET", "/users/a%7cb/orders", &[], 429),
            ],
        ),
    ] {
        let sources = if key.is_empty() { String::new() } else { format!("\"{key}\"") };
        check("", &format!("key = [{sources}]"), path, steps);
    }
}

#[test]
fn by_the_first_alternative_that_a_request_has() {
    let mut proxy = proxy(
        "trusted_proxies = [\"127.0.0.0/8\"]",
        "key = [\"header:x-api-key | cookie:session | ip\"]\n\
         overrides = [{ key = [\"partner\"], rate = \"2/h\" }]",
        "/{*rest}",
    )
    .start();
    let here = ("x-forwarded-for", "203.0.113.7");
    walk(
        proxy.address,
        &[
            ("GET", "/", &[here], 200),
            ("GET", "/", &[here], 429),
            ("GET", "/", &[here, ("x-api-key", "a")], 200),
            ("GET", "/", &[("x-forwarded-for", "203.0.113.8"), ("x-api-key", "a")], 429),
            // The same value is another key as another alternative.
            ("GET", "/", &[here, ("x-api-key", "203.0.113.7")], 200),
            ("GET", "/", &[here, ("cookie", "session=203.0.113.7")], 200),
            ("GET", "/", &[here, ("cookie", "session=a"), ("x-api-key", "b")], 200),
            ("GET", "/", &[here, ("cookie", "session=a")], 200),
            ("GET", "/", &[here, ("cookie", "session=a")], 429),
            // Only the first alternative's values have overrides.
            ("GET", "/", &[here, ("x-api-key", "partner")], 200),
            ("GET", "/", &[here, ("x-api-key", "partner")], 200),
            ("GET", "/", &[here, ("x-api-key", "partner")], 429),
            ("GET", "/", &[here, ("cookie", "session=partner")], 200),
            ("GET", "/", &[here, ("cookie", "session=partner")], 429),
            ("GET", "/", &[here, ("x-api-key", "a"), ("x-api-key", "b")], 400),
        ],
    );
    assert!(proxy.stop().success());
    let keys: Vec<_> = proxy.log.with("throttled").iter().map(|it| it["key"].clone()).collect();
    assert_eq!(keys[0], "%3=203.0.113.7", "the text by which the key is looked up");
    assert_eq!(keys[1].as_str().unwrap().len(), 22, "a secret one hashed: {keys:?}");
}

#[test]
fn by_route() {
    let proxy = proxy("", "key = [\"route\"]", "/a/{id}")
        .route("path = \"/b\"\nlimits = [\"one\"]")
        .start();
    walk(
        proxy.address,
        &[
            ("GET", "/a/1", &[], 200),
            ("GET", "/a/2", &[], 429),
            ("GET", "/b", &[], 200),
            ("GET", "/b", &[], 429),
        ],
    );
}

#[test]
fn by_header() {
    let key = |value| [("x-api-key", value)];
    check_headers(
        "",
        "key = [\"header:X-Api-Key\"]",
        &[
            (&key("a"), 200),
            (&[("X-API-KEY", "a")], 429),
            (&key("b"), 200),
            (&key("A"), 200),
            // None, and an empty one, are two.
            (&[], 200),
            (&[], 429),
            (&key(""), 200),
            (&key(""), 429),
            // Nobody can tell which of the two the API reads.
            (&[("x-api-key", "c"), ("x-api-key", "d")], 400),
            (&key("c"), 200),
            // Some APIs know no difference between a dash and an underscore: to others there is no key.
            (&[("x_api_key", "new")], 400),
            (&[("x-api_key", "new")], 400),
            (&[("x-api-key", "d"), ("x_api_key", "c")], 400),
            (&[("xapikey", "new")], 429),
        ],
    );
}

#[test]
fn by_cookie() {
    let cookie = |value| [("cookie", value)];
    check_headers(
        "",
        "key = [\"cookie:session\"]",
        &[
            (&cookie("session=a"), 200),
            (&cookie("theme=dark; session=a; x=y"), 429),
            (&cookie("theme=dark;session=a"), 429),
            (&cookie("session=\"a\""), 429),
            (&[("cookie", "theme=dark"), ("cookie", "session=a")], 429),
            (&cookie("Session=a"), 400),
            (&cookie("xsession=a"), 200),
            (&[], 429),
            (&cookie("session=b; session=c"), 400),
            (&[("cookie", "session=b"), ("cookie", "session=b")], 400),
            (&cookie("session=b"), 200),
            // In all ways in which some APIs read it.
            (&cookie("session=%62"), 429),
            (&cookie("session=\"%62\""), 429),
            (&cookie("session=\"\\142\""), 429),
            (&cookie("session=\"\\b\""), 429),
            // And where only some find one, or find its end elsewhere.
            (&cookie("x=1, session=new"), 400),
            (&cookie("x=1 session=new"), 400),
            (&cookie("x=\"1, session=new\""), 400),
            (&cookie("session=c; x=1 session=b"), 400),
            (&cookie("session=c d"), 400),
            (&cookie("session=c a=1"), 400),
            (&cookie("session=c,a=1"), 400),
            (&cookie("session=\"c; a"), 400),
            (&cookie("session=\"c d\""), 200),
            (&cookie("session=c; x=1, y=2 z"), 200),
        ],
    );
}

#[test]
fn by_query_parameter() {
    check_targets(
        "key = [\"query:api key\"]",
        "/{*rest}",
        &[
            ("/?api+key=a", 200),
            ("/?x=1&api%20key=a&y", 429),
            ("/?%61pi+key=%61", 429),
            ("/?api+key=a+b", 200),
            ("/?api+key=a%20b", 429),
            ("/?api+key=a%2Bb", 200),
            ("/?api+key", 200),
            ("/?api+key=", 429),
            ("/", 200),
            ("/?apikey=a", 429),
            ("/?api+key=c&api+key=d", 400),
            ("/?api+key=c&%61pi%20key=c", 400),
            ("/?api+key=c", 200),
            // Some APIs take a semicolon for an ampersand, and some do not.
            ("/?x=1;api+key=new", 400),
            ("/?api+key=c;x", 400),
            ("/?x=1;api+key=c&api+key=d", 400),
            ("/?x=1;y=2&api+key=e", 200),
            ("/?api+key=c%3Bx", 200),
        ],
    );
}

#[test]
fn what_is_missing_is_shared_skipped_or_refused() {
    let with: &[(&str, &str)] = &[("x-a", "1")];
    for (missing, statuses) in [
        ("shared", [200, 429, 200, 429]),
        ("skip", [200, 200, 200, 429]),
        ("reject", [400, 400, 200, 429]),
    ] {
        let limit = format!("key = [\"ip\", \"header:x-a\"]\nmissing = \"{missing}\"");
        let steps =
            [(&[][..], statuses[0]), (&[], statuses[1]), (with, statuses[2]), (with, statuses[3])];
        check_headers("", &limit, &steps);
    }
    // A name that is there twice is refused whatever else is missing.
    check_headers(
        "",
        "key = [\"header:x-a\", \"header:x-b\"]\nmissing = \"skip\"",
        &[(&[("x-b", "1"), ("x-b", "2")], 400), (&[("x-b", "1")], 200)],
    );
}

#[test]
fn secrets_are_hashed_in_the_log_unless_plain_is_asked_for() {
    let limit = "key = [\"ip\", \"header:x-api-key\"]";
    let headers: &[(&str, &str)] = &[("x-api-key", "s3cret")];
    // The first 128 bits of SHA-256 of `s3cret`, base64url.
    let hashed = "127.0.0.1|HsHCa1DV08WNlYMYGvgHZg";
    for (log, key) in [("", hashed), ("[log]\nkeys = \"plain\"", "127.0.0.1|s3cret")] {
        let mut proxy = proxy("", limit, "/{*rest}").section(log).start();
        walk(proxy.address, &[("GET", "/", headers, 200), ("GET", "/", headers, 429)]);
        assert!(proxy.stop().success());
        assert_eq!(proxy.log.find("throttled").unwrap()["key"], key);
        assert_eq!(proxy.log.text().contains("s3cret"), key.contains("s3cret"));
    }
}
