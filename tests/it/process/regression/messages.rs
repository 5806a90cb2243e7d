//! Requests and answers that were read or passed on wrongly.

use std::io::Write as _;

use serde_json::Value;

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

/// A path that a rewrite made too long for a URI went upstream as it came, without the rewrite.
#[test]
fn a_path_rewritten_too_long_does_not_go_upstream() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .server("max_header_size = \"1MiB\"")
        .route("path = \"/{*rest}\"\nrewrite = \"/public/{*rest}\"")
        .start();
    let reply = get(proxy.address, &format!("/{}", "a".repeat(65_530)), &[]);
    assert_eq!(reply.status, 414, "{}", reply.text());
    assert!(api.requests().is_empty());
}

/// A status line without words for its status, or with bytes beyond ASCII in them, took the
/// connection's task down: the client was closed without an answer.
#[test]
fn a_status_without_words_does_not_break_the_connection() {
    for line in ["HTTP/1.1 200", "HTTP/1.1 200 \u{e9}"] {
        let answer = format!("{line}\r\ncontent-length: 2\r\n\r\nok");
        let api = Upstream::saying(&[&answer]);
        let proxy = Proxy::of_one_worker(&api).start();
        let reply = Connection::open(proxy.address).get("/", &[]);
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok"), "{line}");
    }
}

/// Interim answers, and empty lines before a request, were passed over without end: whoever sent
/// them fast enough was never looked at by a timer.
#[test]
fn nothing_goes_on_for_ever_before_a_head() {
    let api = Upstream::raw(|mut stream| {
        let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        while stream.write_all(interim.as_bytes()).is_ok() {}
    });
    let proxy =
        Proxy::of_one_worker(&api).upstream("retries = 0\nresponse_timeout = \"1d\"").start();
    assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 502);
    let mut client = Connection::open(proxy.address);
    client.send("\r\n".repeat(32 * 1024));
    assert_eq!(client.reply("GET").status, 431);
}

