//! Targets that the `http` crate does not take, and browsers and old clients send.

use crate::support::client::{Connection, raw};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

/// A target as it comes, and as the API gets it.
const TARGETS: [(&[u8], &str); 6] = [
    (b"/a?q={\"a\":[1,\"<b>\"]}", "/a?q={%22a%22:[1,%22%3Cb%3E%22]}"),
    (b"/a?q=|\\^`{}'", "/a?q=|\\^`{}'"),
    (b"/a<b>`\"|?q", "/a%3Cb%3E%60\"|?q"),
    (b"http://api.test/a?\"", "/a?%22"),
    (b"/a?q=\xC3\xA9", "/a?q=é"),
    (b"/\xFF?q=\xFF\xC3", "/%FF?q=%FF%C3"),
];

fn head(method: &str, target: &[u8], fields: &str) -> Vec<u8> {
    let rest = format!(" HTTP/1.1\r\nhost: api.test\r\nx-kept: \"<>?\r\n{fields}\r\n");
    [method.as_bytes(), b" ", target, rest.as_bytes()].concat()
}

#[test]
fn what_other_servers_forward_is_forwarded_encoded() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut kept = Connection::open(proxy.address);
    for (target, expected) in TARGETS {
        let check = |client: &mut Connection, method: &str, body: &[u8]| {
            assert_eq!(client.reply(method).status, 200, "{expected}");
            let got = api.last();
            assert_eq!(got.line, format!("{method} {expected} HTTP/1.1"));
            assert_eq!(got.header("x-kept").as_deref(), Some("\"<>?"));
            assert_eq!(got.body, body, "{expected}");
        };
        let mut client = Connection::open(proxy.address);
        client.send(head("GET", target, ""));
        check(&mut client, "GET", b"");
        // Each byte by itself, behind an empty line.
        for byte in [b"\r\n", &head("GET", target, "")[..]].concat() {
            client.send([byte]);
        }
        check(&mut client, "GET", b"");
        // Behind each other on one connection, with bodies of which nothing may change.
        let body = b"GET /?\" HTTP/1.1\r\n\r\n";
        for _ in 0..2 {
            let length = format!("content-length: {}\r\n", body.len());
            kept.send([&head("POST", target, &length), &body[..]].concat());
            check(&mut kept, "POST", body);
            let chunk = format!("{:x}\r\n", body.len());
            kept.send(head("PUT", target, "transfer-encoding: chunked\r\n"));
            kept.send([chunk.as_bytes(), body, b"\r\n"].concat());
            kept.send("0\r\n\r\n");
            check(&mut kept, "PUT", body);
            kept.send(head("GET", target, ""));
            check(&mut kept, "GET", b"");
        }
    }
}

#[test]
fn a_line_that_is_no_line_reaches_nobody() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).admin().start();
    for line in [
        "G\"T /?\" HTTP/1.1",
        "GET /?a=\" \" HTTP/1.1",
        "GET /?\" HTTP/1.1\"",
        "GET /?\"\u{1}\" HTTP/1.1",
        "GET a?\" HTTP/1.1",
        "GET /?\"",
        "GET /a#/../login HTTP/1.1",
        "GET /?a=1#&api_key=KEY HTTP/1.1",
        "GET http://api.test/#a HTTP/1.1",
        "GET http://api.test#a HTTP/1.1",
    ] {
        let text = raw(proxy.address, format!("{line}\r\nhost: api.test\r\n\r\n"));
        assert!(text.starts_with("HTTP/1.1 400 "), "{line}: {text}");
    }
    assert_eq!(api.requests().len(), 0);
    assert!(Metrics::of(proxy.admin()).value("tidegate_malformed_requests_total") >= 5.0);
}

#[test]
fn a_limit_counts_the_value_that_is_meant() {
    let api = Upstream::echoing();
    let proxy =
        Proxy::of_one_worker(&api).limit("one", "key = [\"query:q\"]\nrate = \"1/h\"").start();
    let statuses = [&b"/?q=\"a\""[..], b"/?q=%22a%22", b"/?q=%22a\"", b"/?q=a"].map(|target| {
        let mut client = Connection::open(proxy.address);
        client.send(head("GET", target, ""));
        client.reply("GET").status
    });
    assert_eq!(statuses, [200, 429, 429, 200]);
}
