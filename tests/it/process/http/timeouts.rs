//! Who takes too long, or sends too much. The time-outs are short; only that they come is tested.

use std::io::{BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, nobody_accepts, read_head};

#[test]
fn a_head_that_comes_byte_by_byte_is_cut_off() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("header_timeout = \"200ms\"").start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/first", &[]).status, 200);
    // A kept connection's time begins with the first byte.
    for mut client in [client, Connection::open(proxy.address)] {
        client.stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        client.send("GET / HTTP/1.1\r\nx: ");
        let deadline = crate::support::now() + PATIENCE;
        loop {
            assert!(crate::support::now() < deadline, "it is still listened to");
            if client.stream.write_all(b"y").is_err() {
                break;
            }
            match client.stream.read(&mut [0; 100]) {
                Ok(0) => break,
                Ok(_) => panic!("an answer to half a head"),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    }
    assert_eq!(api.requests().len(), 1);
}

#[test]
fn a_request_body_that_stalls_is_answered_408() {
    let (api, accepted) = Upstream::listening();
    // The server is not to blame for what the client does not send.
    let times = "response_timeout = \"50ms\"";
    let proxy =
        Proxy::of_one_worker(&api).server("body_timeout = \"300ms\"").upstream(times).start();
    for head in ["content-length: 10\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n5\r\nha"] {
        let mut client = Connection::open(proxy.address);
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{head}"));
        let reply = client.reply("POST");
        assert_eq!(reply.status, 408, "{head}");
        assert_eq!(reply.json()["status"], 408, "{head}");
        assert_eq!(reply.header("connection").as_deref(), Some("close"), "{head}");
        assert!(client.is_closed(), "{head}");
        assert_ends(&accepted.recv_timeout(PATIENCE).unwrap());
    }
}

#[test]
fn a_response_body_that_stalls_ends_the_connection() {
    for (framing, http) in [
        ("content-length: 10\r\n\r\nhalf", "1.1"),
        ("transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "1.1"),
        ("transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", "1.0"),
    ] {
        let (api, closed) = stalling(&format!("HTTP/1.1 200 OK\r\n{framing}"));
        let proxy = Proxy::of_one_worker(&api).upstream("idle_timeout = \"200ms\"").start();
        let mut client = Connection::open(proxy.address);
        client.send(format!("GET / HTTP/{http}\r\nhost: a\r\n\r\n"));
        let head = String::from_utf8_lossy(&client.until(b"\r\n\r\n")).into_owned();
        assert!(head.contains(" 200 "), "{head}");
        let (body, end) = client.rest_with_end();
        let body = String::from_utf8_lossy(&body).into_owned();
        assert!(!body.ends_with("0\r\n\r\n"), "{framing}: {body}");
        // HTTP/1.0 has no other sign of a message that is not whole.
        assert_eq!(end.is_err(), http == "1.0", "{framing}");
        closed.recv_timeout(PATIENCE).expect("the API's connection is closed");
    }
}

#[test]
fn a_server_that_does_not_answer_in_time_is_a_504() {
    let (api, accepted) = Upstream::listening();
    let mut proxy = Proxy::of_one_worker(&api).upstream("response_timeout = \"100ms\"").start();
    let mut client = Connection::open(proxy.address);
    for (method, body) in [("GET", &b""[..]), ("POST", b"hi")] {
        let reply = client.request(method, "/", &[], body);
        assert_eq!(reply.status, 504, "{method}");
        assert_eq!(reply.header("content-type").as_deref(), Some("application/problem+json"));
        assert_eq!(reply.json()["status"], 504);
        assert!(!reply.text().contains("127.0.0.1"), "{}", reply.text());
        assert_ends(&accepted.recv_timeout(PATIENCE).unwrap());
    }
    let mut shared = Client::open(proxy.address);
    assert_eq!([shared.get("/", &[]).status, shared.post("/", &[], b"hi").status], [504; 2]);
    assert_eq!(shared.get("/a%2fb", &[]).status, 400, "the connection is kept");
    proxy.stop();
    let said = proxy.log.text();
    assert!(said.contains(&format!("no answer from {} in time (100ms)", api.url())), "{said}");
}

#[test]
fn a_server_that_does_not_take_the_connection_is_a_504() {
    let deaf = nobody_accepts();
    let url = format!("http://{}", deaf.address);
    let proxy = Proxy::to(url).upstream("connect_timeout = \"100ms\"").start();
    let mut client = Connection::open(proxy.address);
    let reply = client.get("/", &[]);
    assert_eq!((reply.status, reply.json()["status"].as_u64()), (504, Some(504)));
    assert_eq!(client.get("/", &[]).status, 504, "the connection is kept");
}

#[test]
fn a_head_that_is_too_large_is_a_431() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("max_header_size = \"8KiB\"").start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[("x", &"y".repeat(7000))]).status, 200);
    // More than fits into any buffer on the way: the answer must survive what is thrown away.
    client.send(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(300_000)));
    let reply = client.reply("GET");
    assert_eq!((reply.status, reply.body.len()), (431, 0));
    assert_eq!(api.requests().len(), 1);
}

