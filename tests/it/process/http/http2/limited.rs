//! Limits hold for each stream.

use super::{Gate, logged};
use crate::support::http2::Client;
use crate::support::http2::frames::{END_STREAM, Frames, HEADERS, Outcome, asking, request};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok};

#[test]
fn a_rejected_stream_is_told_when_to_come_back() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("two", "key = [\"ip\"]\nrate = \"2/h\"").start();
    let mut client = Client::open(proxy.address);
    for left in [1, 0] {
        let reply = client.get("/", &[]);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("ratelimit"), Some(format!("\"two\";r={left};t=3600")));
    }
    let reply = client.get("/", &[]);
    assert_eq!(reply.status, 429);
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((1700..=1800).contains(&wait), "{wait}");
    assert_eq!(reply.header("ratelimit-policy").unwrap(), "\"two\";q=2;w=3600");
    assert_eq!(reply.header("ratelimit"), Some(format!("\"two\";r=0;t={wait}")));
    assert_eq!(reply.header("content-type").unwrap(), "application/problem+json");
    assert_eq!(reply.header("connection"), None);
    assert_eq!(reply.violated(), ["two"]);
    assert_eq!(api.requests().len(), 2);
    let line = proxy.log.wait("throttled", |_| true);
    assert_eq!((&line["limit"], &line["decision"]), (&"two".into(), &"rejected".into()));
}

#[test]
fn streams_at_once_share_a_bucket_to_the_last_token() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("ten", "key = [\"ip\"]\nrate = \"10/h\"").start();
    let mut client = Client::open(proxy.address);
    let exchanges: Vec<_> = (0..100).map(|_| client.begin("GET", "/", &[])).collect();
    let statuses = exchanges.into_iter().map(|mut exchange| exchange.reply().status);
    assert_eq!(statuses.filter(|status| *status == 200).count(), 10);
    assert_eq!(api.requests().len(), 10);
}

#[test]
fn a_rejected_grpc_call_is_told_in_its_own_words() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("none", "key = []\nrate = \"0/s\"").start();
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let reply = Client::open(proxy.address).post("/a.B/C", &grpc, b"\0\0\0\0\0");
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.header("grpc-status").as_deref(), Some("8"));
}

#[test]
fn one_stream_that_is_held_does_not_hold_the_others() {
    let api = Upstream::echoing();
    let proxy = logged(&api)
        .limit("user", "key = [\"header:x-user\"]\nrate = \"1/h\"\nwait = \"2h\"")
        .start();
    let mut client = Client::open(proxy.address);
    assert_eq!(client.get("/", &[("x-user", "a")]).status, 200);
    let held = client.begin("GET", "/held", &[("x-user", "a")]);
    proxy.log.wait("throttled", |line| line["decision"] == "delayed");
    for user in ["b", "c", "d"] {
        assert_eq!(client.get("/", &[("x-user", user)]).status, 200, "{user}");
    }
    assert!(api.requests().iter().all(|got| got.path() != "/held"));
    held.reset();
    proxy.log.wait("request", |line| line["path"] == "/held" && line["status"] == 499);
    assert_eq!(client.get("/", &[("x-user", "e")]).status, 200);
}

#[test]
fn held_streams_go_in_the_order_in_which_they_came() {
    let proxy = Proxy::answering()
        .server("workers = 1")
        .limit("all", "key = []\nrate = \"20/s\"\nburst = 1\nwait = \"1h\"")
        .start();
    let mut client = Frames::open(proxy.address, &[]);
    let requests: Vec<u8> = (0..6_u32)
        .flat_map(|n| request(2 * n + 1, END_STREAM, &asking("GET", &format!("/{n}"))))
        .collect();
    client.send(requests);
    let answers = std::iter::from_fn(|| client.find(|frame| frame.kind == HEADERS));
    let streams: Vec<_> = answers.map(|frame| frame.stream).take(6).collect();
    assert_eq!(streams, [1, 3, 5, 7, 9, 11]);
}

#[test]
fn what_a_response_costs_is_settled_when_its_stream_ends() {
    let api = Upstream::answering(|got| match got.path() {
        "/dear" => b"HTTP/1.1 200 OK\r\nx-used: 8\r\ncontent-length: 0\r\n\r\n".to_vec(),
        path => ok(path),
    });
    let limits = "[limits.tokens]\nkey = [\"ip\"]\nrate = \"10/h\"\n\
                  cost = { response_header = \"x-used\", estimate = 1 }\n";
    let proxy = logged(&api).limits(limits).start();
    let mut client = Client::open(proxy.address);
    let left = |client: &mut Client| client.get("/", &[]).header("ratelimit").unwrap();
    assert_eq!(left(&mut client), "\"tokens\";r=9;t=3600");
    assert_eq!(client.get("/dear", &[]).status, 200);
    assert_eq!(left(&mut client), "\"tokens\";r=0;t=3600");
    assert_eq!(client.get("/", &[]).status, 429);
}

#[test]
fn a_response_that_is_given_up_costs_what_was_estimated() {
    let gate = Gate::new();
    let limits = "[limits.tokens]\nkey = [\"ip\"]\nrate = \"100/h\"\n\
                  cost = { response_header = \"x-used\", estimate = 10 }\n";
    let proxy = logged(&gate.api).limits(limits).start();
    let mut client = Client::open(proxy.address);
    let given_up = client.begin("GET", "/slow", &[]);
    gate.has();
    given_up.reset();
    proxy.log.wait("request", |line| line["status"] == 499);
    let reply = client.get("/", &[]);
    assert_eq!(reply.header("ratelimit").unwrap(), "\"tokens\";r=80;t=3600");
}

#[test]
fn crumbs_of_a_cookie_are_one_for_keys_and_the_api() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("session", "key = [\"cookie:sid\"]\nrate = \"1/h\"").start();
    let mut client = Frames::open(proxy.address, &[]);
    let ask = |client: &mut Frames, stream, crumbs: &[&str]| {
        let mut fields = asking("GET", "/").to_vec();
        fields.extend(crumbs.iter().map(|crumb| ("cookie", crumb.as_bytes())));
        client.ask(stream, &fields)
    };
    assert_eq!(ask(&mut client, 1, &["a=1", "sid=x", "b=2"]), Outcome::Status(200));
    assert_eq!(api.last().headers.iter().filter(|(name, _)| name == "cookie").count(), 1);
    assert_eq!(api.last().header("cookie").as_deref(), Some("a=1; sid=x; b=2"));
    assert_eq!(ask(&mut client, 3, &["a=1; sid=x"]), Outcome::Status(429), "the same cookie");
    assert_eq!(ask(&mut client, 5, &["a=1", "sid=y"]), Outcome::Status(200), "another");
    assert_eq!(ask(&mut client, 7, &["sid=z", "sid=y"]), Outcome::Status(400), "two of them");
}
