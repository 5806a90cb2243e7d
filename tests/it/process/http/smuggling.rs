//! Messages that two parsers could read differently: refused, or sent on with one meaning. Behind
//! each stands a second request, which must never reach the API.

use crate::support::client::raw;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";

/// The status of the first answer on a connection, and whether it was the only one.
fn answers(text: &str) -> (u16, usize) {
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text.matches("HTTP/1.").count())
}

/// Sends what a strict reader cannot read, with a request after it. It is answered once, and nothing goes on.
fn assert_refused(proxy: &Tidegate, api: &Upstream, name: &str, message: &str, status: u16) {
    let text = raw(proxy.address, format!("{message}{SMUGGLED}"));
    assert_eq!(answers(&text), (status, 1), "{name}: {text}");
    let sent: Vec<_> = api.requests().into_iter().map(|got| got.line).collect();
    assert!(sent.is_empty(), "{name}: {sent:?}");
}

const NO_CHUNKS: &str = "0\r\n\r\n";

#[test]
fn framing_with_two_meanings_is_refused_and_never_sent_on() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for (name, fields, body) in [
        ("two lengths", "content-length: 5\r\ncontent-length: 6", "hello"),
        ("a list of lengths", "content-length: 5, 5", "hello"),
        ("a signed length", "content-length: +5", "hello"),
        ("a negative length", "content-length: -5", "hello"),
        ("a length in hex", "content-length: 0x5", "hello"),
        ("an empty length", "content-length:", "hello"),
        ("a length with a space in it", "content-length: 5 5", "hello"),
        ("a length beyond 64 bits", "content-length: 18446744073709551621", "hello"),
        ("a length before a bad one", "content-length: 5\r\ncontent-length: x", "hello"),
        ("gzip", "transfer-encoding: gzip", ""),
        ("identity", "transfer-encoding: identity", ""),
        ("identity with a length", "transfer-encoding: identity\r\ncontent-length: 5", "hello"),
        ("gzip, chunked", "transfer-encoding: gzip, chunked", NO_CHUNKS),
        ("chunked twice", "transfer-encoding: chunked, chunked", NO_CHUNKS),
        (
            "chunked in two lines",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            NO_CHUNKS,
        ),
        (
            "identity, then chunked",
            "transfer-encoding: identity\r\ntransfer-encoding: chunked",
            NO_CHUNKS,
        ),
        (
            "chunked, then identity",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
            NO_CHUNKS,
        ),
        ("something before chunked", "transfer-encoding: x, chunked", NO_CHUNKS),
        ("chunked with a parameter", "transfer-encoding: chunked;q=1", NO_CHUNKS),
        ("chunked in quotes", "transfer-encoding: \"chunked\"", NO_CHUNKS),
        ("chunked with a vertical tab", "transfer-encoding: \x0bchunked", NO_CHUNKS),
        ("an empty coding", "transfer-encoding:", ""),
        ("a folded coding", "transfer-encoding:\r\n chunked", NO_CHUNKS),
        ("a space before the colon", "content-length : 5", "hello"),
        ("a tab before the colon", "transfer-encoding\t: chunked", NO_CHUNKS),
    ] {
        let message = format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n{body}");
        assert_refused(&proxy, &api, name, &message, 400);
    }
}

