//! Bodies of requests that are rejected.

use std::io::Write as _;
use std::time::Duration;

use super::*;
use crate::support::wait_until;

#[test]
fn a_short_rejected_upload_keeps_its_connection() {
    let api = Upstream::echoing();
    let proxy = closed(&api);
    let mut client = Connection::open(proxy.address);
    for length in [1, 1000, 65_536] {
        let reply = client.request("POST", "/", &[], &vec![b'x'; length]);
        assert_eq!((reply.status, reply.header("connection")), (429, None), "{length}");
    }
    // The answer comes before the body has.
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n");
    let reply = client.reply("POST");
    assert_eq!((reply.status, reply.header("connection")), (429, None));
    for piece in [20_000, 30_000, 10_000] {
        client.send(vec![b'x'; piece]);
    }
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    let reply = client.reply("POST");
    assert_eq!((reply.status, reply.header("connection")), (429, None), "in chunks");
    assert_eq!(client.get("/", &[]).status, 429, "still in step");
    assert!(api.requests().is_empty());
}

#[test]
fn a_long_rejected_upload_ends_its_connection() {
    let api = Upstream::echoing();
    let proxy = closed(&api);
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(32_768));
    for (framing, piece, pieces) in [
        ("content-length: 65537", vec![b'x'; 65_537], 1),
        ("content-length: 10000000", vec![b'x'; 1_000_000], 10),
        ("transfer-encoding: chunked", chunk.into_bytes(), 300),
    ] {
        let mut client = Connection::open(proxy.address);
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n"));
        // All of it is sent before the answer is looked at.
        for _ in 0..pieces {
            client.send(&piece);
        }
        let reply = client.reply("POST");
        assert_eq!(reply.status, 429, "{framing}");
        assert_eq!(header(&reply, "connection"), "close", "{framing}");
        assert_eq!(reply.json()["status"], 429, "{framing}");
        assert!(client.is_closed(), "{framing}");
    }
}

#[test]
fn a_client_that_goes_on_sending_is_cut_off() {
    let api = Upstream::echoing();
    let proxy = closed(&api);
    let mut client = Connection::open(proxy.address);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000000\r\n\r\n");
    assert_eq!(client.reply("POST").status, 429);
    client.stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    wait_until("it is closed", || client.stream.write_all(b"x").is_err());
}

#[test]
fn a_rejected_client_is_not_asked_for_its_body() {
    let api = Upstream::echoing();
    let proxy = closed(&api);
    for length in [5, 1_000_000] {
        let mut client = Connection::open(proxy.address);
        client.send(format!(
            "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        ));
        let reply = client.any_reply("POST");
        assert_eq!(reply.status, 429);
        assert_eq!(header(&reply, "connection"), "close");
        assert!(client.is_closed());
    }
}

#[test]
fn where_the_file_answers_limits_hold_and_bodies_are_read() {
    let proxy = Proxy::answering()
        .server("workers = 1")
        .limit("l", "rate = \"3/h\"")
        .route("path = \"/\"\nrespond = { status = 200, body = \"hi\" }\nlimits = [\"l\"]")
        .start();
    let mut client = Connection::open(proxy.address);
    let reply = client.request("POST", "/", &[], b"short");
    assert_eq!((reply.status, reply.text().as_str()), (200, "hi"));
    assert_eq!(client.get("/", &[]).status, 200, "the connection is kept");
    let reply = client.request("POST", "/", &[], &[b'x'; 100_000]);
    assert_eq!((reply.status, header(&reply, "connection").as_str()), (200, "close"));
    assert!(client.is_closed());
    assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 429);
}
