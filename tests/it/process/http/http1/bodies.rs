//! Bodies and their trailers, and responses without any.

use std::io::BufReader;

use super::pair;
use crate::support::client::{Connection, raw};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, read_request};

#[test]
fn chunks_for_a_client_of_http_1_0_end_with_the_connection() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let api = Upstream::saying(&[chunked]);
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    let reply = client.reply("GET");
    assert_eq!(reply.header("transfer-encoding"), None);
    assert_eq!(reply.text(), "hi");
}

#[test]
fn a_response_that_ends_with_its_connection_passes() {
    let api = Upstream::raw(|mut stream| {
        use std::io::Write as _;
        let _ = read_request(&mut BufReader::new(&stream));
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nuntil the end");
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    for _ in 0..2 {
        let reply = client.get("/", &[]);
        assert_eq!(reply.text(), "until the end");
        assert_eq!(reply.header("transfer-encoding").as_deref(), Some("chunked"));
    }
}

#[test]
fn trailers_pass_where_both_sides_want_them() {
    let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                  2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n";
    let unnamed = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                   2\r\nhi\r\n0\r\nx-sum: 42\r\n\r\n";
    let api = Upstream::saying(&[answer, answer, unnamed]);
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    for (name, asked, expected) in [
        ("wanted", &[("te", "trailers, deflate"), ("connection", "te")][..], Some("42")),
        ("not wanted", &[], None),
        ("not named", &[("te", "trailers")], None),
    ] {
        let reply = client.get("/", asked);
        assert_eq!(reply.text(), "hi", "{name}");
        let sum = reply.trailers.iter().find(|(field, _)| field == "x-sum");
        assert_eq!(sum.map(|(_, value)| value.as_str()), expected, "{name}");
        let te = (!asked.is_empty()).then_some("trailers");
        assert_eq!(api.last().header("te").as_deref(), te, "{name}");
        assert_eq!(api.last().header("connection").as_deref(), te.and(Some("te")), "{name}");
    }
}

#[test]
fn trailers_of_a_request_pass_where_they_are_named() {
    let (api, proxy) = pair();
    let mut client = Connection::open(proxy.address);
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
         2\r\nhi\r\n0\r\nx-sum: 42\r\ncontent-length: 3\r\n\r\n",
    );
    assert_eq!(client.reply("POST").status, 200);
    assert_eq!(api.last().trailers, [("x-sum".to_owned(), "42".to_owned())]);
    assert_eq!(client.get("/next", &[]).text(), "/next");
    assert_eq!(api.last().earlier, 1, "the connection to the API is kept");
}

#[test]
fn responses_without_a_body_have_none() {
    let api = Upstream::answering(|got| {
        let head = match got.path() {
            "/204" => "204 No Content\r\n",
            "/204-with-length" => "204 No Content\r\ncontent-length: 0\r\n",
            "/304" => "304 Not Modified\r\netag: \"x\"\r\n",
            "/304-with-length" => "304 Not Modified\r\ncontent-length: 1234\r\n",
            "/head" => "200 OK\r\ncontent-length: 1234\r\n",
            "/head-chunked" => "200 OK\r\ntransfer-encoding: chunked\r\n",
            _ => "200 OK\r\n",
        };
        format!("HTTP/1.1 {head}\r\n").into_bytes()
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    for (method, path, status, length) in [
        ("GET", "/204", 204, None),
        ("GET", "/204-with-length", 204, None),
        ("GET", "/304", 304, None),
        ("GET", "/304-with-length", 304, None),
        ("HEAD", "/head", 200, Some("1234")),
        ("HEAD", "/head-chunked", 200, None),
        ("HEAD", "/head-without-length", 200, None),
    ] {
        let reply = client.request(method, path, &[], b"");
        assert_eq!(reply.status, status, "{method} {path}");
        assert_eq!(reply.header("content-length").as_deref(), length, "{method} {path}");
        assert_eq!(reply.header("transfer-encoding"), None, "{method} {path}");
    }
    let earlier: Vec<_> = api.requests().iter().map(|got| got.earlier).collect();
    assert_eq!(earlier, [0, 1, 2, 3, 4, 5, 6], "the connection to the API is kept");
}

/// A client that is told that the connection is kept, and sees no length, may take the body for empty.
#[test]
fn a_body_that_ends_with_its_connection_does_not_promise_another_request() {
    let api = Upstream::answering(|_| {
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_vec()
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let said = raw(proxy.address, "GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n");
    assert!(said.starts_with("HTTP/1.0 200 OK\r\n") && said.ends_with("\r\n\r\nabc"), "{said}");
    assert!(said.contains("connection: close\r\n") && !said.contains("keep-alive"), "{said}");
}