/// A connection that ended with requests unread behind the last one was reset, which destroyed what
/// its client had not read yet of the answer.
#[test]
fn requests_behind_the_last_one_do_not_destroy_its_answer() {
    let body = "x".repeat(1_000_000);
    let answer = body.clone();
    let api = Upstream::answering(move |_| ok(&answer));
    let proxy = Proxy::of_one_worker(&api).upstream("[log]\naccess = true").start();
    let mut client = Connection::open(proxy.address);
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    client.send(format!("{last}{}", "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(3000)));
    // By then all of the answer is in the kernel's hands.
    proxy.log.wait("request", |_| true);
    assert_eq!(client.reply("GET").text().len(), body.len());
}

/// What is no request left no trace: neither a line, nor a count, nor a word of who had sent it.
#[test]
fn what_is_no_request_is_told_and_counted() {
    let mut proxy = Proxy::answering()
        .server("workers = 1\nmax_header_size = \"128KiB\"")
        .section("[log]\naccess = true")
        .admin()
        .route("path = \"/\"")
        .start();
    let long = "a".repeat(70_000);
    let many = "x: y\r\n".repeat(101);
    let longer = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}{long}\r\n\r\n");
    let cases = [
        (400, "garbage", "GE(T / HTTP/1.1\r\n\r\n".to_owned()),
        (400, "TLS", "\x16\x03\x01\x02\0\x01\0\x01\0\x03\x03".to_owned()),
        (
            400,
            "two lengths",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(),
        ),
        (414, "a long target", format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n")),
        (431, "a long head", longer),
        (431, "many fields", format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n")),
    ];
    // Also behind requests that are some.
    for before in ["", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"] {
        for (status, name, said) in &cases {
            let mut client = Connection::open(proxy.address);
            client.send(format!("{before}{said}"));
            if !before.is_empty() {
                assert_eq!(client.reply("GET").status, 200, "{name}");
            }
            let reply = client.reply("GET");
            assert_eq!((reply.status, reply.body.len()), (*status, 0), "{name}");
            assert_eq!(reply.header("connection").as_deref(), Some("close"), "{name}");
            assert!(client.is_closed(), "{name}");
        }
    }
    // Who leaves in the middle of a head has said nothing wrong.
    Connection::open(proxy.address).send("GET / HT");
    let none = |status| format!("tidegate_requests_total{{route=\"none\",status=\"{status}\"}}");
    wait_until("all are counted", || {
        let metrics = Metrics::of(proxy.admin());
        metrics.value("tidegate_malformed_requests_total") == 12.0
            && [400, 414, 431].map(|status| metrics.value(&none(status))) == [6.0, 2.0, 4.0]
    });
    assert_eq!(proxy.stop().code(), Some(0));
    let lines = proxy.log.with("malformed requests");
    let count = |line: &Value| line["count"].as_u64().unwrap();
    assert_eq!(lines.iter().map(count).sum::<u64>(), 12, "{lines:?}");
    assert!(lines.iter().all(|line| line["level"] == "WARN" && line["client"] == "127.0.0.1"));
    let reason =
        |text: &str| lines.iter().any(|line| line["reason"].as_str().unwrap().contains(text));
    assert!(reason("TLS handshake") && reason("invalid HTTP method"), "{lines:?}");
    let large = reason("message head is too large") && reason("head has more than 100 fields");
    assert!(large && reason("URI too long"), "{lines:?}");
    let malformed: Vec<_> =
        proxy.log.with("request").into_iter().filter(|line| line["path"] == "-").collect();
    assert_eq!(malformed.len(), 12);
    for line in &malformed {
        assert_eq!((&line["method"], &line["route"]), (&"-".into(), &"none".into()), "{line}");
        assert!([400, 414, 431].contains(&line["status"].as_u64().unwrap()), "{line}");
    }
}

/// A malformed request was counted when its connection had lingered.
#[test]
fn a_malformed_request_is_counted_at_once() {
    let proxy = Proxy::answering()
        .server("workers = 1\nheader_timeout = \"1s\"")
        .section("[log]\naccess = true")
        .admin()
        .route("path = \"/\"")
        .start();
    let mut client = Connection::open(proxy.address);
    client.send("GARBAGE\r\n\r\n");
    assert_eq!(client.reply("GET").status, 400);
    wait_until("the request is counted", || {
        Metrics::of(proxy.admin()).value("tidegate_malformed_requests_total") == 1.0
    });
    proxy.log.wait("request", |line| line["status"] == 400);
    // The connection lingers. Nothing that comes meanwhile is answered by a reset.
    client.send("more".repeat(10_000));
    assert!(client.is_closed());
}

/// The log said "received corrupt message of type InvalidContentType", and nobody knew what to do.
#[test]
fn a_scheme_that_the_api_does_not_speak_is_said() {
    let saying = |bytes: &'static [u8]| {
        Upstream::raw(move |mut stream| {
            let _ = stream.write_all(bytes);
            // A connection that is closed with bytes unread is reset, and what was said may be lost.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        })
    };
    let clear = saying(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    let tls = saying(b"\x15\x03\x01\x00\x02\x02\x46");
    let closing = Upstream::raw(drop);
    for (api, scheme, said) in [
        (clear, "https:", "it answered in clear text, and not by TLS"),
        (tls, "http:", "perhaps it speaks TLS there (https://)"),
        (
            closing,
            "https:",
            "it closed the connection in the TLS handshake: perhaps it speaks in clear text",
        ),
    ] {
        let proxy = Proxy::to(api.url().replace("http:", scheme)).upstream("retries = 0").start();
        assert_eq!(get(proxy.address, "/", &[]).status, 502);
        let line = proxy.log.wait("upstream failed", |_| true);
        assert!(line["error"].as_str().unwrap().contains(said), "{line}");
    }
}
