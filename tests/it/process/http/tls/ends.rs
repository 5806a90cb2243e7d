//! Clients that say no TLS, stop in the middle, or go away.

use std::io::Write as _;
use std::net::Shutdown;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tidegate::tls::{H2, HTTP_1_1};

use super::Place;
use crate::support::PATIENCE;
use crate::support::client::{Connection, raw};
use crate::support::http2;
use crate::support::proxy::Proxy;
use crate::support::tls::shake_hands;
use crate::support::upstream::Upstream;

/// What a client says first.
fn hello(place: &Place) -> Vec<u8> {
    let name = ServerName::try_from("a.test").unwrap();
    let mut client = ClientConnection::new(place.client(), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn a_handshake_that_stalls_is_closed_after_its_time() {
    let place = Place::new();
    let proxy = place.proxy().server("header_timeout = \"200ms\"").start();
    let hello = hello(&place);
    for said in [0, 3, hello.len() / 2] {
        let mut client = Connection::open(proxy.address);
        client.send(&hello[..said]);
        client.rest();
    }
    // And one that says its half of it, and nothing more.
    let mut client = Connection::open(proxy.address);
    client.send(&hello);
    client.rest();
    assert_eq!(proxy.log.count("malformed requests"), 0, "slow is not malformed");
    // Silent after its handshake. On a busy machine the time may be over within the handshake.
    for protocol in [HTTP_1_1, H2] {
        let client = place.folder.client(&[protocol], None);
        if let Ok(stream) = shake_hands(proxy.address, &client, "a.test") {
            Connection::of(stream.sock).rest();
        }
    }
}

#[test]
fn the_other_protocol_on_a_port_is_told_in_the_log() {
    let place = Place::new();
    let (secure, plain) = (place.start(), Proxy::of_one_worker(&place.api).start());
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec();
    for (proxy, said, reason) in [
        (secure, request, "no TLS on a port for TLS: perhaps a plain HTTP request"),
        (plain, hello(&place), "a TLS handshake on a port for plain HTTP"),
    ] {
        raw(proxy.address, said);
        let line = proxy.log.wait("malformed requests", |_| true);
        assert_eq!(line["reason"], reason);
        assert_eq!((&line["client"], &line["count"]), (&"127.0.0.1".into(), &1.into()), "{reason}");
    }
}

#[test]
fn leaving_within_a_handshake_is_not_malformed() {
    let place = Place::new();
    let mut proxy = place.start();
    let hello = hello(&place);
    for said in [0, 3, hello.len()] {
        Connection::open(proxy.address).send(&hello[..said]);
    }
    let mut last = Connection::open_tls(proxy.address, &place.client(), "a.test");
    assert_eq!(last.get("/", &[]).status, 200);
    proxy.stop();
    assert_eq!(proxy.log.count("malformed requests"), 0, "{}", proxy.log.text());
}

#[test]
fn an_upload_cut_without_a_goodbye_is_broken_off() {
    let (api, accepted) = Upstream::listening();
    let place = Place { api, ..Place::new() };
    let proxy = place.proxy().section("[log]\naccess = true").start();
    for (path, says_goodbye) in [("/cut", false), ("/goodbye", true)] {
        let mut client = Connection::open_tls(proxy.address, &place.client(), "a.test");
        client.send(format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"
        ));
        let heard = accepted.recv_timeout(PATIENCE).unwrap();
        let mut said = heard.recv_timeout(PATIENCE).unwrap();
        if says_goodbye {
            client.stream.conn.send_close_notify();
            client.stream.flush().unwrap();
        }
        client.stream.sock.shutdown(Shutdown::Both).unwrap();
        said.extend(heard.iter().flatten());
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!said.ends_with("0\r\n\r\n"), "it looks whole: {said}");
        let line = proxy.log.wait("request", |line| line["path"] == path);
        assert!(line["status"] == 499 || line["status"] == 400, "{line}");
    }
}

#[test]
fn a_client_that_leaves_a_download_ends_it() {
    let (api, told) = Upstream::endless();
    let place = Place { api, ..Place::new() };
    let proxy = place.start();
    let mut client = Connection::open_tls(proxy.address, &place.client(), "a.test");
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.exactly(100_000);
    drop(client);
    told.recv_timeout(PATIENCE).expect("the API's connection is closed");
    let config = place.folder.client(&[H2], None);
    let mut client = http2::Client::open_tls(proxy.address, config, "a.test");
    let mut download = client.begin("GET", "/", &[]);
    assert_eq!(download.head().unwrap().status(), 200);
    drop((download, client));
    told.recv_timeout(PATIENCE).expect("the API's connection is closed, over HTTP/2");
}
