//! Streams that end before their time, on either side.

use std::io::{BufReader, Read as _, Write as _};
use std::sync::mpsc::{Receiver, channel};

use h2::Reason;

use crate::support::PATIENCE;
use crate::support::http2::Client;
use crate::support::http2::frames::{
    DATA, END_STREAM, Frames, Outcome, RST_STREAM, asking, frame, request,
};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, read_head, until_closed};

/// An API that answers with this head, half a body, and nothing more; it goes away when the path says so.
/// The other end hears when it was left.
fn half(framing: &'static str) -> (Upstream, Receiver<()>) {
    let (tell, told) = channel();
    let api = Upstream::raw(move |mut stream| {
        let Some(got) = read_head(&mut BufReader::new(&stream)) else { return };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n{framing}");
        if got.path() != "/broken" {
            let _ = stream.read_to_end(&mut Vec::new());
            let _ = tell.send(());
        }
    });
    (api, told)
}

const FRAMINGS: [&str; 2] =
    ["content-length: 10\r\n\r\nhalf", "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"];

#[test]
fn a_response_that_breaks_off_ends_in_a_reset() {
    for framing in FRAMINGS {
        let (api, _told) = half(framing);
        let proxy = Proxy::of_one_worker(&api).start();
        let mut client = Client::open(proxy.address);
        let mut exchange = client.begin("GET", "/broken", &[]);
        assert_eq!(exchange.head().expect(framing).status(), 200);
        assert_eq!(exchange.piece().unwrap().expect(framing), "half");
        let error = exchange.piece().expect("no clean end").unwrap_err();
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR), "{framing}");
        assert_eq!(client.get("/a%2fb", &[]).status, 400, "the connection is kept");
    }
}

#[test]
fn a_response_that_stalls_is_reset() {
    for framing in FRAMINGS {
        let (api, told) = half(framing);
        let proxy = Proxy::of_one_worker(&api).upstream("idle_timeout = \"200ms\"").start();
        let mut client = Client::open(proxy.address);
        let mut exchange = client.begin("GET", "/", &[]);
        assert_eq!(exchange.head().unwrap().status(), 200);
        assert_eq!(exchange.piece().unwrap().unwrap(), "half");
        assert!(exchange.piece().expect("no clean end").is_err(), "{framing}");
        told.recv_timeout(PATIENCE).expect("the API's connection is closed");
        assert_eq!(client.get("/a%2fb", &[]).status, 400, "the connection is kept");
    }
}

#[test]
fn a_stream_that_is_reset_ends_its_request_upstream() {
    let (api, accepted) = Upstream::listening();
    let proxy = Proxy::of_one_worker(&api).upstream("response_timeout = \"1h\"").start();
    let mut client = Client::open(proxy.address);
    for (method, length) in [("GET", None), ("POST", Some("10")), ("POST", None)] {
        let headers: Vec<_> = length.iter().map(|length| ("content-length", *length)).collect();
        let exchange = match method {
            "GET" => client.begin(method, "/", &[]),
            _ => {
                let mut upload = client.upload(method, "/", &headers);
                upload.send(b"half");
                upload
            }
        };
        let heard = accepted.recv_timeout(PATIENCE).unwrap();
        let mut all = heard.recv_timeout(PATIENCE).unwrap();
        exchange.reset();
        all.extend(heard.iter().flatten());
        let all = String::from_utf8_lossy(&all);
        assert!(!all.ends_with("0\r\n\r\n"), "an upload must not look whole: {all}");
    }
}

/// A regression: hyper takes a reset without an error for the end of the body, so an API that is left to finish got a
/// part as a whole upload.
#[test]
fn an_upload_that_is_reset_without_an_error_does_not_look_whole() {
    let (api, accepted) = Upstream::listening();
    let finishing = "on_abort = \"finish\"\nfinish_timeout = \"1s\"";
    let proxy = Proxy::of_one_worker(&api).upstream(finishing).start();
    let mut client = Frames::open(proxy.address, &[]);
    client.send([request(1, 0, &asking("POST", "/")), frame(DATA, 0, 1, b"half")].concat());
    let heard = accepted.recv_timeout(PATIENCE).unwrap();
    let mut all = Vec::new();
    while !all.ends_with(b"half\r\n") {
        all.extend(heard.recv_timeout(PATIENCE).unwrap());
    }
    client.send(frame(RST_STREAM, 0, 1, &[0; 4]));
    all.extend(heard.iter().flatten());
    let all = String::from_utf8_lossy(&all);
    assert!(!all.ends_with("0\r\n\r\n"), "an upload must not look whole: {all}");
}

#[test]
fn a_reset_in_mid_response_ends_the_request_upstream() {
    for (api, told) in [half(FRAMINGS[1]), Upstream::endless()] {
        let proxy = Proxy::of_one_worker(&api)
            .server("body_timeout = \"1h\"")
            .upstream("idle_timeout = \"1h\"")
            .start();
        let mut client = Client::open(proxy.address);
        let mut exchange = client.begin("GET", "/", &[]);
        assert_eq!(exchange.head().unwrap().status(), 200);
        exchange.reset();
        told.recv_timeout(PATIENCE).expect("the API's connection is closed");
    }
}

#[test]
fn a_connection_that_is_cut_ends_all_of_its_requests() {
    let (api, accepted) = Upstream::listening();
    let proxy = Proxy::of_one_worker(&api).upstream("response_timeout = \"1h\"").start();
    let mut client = Client::open(proxy.address);
    let exchanges: Vec<_> = (0..10).map(|_| client.begin("GET", "/", &[])).collect();
    let heard: Vec<_> = (0..10).map(|_| accepted.recv_timeout(PATIENCE).unwrap()).collect();
    drop((exchanges, client));
    for heard in heard {
        until_closed(&heard);
    }
}

#[test]
fn a_request_that_was_reset_before_it_was_read_is_not_sent() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Frames::open(proxy.address, &[]);
    assert_eq!(client.ask(1, &asking("GET", "/before")), Outcome::Status(200));
    // So that the request and its end are there at once.
    proxy.pause();
    client.send(request(3, END_STREAM, &asking("GET", "/late")));
    client.send(frame(RST_STREAM, 0, 3, &8_u32.to_be_bytes()));
    proxy.signal("CONT");
    assert_eq!(client.ask(5, &asking("GET", "/after")), Outcome::Status(200));
    assert_eq!(
        api.requests().iter().map(|got| got.path()).collect::<Vec<_>>(),
        ["/before", "/after"]
    );
}
