//! What somebody sends who wants to know what happens: cut into pieces, spelled oddly, without end.

use std::io::{BufReader, Write as _};
use std::thread;

use crate::support::client::{Connection, raw};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, nobody, ok, read_request};

#[test]
fn a_request_means_the_same_however_it_is_cut() {
    let api = Upstream::answering(|got| ok(&String::from_utf8_lossy(&got.body)));
    let proxy = Proxy::of_one_worker(&api).start();
    // Its first letters might be those of HTTP/2's preface.
    for method in ["POST", "PRI", "PRIX"] {
        let request = format!(
            "{method} /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
             5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nx-sum: 1\r\n\r\n"
        );
        let pieces = (1..request.len()).map(|at| vec![&request[..at], &request[at..]]);
        let letters = (0..request.len()).map(|at| &request[at..=at]).collect();
        for pieces in pieces.chain([letters]) {
            let mut client = Connection::open(proxy.address);
            for piece in &pieces {
                client.send(piece);
            }
            let reply = client.reply(method);
            assert_eq!((reply.status, reply.text().as_str()), (200, "hello world"), "{pieces:?}");
            let got = api.last();
            assert_eq!(got.line, format!("{method} /a HTTP/1.1"));
            assert_eq!(got.trailers, [("x-sum".to_owned(), "1".to_owned())], "{pieces:?}");
        }
    }
}

#[test]
fn an_answer_means_the_same_however_it_is_cut() {
    let answer = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n\
                  HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                  5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nx-sum: 1\r\n\r\n";
    let api = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(got) = read_request(&mut reader) {
            let at: usize = got.path()[1..].parse().unwrap();
            let (first, second) = answer.as_bytes().split_at(at);
            let _ = stream.set_nodelay(true);
            let _ = stream.write_all(first).and_then(|()| stream.write_all(second));
        }
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    for at in 0..=answer.len() {
        let reply = client.get(&format!("/{at}"), &[("te", "trailers"), ("connection", "te")]);
        assert_eq!((reply.status, reply.text().as_str()), (200, "hello world"), "{at}");
        assert_eq!(reply.trailers, [("x-sum".to_owned(), "1".to_owned())], "{at}");
    }
}

/// Each with a body that would be a request, and with another request behind.
#[test]
fn what_is_behind_a_refused_request_is_what_comes_next() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .section(&format!("[upstreams.away]\nservers = [\"{}\"]", nobody()))
        .limit("none", "rate = \"0/s\"")
        .limit("cost", "rate = \"9/s\"\ncost = { header = \"x-cost\", default = 1 }")
        .route("path = \"/good\"")
        .route("path = \"/get\"\nmethods = [\"GET\"]")
        .route("path = \"/closed\"\nlimits = [\"none\"]")
        .route("path = \"/dear\"\nlimits = [\"cost\"]")
        .route("path = \"/here\"\nrespond = { status = 200 }")
        .route("path = \"/away\"\nupstream = \"away\"")
        .start();
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n";
    let length = smuggled.len();
    for framing in [
        format!("content-length: {length}\r\n\r\n{smuggled}"),
        format!("transfer-encoding: chunked\r\n\r\n{length:x}\r\n{smuggled}\r\n0\r\n\r\n"),
        "\r\n".to_owned(),
    ] {
        for (status, line) in [
            (404, "POST /nowhere"),
            (405, "POST /get"),
            (405, "TRACE /good"),
            (400, "POST /a%2fb"),
            (400, "post /good"),
            (429, "POST /closed"),
            (400, "POST /dear"),
            (200, "POST /here"),
            (502, "POST /away"),
        ] {
            let before = api.requests().len();
            let mut client = Connection::open(proxy.address);
            client.send(format!("{line} HTTP/1.1\r\nhost: a\r\nx-cost: x\r\n{framing}"));
            client.send("GET /good HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(client.reply("POST").status, status, "{line} {framing}");
            let next = client.reply("GET");
            assert_eq!((next.status, next.text().as_str()), (200, "/good"), "{line} {framing}");
            assert_eq!(api.requests().len(), before + 1, "{line} {framing}");
        }
    }
}

#[test]
fn an_answer_whose_end_can_be_doubted_is_a_502() {
    for head in [
        "200 OK\r\ncontent-length: +2",
        "200 OK\r\ncontent-length: -2",
        "200 OK\r\ncontent-length: 0x2",
        "200 OK\r\ncontent-length: 2 2",
        "200 OK\r\ncontent-length: 2;",
        "200 OK\r\ncontent-length: 2, 3",
        "200 OK\r\ncontent-length: 2,",
        "200 OK\r\ncontent-length:",
        "200 OK\r\ncontent-length: 18446744073709551618",
        "200 OK\r\ncontent-length : 2",
        "200 OK\r\ntransfer-encoding : chunked",
        "200 OK\r\ntransfer-encoding:\r\n chunked",
        "200 OK\r\ntransfer-encoding: identity",
        "200 OK\r\ntransfer-encoding: xchunked",
        "200 OK\r\ntransfer-encoding: chunked;a=b",
        "200 OK\r\ntransfer-encoding: \"chunked\"",
        "200 OK\r\ntransfer-encoding: \x0bchunked",
        "200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "200 OK\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked",
        "200 OK\r\nx: a\rcontent-length: 2",
        "200 OK\r\nx: a\r\n b\r\ncontent-length: 2",
        "200 OK\r\nx: a\0b\r\ncontent-length: 2",
        "200 OK\r\nnonsense\r\ncontent-length: 2",
        "99 OK\r\ncontent-length: 2",
        "2000 OK\r\ncontent-length: 2",
    ] {
        let answer = format!("HTTP/1.1 {head}\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
        let api = Upstream::saying(&[&answer]);
        let proxy = Proxy::of_one_worker(&api).start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/", &[]).status, 502, "{head:?}");
    }
    let api = Upstream::saying(&[
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    ]);
    let proxy = Proxy::of_one_worker(&api).start();
    assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 502);
}

