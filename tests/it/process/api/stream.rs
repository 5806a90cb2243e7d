//! `/api/stream`: events, their bound, and their end.

use std::net::SocketAddr;

use serde_json::Value;

use super::{limited, send};
use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::wait_until;

/// A stream that has begun.
struct Events(Connection);

impl Events {
    fn open(admin: SocketAddr) -> (Self, String) {
        let mut client = Connection::open(admin);
        client.send("GET /api/stream HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let head = String::from_utf8(client.until(b"\r\n\r\n")).unwrap();
        (Self(client), head)
    }

    /// The next event's JSON.
    fn next(&mut self) -> Value {
        let text = String::from_utf8(self.0.until(b"\n\n")).unwrap();
        let data = text.lines().find_map(|line| line.strip_prefix("data: "));
        serde_json::from_str(data.unwrap_or_else(|| panic!("{text:?}"))).unwrap()
    }
}

#[test]
fn each_second_there_is_an_event_with_the_present_numbers() {
    let proxy = limited().start();
    let (mut events, head) = Events::open(proxy.admin());
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    let first = events.next();
    assert_eq!(first["requests"]["total"], 0);
    send(&proxy, "a", 5);
    let mut last = first.clone();
    while last["requests"]["total"] != 5 {
        let next = events.next();
        assert!(next["uptime_ms"].as_u64() > last["uptime_ms"].as_u64());
        last = next;
    }
    assert_eq!(last["limits"][0]["rejected_total"], 3);
}

#[test]
fn a_stream_ends_with_its_token() {
    let token = |token: &str| format!("[admin]\nlisten = \"LISTEN\"\ntoken = \"{token}\"");
    let proxy = Proxy::answering().section(&token("one")).start();
    let mut client = Connection::open(proxy.admin());
    client.send("GET /api/stream HTTP/1.1\r\nhost: a\r\nauthorization: Bearer one\r\n\r\n");
    client.until(b"data: ");
    let text = std::fs::read_to_string(proxy.config_file()).unwrap();
    proxy.reload(&text.replace("\"one\"", "\"two\""));
    // The end of a chunked body.
    client.until(b"\r\n0\r\n\r\n");
}

#[test]
fn there_are_as_many_streams_as_are_allowed() {
    let proxy = limited().start();
    let admin = proxy.admin();
    let mut all: Vec<_> = (0..64).map(|_| Events::open(admin)).collect();
    assert!(all.iter().all(|(_, head)| head.starts_with("HTTP/1.1 200")));
    let ask = || Connection::open(admin).get("/metrics", &[("host", "localhost")]).status;
    let (_, head) = Events::open(admin);
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert_eq!(ask(), 200, "others are asked as before");
    all.pop();
    wait_until("there is room again", || Events::open(admin).1.starts_with("HTTP/1.1 200"));
}
