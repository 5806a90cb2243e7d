//! Keys of requests, and the spellings of key sources.

use http::{HeaderName, HeaderValue};

use super::*;
use crate::request::network::ClientPrefixes;
use crate::request::route::Pattern;

struct SampleRequest<'t> {
    path: &'t str,
    query: Option<&'t str>,
    client: &'t str,
    headers: &'t [(&'static str, &'t str)],
    cert: Option<&'t str>,
}

const PLAIN: SampleRequest<'_> = SampleRequest {
    path: "/users/42",
    query: None,
    client: "203.0.113.7",
    headers: &[],
    cert: None,
};

fn spec(sources: &[&str], missing: Missing) -> KeySpec {
    let sources: Vec<_> = sources.iter().map(|text| text.parse().expect(text)).collect();
    KeySpec { sources: sources.into(), missing, prefixes: ClientPrefixes::default() }
}

fn keyed(spec: &KeySpec, request: &SampleRequest<'_>) -> Result<Option<Key>, KeyError> {
    let mut headers = HeaderMap::new();
    for (name, value) in request.headers {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
    }
    let pattern: Pattern = "/users/{id}".parse().expect("a pattern");
    let path = NormalPath::parse(request.path, true).expect(request.path);
    let params =
        if pattern.matches(&path) { PathParams::of(&pattern, &path) } else { PathParams::none() };
    spec.key(&View {
        methods: &HashSet::new(),
        path: &path,
        query: request.query,
        method: &Method::GET,
        host: b"api.example",
        route: "users",
        client: request.client.parse().expect(request.client),
        headers: &headers,
        params,
        cert: request.cert,
        token: Token::NONE,
        body: None,
        id: None,
        has_end: true,
        may_wait: true,
        cost: None,
        counted: None,
    })
}

