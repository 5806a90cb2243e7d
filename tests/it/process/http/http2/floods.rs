//! Clients that send what costs them little and others much: their connection ends or is bounded, and
//! nobody else notices.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use super::logged;
use crate::support::client::get;
use crate::support::http2::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, Outcome, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, asking, block, frame, request,
};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, until_closed};
use crate::support::{PATIENCE, now, wait_until};

const ACK: u8 = 1;
/// Frame types (RFC 9113, 6.3 and 5.5).
const PRIORITY: u8 = 2;
const UNKNOWN: u8 = 0x42;

const PROTOCOL_ERROR: Option<u32> = Some(1);
const FLOW_CONTROL_ERROR: Option<u32> = Some(3);
const ENHANCE_YOUR_CALM: Option<u32> = Some(11);

/// Sends this again and again without reading, until it is cut off.
fn flood(client: &mut Frames, bytes: &[u8]) {
    let deadline = now() + PATIENCE;
    while client.try_send(bytes) {
        assert!(now() < deadline, "it is not cut off");
    }
}

/// That others are served, and that little more memory is held than before, in kilobytes.
fn assert_unharmed(proxy: &Tidegate, before: usize) {
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 30_000, "{grown} KB");
}

/// A connection that has had an answer.
fn acquainted(address: SocketAddr) -> Frames {
    let mut client = Frames::open(address, &[]);
    assert_eq!(client.ask(1, &asking("GET", "/")), Outcome::Status(200));
    client
}

#[test]
fn requests_that_are_reset_at_once_end_the_connection() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).start();
    let mut client = acquainted(proxy.address);
    let before = proxy.memory();
    // So that all of it is there at once.
    proxy.pause();
    let pairs = (1..200_u32).flat_map(|n| {
        let head = request(2 * n + 1, END_STREAM, &asking("GET", "/reset"));
        [head, frame(RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes())].concat()
    });
    client.send(pairs.collect::<Vec<_>>());
    proxy.signal("CONT");
    assert_eq!(client.end(), ENHANCE_YOUR_CALM);
    assert_unharmed(&proxy, before);
    assert!(api.requests().iter().all(|got| got.path() != "/reset"));
    proxy.stop();
    let line = proxy.log.find("malformed requests").expect("a line");
    assert_eq!((&line["client"], &line["count"]), (&"127.0.0.1".into(), &1.into()));
}

/// The library of HTTP/2 would write a line for each connection.
#[test]
fn many_connections_that_reset_do_not_fill_the_log() {
    let mut proxy = Proxy::answering().server("workers = 1").start();
    let pairs = (0..200_u32).flat_map(|n| {
        let head = request(2 * n + 1, END_STREAM, &asking("GET", "/reset"));
        [head, frame(RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes())].concat()
    });
    let pairs: Vec<_> = pairs.collect();
    for _ in 0..50 {
        let mut client = Frames::open(proxy.address, &[]);
        client.send(&pairs);
        assert_eq!(client.end(), ENHANCE_YOUR_CALM);
    }
    proxy.stop();
    let lines = proxy.log.with("malformed requests");
    assert_eq!(lines.iter().map(|line| line["count"].as_u64().unwrap()).sum::<u64>(), 50);
    let foreign: Vec<_> =
        proxy.log.lines().into_iter().filter(|line| line["target"] != "tidegate").collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

/// Not even a connection to the API is opened for a request that was reset before it was looked at.
#[test]
fn requests_that_were_reset_already_reach_no_server() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let api = Upstream::raw(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let mut proxy = Proxy::of_one_worker(&api).start();
    for _ in 0..20 {
        let mut client = Frames::open(proxy.address, &[]);
        // So that all of it is there at once.
        proxy.pause();
        let pairs = (0..60_u32).flat_map(|n| {
            let head = request(2 * n + 1, END_STREAM, &asking("GET", "/reset"));
            [head, frame(RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes())].concat()
        });
        client.send(pairs.chain(frame(PING, 0, 0, &[0; 8])).collect::<Vec<_>>());
        proxy.signal("CONT");
        client.find(|frame| frame.kind == PING).expect("an answer to the ping");
    }
    proxy.stop();
    assert_eq!(connections.load(Ordering::Relaxed), 0);
}

#[test]
fn requests_reset_one_by_one_are_limited_like_others() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("ten", "key = [\"ip\"]\nrate = \"10/h\"").start();
    let mut client = Frames::open(proxy.address, &[]);
    let before = proxy.memory();
    for n in 0..5000_u32 {
        let head = request(2 * n + 1, END_STREAM, &asking("GET", "/reset"));
        let pair = [head, frame(RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes())].concat();
        if !client.try_send(pair) {
            break;
        }
    }
    drop(client);
    assert!(api.requests().len() <= 10);
    assert_eq!(get(proxy.address, "/a%2fb", &[]).status, 400);
    assert!(proxy.memory().saturating_sub(before) < 30_000);
}

