//! `max_connections`: who goes for the next client.

use std::net::SocketAddr;

use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// Opens HTTP/2 and asks nothing: the preface, and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn served(address: SocketAddr) -> Connection {
    let mut client = Connection::open(address);
    assert_eq!(client.get("/", &[]).status, 200);
    client
}

/// A regression: whoever held all connections, without a request, kept all others out for `idle_timeout`.
#[test]
fn the_connection_that_was_idle_for_longest_is_closed_for_the_next() {
    for (says, is_told) in [
        (&b""[..], ""),
        (GET.as_bytes(), "a request with an answer"),
        (b"GET / HTTP/1.1\r\nho", "half a head"),
        (HTTP2, "an idle connection of HTTP/2"),
    ] {
        let (api, told, go) = Upstream::slow();
        let proxy = Proxy::of_one_worker(&api).server("max_connections = 3").start();
        let mut busy = Connection::open(proxy.address);
        busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
        told.recv_timeout(PATIENCE).unwrap();
        let mut first = Connection::open(proxy.address);
        first.send(says);
        if is_told.starts_with("a request") {
            assert_eq!(first.reply("GET").status, 200);
        }
        let mut second = served(proxy.address);
        let mut third = served(proxy.address);
        assert!(first.rest_with_end().1.is_ok(), "{is_told}");
        for client in [&mut second, &mut third] {
            assert_eq!(client.get("/", &[]).status, 200, "{is_told}");
        }
        go.send(()).unwrap();
        assert_eq!(busy.reply("GET").text(), "/slow", "{is_told}: it was not idle");
    }
}

#[test]
fn a_peer_that_does_not_say_for_whom_it_comes_is_idle_too() {
    let api = Upstream::echoing();
    let server = "max_connections = 1\nproxy_protocol = true\ntrusted_proxies = [\"127.0.0.1\"]";
    let proxy = Proxy::of_one_worker(&api).server(server).start();
    let mut silent = Connection::open(proxy.address);
    let mut next = Connection::open(proxy.address);
    next.send(format!("PROXY TCP4 203.0.113.7 127.0.0.1 1 2\r\n{GET}"));
    assert_eq!(next.reply("GET").status, 200);
    assert!(silent.is_closed());
}

/// A tunnel has no request under way, and is in use.
#[test]
fn a_tunnel_is_not_idle() {
    let (api, _told) = Upstream::holding();
    let proxy = Proxy::of_one_worker(&api).server("max_connections = 2").start();
    let mut tunnel = Connection::open(proxy.address);
    tunnel.send("GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n");
    assert_eq!(tunnel.any_reply("GET").status, 101);
    assert_eq!(tunnel.exactly(5), b"hello");
    for _ in 0..3 {
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/a", &[]).status, 200);
    }
    let mut idle = Connection::open(proxy.address);
    assert_eq!(idle.get("/a", &[]).status, 200);
    let mut next = Connection::open(proxy.address);
    assert_eq!(next.get("/a", &[]).status, 200);
    assert!(idle.is_closed());
    tunnel.stream.set_nonblocking(true).unwrap();
    let read = tunnel.stream.peek(&mut [0]).map_err(|error| error.kind());
    assert_eq!(read, Err(std::io::ErrorKind::WouldBlock), "it is still there");
}

/// A regression: clients that held all connections kept the proxies out that ask for decisions, and the reverse.
#[test]
fn proxies_that_ask_have_connections_of_their_own() {
    let text = "[server]\nlisten = \"LISTEN\"\nworkers = 1\nmax_connections = 1\n\
                [decide]\nlisten = \"LISTEN\"\n\
                [limits.a]\nkey = [\"ip\"]\nrate = \"100/h\"\n\
                [[routes]]\npath = \"/{*rest}\"\nrespond = {}\nlimits = [\"a\"]\n";
    let proxy = Tidegate::start(text);
    let asked = proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    let asked: SocketAddr = asked["address"].as_str().unwrap().parse().unwrap();
    let mut client = served(proxy.address);
    let mut caller = Connection::open(asked);
    let question = br#"{ "path": "/", "ip": "203.0.113.7" }"#;
    for _ in 0..3 {
        assert_eq!(caller.request("POST", "/check", &[], question).status, 200);
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let mut next = Connection::open(asked);
    assert_eq!(next.request("POST", "/check", &[], question).status, 200);
    assert!(caller.is_closed());
    assert_eq!(client.get("/", &[]).status, 200, "it is not theirs");
}
