//! Requests and answers as bytes: however they are cut, and whoever waits for whom.

use std::io::{BufReader, Read as _, Write as _};
use std::thread;

use crate::support::client::{Connection, raw};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok, read_head};

#[test]
fn requests_in_one_packet_are_told_apart() {
    let api = Upstream::answering(|got| {
        ok(&format!("{} {}", got.path(), String::from_utf8_lossy(&got.body)))
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send(
        "POST /1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2;x\r\nhi\r\n0\r\n\r\n\
         GET /2 HTTP/1.1\r\nhost: a\r\n\r\n\
         \r\nPOST /3 HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nho\
         POST /4 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n\
         GET /5 HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n\
         GET /6 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n\
         GET /7 HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    for text in ["/1 hi", "/2 ", "/3 ho", "/4 ", "/5 ", "/6 "] {
        assert_eq!(client.reply("POST").text(), text);
    }
    assert!(client.is_closed());
    assert_eq!(api.requests().len(), 6);
}

#[test]
fn a_fault_behind_good_requests_is_answered_after_them() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let good = "GET /good HTTP/1.1\r\nhost: a\r\n\r\n";
    let text = raw(proxy.address, format!("{good}{good}GET / HTTP/9.9\r\n\r\n{good}"));
    let statuses: Vec<_> =
        text.split("HTTP/1.1 ").skip(1).map(|answer| answer.get(..3).unwrap()).collect();
    assert_eq!(statuses, ["200", "200", "400"], "{text}");
    let (_, last) = text.rsplit_once("HTTP/1.1 ").unwrap();
    assert!(last.ends_with("\r\n\r\n"), "it has no body: {last}");
    for line in ["content-length: 0", "connection: close", "date: "] {
        assert!(last.contains(line), "{line} in {last}");
    }
    assert_eq!(api.requests().len(), 2);
}

#[test]
fn who_sends_all_before_it_reads_is_answered() {
    const MUCH: usize = 16 << 20;
    // It answers before it has read, and reads all the same.
    let api = Upstream::raw(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_head(&mut reader).is_none() {
            return;
        }
        let answering = thread::spawn(move || {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {MUCH}\r\n\r\n");
            let _ = stream.write_all(&vec![b'y'; MUCH]);
            stream
        });
        let mut left = MUCH as u64;
        let mut space = vec![0; 1 << 16];
        while left > 0 {
            match reader.read(&mut space) {
                Ok(read @ 1..) => left -= read as u64,
                _ => return,
            }
        }
        let _ = answering.join();
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {MUCH}\r\n\r\n"));
    client.send(vec![b'x'; MUCH]);
    let reply = client.reply("POST");
    assert!(reply.body.len() == MUCH && reply.body.iter().all(|byte| *byte == b'y'));
}

#[test]
fn what_flows_both_ways_at_once_arrives() {
    let api = Upstream::raw(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(_) = read_head(&mut reader) else { return };
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        // The chunks of the request are those of the answer.
        let _ = std::io::copy(&mut reader, &mut stream);
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    let data: Vec<u8> = (0..8 << 20).map(|n: u32| n.to_le_bytes()[n as usize % 3]).collect();
    let (mut writer, said) = (client.stream.try_clone().unwrap(), data.clone());
    let writing = thread::spawn(move || {
        for piece in said.chunks(100_001) {
            write!(writer, "{:x}\r\n", piece.len()).unwrap();
            writer.write_all(piece).unwrap();
            writer.write_all(b"\r\n").unwrap();
        }
        writer.write_all(b"0\r\n\r\n").unwrap();
    });
    let reply = client.reply("POST");
    writing.join().unwrap();
    assert!(reply.body == data);
}

#[test]
fn an_awaited_body_is_asked_for_once_and_only_if_it_is_read() {
    let api = Upstream::answering(|got| ok(&String::from_utf8_lossy(&got.body)));
    let proxy = Proxy::of_one_worker(&api).start();
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n";
    let mut client = Connection::open(proxy.address);
    client.send(format!("{head}transfer-encoding: chunked\r\n\r\n"));
    assert_eq!(client.any_reply("POST").status, 100);
    client.send("2\r\nhi\r\n");
    client.send("0\r\n\r\n");
    assert_eq!(client.any_reply("POST").text(), "hi");
    assert_eq!(api.last().header("expect"), None);
    // Who does not wait for it is served all the same.
    client.send(format!("{head}content-length: 2\r\n\r\nhi"));
    assert_eq!(client.reply("POST").text(), "hi");
    // There is no body to ask for, and HTTP/1.0 cannot be asked.
    client.send(format!("{head}\r\n"));
    assert_eq!(client.any_reply("POST").status, 200);
    let old = head.replace("1.1", "1.0");
    client.send(format!("{old}content-length: 2\r\n\r\nho"));
    assert_eq!(client.any_reply("POST").text(), "ho");
    assert!(client.is_closed());
}

#[test]
fn answers_of_any_size_are_framed_rightly() {
    let api = Upstream::answering(|got| {
        let (kind, size) = got.path()[1..].split_once('/').unwrap();
        let body = "x".repeat(size.parse().unwrap());
        match kind {
            "length" => ok(&body),
            _ if body.is_empty() => {
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_vec()
            }
            _ => format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            )
            .into_bytes(),
        }
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    for size in [0, 1, 15, 16, 255, 4095, 8000, 16_000, 16_384, 16_500, 70_000, 1_000_000] {
        for kind in ["length", "chunked"] {
            let reply = client.get(&format!("/{kind}/{size}"), &[]);
            assert_eq!((reply.status, reply.body.len()), (200, size), "{kind} {size}");
        }
    }
}