#[test]
fn a_head_with_two_meanings_is_refused_and_never_sent_on() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for (name, head) in [
        (
            "chunked in HTTP/1.0",
            "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0",
        ),
        ("a bare CR in a value", "GET / HTTP/1.1\r\nhost: a\r\nx: a\rtransfer-encoding: chunked"),
        ("a bare CR as the end of a line", "GET / HTTP/1.1\rhost: a"),
        ("a folded line", "GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b"),
        ("a folded line after the request line", "GET / HTTP/1.1\r\n host: a\r\nhost: a"),
        ("a line without a colon", "GET / HTTP/1.1\r\nhost: a\r\nnonsense"),
        ("a line without a name", "GET / HTTP/1.1\r\nhost: a\r\n: x"),
        ("a space in a name", "GET / HTTP/1.1\r\nhost: a\r\nx y: z"),
        ("NUL in a value", "GET / HTTP/1.1\r\nhost: a\r\nx: a\0b"),
        ("NUL in a name", "GET / HTTP/1.1\r\nhost: a\r\nx\0: b"),
        ("NUL in the target", "GET /\0 HTTP/1.1\r\nhost: a"),
        ("a space in the target", "GET /a b HTTP/1.1\r\nhost: a"),
        ("two spaces", "GET  / HTTP/1.1\r\nhost: a"),
        ("a space after the version", "GET / HTTP/1.1 \r\nhost: a"),
        ("a version with two digits", "GET / HTTP/1.10\r\nhost: a"),
        ("another version", "GET / HTTP/3.0\r\nhost: a"),
        ("HTTP/0.9", "GET /"),
        ("no target", "GET HTTP/1.1\r\nhost: a"),
        ("a target of another form", "GET a/b HTTP/1.1\r\nhost: a"),
        ("a separator in the method", "GE:T / HTTP/1.1\r\nhost: a"),
        ("a method in lower case", "get / HTTP/1.1\r\nhost: a\r\nconnection: close"),
        ("TLS", "\x16\x03\x01\x02\0\x01\0\x01"),
        ("no host", "GET / HTTP/1.1"),
        ("two hosts", "GET / HTTP/1.1\r\nhost: a\r\nhost: b"),
        ("one host twice", "GET / HTTP/1.1\r\nhost: a\r\nhost: a"),
        ("a malformed host", "GET / HTTP/1.1\r\nhost: a b"),
        ("a host with a path", "GET / HTTP/1.1\r\nhost: a/b"),
        ("two hosts in one line", "GET / HTTP/1.1\r\nhost: a, b"),
        ("a malformed host beside a target's", "GET http://a/ HTTP/1.1\r\nhost: a b"),
        ("a user in the target", "GET http://u@a/ HTTP/1.1\r\nhost: a"),
    ] {
        assert_refused(&proxy, &api, name, &format!("{head}\r\n\r\n"), 400);
    }
    let long = "a".repeat(70_000);
    for (name, line, fields) in [
        ("a very long request line", format!("GET /{long}"), String::new()),
        ("a very long header", "GET /".to_owned(), format!("x: {long}\r\n")),
        ("very many headers", "GET /".to_owned(), "x: y\r\n".repeat(101)),
    ] {
        let message = format!("{line} HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        assert_refused(&proxy, &api, name, &message, 431);
    }
}

#[test]
fn a_length_beside_chunks_is_dropped_and_the_connection_ends() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for (name, fields) in [
        ("length first", "content-length: 3\r\ntransfer-encoding: chunked"),
        ("chunks first", "transfer-encoding: chunked\r\ncontent-length: 3"),
        ("in capitals", "Content-Length: 3\r\nTransfer-Encoding: CHUNKED"),
        ("a long one", "content-length: 60\r\ntransfer-encoding: chunked"),
    ] {
        let before = api.requests().len();
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n");
        let text = raw(proxy.address, format!("{head}2\r\nhi\r\n0\r\n\r\n{SMUGGLED}"));
        assert_eq!(answers(&text), (200, 1), "{name}: {text}");
        assert!(text.contains("connection: close"), "{name}: {text}");
        let sent = api.requests();
        assert_eq!(sent.len(), before + 1, "{name}");
        let got = api.last();
        assert_eq!((got.path(), got.body.as_slice()), ("/", &b"hi"[..]), "{name}");
        assert_eq!(got.header("content-length"), None, "{name}");
        assert_eq!(got.header("transfer-encoding").as_deref(), Some("chunked"), "{name}");
    }
}

