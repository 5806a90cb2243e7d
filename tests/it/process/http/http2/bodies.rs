//! Bodies both ways, as fast as each side takes them.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::logged;
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok, read_head, read_request};
use crate::support::{PATIENCE, wait_until};

/// Bytes of which each place has its own.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

fn with_body(body: &[u8]) -> Vec<u8> {
    let mut answer =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

#[test]
fn large_bodies_go_both_ways_as_they_are() {
    let api = Upstream::answering(|got| with_body(&got.body));
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Client::open(proxy.address);
    for length in [0, 1, 16_384, 65_535, 65_536, 1_000_000, 5_000_000] {
        let body = pattern(length);
        let reply = client.post("/", &[], &body);
        assert_eq!((reply.status, reply.body.len()), (200, length));
        assert!(reply.body == body, "{length}");
        assert!(api.last().body == body, "{length}");
    }
    let announced = client.post("/", &[("content-length", "5")], b"hello");
    assert_eq!(announced.text(), "hello");
    assert_eq!(api.last().header("content-length").as_deref(), Some("5"));
    assert_eq!(api.last().header("transfer-encoding"), None);
}

#[test]
fn large_bodies_of_many_streams_are_not_mixed_up() {
    let api = Upstream::answering(|got| {
        let length: usize = got.path()[1..].parse().unwrap();
        with_body(&pattern(length))
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Client::open_with(proxy.address, |builder| {
        builder.initial_connection_window_size(100_000_000);
    });
    let lengths: Vec<_> = (0..20).map(|n| 300_000 + n).collect();
    let begin = |length: &usize| client.begin("GET", &format!("/{length}"), &[]);
    let exchanges: Vec<_> = lengths.iter().map(begin).collect();
    for (mut exchange, length) in exchanges.into_iter().zip(lengths) {
        assert!(exchange.reply().body == pattern(length), "{length}");
    }
}

#[test]
fn trailers_come_through_in_both_directions() {
    let api = Upstream::answering(|_| {
        b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
          2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n"
            .to_vec()
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Client::open(proxy.address);
    let headers = [("trailer", "x-checksum"), ("te", "trailers")];
    let mut upload = client.upload("POST", "/", &headers);
    upload.send(b"hello");
    upload.end_with(&[("x-checksum", "5")]);
    let reply = upload.reply();
    assert_eq!((reply.text().as_str(), reply.trailers), ("hi", vec![("x-sum".into(), "7".into())]));
    let got = api.last();
    assert_eq!(got.body, b"hello");
    assert_eq!(got.trailers, [("x-checksum".to_owned(), "5".to_owned())]);
    assert_eq!(got.header("te").as_deref(), Some("trailers"));
    assert_eq!(got.header("connection").as_deref(), Some("te"));
}

#[test]
fn trailers_that_were_not_announced_are_left_out() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Client::open(proxy.address);
    let mut upload = client.upload("POST", "/", &[("trailer", "authorization")]);
    upload.send(b"hello");
    upload.end_with(&[("authorization", "Bearer a")]);
    assert_eq!(upload.reply().status, 200);
    assert_eq!(api.last().body, b"hello");
    assert!(api.last().trailers.is_empty(), "{:?}", api.last());
}

#[test]
fn a_slow_reader_holds_back_its_own_answer_alone() {
    const LENGTH: usize = 20_000_000;
    let api = Upstream::raw(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(got) = read_request(&mut reader) {
            if got.path() != "/long" {
                let _ = stream.write_all(&ok(got.path()));
                continue;
            }
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
            let mut left = LENGTH;
            while left > 0 && stream.write_all(&[b'x'; 50_000]).is_ok() {
                left -= 50_000;
            }
        }
    });
    let proxy = Proxy::of_one_worker(&api).server("body_timeout = \"1h\"").start();
    let mut client = Client::open_with(proxy.address, |builder| {
        builder.initial_connection_window_size(100_000_000);
    });
    assert_eq!(client.get("/before", &[]).status, 200);
    let before = proxy.memory();
    let mut long: Vec<_> = (0..8).map(|_| client.begin("GET", "/long", &[])).collect();
    for exchange in &mut long {
        assert_eq!(exchange.head().unwrap().status(), 200);
    }
    for n in 0..200 {
        assert_eq!(client.get(&format!("/{n}"), &[]).text(), format!("/{n}"));
    }
    // Kilobytes.
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 50_000, "{grown} KB");
    let mut length = 0;
    while let Some(piece) = long[0].piece() {
        length += piece.unwrap().len();
    }
    assert_eq!(length, LENGTH);
}

/// An API that reads an upload's head and then, of one to `/stuck…`, nothing until it is told to.
fn stuck() -> (Upstream, Receiver<(TcpStream, Sender<()>)>) {
    let (tell, told) = channel();
    let api = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::with_capacity(1, stream.try_clone().unwrap());
        while let Some(head) = read_head(&mut reader) {
            if head.path().starts_with("/stuck") {
                let (go, wait) = channel();
                let _ = tell.send((stream.try_clone().unwrap(), go));
                let _ = wait.recv();
            }
            let mut left: u64 = head.header("content-length").unwrap().parse().unwrap();
            let mut space = [0; 65536];
            while left > 0 {
                let most = usize::try_from(left).unwrap_or(usize::MAX).min(space.len());
                match reader.read(&mut space[..most]) {
                    Ok(read @ 1..) => left -= read as u64,
                    _ => return,
                }
            }
            let _ = stream.write_all(&ok(head.path()));
        }
    });
    (api, told)
}

