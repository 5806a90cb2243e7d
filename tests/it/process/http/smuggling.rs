//! Messages that two parsers could read differently: refused, or sent on with one meaning. Behind
//! each stands a second request, which must never reach the API.

use crate::support::client::{Connection, raw};
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";

/// The status of the first answer on a connection, and whether it was the only one.
fn answers(text: &str) -> (u16, usize) {
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or(0), text.matches("HTTP/1.").count())
}

#[test]
fn a_head_with_two_meanings_is_refused_and_never_sent_on() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let long = "a".repeat(70_000);
    let very_long_line = format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n");
    let very_long_header = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n");
    let many = "x: y\r\n".repeat(101);
    let many_headers = format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n");
    for (name, status, head) in [
        (
            "two lengths",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        ),
        (
            "a list of lengths",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5, 5\r\n\r\nhello",
        ),
        ("a signed length", 400, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +5\r\n\r\nhello"),
        ("a negative length", 400, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\nhello"),
        ("a length in hex", 400, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0x5\r\n\r\nhello"),
        ("an empty length", 400, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\nhello"),
        (
            "a length with a space in it",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5 5\r\n\r\nhello",
        ),
        (
            "a length beyond 64 bits",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551621\r\n\r\nhello",
        ),
        (
            "a length before a bad one",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: x\r\n\r\nhello",
        ),
        ("gzip", 400, "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n"),
        ("identity", 400, "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n\r\n"),
        (
            "identity with a length",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\ncontent-length: 5\r\n\r\nhello",
        ),
        (
            "gzip, chunked",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunked twice",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunked in two lines",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "identity, then chunked",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunked, then identity",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        ),
        (
            "something before chunked",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: x, chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunked with a parameter",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunked in quotes",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunked with a vertical tab",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "chunked in HTTP/1.0",
            400,
            "POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("an empty coding", 400, "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n\r\n"),
        (
            "a bare CR in a value",
            400,
            "GET / HTTP/1.1\r\nhost: a\r\nx: a\rtransfer-encoding: chunked\r\n\r\n",
        ),
        ("a bare CR as the end of a line", 400, "GET / HTTP/1.1\rhost: a\r\n\r\n"),
        ("a folded line", 400, "GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n"),
        (
            "a folded coding",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        ),
        (
            "a folded line after the request line",
            400,
            "GET / HTTP/1.1\r\n host: a\r\nhost: a\r\n\r\n",
        ),
        (
            "a space before the colon",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length : 5\r\n\r\nhello",
        ),
        (
            "a tab before the colon",
            400,
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding\t: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("a line without a colon", 400, "GET / HTTP/1.1\r\nhost: a\r\nnonsense\r\n\r\n"),
        ("a line without a name", 400, "GET / HTTP/1.1\r\nhost: a\r\n: x\r\n\r\n"),
        ("a space in a name", 400, "GET / HTTP/1.1\r\nhost: a\r\nx y: z\r\n\r\n"),
        ("NUL in a value", 400, "GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n"),
        ("NUL in a name", 400, "GET / HTTP/1.1\r\nhost: a\r\nx\0: b\r\n\r\n"),
        ("NUL in the target", 400, "GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("a space in the target", 400, "GET /a b HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("two spaces", 400, "GET  / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("a space after the version", 400, "GET / HTTP/1.1 \r\nhost: a\r\n\r\n"),
        ("a version with two digits", 400, "GET / HTTP/1.10\r\nhost: a\r\n\r\n"),
        ("another version", 400, "GET / HTTP/3.0\r\nhost: a\r\n\r\n"),
        ("HTTP/0.9", 400, "GET /\r\n\r\n"),
        ("no target", 400, "GET HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("a target of another form", 400, "GET a/b HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("a separator in the method", 400, "GE:T / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("a method in lower case", 400, "get / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ("TLS", 400, "\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n"),
        ("no host", 400, "GET / HTTP/1.1\r\n\r\n"),
        ("two hosts", 400, "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n"),
        ("one host twice", 400, "GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n"),
        ("a malformed host", 400, "GET / HTTP/1.1\r\nhost: a b\r\n\r\n"),
        ("a host with a path", 400, "GET / HTTP/1.1\r\nhost: a/b\r\n\r\n"),
        ("two hosts in one line", 400, "GET / HTTP/1.1\r\nhost: a, b\r\n\r\n"),
        ("a malformed host beside a target's", 400, "GET http://a/ HTTP/1.1\r\nhost: a b\r\n\r\n"),
        ("a user in the target", 400, "GET http://u@a/ HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("a very long request line", 431, &very_long_line),
        ("a very long header", 431, &very_long_header),
        ("very many headers", 431, &many_headers),
    ] {
        let text = raw(proxy.address, format!("{head}{SMUGGLED}"));
        assert_eq!(answers(&text), (status, 1), "{name}: {text}");
        let sent: Vec<_> = api.requests().into_iter().map(|got| got.line).collect();
        assert!(sent.is_empty(), "{name}: {sent:?}");
    }
}

#[test]
fn a_path_with_two_meanings_is_refused() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    for path in ["/a%2fb", "/a%5cb", "/a\\b", "/a%00", "/a%zz", "/a/..;x/b"] {
        let reply = client.get(path, &[]);
        assert_eq!(reply.status, 400, "{path}");
        assert_eq!(reply.json()["status"], 400, "{path}");
    }
    assert!(api.requests().is_empty());
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

#[test]
fn requests_in_a_row_are_answered_in_a_row() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let requests: String = (0..20)
        .map(|n| format!("POST /{n} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi"))
        .collect();
    let mut client = Connection::open(proxy.address);
    client.send(requests);
    for n in 0..20 {
        assert_eq!(client.reply("POST").text(), format!("/{n}"));
    }
}