#[test]
fn a_body_that_is_announced_as_too_large_is_a_413() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("max_body_size = \"100KiB\"").start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.request("POST", "/", &[], &[b'x'; 102_400]).status, 200);
    let reply = client.request("POST", "/", &[], &[b'x'; 102_401]);
    assert_eq!((reply.status, reply.json()["status"].as_u64()), (413, Some(413)));
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    assert!(client.is_closed());
    let mut client = Connection::open(proxy.address);
    client.send(
        "PUT / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 102401\r\n\r\n",
    );
    assert_eq!(client.any_reply("PUT").status, 413);
    let mut shared = Client::open(proxy.address);
    let mut upload = shared.upload("POST", "/", &[("content-length", "102401")]);
    assert_eq!(upload.reply().status, 413);
    assert_eq!(shared.post("/", &[], &[b'x'; 102_400]).status, 200, "the connection is kept");
    assert_eq!(api.requests().len(), 2);
}

#[test]
fn a_body_that_grows_too_large_is_a_413_cut_off_upstream() {
    let (api, accepted) = Upstream::listening();
    let proxy = Proxy::of_one_worker(&api).server("max_body_size = \"100KiB\"").start();
    let mut client = Connection::open(proxy.address);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = format!("2710\r\n{}\r\n", "x".repeat(10_000));
    // Some of it is written after the answer: the client must be able to read that all the same.
    for _ in 0..40 {
        client.send(&chunk);
    }
    let reply = client.reply("POST");
    assert_eq!((reply.status, reply.json()["status"].as_u64()), (413, Some(413)));
    assert_eq!(reply.header("connection").as_deref(), Some("close"));
    let heard: Vec<u8> = accepted.recv_timeout(PATIENCE).unwrap().into_iter().flatten().collect();
    assert!(!heard.ends_with(b"0\r\n\r\n"), "the body must not look whole");
}

/// A server that says this to each request and nothing more, and tells when it is left.
fn stalling(answer: &str) -> (Upstream, Receiver<()>) {
    let (tell, told) = channel();
    let answer = answer.to_owned();
    let server = Upstream::raw(move |mut stream: TcpStream| {
        let _ = read_head(&mut BufReader::new(&stream));
        let _ = stream.write_all(answer.as_bytes());
        let _ = stream.read_to_end(&mut Vec::new());
        let _ = tell.send(());
    });
    (server, told)
}

fn assert_ends(heard: &Receiver<Vec<u8>>) {
    while heard.recv_timeout(PATIENCE).map_err(|end| {
        assert_eq!(end, std::sync::mpsc::RecvTimeoutError::Disconnected, "it is not closed");
    }) != Err(())
    {}
}