/// A 204 has no body. Where one comes all the same it must not be taken for the next answer.
#[test]
fn a_body_behind_a_204_is_no_answer() {
    let evil = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    for fields in
        [format!("content-length: {}", evil.len()), "transfer-encoding: chunked".to_owned()]
    {
        let api = Upstream::answering(move |got| match (got.path(), got.earlier) {
            ("/204", _) => format!("HTTP/1.1 204 No Content\r\n{fields}\r\n\r\n").into_bytes(),
            (_, 0) => ok("good"),
            // What comes late comes before the answer to what was asked next.
            _ => [evil.as_bytes(), &ok("good")].concat(),
        });
        let proxy = Proxy::of_one_worker(&api).start();
        let mut client = Connection::open(proxy.address);
        for _ in 0..3 {
            assert_eq!(client.get("/204", &[]).status, 204);
            assert_eq!(client.get("/", &[]).text(), "good");
        }
    }
}

/// Framing that never ends: how it begins, and what goes on.
const ENDLESS: [(&str, &str, &str); 5] = [
    ("an extension", "5;", "x"),
    ("spaces behind a size", "5", " "),
    ("a trailer", "0\r\nx: ", "y"),
    ("trailers", "0\r\n", "x: y\r\n"),
    ("zeros before a size", "", "0"),
];

#[test]
fn endless_framing_of_a_request_is_cut_off_and_told() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::of_one_worker(&api).start();
    let mut flooding = Vec::new();
    for (name, begin, flood) in ENDLESS {
        let mut client = Connection::open(proxy.address);
        let head = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        client.send(format!("{head}{begin}"));
        let mut writer = client.stream.try_clone().unwrap();
        let flood = flood.repeat(10_000);
        flooding.push(thread::spawn(move || while writer.write_all(flood.as_bytes()).is_ok() {}));
        let reply = client.reply("POST");
        let closes = reply.header("connection");
        assert_eq!((reply.status, closes.as_deref()), (400, Some("close")), "{name}");
    }
    for flooding in flooding {
        flooding.join().unwrap();
    }
    assert!(api.requests().is_empty());
    proxy.stop();
    let lines = proxy.log.with("malformed requests");
    let counts = lines.iter().map(|line| line["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 5, "{lines:?}");
}

#[test]
fn endless_framing_of_an_answer_is_cut_off() {
    for (name, begin, flood) in ENDLESS {
        let api = Upstream::raw(move |mut stream| {
            let _ = read_request(&mut BufReader::new(&stream));
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n";
            let _ = stream.write_all(format!("{head}{begin}").as_bytes());
            while stream.write_all(flood.repeat(10_000).as_bytes()).is_ok() {}
        });
        let proxy = Proxy::of_one_worker(&api).upstream("idle_timeout = \"300ms\"").start();
        let said = raw(proxy.address, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert!(said.contains("200 OK") && said.ends_with("2\r\nhi\r\n"), "{name}: {said}");
    }
}

#[test]
fn a_method_may_be_long_but_not_without_end() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    let method = "M".repeat(20_000);
    assert_eq!(client.request(&method, "/", &[], b"").status, 200);
    assert_eq!(api.last().line, format!("{method} / HTTP/1.1"));
    client.send("M".repeat(200_000));
    assert_eq!(client.reply("GET").status, 431);
    assert!(client.is_closed());
}

#[test]
fn http_1_0_ends_where_it_does_not_ask_to_go_on() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let next = "GET /next HTTP/1.0\r\n\r\n";
    for (name, fields, both) in [
        ("no word", "", false),
        ("keep-alive", "connection: keep-alive\r\n", true),
        ("in capitals, among others", "Connection: x, Keep-Alive\r\n", true),
        ("both", "connection: keep-alive, close\r\n", false),
        ("both, in two lines", "connection: close\r\nconnection: keep-alive\r\n", false),
        ("for another proxy", "proxy-connection: keep-alive\r\n", false),
    ] {
        for rest in ["\r\n".to_owned(), "content-length: 2\r\n\r\nhi".to_owned()] {
            let said = raw(proxy.address, format!("POST /first HTTP/1.0\r\n{fields}{rest}{next}"));
            assert!(said.starts_with("HTTP/1.0 200"), "{name}: {said}");
            assert_eq!(said.contains("/next"), both, "{name}: {said}");
        }
    }
}
