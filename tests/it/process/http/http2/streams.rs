//! Many requests at once on one connection.

use super::{Gate, logged};
use crate::support::http2::Client;
use crate::support::http2::frames::{END_STREAM, Frames, Outcome, asking, request};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok};

/// The most streams at once that a client is told.
const MOST: u32 = 128;

const REFUSED_STREAM: u32 = 7;

#[test]
fn requests_are_answered_as_soon_as_each_can_be() {
    let gate = Gate::new();
    let proxy = Proxy::of_one_worker(&gate.api).start();
    let mut client = Client::open(proxy.address);
    let mut slow: Vec<_> = (0..50)
        .map(|n| {
            let path = format!("/slow-{n}");
            (client.begin("GET", &path, &[]), path)
        })
        .collect();
    for _ in &slow {
        gate.has();
    }
    assert_eq!(client.get("/quick", &[]).text(), "/quick", "behind fifty that wait");
    // The last one first.
    while let Some((mut exchange, path)) = slow.pop() {
        gate.open(&path);
        assert_eq!(exchange.reply().text(), path);
    }
}

#[test]
fn a_broken_request_upstream_is_a_502_for_its_stream_alone() {
    let api = Upstream::answering(|got| match got.path() {
        "/broken" => Vec::new(),
        path => ok(path),
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Client::open(proxy.address);
    let reply = client.post("/broken", &[], b"hi");
    assert_eq!((reply.status, reply.json()["status"].as_u64()), (502, Some(502)));
    assert_eq!(client.get("/whole", &[]).text(), "/whole");
}

#[test]
fn streams_too_many_are_refused_and_harm_no_others() {
    let gate = Gate::new();
    let proxy = Proxy::of_one_worker(&gate.api).start();
    let mut client = Frames::open(proxy.address, &[]);
    let stream = |n: u32| 2 * n + 1;
    for n in 0..MOST {
        client.send(request(stream(n), END_STREAM, &asking("GET", "/slow")));
    }
    for _ in 0..MOST {
        gate.has();
    }
    for n in MOST..MOST + 200 {
        let outcome = client.ask(stream(n), &asking("GET", "/beyond"));
        assert_eq!(outcome, Outcome::Reset(REFUSED_STREAM), "{n}");
    }
    gate.open("/slow");
    let mut left: Vec<u32> = (0..MOST).map(stream).collect();
    while !left.is_empty() {
        let frame = client.next().expect("the connection is there");
        if frame.flags & END_STREAM > 0 && frame.kind < 2 {
            left.retain(|stream| *stream != frame.stream);
        }
    }
    assert_eq!(client.ask(stream(1000), &asking("GET", "/after")), Outcome::Status(200));
    assert!(gate.api.requests().iter().all(|got| got.path() != "/beyond"));
}

#[test]
fn each_stream_has_an_access_line() {
    let gate = Gate::new();
    let proxy = logged(&gate.api).start();
    let mut client = Client::open(proxy.address);
    let mut slow = client.begin("GET", "/slow", &[]);
    gate.has();
    let given_up = client.begin("GET", "/slow-and-given-up", &[]);
    gate.has();
    given_up.reset();
    proxy.log.wait("request", |line| line["path"] == "/slow-and-given-up" && line["status"] == 499);
    assert_eq!(client.post("/quick", &[], b"hi").status, 200);
    proxy.log.wait("request", |line| {
        line["path"] == "/quick" && line["status"] == 200 && line["method"] == "POST"
    });
    assert!(!proxy.log.with("request").iter().any(|line| line["path"] == "/slow"));
    gate.open("/slow");
    assert_eq!(slow.reply().status, 200);
    let line = proxy.log.wait("request", |line| line["path"] == "/slow");
    assert_eq!(line["client"], "127.0.0.1");
    assert_eq!(line["upstream"], gate.api.url());
    assert_eq!(proxy.log.count("request"), 3);
}
