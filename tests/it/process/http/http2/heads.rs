//! What of a message is in its head alone.

use std::io::Write as _;

use super::logged;
use crate::support::client::get;
use crate::support::http2::Client;
use crate::support::http2::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, Outcome, asking, block, frame,
    request,
};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok, read_head};

#[test]
fn an_answer_to_head_has_no_body() {
    let api = Upstream::answering(|_| b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n".to_vec());
    let proxy = logged(&api).limit("two", "key = []\nrate = \"2/h\"").start();
    let mut client = Client::open(proxy.address);
    for (path, status) in [("/", 200), ("/a%2fb", 400), ("/", 200), ("/", 429)] {
        let reply = client.begin("HEAD", path, &[]).reply();
        assert_eq!((reply.status, reply.body.len()), (status, 0), "{path}");
        let length: usize = reply.header("content-length").unwrap().parse().unwrap();
        assert!(length > 0, "that of the answer to a GET: {reply:?}");
    }
}

#[test]
fn answers_without_a_body_end_with_their_head() {
    let api = Upstream::answering(|got| match got.path() {
        "/204" => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        "/304" => b"HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\ncontent-length: 9\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec(),
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Frames::open(proxy.address, &[]);
    for (stream, path, status) in [(1, "/204", 204), (3, "/304", 304), (5, "/empty", 200)] {
        client.send(request(stream, END_STREAM, &asking("GET", path)));
        let frame = client.find(|frame| frame.stream == stream).expect(path);
        assert_eq!((frame.kind, frame.status()), (HEADERS, status), "{path}");
        assert!(frame.flags & END_STREAM > 0, "{path}: nothing follows");
    }
}

#[test]
fn an_answer_without_content_has_no_length() {
    let api =
        Upstream::answering(|_| b"HTTP/1.1 204 No Content\r\ncontent-length: 4\r\n\r\n".to_vec());
    let proxy = Proxy::of_one_worker(&api).start();
    let reply = Client::open(proxy.address).get("/", &[]);
    assert_eq!((reply.status, reply.header("content-length")), (204, None));
    let reply = get(proxy.address, "/", &[]);
    assert_eq!((reply.status, reply.header("content-length")), (204, None));
}

#[test]
fn what_concerns_the_apis_connection_is_not_passed_on() {
    let api = Upstream::answering(|_| {
        b"HTTP/1.1 200 OK\r\nconnection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n\
          proxy-connection: close\r\nupgrade: h2c\r\ntransfer-encoding: chunked\r\nx-kept: 1\r\n\r\n\
          2\r\nhi\r\n0\r\nx-sum: 1\r\ncontent-length: 9\r\nconnection: x-hop\r\nx-hop: 1\r\n\
          keep-alive: timeout=5\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec()
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let reply = Client::open(proxy.address).get("/", &[("te", "trailers")]);
    assert_eq!((reply.status, reply.text().as_str()), (200, "hi"));
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "1".to_owned())]);
    for name in
        ["connection", "x-hop", "keep-alive", "proxy-connection", "upgrade", "transfer-encoding"]
    {
        assert_eq!(reply.header(name), None, "{name}");
    }
    assert_eq!(reply.header("x-kept").as_deref(), Some("1"));
}

#[test]
fn interim_answers_and_upgrades_do_not_confuse_a_stream() {
    let api = Upstream::answering(|got| match got.path() {
        "/hints" => [b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n".to_vec(), ok("hi")].concat(),
        _ => b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
            .to_vec(),
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Client::open(proxy.address);
    assert_eq!(client.get("/hints", &[]).text(), "hi");
    assert_eq!(client.get("/switch", &[]).status, 502);
    assert_eq!(client.get("/hints", &[]).text(), "hi");
}

#[test]
fn a_head_that_is_too_large_is_a_431_for_its_stream_alone() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("max_header_size = \"8KiB\"").start();
    let mut client = Frames::open(proxy.address, &[]);
    let ask = |client: &mut Frames, stream: u32, length: usize| {
        let long = vec![b'x'; length];
        let mut fields = asking("GET", "/").to_vec();
        fields.push(("x", &long));
        client.ask(stream, &fields)
    };
    assert_eq!(ask(&mut client, 1, 7000), Outcome::Status(200));
    assert_eq!(ask(&mut client, 3, 9000), Outcome::Status(431));
    let many: Vec<_> = asking("GET", "/").into_iter().chain([("x", &b""[..]); 300]).collect();
    assert_eq!(client.ask(5, &many), Outcome::Status(431), "many fields");
    assert_eq!(ask(&mut client, 7, 7000), Outcome::Status(200), "the connection is kept");
    assert_eq!(api.requests().len(), 2);
}

#[test]
fn a_head_may_come_in_pieces() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Frames::open(proxy.address, &[]);
    let block = block(&asking("GET", "/pieces"));
    let (first, rest) = block.split_at(5);
    client.send(frame(HEADERS, END_STREAM, 1, first));
    let (last, middle) = rest.split_last().unwrap();
    client.send(frame(CONTINUATION, 0, 1, middle));
    client.send(frame(CONTINUATION, 0, 1, b""));
    client.send(frame(CONTINUATION, END_HEADERS, 1, &[*last]));
    assert_eq!(client.outcome(1), Outcome::Status(200));
    assert_eq!(api.last().path(), "/pieces");
}

#[test]
fn connect_is_refused_and_the_connection_kept() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Frames::open(proxy.address, &[]);
    let connect = [(":method", &b"CONNECT"[..]), (":authority", b"api.test:443")];
    assert_eq!(client.ask(1, &connect), Outcome::Status(405));
    client.send(request(3, 0, &connect));
    assert_eq!(client.outcome(3), Outcome::Status(405), "whatever may follow");
    assert_eq!(client.ask(5, &asking("TRACE", "/")), Outcome::Status(405));
    assert_eq!(client.ask(7, &asking("GET", "/")), Outcome::Status(200));
    assert_eq!(api.requests().len(), 1);
}

/// hyper ends the connection for it: known, and in `docs/decisions.md`.
#[test]
fn a_connect_with_a_length_harms_nobody_elses_connection() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Frames::open(proxy.address, &[]);
    let connect = [(":method", &b"CONNECT"[..]), (":authority", b"a:1"), ("content-length", b"5")];
    client.send(request(1, 0, &connect));
    client.end();
    let mut other = Frames::open(proxy.address, &[]);
    assert_eq!(other.ask(1, &asking("GET", "/")), Outcome::Status(200));
}

#[test]
fn an_expectation_is_not_passed_on_and_its_body_is_taken() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("max_body_size = \"4B\"").start();
    let mut client = Client::open(proxy.address);
    let expecting = [("expect", "100-continue"), ("content-length", "2")];
    assert_eq!(client.post("/", &expecting, b"hi").status, 200);
    assert_eq!(api.last().header("expect"), None);
    assert_eq!(api.last().body, b"hi");
    let too_long = [("expect", "100-continue"), ("content-length", "5")];
    assert_eq!(client.upload("POST", "/", &too_long).reply().status, 413, "before the body");
    assert_eq!(client.get("/", &[]).status, 200);
}

#[test]
fn an_upload_is_sent_on_before_all_of_it_has_come() {
    let api = Upstream::raw(|stream| {
        let mut reader = std::io::BufReader::new(&stream);
        let got = read_head(&mut reader).unwrap();
        let chunked = got.header("transfer-encoding").is_some();
        let answer = if chunked { ok("chunked") } else { ok("length") };
        let _ = (&stream).write_all(&answer);
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Frames::open(proxy.address, &[]);
    client.send(request(1, 0, &asking("POST", "/")));
    client.send(frame(DATA, 0, 1, b"hi"));
    let frame = client.find(|frame| frame.kind == DATA).unwrap();
    assert_eq!(frame.payload, b"chunked");
}