fn key(sources: &[&str], request: &SampleRequest<'_>) -> String {
    match keyed(&spec(sources, Missing::Shared), request) {
        Ok(Some(key)) => key.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn the_subject_of_a_certificate_is_shown_as_it_is() {
    let alice = SampleRequest { cert: Some("CN=a|b,O=Example"), ..PLAIN };
    assert_eq!(key(&["cert"], &alice), "CN=a%7Cb,O=Example");
    assert_eq!(key(&["cert", "ip"], &PLAIN), "%-|203.0.113.7");
    assert!(!spec(&["cert"], Missing::Shared).has_secrets());
    assert_eq!(keyed(&spec(&["cert"], Missing::Skip), &PLAIN), Ok(None));
    let refused = keyed(&spec(&["cert"], Missing::Reject), &PLAIN).unwrap_err();
    assert_eq!(refused.to_string(), "the client certificate is missing");
}

#[test]
fn each_source_has_its_value() {
    let headers = [("x-api-key", "a|b"), ("cookie", "a=1; s=\"x=y\""), ("cookie", "t = 2;u")];
    let request = SampleRequest {
        path: "/users/a%20b%3Ac;v=1",
        query: Some("q=1+2&n%61me=%41%2b&flag&=x&bad=%zz"),
        headers: &headers,
        ..PLAIN
    };
    for (sources, expected) in [
        (&[][..], ""),
        (&["ip"], "203.0.113.7"),
        (&["path"], "/users/a%2520b:c"),
        (&["method"], "GET"),
        (&["host"], "api.example"),
        (&["route"], "users"),
        (&["header:X-API-Key"], "a%7Cb"),
        (&["header:x-other"], "%-"),
        (&["cookie:a"], "1"),
        (&["cookie:s"], "x=y"),
        (&["cookie:t"], "2"),
        (&["cookie:u"], "%-"),
        (&["cookie:A"], "Err(Ambiguous(Cookie(\"A\")))"),
        (&["query:q"], "1 2"),
        (&["query:name"], "A+"),
        (&["query:flag"], ""),
        (&["query:bad"], "%25zz"),
        (&["query:x"], "%-"),
        (&["param:id"], "a b:c"),
        (&["param:other"], "%-"),
        (&["ip", "method", "cookie:none"], "203.0.113.7|GET|%-"),
    ] {
        assert_eq!(key(sources, &request), expected, "{sources:?}");
    }
}

#[test]
fn addresses_are_counted_by_network() {
    for (client, v4, prefix, expected) in [
        ("203.0.113.7", 32, 64, "203.0.113.7"),
        ("203.0.113.7", 24, 64, "203.0.113.0/24"),
        ("::ffff:203.0.113.7", 1, 64, "128.0.0.0/1"),
        ("2001:db8::1:2:3:4", 32, 64, "2001:db8::/64"),
        ("2001:db8:1:2ff::1", 32, 56, "2001:db8:1:200::/56"),
        ("2001:db8::1", 32, 128, "2001:db8::1/128"),
        ("2001:db8::1", 32, 1, "::/1"),
        (
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            32,
            128,
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
        ),
    ] {
        let prefixes = ClientPrefixes { v4, v6: prefix };
        let spec = KeySpec { prefixes, ..spec(&["ip"], Missing::Shared) };
        let Ok(Some(key)) = keyed(&spec, &SampleRequest { client, ..PLAIN }) else {
            panic!("{client} has no key");
        };
        assert_eq!(key.as_str(), expected, "{client}");
        assert!(!ip_text(client.parse().expect(client), prefixes).spilled());
    }
}

#[test]
fn a_repeated_part_is_refused() {
    let twice = [("x-a", "1"), ("x-a", "1"), ("cookie", "c=1"), ("cookie", "d=2; c=1")];
    let request = SampleRequest { query: Some("q=1&%71=2"), headers: &twice, ..PLAIN };
    for source in ["header:x-a", "cookie:c", "query:q"] {
        for missing in [Missing::Shared, Missing::Skip, Missing::Reject] {
            // The error comes even if another part is missing.
            let spec = spec(&["header:none", source], missing);
            let expected = KeyError::Repeated(source.parse().expect(source));
            assert_eq!(keyed(&spec, &request), Err(expected), "{source} {missing:?}");
        }
    }
    assert_eq!(key(&["cookie:d"], &request), "2");
}

#[test]
fn a_missing_part_is_treated_as_the_limit_says() {
    let sources = ["ip", "header:x-a"];
    assert_eq!(key(&sources, &PLAIN), "203.0.113.7|%-");
    assert_eq!(keyed(&spec(&sources, Missing::Skip), &PLAIN), Ok(None));
    let absent = keyed(&spec(&sources, Missing::Reject), &PLAIN).expect_err("missing");
    assert_eq!(absent.to_string(), "the header `x-a` is missing");
    let empty = SampleRequest { headers: &[("x-a", "")], ..PLAIN };
    assert_eq!(key(&sources, &empty), "203.0.113.7|");
    assert!(matches!(keyed(&spec(&sources, Missing::Reject), &empty), Ok(Some(_))));
}

#[test]
fn secrets_are_hashed_and_nothing_else() {
    let request = SampleRequest { query: Some("q=abc"), headers: &[("x-a", "a|b%")], ..PLAIN };
    let spec = spec(&["ip", "query:q", "header:none", "param:id", "header:x-a"], Missing::Shared);
    let Ok(Some(key)) = keyed(&spec, &request) else { panic!("no key") };
    assert!(spec.has_secrets());
    // SHA-256 of `abc` and of `a|b%`: of the values, not of their spelling in a key.
    assert_eq!(
        spec.hashed(&key).as_str(),
        format!("203.0.113.7|ungWv48Bz-pBQUDeXa4iIw|%-|42|{}", hash(b"a|b%"))
    );
    let open = self::spec(&["ip", "path", "param:id"], Missing::Shared);
    let Ok(Some(key)) = keyed(&open, &request) else { panic!("no key") };
    assert!(!open.has_secrets());
    assert_eq!(open.hashed(&key), key);
}

#[test]
fn sources_are_written_as_they_are_read() {
    for text in [
        "ip",
        "path",
        "method",
        "host",
        "route",
        "header:x-api-key",
        "cookie:s",
        "query:a:b",
        "query:ä",
        "param:id",
    ] {
        assert_eq!(text.parse::<KeySource>().expect(text).to_string(), text);
    }
    let upper: KeySource = "header:X-Key".parse().expect("a source");
    assert_eq!(upper, KeySource::Header(HeaderName::from_static("x-key")));
}

#[test]
fn an_invalid_source_is_an_error() {
    for (text, word) in [
        ("", "`header:NAME`"),
        ("Ip", "`ip`"),
        ("ip:x", "`ip`"),
        ("header", "`header:NAME`"),
        ("query:", "`query:NAME`"),
        ("header:a b", "name of a header"),
        ("cookie:a=b", "name of a cookie"),
    ] {
        let error = text.parse::<KeySource>().expect_err(text).to_string();
        assert!(error.contains(word), "{text}: {error}");
    }
}