#[test]
fn uploads_that_the_api_does_not_take_hold_back_no_others() {
    const LENGTH: usize = 10_000_000;
    let (api, told) = stuck();
    let times = "body_timeout = \"1h\"";
    let proxy =
        Proxy::of_one_worker(&api).server(times).upstream("response_timeout = \"1h\"").start();
    let mut client = Client::open(proxy.address);
    assert_eq!(client.post("/before", &[("content-length", "2")], b"hi").status, 200);
    let before = proxy.memory();
    let length = LENGTH.to_string();
    let (mut uploads, sent) = (Vec::new(), Arc::new(AtomicUsize::new(0)));
    for n in 0..12 {
        let mut upload =
            client.upload("POST", &format!("/stuck-{n}"), &[("content-length", &length)]);
        let (_, go) = told.recv_timeout(PATIENCE).unwrap();
        let sent = sent.clone();
        let sending = std::thread::spawn(move || {
            for piece in pattern(LENGTH).chunks(10_000) {
                upload.try_send(piece)?;
                sent.fetch_add(piece.len(), Ordering::Relaxed);
            }
            Ok::<_, h2::Error>(upload.reply().status)
        });
        uploads.push((sending, go));
    }
    // Others are taken until nothing more of those is, and then still.
    let (mut last, mut same) = (0, 0);
    while same < 20 {
        let body = pattern(100_000);
        assert_eq!(client.post("/other", &[("content-length", "100000")], &body).status, 200);
        let now = sent.load(Ordering::Relaxed);
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < 30_000, "{grown} KB");
    let (upload, go) = uploads.swap_remove(5);
    go.send(()).unwrap();
    assert_eq!(upload.join().unwrap().unwrap(), 200);
}

#[test]
fn a_rejected_upload_ends_and_its_connection_is_kept() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("user", "key = [\"header:x-user\"]\nrate = \"1/h\"").start();
    let mut client = Client::open(proxy.address);
    let user = [("x-user", "a")];
    assert_eq!(client.post("/", &user, b"hi").status, 200);
    for turn in 0..30 {
        // Far more than any window, if it were taken.
        let mut upload = client.upload("POST", "/", &user);
        let reply = upload.reply();
        assert_eq!((reply.status, reply.violated()), (429, vec!["user".to_owned()]), "{turn}");
        let _ = upload.try_send(&[b'x'; 300_000]);
    }
    let reply = client.post("/", &[("x-user", "b")], &pattern(3_000_000));
    assert_eq!(reply.status, 200);
    assert_eq!(api.last().body.len(), 3_000_000);
}

#[test]
fn many_rejected_uploads_at_once_keep_the_connection() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("user", "key = [\"header:x-user\"]\nrate = \"1/h\"").start();
    let mut client = Client::open(proxy.address);
    assert_eq!(client.post("/", &[("x-user", "a")], b"hi").status, 200);
    for _ in 0..5 {
        let mut uploads: Vec<_> = (0..100)
            .map(|_| {
                let mut upload = client.upload("POST", "/", &[("x-user", "a")]);
                let _ = upload.try_send(&[b'x'; 10_000]);
                upload
            })
            .collect();
        for upload in &mut uploads {
            assert_eq!(upload.reply().status, 429);
        }
    }
    assert_eq!(client.post("/", &[("x-user", "b")], b"hi").status, 200);
}

#[test]
fn a_body_that_grows_too_large_is_a_413_cut_off_upstream() {
    let (api, accepted) = Upstream::listening();
    let proxy = Proxy::of_one_worker(&api).server("max_body_size = \"100KiB\"").start();
    let mut client = Client::open(proxy.address);
    let mut upload = client.upload("POST", "/", &[]);
    let _ = upload.try_send(&[b'x'; 400_000]);
    let reply = upload.reply();
    assert_eq!((reply.status, reply.json()["status"].as_u64()), (413, Some(413)));
    let heard: Vec<u8> = accepted.recv_timeout(PATIENCE).unwrap().into_iter().flatten().collect();
    assert!(!heard.ends_with(b"0\r\n\r\n"), "the body must not look whole");
    assert_eq!(client.get("/a%2fb", &[]).status, 400, "the connection is kept");
}

#[test]
fn an_answer_before_the_uploads_end_comes_through() {
    let (api, told) = {
        let (tell, told) = channel();
        let api = Upstream::raw(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let _ = read_head(&mut reader);
            let _ = stream.write_all(&ok("early"));
            let _ = reader.read_to_end(&mut Vec::new());
            let _ = tell.send(());
        });
        (api, told)
    };
    let proxy = Proxy::of_one_worker(&api).server("body_timeout = \"1h\"").start();
    let mut client = Client::open(proxy.address);
    let mut upload = client.upload("POST", "/", &[]);
    // The answer may be there before the piece is taken.
    let _ = upload.try_send(b"some");
    assert_eq!(upload.reply().text(), "early");
    told.recv_timeout(PATIENCE).expect("the rest is not waited for");
    wait_until("the connection is kept", || client.get("/a%2fb", &[]).status == 400);
}
