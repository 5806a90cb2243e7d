//! What goes on inside of a client's TLS connection.

use std::io::{BufReader, Write as _};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::Duration;

use tidegate::tls::H2;

use super::Place;
use crate::support::PATIENCE;
use crate::support::api::Api;
use crate::support::client::Connection;
use crate::support::http2;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok, read_request};

/// Longer than a connection is idle before it is parked. That it is parked by then changes no answer.
const A_WHILE: Duration = Duration::from_millis(400);

/// Bytes of which no piece is like another.
fn much(length: usize) -> Vec<u8> {
    (0u32..).flat_map(u32::to_be_bytes).take(length).collect()
}

#[test]
fn an_idle_connection_goes_on_where_it_was() {
    let place = Place::new();
    let proxy = place.start();
    for config in [place.client(), place.folder.old_client()] {
        let mut client = Connection::open_tls(proxy.address, &config, "a.test");
        for path in ["/1", "/2", "/3"] {
            assert_eq!(client.get(path, &[]).text(), path);
            sleep(A_WHILE);
        }
    }
}

#[test]
fn half_a_head_behind_a_request_and_half_a_record_are_awaited() {
    let place = Place::new();
    let proxy = place.start();
    let mut client = Connection::open_tls(proxy.address, &place.client(), "a.test");
    // One record: what of it is left over is in no socket any more.
    client.send("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\nGET /3 HT");
    assert_eq!(client.reply("GET").text(), "/1");
    assert_eq!(client.reply("GET").text(), "/2");
    sleep(A_WHILE);
    client.send("TP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.reply("GET").text(), "/3");
    // And half a record.
    let mut record = Vec::new();
    client.stream.conn.writer().write_all(b"GET /4 HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    while client.stream.conn.wants_write() {
        client.stream.conn.write_tls(&mut record).unwrap();
    }
    sleep(A_WHILE);
    client.stream.sock.write_all(&record[..10]).unwrap();
    sleep(A_WHILE);
    client.stream.sock.write_all(&record[10..]).unwrap();
    assert_eq!(client.reply("GET").text(), "/4");
}

#[test]
fn large_bodies_pass_both_ways() {
    let place = Place {
        api: Upstream::answering(|got| {
            let mut answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", got.body.len())
                    .into_bytes();
            answer.extend_from_slice(&got.body);
            answer
        }),
        ..Place::new()
    };
    let proxy = place.start();
    let body = much(20 << 20);
    let mut client = Connection::open_tls(proxy.address, &place.client(), "a.test");
    let reply = client.request("POST", "/", &[], &body);
    assert!(reply.body == body, "{} bytes came", reply.body.len());
    let config = place.folder.client(&[H2], None);
    let mut client = http2::Client::open_tls(proxy.address, config, "a.test");
    let reply = client.post("/", &[], &body);
    assert!(reply.body == body, "{} bytes came", reply.body.len());
}

#[test]
fn an_upgraded_connection_flows_both_ways() {
    let (place, api) = (Place::new(), Api::http1());
    let config = place.proxy().text().replace(&place.api.url(), &api.url);
    let proxy = Tidegate::start(&config);
    let mut client = Connection::open_tls(proxy.address, &place.client(), "a.test");
    client.send(
        "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nearly",
    );
    assert_eq!(client.any_reply("GET").status, 101);
    assert_eq!(client.exactly(5), b"early");
    let said = much(100_000);
    for _ in 0..20 {
        client.send(&said);
        assert!(client.exactly(said.len()) == said);
    }
    client.stream.conn.send_close_notify();
    let (rest, end) = client.rest_with_end();
    assert_eq!((rest.len(), end.map_err(|error| error.kind())), (0, Ok(())));
}

#[test]
fn what_is_under_way_is_finished_when_the_process_drains() {
    let ((tell, told), (go, gate)) = (channel(), channel::<()>());
    let gate = Mutex::new(gate);
    let place = Place {
        api: Upstream::answering(move |_| {
            tell.send(()).unwrap();
            let _ = gate.lock().unwrap().recv();
            ok("done")
        }),
        ..Place::new()
    };
    let mut proxy = place.start();
    let mut client = Connection::open_tls(proxy.address, &place.client(), "a.test");
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    told.recv_timeout(PATIENCE).unwrap();
    proxy.signal("TERM");
    proxy.log.wait("draining", |_| true);
    go.send(()).unwrap();
    assert_eq!(client.reply("GET").text(), "done");
    let (rest, end) = client.rest_with_end();
    assert_eq!((rest.len(), end.map_err(|error| error.kind())), (0, Ok(())), "a clean end");
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn an_idle_connection_ends_cleanly() {
    for (what, times) in [("its time is over", "idle_timeout = \"200ms\""), ("a drain", "")] {
        let place = Place::new();
        let mut proxy = place.proxy().server(times).start();
        let mut idle = Connection::open_tls(proxy.address, &place.client(), "a.test");
        assert_eq!(idle.get("/", &[]).status, 200);
        if what == "a drain" {
            sleep(A_WHILE);
            proxy.signal("TERM");
        }
        let (rest, end) = idle.rest_with_end();
        assert_eq!((rest.len(), end.map_err(|error| error.kind())), (0, Ok(())), "{what}");
        if what == "a drain" {
            assert_eq!(proxy.wait().code(), Some(0));
        }
    }
}

#[test]
fn an_answer_that_breaks_off_does_not_end_cleanly() {
    let place = Place {
        api: Upstream::raw(|mut stream| {
            let _ = read_request(&mut BufReader::new(&stream));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf");
        }),
        ..Place::new()
    };
    let proxy = place.start();
    let mut client = Connection::open_tls(proxy.address, &place.client(), "a.test");
    // Of an answer to HTTP/1.0 without a length the connection's end is the end.
    client.send("GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    let (_, end) = client.rest_with_end();
    assert!(end.is_err(), "it looks whole");
}
