//! How an API's answer may come, and what of it ends the connection to the API.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok, read_head, read_request};

/// Which connection of the API a request came on is told by how many came before it there.
#[test]
fn a_connection_with_an_unclean_answer_is_not_kept() {
    for (name, method, answer, kept) in [
        ("clean", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", true),
        (
            "clean chunks",
            "GET",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            true,
        ),
        ("a clean 204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", true),
        ("a clean 304", "GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", true),
        ("a clean HEAD", "HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n", true),
        (
            "kept by 1.0",
            "GET",
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
            true,
        ),
        ("not kept by 1.0", "GET", "HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", false),
        (
            "to be closed",
            "GET",
            "HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 1\r\n\r\nx",
            false,
        ),
        ("more than its length", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxy", false),
        (
            "more than its chunks",
            "GET",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\ny",
            false,
        ),
        ("a 204 with a body", "GET", "HTTP/1.1 204 No Content\r\n\r\ny", false),
        ("a 304 with a body", "GET", "HTTP/1.1 304 Not Modified\r\n\r\ny", false),
        ("a HEAD with a body", "HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\ny", false),
        (
            "a second answer",
            "GET",
            "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            false,
        ),
        (
            "length and chunks",
            "GET",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            false,
        ),
    ] {
        let first = answer.to_owned();
        let api = Upstream::answering(move |got| match got.path() {
            "/first" => first.clone().into_bytes(),
            _ => ok("good"),
        });
        let proxy = Proxy::of_one_worker(&api).start();
        let mut client = Connection::open(proxy.address);
        let reply = client.request(method, "/first", &[], b"");
        assert!(matches!(reply.status, 200 | 204 | 304), "{name}");
        assert_eq!(client.get("/", &[]).text(), "good", "{name}");
        assert_eq!(api.last().earlier, usize::from(kept), "{name}");
    }
}

#[test]
fn what_is_no_answer_is_a_502_and_the_log_says_what_it_is() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1_000_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(101));
    for (answer, words) in [
        ("", "closed the connection without an answer"),
        ("HTTP/1.1 200 OK\r\nx: y\r\n", "closed the connection within its answer's head"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "invalid HTTP version parsed"),
        ("HTTP/1.1 2x0 OK\r\n\r\n", "invalid HTTP status-code parsed"),
        ("HTTP/1.1 200 OK\r\nx y: z\r\n\r\n", "invalid HTTP header parsed"),
        (&huge, "message head is too large"),
        (&many, "message head is too large"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\nx", "invalid content-length parsed"),
        (
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "unexpected transfer-encoding parsed",
        ),
    ] {
        let said = answer.to_owned();
        let api = Upstream::raw(move |mut stream| {
            let _ = read_request(&mut BufReader::new(&stream));
            let _ = stream.write_all(said.as_bytes());
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let mut proxy = Proxy::of_one_worker(&api).upstream("retries = 0").start();
        assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 502, "{words}");
        proxy.stop();
        let log = proxy.log.text();
        assert!(log.contains(&format!("the exchange with {} failed", api.url())), "{log}");
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn an_answer_that_says_why_the_upload_ended_arrives() {
    let api = Upstream::raw(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(_) = read_head(&mut reader) else { return };
        let _ = stream.write_all(
            b"HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno",
        );
        let _ = stream.shutdown(Shutdown::Write);
        let _ = reader.read_to_end(&mut Vec::new());
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\nmuch");
    let reply = client.reply("POST");
    assert_eq!((reply.status, reply.text().as_str()), (413, "no"));
}

#[test]
fn a_request_is_framed_as_its_client_framed_it() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let api = Upstream::answering(move |got| {
        let _ = tell.lock().unwrap().send(got.clone());
        ok("")
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let large = "x".repeat(100_000);
    let by_length = format!("content-length: {}\r\n\r\n{large}", large.len());
    let chunked = format!(
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    for (method, rest, length, body) in [
        ("GET", "\r\n", None, String::new()),
        ("POST", "\r\n", None, String::new()),
        ("POST", "content-length: 0\r\n\r\n", Some("0"), String::new()),
        ("POST", "content-length: 5\r\n\r\nhello", Some("5"), "hello".to_owned()),
        ("PUT", &by_length, Some("100000"), large.clone()),
        ("POST", &chunked, None, format!("hello{large}")),
        ("GET", &chunked, None, format!("hello{large}")),
        ("POST", "transfer-encoding: chunked\r\n\r\n0\r\n\r\n", None, String::new()),
    ] {
        let mut client = Connection::open(proxy.address);
        client.send(format!("{method} /a?b HTTP/1.1\r\nhost: a\r\n{rest}"));
        assert_eq!(client.reply(method).status, 200, "{method} {rest:.40}");
        let got = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(got.line, format!("{method} /a?b HTTP/1.1"));
        assert_eq!(got.header("content-length").as_deref(), length, "{method} {rest:.40}");
        let coding = rest.starts_with("transfer").then_some("chunked");
        assert_eq!(got.header("transfer-encoding").as_deref(), coding, "{method} {rest:.40}");
        assert!(got.body == body.as_bytes(), "{method} {rest:.40}: {} bytes", got.body.len());
    }
}

#[test]
fn an_upload_never_takes_a_connection_that_was_closed() {
    let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let kept = streams.clone();
    let api = Upstream::raw(move |mut stream| {
        kept.lock().unwrap().push(stream.try_clone().unwrap());
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(got) = read_request(&mut reader) {
            let _ = stream.write_all(&ok(std::str::from_utf8(&got.body).unwrap()));
        }
    });
    let proxy = Proxy::of_one_worker(&api).upstream("retries = 0").start();
    for n in 0..20 {
        // Whoever accepts another client has been told of what was closed before it came.
        let mut client = Connection::open(proxy.address);
        let body = format!("upload {n}");
        assert_eq!(client.request("POST", "/", &[], body.as_bytes()).text(), body);
        for stream in streams.lock().unwrap().drain(..) {
            stream.shutdown(Shutdown::Both).unwrap();
        }
    }
}