#[test]
fn what_has_one_meaning_is_written_in_one_way() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for (name, message, line, body) in [
        (
            "equal lengths",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ncontent-length: 2\r\n",
            "POST / HTTP/1.1",
            "hi",
        ),
        (
            "leading zeros",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 002\r\n",
            "POST / HTTP/1.1",
            "hi",
        ),
        (
            "spaces around a length",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: \t2 \r\n",
            "POST / HTTP/1.1",
            "hi",
        ),
        (
            "spaces around chunked",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \tchunked \r\n",
            "POST / HTTP/1.1",
            "2\r\nhi\r\n0\r\n\r\n",
        ),
        ("bare LF as the end of lines", "GET / HTTP/1.1\nhost: a\nx: y\n", "GET / HTTP/1.1", ""),
        (
            "empty lines before the request",
            "\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n",
            "GET / HTTP/1.1",
            "",
        ),
        ("a method nobody knows", "BREW / HTTP/1.1\r\nhost: a\r\n", "BREW / HTTP/1.1", ""),
        (
            "a chunk with an extension",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n",
            "POST / HTTP/1.1",
            "2;a=b\r\nhi\r\n0\r\n\r\n",
        ),
        (
            "a body of a GET",
            "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n",
            "GET / HTTP/1.1",
            "hi",
        ),
    ] {
        let text = raw(proxy.address, format!("{message}connection: close\r\n\r\n{body}"));
        assert_eq!(answers(&text), (200, 1), "{name}: {text}");
        let got = api.last();
        assert_eq!(got.line, line, "{name}");
        let expected = if body.is_empty() { "" } else { "hi" };
        assert_eq!(String::from_utf8_lossy(&got.body), expected, "{name}");
        let lengths = got
            .headers
            .iter()
            .filter(|(field, _)| field == "content-length" || field == "transfer-encoding");
        assert_eq!(lengths.count(), usize::from(!body.is_empty()), "{name}: {got:?}");
    }
}

#[test]
fn a_faulty_body_is_a_400_and_cut_off_upstream() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let extensions = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(40_000));
    let trailers = format!("0\r\n{}\r\n", "x: y\r\n".repeat(3000));
    for (name, body) in [
        ("a negative size", "-5\r\nhello\r\n0\r\n\r\n"),
        ("a signed size", "+5\r\nhello\r\n0\r\n\r\n"),
        ("a size with a prefix", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("a size beyond 64 bits", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("no size", "\r\nhello\r\n0\r\n\r\n"),
        ("no digits", ";a\r\nhello\r\n0\r\n\r\n"),
        ("words", "hello\r\n0\r\n\r\n"),
        ("a space before the size", " 5\r\nhello\r\n0\r\n\r\n"),
        ("a size with a space in it", "0 5\r\nhello\r\n0\r\n\r\n"),
        ("bare LF after the size", "5\nhello\r\n0\r\n\r\n"),
        ("bare LF after an extension", "5;a\nhello\r\n0\r\n\r\n"),
        ("bare CR after the size", "5\rhello\r\n0\r\n\r\n"),
        ("no CRLF after the data", "5\r\nhello0\r\n\r\n"),
        ("bare LF after the data", "5\r\nhello\n0\r\n\r\n"),
        ("more data than announced", "4\r\nhello\r\n0\r\n\r\n"),
        ("a flood of extensions", &extensions),
        ("a flood of trailers", &trailers),
    ] {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let text = raw(proxy.address, format!("{head}{body}{SMUGGLED}"));
        assert_eq!(answers(&text), (400, 1), "{name}: {text}");
        assert!(text.contains("connection: close"), "{name}: {text}");
        assert!(text.contains("application/problem+json"), "{name}: {text}");
        let sent: Vec<_> = api.requests().into_iter().map(|got| got.line).collect();
        assert!(sent.is_empty(), "{name}: {sent:?}");
    }
}
