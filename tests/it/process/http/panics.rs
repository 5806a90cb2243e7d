//! A fault of the program ends one request, and operators are told.

use std::fmt::Write as _;

use crate::support::client::Connection;
use crate::support::http2::frames::{
    CONTINUATION, END_HEADERS, END_STREAM, Frames, HEADERS, Outcome, asking, block, frame, request,
};
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// A request with this number of fields with different names.
fn with_fields(stream: u32, count: usize) -> Vec<u8> {
    let names: Vec<_> = (0..count).map(|n| format!("f{n}")).collect();
    let fields = names.iter().map(|name| (name.as_str(), &b""[..]));
    let all: Vec<_> = asking("GET", "/").into_iter().chain(fields).collect();
    let block = block(&all);
    let pieces = block.chunks(16_384);
    let last = pieces.len() - 1;
    let frames = pieces.enumerate().map(|(place, piece)| {
        let kind = if place == 0 { HEADERS } else { CONTINUATION };
        let begins = if place == 0 { END_STREAM } else { 0 };
        let ends = if place == last { END_HEADERS } else { 0 };
        frame(kind, begins | ends, stream, piece)
    });
    frames.collect::<Vec<_>>().concat()
}

/// A proxy whose route `/adds` adds more fields than a message can have.
fn proxy(api: &Upstream) -> Tidegate {
    let mut added = String::new();
    (0..24_600).for_each(|n| writeln!(added, "h{n} = \"1\"").unwrap());
    Proxy::of_one_worker(api)
        .server("max_header_size = \"1MiB\"")
        .admin()
        .section("[log]\naccess = true\n[cors]\norigins = [\"https://page.test\"]")
        .route("path = \"/{*rest}\"")
        .route(&format!("path = \"/adds\"\n[routes.request_headers.add]\n{added}"))
        .start()
}

#[test]
fn a_head_with_too_many_fields_is_a_431_for_its_stream_alone() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .server("max_header_size = \"1MiB\"\nrequest_id = \"x-request-id\"")
        .admin()
        .start();
    for count in [23_553, 24_571, 24_572, 24_573, 24_574, 24_575, 24_576] {
        let mut client = Frames::open(proxy.address, &[]);
        client.send(with_fields(1, count));
        assert_eq!(client.outcome(1), Outcome::Status(431), "{count}");
        assert_eq!(client.ask(3, &asking("GET", "/")), Outcome::Status(200), "{count}");
    }
    assert_eq!(Metrics::of(proxy.admin()).value("tidegate_panics_total"), 0.0);
    let line = proxy.log.find("malformed requests").unwrap();
    assert_eq!(line["reason"], "message head has more than 23552 different fields (HTTP/2)");
}

#[test]
fn a_panic_ends_its_request_alone_and_is_a_line_of_the_log() {
    let api = Upstream::echoing();
    let mut proxy = proxy(&api);
    let mut client = Connection::open(proxy.address);
    let reply = client.get("/adds", &[("origin", "https://page.test")]);
    let origin = reply.header("access-control-allow-origin");
    assert_eq!(origin.as_deref(), Some("https://page.test"));
    assert_eq!((reply.status, reply.header("connection").as_deref()), (500, Some("close")));
    assert_eq!(reply.json()["status"], 500);
    let mut client = Frames::open(proxy.address, &[]);
    assert_eq!(client.ask(1, &asking("GET", "/adds")), Outcome::Status(500));
    let grpc = [("content-type", &b"application/grpc"[..])];
    let call: Vec<_> = asking("POST", "/adds").into_iter().chain(grpc).collect();
    client.send(request(3, END_STREAM, &call));
    let answer = client.find(|frame| frame.stream == 3).unwrap();
    assert_eq!(answer.status(), 200, "the status is grpc-status");
    assert_eq!(client.ask(5, &asking("GET", "/")), Outcome::Status(200), "the connection is kept");
    assert_eq!(Metrics::of(proxy.admin()).value("tidegate_panics_total"), 3.0);
    assert!(proxy.stop().success());
    let lines = proxy.log.with("panic");
    assert_eq!(lines.len(), 3, "{}", proxy.log.text());
    for line in &lines {
        assert_eq!((&line["level"], line["error"].is_string()), (&"ERROR".into(), true), "{line}");
        assert!(line["place"].as_str().unwrap().contains(".rs:"), "{line}");
    }
    let statuses: Vec<_> =
        proxy.log.with("request").iter().map(|line| line["status"].clone()).collect();
    assert_eq!(statuses, [500, 500, 500, 200]);
}
