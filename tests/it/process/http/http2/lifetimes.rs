//! How long a connection and its streams may take. The time-outs are short; only that they come is tested.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::{Gate, logged};
use crate::support::client::get;
use crate::support::http2::Client;
use crate::support::http2::frames::{
    CONTINUATION, DATA, END_STREAM, Frame, Frames, GOAWAY, HEADERS, Outcome, PING, PREFACE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, asking, block, frame, request,
};
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, read_head};
use crate::support::{PATIENCE, wait_until};

const NO_ERROR: Option<u32> = Some(0);

#[test]
fn a_preface_may_come_byte_by_byte_or_with_a_request() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let head = request(1, END_STREAM, &asking("GET", "/pieces"));
    let hello = [PREFACE, &frame(SETTINGS, 0, 0, b""), &head].concat();
    for pieces in [1, hello.len()] {
        let mut client = Frames::silent(proxy.address);
        hello.chunks(pieces).for_each(|piece| client.send(piece));
        assert_eq!(client.outcome(1), Outcome::Status(200));
        assert_eq!(api.last().path(), "/pieces");
    }
}

#[test]
fn what_only_begins_like_the_preface_is_refused() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for wrong in [
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        "PRI * HTTP/2.0\r\nhost: a\r\n\r\n",
        "PRI * HTTP/2.1\r\n\r\n",
    ] {
        let mut client = Frames::silent(proxy.address);
        client.send(format!("{wrong}GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(client.end(), None, "{wrong}");
    }
    assert!(api.requests().is_empty(), "{:?}", api.requests());
}

#[test]
fn a_connection_that_does_not_finish_its_hello_is_closed() {
    let api = Upstream::echoing();
    let times = "header_timeout = \"200ms\"\nidle_timeout = \"1h\"";
    let proxy = Proxy::of_one_worker(&api).server(times).start();
    for part in [0, 1, PREFACE.len() - 1, PREFACE.len()] {
        let mut client = Frames::silent(proxy.address);
        client.send(&PREFACE[..part]);
        // What it is told is not answered.
        client.stream.read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn half_a_head_does_not_keep_a_connection() {
    let api = Upstream::echoing();
    let times = "header_timeout = \"300ms\"\nidle_timeout = \"300ms\"";
    let proxy = Proxy::of_one_worker(&api).server(times).start();
    let mut client = Frames::open(proxy.address, &[]);
    client.send(frame(HEADERS, END_STREAM, 1, &block(&asking("GET", "/"))));
    client.send(frame(CONTINUATION, 0, 1, b""));
    client.end();
    assert!(api.requests().is_empty());
}

#[test]
fn an_idle_connection_is_told_goodbye() {
    let api = Upstream::echoing();
    let times = "header_timeout = \"1h\"\nidle_timeout = \"300ms\"";
    let proxy = Proxy::of_one_worker(&api).server(times).start();
    let mut client = Client::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    client.ended().expect("a goodbye without an error");
    let mut client = Frames::open(proxy.address, &[]);
    assert_eq!(client.ask(1, &asking("GET", "/")), Outcome::Status(200));
    let goodbye = client.find(|frame| frame.kind == GOAWAY).expect("a goodbye");
    assert_eq!(goodbye.payload[4..8], [0; 4], "without an error");
    client.end();
    // One that has said hello and nothing more is idle too.
    assert_eq!(Frames::open(proxy.address, &[]).end(), NO_ERROR);
}

#[test]
fn pings_do_not_keep_an_idle_connection() {
    let api = Upstream::echoing();
    let times = "header_timeout = \"1h\"\nidle_timeout = \"300ms\"";
    let proxy = Proxy::of_one_worker(&api).server(times).start();
    let mut client = Frames::open(proxy.address, &[]);
    assert_eq!(client.ask(1, &asking("GET", "/")), Outcome::Status(200));
    let deadline = crate::support::now() + PATIENCE;
    while client.try_send(frame(PING, 0, 0, &[0; 8]))
        && client.find(|frame| frame.kind == PING || frame.kind == GOAWAY).is_some()
    {
        assert!(crate::support::now() < deadline, "it is kept");
    }
}

#[test]
fn a_stalled_reader_loses_its_stream_alone() {
    let (endless, told) = Upstream::endless();
    let gate = Gate::new();
    let proxy = Proxy::of_one_worker(&gate.api)
        .server("body_timeout = \"500ms\"")
        .section(&format!("[upstreams.endless]\nservers = [\"{}\"]", endless.url()))
        .route("path = \"/endless\"\nupstream = \"endless\"")
        .route("path = \"/{*rest}\"")
        .start();
    let mut client = Client::open_with(proxy.address, |builder| {
        builder.initial_connection_window_size(10_000_000);
    });
    let mut slow = client.begin("GET", "/slow", &[]);
    gate.has();
    let mut stalled = client.begin("GET", "/endless", &[]);
    assert_eq!(stalled.head().unwrap().status(), 200);
    told.recv_timeout(PATIENCE).expect("the API's connection is closed");
    // Nothing tells the end from the other pieces that were sent before it.
    while let Some(Ok(_)) = stalled.piece() {}
    assert_eq!(client.get("/quick", &[]).text(), "/quick");
    gate.open("/slow");
    assert_eq!(slow.reply().text(), "/slow", "one that waits is no stalled reader");
}

/// An answer of one piece was handed over whole, and its stream then lived as long as its connection.
#[test]
fn a_stalled_stream_is_reset_beside_one_that_moves() {
    let api = Upstream::answering(|got| {
        let length = if got.path() == "/stalled" { 200_000 } else { 50_000_000 };
        let mut answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
        answer.resize(answer.len() + length, b'x');
        answer
    });
    let proxy = Proxy::of_one_worker(&api).server("body_timeout = \"2s\"").start();
    let mut client = Frames::open(proxy.address, &[]);
    client.send(frame(WINDOW_UPDATE, 0, 0, &1_000_000_000_u32.to_be_bytes()));
    client.send(request(1, END_STREAM, &asking("GET", "/stalled")));
    client.send(request(3, END_STREAM, &asking("GET", "/moving")));
    let mut is_reset = false;
    while !is_reset {
        let came = client.next().expect("the connection is there");
        assert!(came.kind != RST_STREAM || came.stream == 1, "the one that moves");
        is_reset = came.kind == RST_STREAM;
        if came.kind == DATA && came.stream == 3 {
            // Ten bytes at a time last longer than the time-out, and do not fill the connection.
            client.send(frame(WINDOW_UPDATE, 0, 3, &10_u32.to_be_bytes()));
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    client.send(frame(WINDOW_UPDATE, 0, 3, &10_000_u32.to_be_bytes()));
    client.find(|came| came.kind == DATA && came.stream == 3).expect("the other goes on");
}

#[test]
fn a_client_that_reads_nothing_of_its_connection_is_cut_off() {
    let (api, told) = Upstream::endless();
    let proxy = Proxy::of_one_worker(&api).server("body_timeout = \"300ms\"").start();
    let windows = [(4, 0x7fff_ffff)];
    let mut client = Frames::open(proxy.address, &windows);
    client.send(frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes()));
    client.send(request(1, END_STREAM, &asking("GET", "/")));
    told.recv_timeout(PATIENCE).expect("the API's connection is closed");
}

#[test]
fn a_stalled_upload_is_answered_408_for_its_stream_alone() {
    let (api, accepted) = Upstream::listening();
    let times = "response_timeout = \"50ms\"";
    let proxy =
        Proxy::of_one_worker(&api).server("body_timeout = \"300ms\"").upstream(times).start();
    let mut client = Client::open(proxy.address);
    for headers in [&[("content-length", "10")][..], &[]] {
        let mut upload = client.upload("POST", "/", headers);
        upload.send(b"half");
        let reply = upload.reply();
        assert_eq!((reply.status, reply.json()["status"].as_u64()), (408, Some(408)));
        assert_eq!(reply.header("connection"), None);
        let heard: Vec<u8> =
            accepted.recv_timeout(PATIENCE).unwrap().into_iter().flatten().collect();
        assert!(!heard.ends_with(b"0\r\n\r\n"), "the body must not look whole");
    }
    assert_eq!(client.get("/a%2fb", &[]).status, 400, "the connection is kept");
}

#[test]
fn a_drain_lets_streams_finish_and_takes_no_more() {
    let (gate, port) = (Gate::new(), Port::hold());
    let mut proxy = logged(&gate.api).on(&port).server("drain_timeout = \"1h\"").start();
    let mut idle = Client::open(proxy.address);
    assert_eq!(idle.get("/", &[]).status, 200);
    let mut client = Frames::open(proxy.address, &[]);
    client.send(request(1, END_STREAM, &asking("GET", "/slow")));
    gate.has();
    proxy.signal("TERM");
    idle.ended().expect("a goodbye without an error");
    let goodbye = client.find(|frame| frame.kind == GOAWAY).expect("a goodbye");
    assert_eq!(goodbye.payload[4..8], [0; 4], "without an error");
    wait_until("nobody listens", || TcpStream::connect(proxy.address).is_err());
    gate.open("/slow");
    assert_eq!(client.outcome(1), Outcome::Status(200));
    assert!(matches!(client.end(), None | NO_ERROR), "nothing was lost");
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(proxy.log.with("request").iter().filter(|line| line["status"] == 200).count(), 2);
}

#[test]
fn a_drain_does_not_wait_for_a_client_that_says_nothing() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).server("drain_timeout = \"1h\"").start();
    let mut hello = Frames::open(proxy.address, &[]);
    hello.find(|frame| frame.kind == SETTINGS).expect("its hello");
    let mut half = Frames::silent(proxy.address);
    half.send(&PREFACE[..10]);
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    proxy.signal("TERM");
    assert_eq!(hello.end(), NO_ERROR);
    half.end();
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn a_stream_that_takes_longer_than_the_drain_is_cut_off() {
    let gate = Gate::new();
    let mut proxy = logged(&gate.api).server("drain_timeout = \"300ms\"").start();
    let mut client = Client::open(proxy.address);
    let mut slow = client.begin("GET", "/slow", &[]);
    gate.has();
    proxy.signal("TERM");
    assert!(slow.outcome().is_err());
    assert_eq!(proxy.wait().code(), Some(0));
}

/// A connection that had said all was closed while its client still read: what the client then said of
/// how far it had come was answered by a reset, which destroyed what it had not read.
#[test]
fn a_drain_waits_until_a_slow_reader_has_all_of_its_answer() {
    const HALF: usize = 500_000;
    let (more, rest) = channel();
    let rest = Mutex::new(rest);
    let api = Upstream::raw(move |mut stream| {
        let _ = read_head(&mut BufReader::new(&stream));
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 2 * HALF);
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&[b'x'; HALF]);
        let _ = rest.lock().unwrap().recv();
        let _ = stream.write_all(&[b'y'; HALF]);
    });
    let mut proxy = Proxy::of_one_worker(&api).upstream("[log]\naccess = true").start();
    // A window that holds all of it: what is left to read is left in the kernel.
    let mut client = Frames::open(proxy.address, &[(4, 1 << 24)]);
    client.send(frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 24).to_be_bytes()));
    client.send(request(1, END_STREAM, &asking("GET", "/file")));
    let mut left = 2 * HALF;
    let data = |frame: Frame| if frame.kind == DATA { frame.payload.len() } else { 0 };
    while left > HALF {
        left -= client.next().map(data).unwrap();
    }
    proxy.signal("TERM");
    // Told to go, it answers, and is sent the rest, of which it reads nothing yet.
    client.find(|frame| frame.kind == PING).unwrap();
    more.send(()).unwrap();
    proxy.log.wait("request", |_| true);
    while left > 0 {
        client.send(frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()));
        left -= client.next().map(data).expect("the rest comes");
    }
    drop(client);
    assert!(proxy.wait().success());
}
