//! Clients that take too long, many of them at once: each is cut off, and the requests of others are answered.

use std::io::Write as _;
use std::net::TcpStream;

use crate::support::client::{Connection, get};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok};
use crate::support::wait_until;

const MANY: usize = 100;

/// Opens many connections that each send these bytes and nothing more.
fn crowd(proxy: &Tidegate, bytes: &[u8]) -> Vec<Connection> {
    let open = |_| {
        let mut connection = Connection::open(proxy.address);
        connection.send(bytes);
        connection
    };
    (0..MANY).map(open).collect()
}

/// A proxy with one worker, an API behind it, and these time-outs.
fn proxy(server: &str) -> (Tidegate, Upstream) {
    let api = Upstream::answering(|_| ok(&"x".repeat(1 << 20)));
    let proxy = Proxy::of_one_worker(&api).server(server).admin();
    (proxy.server("drain_timeout = \"0s\"").start(), api)
}

/// That requests are answered beside a crowd that does nothing.
fn assert_unharmed(proxy: &Tidegate) {
    for _ in 0..20 {
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
    }
}

fn connections(proxy: &Tidegate) -> f64 {
    Metrics::of(proxy.admin()).value("tidegate_connections{protocol=\"http1\"}")
}

#[test]
fn clients_that_never_finish_are_cut_off() {
    let body = &b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf"[..];
    for (what, time_out, begun) in [
        ("a head", "header_timeout", &b"GET / HTTP/1.1\r\nhost: a\r\nx-a: "[..]),
        ("nothing", "header_timeout", b""),
        ("a body", "body_timeout", body),
    ] {
        let (proxy, _api) = proxy(&format!("{time_out} = \"1s\""));
        let mut crowd = crowd(&proxy, begun);
        assert_unharmed(&proxy);
        if what == "a body" {
            assert!(crowd.iter_mut().all(|client| client.reply("POST").status == 408));
        } else {
            assert!(crowd.iter_mut().all(Connection::is_closed), "{what}");
        }
        wait_until("all are closed", || connections(&proxy) == 0.0);
    }
}

#[test]
fn responses_that_nobody_reads_are_given_up() {
    let (proxy, _api) = proxy("body_timeout = \"1s\"");
    let asked = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(10);
    let _crowd = crowd(&proxy, asked.as_bytes());
    assert_unharmed(&proxy);
    wait_until("all are given up", || connections(&proxy) == 0.0);
}

#[test]
fn a_tunnel_in_which_nothing_moves_is_closed() {
    let upgraded = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let api = Upstream::raw(|mut stream| {
        let _ = crate::support::upstream::read_head(&mut std::io::BufReader::new(&stream));
        let _ = stream.write_all(upgraded);
        hold(stream);
    });
    let proxy = Proxy::to(&api).server("tunnel_timeout = \"50ms\"").start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    assert_eq!(client.reply("GET").status, 101);
    assert!(client.is_closed());
}

/// Keeps a connection until the other side closes it.
fn hold(mut stream: TcpStream) {
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

#[test]
fn idle_connections_are_closed() {
    let (proxy, _api) = proxy("idle_timeout = \"50ms\"");
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    assert!(client.is_closed());
}
