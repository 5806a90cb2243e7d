//! `proxy_protocol`: load balancers that pass on bytes say in front of them who the client is.

use std::io::{Read as _, Write as _};

use tidegate::tls::HTTP_1_1;

use crate::support::client::{Connection, raw};
use crate::support::http2::frames::{Frames, Outcome, SETTINGS, asking, frame};
use crate::support::metrics::Metrics;
use crate::support::peer_server::PeerServer;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::{Folder, shake_hands_on};
use crate::support::upstream::Upstream;

const V1: &[u8] = b"PROXY TCP4 203.0.113.7 192.0.2.1 56324 443\r\n";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// A header of version 2: 0 is LOCAL and 1 PROXY, then the family and what follows.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[0x20 | command, family][..], &length, rest].concat()
}

/// 203.0.113.8, with a TLV for the host's name.
fn with_tlv() -> Vec<u8> {
    v2(1, 0x11, b"\xCB\x00\x71\x08\xC0\x00\x02\x01\xDC\x04\x01\xBB\x02\x00\x06a.test")
}

/// A proxy that trusts loopback, but not 127.0.0.9.
fn proxy(api: &Upstream) -> Proxy {
    Proxy::to(api).server(
        "workers = 1\nproxy_protocol = true\n\
         trusted_proxies = [\"127.0.0.1\", \"198.51.100.0/24\"]",
    )
}

fn forwarded_for(api: &Upstream) -> String {
    api.last().header("x-forwarded-for").unwrap()
}

#[test]
fn the_client_is_the_one_of_the_header() {
    let api = Upstream::echoing();
    let limit = "key = [\"ip\"]\nrate = \"2/h\"";
    let proxy = proxy(&api).limit("ip", limit).section("[log]\naccess = true").start();
    for (header, client) in [
        (V1.to_vec(), "203.0.113.7"),
        (with_tlv(), "203.0.113.8"),
        (b"PROXY TCP6 2001:db8::9 ::1 1 2\r\n".to_vec(), "2001:db8::9"),
        (b"PROXY TCP6 64:ff9b::cb00:7109 ::1 1 2\r\n".to_vec(), "203.0.113.9"),
    ] {
        let mut connection = Connection::open(proxy.address);
        connection.send([&header[..], REQUEST].concat());
        assert_eq!(connection.reply("GET").status, 200);
        assert_eq!(forwarded_for(&api), client);
        // The header counts for all requests of its connection.
        assert_eq!(connection.get("/", &[]).status, 200);
        assert_eq!(forwarded_for(&api), client);
        assert_eq!(connection.get("/", &[]).status, 429);
        proxy.log.wait("request", |line| line["client"] == client && line["status"] == 429);
    }
}

#[test]
fn a_header_may_come_byte_by_byte() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).start();
    for header in [V1.to_vec(), with_tlv()] {
        let mut connection = Connection::open(proxy.address);
        for byte in [&header[..], REQUEST].concat() {
            connection.send([byte]);
        }
        assert_eq!(connection.reply("GET").status, 200);
        assert!(forwarded_for(&api).starts_with("203.0.113."));
    }
}

#[test]
fn a_proxy_that_speaks_for_itself_keeps_its_address() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).start();
    for header in [v2(0, 0, b""), v2(0, 0x11, &[1; 12]), b"PROXY UNKNOWN\r\n".to_vec()] {
        let mut connection = Connection::open(proxy.address);
        connection.send([&header[..], REQUEST].concat());
        assert_eq!(connection.reply("GET").status, 200);
        assert_eq!(forwarded_for(&api), "127.0.0.1");
    }
}

#[test]
fn a_trusted_proxy_without_a_right_header_is_refused() {
    let api = Upstream::echoing();
    let mut proxy = proxy(&api).admin().start();
    let cases = [
        (REQUEST.to_vec(), "no PROXY header"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), "no PROXY header"),
        (b"PROXY TCP4 a b c d\r\n".to_vec(), "malformed PROXY header"),
        ([b"PROXY TCP4 ", &[b'1'; 200][..]].concat(), "malformed PROXY header"),
        (v2(1, 0x11, &[0; 4999]), "more than 4096 bytes"),
    ];
    for (bytes, _) in &cases {
        let mut connection = Connection::open(proxy.address);
        // It may be closed while this is sent.
        let _ = connection.stream.write_all(bytes);
        assert!(connection.is_closed());
    }
    assert!(api.requests().is_empty());
    let counted = Metrics::of(proxy.admin()).value("tidegate_malformed_requests_total");
    assert_eq!(counted, 5.0);
    proxy.stop();
    let lines = proxy.log.with("malformed requests");
    for (_, reason) in cases {
        let is_told = |line: &serde_json::Value| {
            line["reason"].as_str().unwrap().contains(reason) && line["client"] == "127.0.0.1"
        };
        assert!(lines.iter().any(is_told), "{reason}: {lines:?}");
    }
}