#[test]
fn resets_that_a_client_provokes_end_the_connection() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).start();
    let mut client = acquainted(proxy.address);
    let before = proxy.memory();
    let most = 0x7fff_ffff_u32.to_be_bytes();
    for n in 1..5000_u32 {
        let stream = 2 * n + 1;
        let sent = client.try_send(request(stream, 0, &asking("POST", "/a%2fb")))
            && client.try_send(frame(WINDOW_UPDATE, 0, stream, &most));
        if !sent {
            break;
        }
    }
    assert_eq!(client.end(), ENHANCE_YOUR_CALM);
    assert_unharmed(&proxy, before);
    proxy.stop();
    assert_eq!(proxy.log.count("malformed requests"), 1);
}

#[test]
fn unread_answers_to_pings_and_settings_end_the_connection() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("body_timeout = \"300ms\"").start();
    let change = [[0, 4].as_slice(), &65_535_u32.to_be_bytes()].concat();
    for piece in
        [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, b""), frame(SETTINGS, 0, 0, &change)]
    {
        let mut client = acquainted(proxy.address);
        let before = proxy.memory();
        // It blocks once all buffers on the way are full, until the connection is cut.
        flood(&mut client, &piece.repeat(1000));
        assert_unharmed(&proxy, before);
    }
}

#[test]
fn control_frames_without_end_end_the_connection_though_their_answers_are_read() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).start();
    let change = [[0, 4].as_slice(), &65_535_u32.to_be_bytes()].concat();
    let pieces = [
        frame(PING, 0, 0, &[7; 8]),
        frame(PING, ACK, 0, &[7; 8]),
        frame(SETTINGS, 0, 0, &change),
        frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(UNKNOWN, 0, 0, b""),
    ];
    for piece in &pieces {
        let mut client = acquainted(proxy.address);
        let before = proxy.memory();
        let mut answers = client.stream.try_clone().unwrap();
        let reading = thread::spawn(move || {
            let _ = io::copy(&mut answers, &mut io::sink());
        });
        flood(&mut client, &piece.repeat(1000));
        reading.join().unwrap();
        assert_unharmed(&proxy, before);
    }
    proxy.stop();
    let lines = proxy.log.with("malformed requests");
    let counts = lines.iter().map(|line| line["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), pieces.len() as u64, "{lines:?}");
    assert!(lines.iter().all(|line| line["reason"].as_str().unwrap().contains("control frames")));
}

#[test]
fn a_head_that_goes_on_and_on_ends_the_connection() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).start();
    let long = block(&[("x", &[b'y'; 1000])]);
    for piece in [&b""[..], &long] {
        let mut client = acquainted(proxy.address);
        let before = proxy.memory();
        client.send(frame(HEADERS, END_STREAM, 3, &block(&asking("GET", "/flood"))));
        let piece = frame(CONTINUATION, 0, 3, piece);
        flood(&mut client, &piece.repeat(100));
        assert_unharmed(&proxy, before);
    }
    proxy.stop();
    let count = |line: &serde_json::Value| line["count"].as_u64().unwrap();
    assert_eq!(proxy.log.with("malformed requests").iter().map(count).sum::<u64>(), 2);
    assert!(api.requests().iter().all(|got| got.path() == "/"));
}

#[test]
fn pieces_of_a_body_with_nothing_in_them_end_the_connection() {
    let (stuck, accepted) = Upstream::listening();
    let proxy = Proxy::of_one_worker(&stuck).upstream("response_timeout = \"1h\"").start();
    let mut client = Frames::open(proxy.address, &[]);
    client.send(request(1, 0, &asking("POST", "/")));
    let heard = accepted.recv_timeout(PATIENCE).unwrap();
    let before = proxy.memory();
    flood(&mut client, &frame(DATA, 0, 1, b"").repeat(100));
    until_closed(&heard);
    proxy.log.wait("malformed requests", |_| true);
    assert!(proxy.memory().saturating_sub(before) < 30_000);
}

#[test]
fn answers_nobody_reads_are_bounded_and_given_up() {
    let api = Upstream::answering(|_| {
        let mut answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5000000\r\n\r\n".to_vec();
        answer.resize(answer.len() + 5_000_000, b'x');
        answer
    });
    let proxy = logged(&api).server("body_timeout = \"1s\"").start();
    let before = proxy.memory();
    let mut client = Frames::open(proxy.address, &[(4, 0)]);
    for n in 0..100_u32 {
        client.send(request(2 * n + 1, END_STREAM, &asking("GET", "/")));
    }
    // None can end but by being given up.
    let mut resets = 0;
    while resets < 100 {
        let frame = client.next().expect("the connection is there");
        assert_ne!(frame.kind, DATA);
        resets += usize::from(frame.kind == RST_STREAM);
    }
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 100_000, "{grown} KB");
    wait_until("all are told", || proxy.log.count("request") == 100);
}

