//! How a response says what was used.

use std::io::{BufReader, Write as _};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::{HEADER, JSON, Place, answer, remaining};
use crate::support::client::Connection;
use crate::support::upstream::{Upstream, read_request};

every_store! {
    a_header_says_what_was_used
    json_says_what_was_used
    a_stream_is_not_held_up
}

fn a_header_says_what_was_used(place: &Place) {
    let api = Upstream::answering(|got| {
        let used = match got.path() {
            "/none" => String::new(),
            "/twice" => "x-used: 7\r\nx-used: 7\r\n".to_owned(),
            path => format!("x-used: {}\r\n", &path[1..]),
        };
        answer(200, &used, b"")
    });
    let proxy = place.before(&api).limit("used", HEADER).start();
    let mut client = Connection::open(proxy.address);
    let mut left = 100;
    for (path, used) in [
        ("/7", 7),
        ("/none", 2),
        ("/0", 0),
        ("/2", 2),
        ("/x", 2),
        ("/-3", 2),
        ("/twice", 2),
        ("/1.5", 2),
    ] {
        let reply = client.get(path, &[]);
        assert_eq!(remaining(&reply), left - 2, "the estimate is reserved at {path}");
        if path == "/7" {
            assert_eq!(reply.header("x-used").as_deref(), Some("7"), "the client sees it");
        }
        left -= used;
    }
    assert_eq!(remaining(&client.get("/0", &[])), left - 2);
    // A route may keep it to itself.
    let hidden = "response_headers = { remove = [\"x-used\"] }";
    let route = format!("path = \"/{{*rest}}\"\nlimits = [\"used\"]\n{hidden}");
    proxy.reload(&place.before(&api).limit("used", HEADER).route(&route).text());
    let reply = client.get("/3", &[]);
    assert_eq!(reply.header("x-used"), None);
    assert_eq!(remaining(&client.get("/0", &[])), left - 3 - 2);
}

fn json_says_what_was_used(place: &Place) {
    const BODY: &str = r#"{"choices":[{"usage":{"total_tokens":99}}],"usage":{"total_tokens":9}}"#;
    let api = Upstream::answering(|got| {
        let (kind, more, body) = match got.path() {
            "/problem" => ("application/problem+json", "", BODY),
            "/html" => ("text/html", "", BODY),
            // What is announced as compressed is not read, whatever it looks like.
            "/gzip" => ("application/json", "content-encoding: gzip\r\n", BODY),
            "/text" => ("application/json", "", r#"{"usage":{"total_tokens":"9"}}"#),
            "/broken" => ("application/json", "", r#"{"usage":{"total_tokens""#),
            "/garbage" => ("application/json", "", "\u{0}}}]\\\""),
            _ => ("application/json; charset=utf-8", "", BODY),
        };
        let body = if got.line.starts_with("HEAD") { "" } else { body };
        answer(200, &format!("content-type: {kind}\r\n{more}"), body.as_bytes())
    });
    let proxy = place.before(&api).limit("used", JSON).start();
    let mut client = Connection::open(proxy.address);
    let mut left = 100;
    for (method, path, used) in [
        ("GET", "/", 9),
        ("GET", "/problem", 9),
        ("GET", "/html", 2),
        ("GET", "/gzip", 2),
        ("GET", "/text", 2),
        ("GET", "/broken", 2),
        ("GET", "/garbage", 2),
        ("HEAD", "/", 2),
    ] {
        let reply = client.request(method, path, &[], b"");
        assert_eq!(remaining(&reply), left - 2, "{method} {path}");
        left -= used;
    }
    assert_eq!(remaining(&client.get("/", &[])), left - 2);
}

fn a_stream_is_not_held_up(place: &Place) {
    let (go, gone) = channel::<()>();
    let gone = Mutex::new(gone);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let api = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let gone = gone.lock().unwrap();
        while read_request(&mut reader).is_some() {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                        transfer-encoding: chunked\r\n\r\n";
            let first = chunk("data: {\"choices\":[],\"usage\":null}\n\n");
            stream.write_all(format!("{head}{first}").as_bytes()).unwrap();
            // What follows is cut where a reader could lose it.
            for piece in
                ["data: {\"usage\":{\"total_", "tokens\":5", "7}}\n", "\ndata: [DONE]\n\n", ""]
            {
                gone.recv().unwrap();
                stream.write_all(chunk(piece).as_bytes()).unwrap();
            }
        }
    });
    let proxy = place.before(&api).limit("used", JSON).start();
    let mut client = Connection::open(proxy.address);
    let mut stream = |left: u64| {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let head = String::from_utf8(client.until(b"\r\n\r\n")).unwrap();
        assert!(head.contains(&format!(";r={left};")), "{left}: {head}");
        for piece in ["null}\n\n", "total_", "\":5", "7}}\n", "[DONE]\n\n"] {
            client.until(piece.as_bytes());
            go.send(()).unwrap();
        }
        client.until(b"0\r\n\r\n");
    };
    stream(98);
    stream(100 - 57 - 2);
}

#[test]
fn a_huge_body_is_not_collected() {
    const SIZE: usize = 64 << 20;
    let api = Upstream::raw(|mut stream| {
        let _ = read_request(&mut BufReader::new(stream.try_clone().unwrap()));
        let (begin, end) = ("{\"text\":\"", "\",\"usage\":{\"total_tokens\":9}}");
        let length = begin.len() + SIZE + end.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
        write!(stream, "{head}content-length: {length}\r\n\r\n{begin}").unwrap();
        for _ in 0..SIZE >> 16 {
            stream.write_all(&[b'x'; 1 << 16]).unwrap();
        }
        stream.write_all(end.as_bytes()).unwrap();
    });
    let proxy = Place::memory().before(&api).limit("used", JSON).start();
    let before = proxy.memory();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.until(b"\r\n\r\n");
    let mut most = 0;
    for _ in 0..SIZE >> 20 {
        client.exactly(1 << 20);
        most = most.max(proxy.memory());
    }
    client.until(b"}}");
    assert!(most < before + (16 << 10), "{before} KiB before, {most} KiB at most");
    assert_eq!(remaining(&client.get("/", &[])), 100 - 9 - 2);
}