#[test]
fn a_stranger_is_not_asked_for_a_header_and_may_not_send_one() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).start();
    let mut stranger = Connection::open_from([127, 0, 0, 9], proxy.address);
    assert_eq!(stranger.get("/", &[]).status, 200);
    assert_eq!(forwarded_for(&api), "127.0.0.9");
    for header in [V1.to_vec(), with_tlv()] {
        let mut stranger = Connection::open_from([127, 0, 0, 9], proxy.address);
        stranger.send([&header[..], REQUEST].concat());
        let said = String::from_utf8_lossy(&stranger.rest()).into_owned();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400 "), "{said}");
    }
    assert_eq!(api.requests().len(), 1);
}

/// Without the setting the header is what it is to any HTTP server: no request.
#[test]
fn without_the_setting_a_header_is_a_bad_request() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api).server("trusted_proxies = [\"127.0.0.1\"]").start();
    assert!(raw(proxy.address, [V1, REQUEST].concat()).starts_with("HTTP/1.1 400 "));
    assert!(api.requests().is_empty());
}

#[test]
fn a_clients_own_word_counts_only_if_the_header_names_a_trusted_proxy() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).start();
    for (peer, seen) in
        [("203.0.113.7", "203.0.113.7"), ("198.51.100.1", "192.0.2.66, 198.51.100.1")]
    {
        let mut connection = Connection::open(proxy.address);
        connection.send(format!("PROXY TCP4 {peer} 192.0.2.1 1 2\r\n"));
        let said = [("x-forwarded-for", "192.0.2.66")];
        assert_eq!(connection.get("/", &said).status, 200);
        assert_eq!(forwarded_for(&api), seen);
    }
}

#[test]
fn a_header_that_does_not_come_is_not_waited_for() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).server("header_timeout = \"200ms\"").start();
    for begin in [&b""[..], &V1[..20]] {
        let mut connection = Connection::open(proxy.address);
        connection.send(begin);
        assert!(connection.is_closed());
    }
}

#[test]
fn a_header_stands_before_tls() {
    let (folder, api) = (Folder::new(), Upstream::echoing());
    let files = folder.write_server("cert", &["a.test"]);
    let pair = format!("{{ cert = {:?}, key = {:?} }}", files.cert, files.key);
    let tls = format!("tls = {{ listen = \"LISTEN\", certificates = [{pair}] }}\nlisten = []");
    let proxy: Tidegate = proxy(&api).server(&tls).admin().start();
    let client = folder.client(&[HTTP_1_1], None);
    for (header, address) in [(V1.to_vec(), "203.0.113.7"), (with_tlv(), "203.0.113.8")] {
        let mut connection = Connection::open(proxy.address);
        connection.send(header);
        let stream = shake_hands_on(connection.stream, &client, "a.test").unwrap();
        assert_eq!(Connection::of(stream).get("/", &[]).status, 200);
        assert_eq!(forwarded_for(&api), address);
    }
    let without = Connection::open(proxy.address);
    assert!(shake_hands_on(without.stream, &client, "a.test").is_err());
    proxy.log.wait("malformed requests", |line| line["client"] == "127.0.0.1");
}

#[test]
fn http2_may_follow_a_header() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).start();
    let mut frames = Frames::silent(proxy.address);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    frames.send([&with_tlv()[..], preface, &frame(SETTINGS, 0, 0, b"")].concat());
    assert_eq!(frames.ask(1, &asking("GET", "/")), Outcome::Status(200));
    assert_eq!(forwarded_for(&api), "203.0.113.8");
}

#[test]
fn the_clients_of_headers_are_counted_one_by_one() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).server("max_connections_per_client = 1").start();
    let open = |header: &[u8]| {
        let mut connection = Connection::open(proxy.address);
        connection.send([header, REQUEST].concat());
        let served = matches!(connection.stream.read(&mut [0; 4096]), Ok(1..));
        (served, connection)
    };
    let (first, _one) = open(V1);
    let (other, _two) = open(&with_tlv());
    assert!(first && other);
    assert!(!open(V1).0);
    // Through NAT64 it is the same client.
    assert!(!open(b"PROXY TCP6 64:ff9b::cb00:7107 ::1 1 2\r\n").0);
    let line = proxy.log.wait("connections refused", |_| true);
    assert_eq!(line["client"], "203.0.113.7");
}

#[test]
fn haproxy_stands_in_front() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).start();
    for options in
        ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id"]
    {
        let Some(front) = PeerServer::haproxy(&proxy.address.to_string(), options) else { return };
        let mut client = Connection::open_from([127, 0, 0, 9], front.address());
        assert_eq!(client.get("/", &[]).status, 200, "{options}");
        assert_eq!(forwarded_for(&api), "127.0.0.9", "{options}");
    }
}

#[test]
fn nginx_stands_in_front() {
    let api = Upstream::echoing();
    let proxy = proxy(&api).start();
    let Some(front) = PeerServer::nginx(&proxy.address.to_string()) else { return };
    let mut client = Connection::open_from([127, 0, 0, 9], front.address());
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(forwarded_for(&api), "127.0.0.9");
}