#[test]
fn one_field_referred_to_many_times_makes_a_head_too_large() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = acquainted(proxy.address);
    let before = proxy.memory();
    let long = block(&[("x", &[b'y'; 3000])]);
    for (times, outcome) in
        [(20, Outcome::Status(431)), (10_000, Outcome::Closed(ENHANCE_YOUR_CALM))]
    {
        // Put into the table (RFC 7541, 6.2.1), where it is entry 62.
        let mut head = block(&asking("GET", "/"));
        head.push(0x40);
        head.extend(&long[1..]);
        head.extend(vec![0x80 | 62; times]);
        let stream = u32::try_from(times).unwrap() + 1;
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, stream, &head));
        assert_eq!(client.outcome(stream), outcome, "{times}");
    }
    assert_unharmed(&proxy, before);
}

#[test]
fn heads_of_many_fields_are_refused_one_by_one_and_summed_up() {
    let api = Upstream::echoing();
    let mut proxy = logged(&api).admin().start();
    let mut client = acquainted(proxy.address);
    let before = proxy.memory();
    // A field counts 32 bytes and its text (RFC 9113, 6.5.2): 32 KiB have room for some 900 of these.
    let head = |fields: usize| {
        asking("GET", "/").into_iter().chain(vec![("x", &b"y"[..]); fields]).collect::<Vec<_>>()
    };
    assert_eq!(client.ask(3, &head(900)), Outcome::Status(200));
    for stream in 2..200 {
        assert_eq!(client.ask(2 * stream + 1, &head(1_500)), Outcome::Status(431));
    }
    assert_unharmed(&proxy, before);
    let refused = "tidegate_requests_total{route=\"none\",status=\"431\"}";
    let metrics = Metrics::of(proxy.admin());
    let counted = ["tidegate_malformed_requests_total", refused].map(|name| metrics.value(name));
    assert_eq!(counted, [198.0; 2]);
    assert_eq!(
        client.ask(999, &asking("GET", "/")),
        Outcome::Status(200),
        "the connection is kept"
    );
    assert_eq!(api.requests().len(), 4);
    proxy.stop();
    let lines = proxy.log.with("malformed requests");
    let counts = lines.iter().map(|line| line["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 198, "{lines:?}");
    assert!(lines.len() < 10, "{lines:?}");
    assert!(lines.iter().all(|line| line["reason"].as_str().unwrap().contains("max_header_size")));
    let refused = |line: &Value| line["status"] == 431 && line["route"] == "none";
    assert_eq!(proxy.log.with("request").into_iter().filter(refused).count(), 198);
}

#[test]
fn what_breaks_the_protocol_ends_the_connection_and_is_told() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).start();
    let most = 0x7fff_ffff_u32.to_be_bytes();
    let wrong = [
        ("data on no stream", frame(DATA, 0, 99, b"x"), PROTOCOL_ERROR),
        ("a stream of the server's", request(2, END_STREAM, &asking("GET", "/")), PROTOCOL_ERROR),
        ("a stream that is over", request(1, END_STREAM, &asking("GET", "/")), PROTOCOL_ERROR),
        ("a window without bounds", frame(WINDOW_UPDATE, 0, 0, &most), FLOW_CONTROL_ERROR),
        ("a ping that is too short", frame(PING, 0, 0, b"x"), PROTOCOL_ERROR),
        ("settings on a stream", frame(SETTINGS, 0, 1, b""), PROTOCOL_ERROR),
        ("no fields", frame(HEADERS, END_STREAM | END_HEADERS, 3, b"\xff\xff\xff"), PROTOCOL_ERROR),
        ("a frame that is too long", frame(DATA, 0, 3, &[0; 16_385]), Some(6)),
        (
            "something in a head",
            {
                let head = frame(HEADERS, END_STREAM, 3, &block(&asking("GET", "/")));
                [head, frame(PING, 0, 0, &[0; 8])].concat()
            },
            PROTOCOL_ERROR,
        ),
    ];
    let count = u64::try_from(wrong.len()).unwrap();
    for (name, bytes, code) in wrong {
        let mut client = acquainted(proxy.address);
        client.send(bytes);
        assert_eq!(client.end(), code, "{name}");
    }
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    proxy.stop();
    let lines = proxy.log.with("malformed requests");
    assert_eq!(lines.iter().map(|line| line["count"].as_u64().unwrap()).sum::<u64>(), count);
}

#[test]
fn a_client_that_leaves_is_not_malformed() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).start();
    drop(acquainted(proxy.address));
    let mut polite = acquainted(proxy.address);
    polite.send(frame(crate::support::http2::frames::GOAWAY, 0, 0, &[0; 8]));
    polite.end();
    let mut half = acquainted(proxy.address);
    half.stream.write_all(&[0, 0]).unwrap();
    drop(half);
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    proxy.stop();
    assert_eq!(proxy.log.count("malformed requests"), 0, "{}", proxy.log.text());
}
