//! Envoy's rate-limit service: descriptors are requests, and all of a call are decided together.

use std::net::SocketAddr;
use std::{slice, thread};

use prost::Message;

use super::{PER_CLIENT, asked_at, deciding, file};
use crate::support::client::{Connection, Reply};
use crate::support::http2::{Client, Exchange};
use crate::support::metrics::Metrics;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, PartialEq, Message)]
struct Call {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<Header>,
    #[prost(message, repeated, tag = "4")]
    request_headers_to_add: Vec<Header>,
    #[prost(bytes = "vec", tag = "5")]
    raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// The gRPC statuses of calls that are not answered.
const INVALID_ARGUMENT: &str = "3";
const RESOURCE_EXHAUSTED: &str = "8";
const UNIMPLEMENTED: &str = "12";
const UNAVAILABLE: &str = "14";
const UNAUTHENTICATED: &str = "16";

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.response_headers_to_add.iter().find(|header| header.key == name);
        found.map(|header| &*header.value)
    }

    /// Code and remaining tokens of each descriptor.
    fn said(&self) -> Vec<(i32, u32)> {
        self.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect()
    }

    /// The seconds until the reset of a descriptor.
    fn reset(&self, descriptor: usize) -> f64 {
        let reset = self.statuses[descriptor].duration_until_reset.as_ref().unwrap();
        f64::from(i32::try_from(reset.seconds).unwrap()) + f64::from(reset.nanos) / 1e9
    }
}

fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: value.as_bytes().to_vec(),
    };
    Descriptor { entries: entries.iter().map(entry).collect(), hits_addend: None }
}

fn with_hits(hits: u64, entries: &[(&str, &str)]) -> Descriptor {
    Descriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

fn call(descriptors: &[Descriptor]) -> Call {
    Call { domain: "any".to_owned(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

fn sent(client: &mut Client, call: &Call) -> Reply {
    client.post(METHOD, &GRPC, &framed(&call.encode_to_vec()))
}

/// The answer to a call that is decided.
fn asked(client: &mut Client, call: &Call) -> Answer {
    answered(&sent(client, call))
}

fn answered(reply: &Reply) -> Answer {
    assert_eq!(reply.header("content-type").as_deref(), Some("application/grpc"));
    let trailers = [("grpc-status".to_owned(), "0".to_owned())];
    assert_eq!((reply.status, &*reply.trailers), (200, &trailers[..]), "{:?}", reply.headers);
    let (prefix, message) = reply.body.split_at(5);
    assert_eq!(prefix, &framed(message)[..5]);
    Answer::decode(message).unwrap()
}

/// Status and message of a call that is not decided.
fn failed(reply: &Reply) -> (String, String) {
    assert_eq!((reply.status, reply.body.len()), (200, 0), "{}", reply.text());
    let field = |name| reply.header(name).unwrap_or_default();
    (field("grpc-status"), field("grpc-message"))
}

fn ask(client: &mut Client, descriptors: &[Descriptor]) -> Answer {
    asked(client, &call(descriptors))
}

fn open(proxy: &Tidegate) -> Client {
    Client::open(asked_at(proxy))
}

const USERS: &str = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"3/h\"\n\
     [limits.all]\nkey = []\nrate = \"4/m\"\n\
     [[routes]]\npath = \"/u/{*rest}\"\nmethods = [\"POST\"]\nhost = \"api.test\"\nlimits = [\"user\", \"all\"]\n";

fn user(name: &str) -> Descriptor {
    descriptor(&[("method", "POST"), ("host", "api.test"), ("path", "/u/1?x=y"), ("x-user", name)])
}

#[test]
fn a_descriptor_is_a_request_and_the_answer_says_what_remains_and_until_when() {
    let proxy = deciding("", USERS);
    let mut envoy = open(&proxy);
    let first = ask(&mut envoy, &[user("a")]);
    assert_eq!((first.overall_code, first.said()), (OK, vec![(OK, 2)]));
    assert!((1_199.0..=1_200.0).contains(&first.reset(0)), "a third of it is gone: {first:?}");
    assert_eq!(first.header("ratelimit"), Some("\"user\";r=2;t=3600, \"all\";r=3;t=60"));
    assert_eq!(first.header("retry-after"), None);
    assert!(first.raw_body.is_empty() && first.request_headers_to_add.is_empty());
    for left in [1, 0] {
        assert_eq!(ask(&mut envoy, &[user("a")]).said(), [(OK, left)]);
    }
    let over = ask(&mut envoy, &[user("a")]);
    assert_eq!((over.overall_code, over.said()), (OVER_LIMIT, vec![(OVER_LIMIT, 0)]));
    assert!((1_190.0..=1_200.0).contains(&over.reset(0)), "until it would be allowed: {over:?}");
    assert_eq!(over.header("retry-after"), Some("1200"));
    assert_eq!(over.header("ratelimit-policy"), Some("\"user\";q=3;w=3600, \"all\";q=4;w=60"));
    let body: serde_json::Value = serde_json::from_slice(&over.raw_body).unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!(["user"]));
    let other = ask(&mut envoy, &[user("b")]);
    assert_eq!(other.said(), [(OK, 0)], "of `all`, which the refused request did not take from");
    // What names the client and the key, and a request without a route.
    assert_eq!(ask(&mut envoy, &[descriptor(&[("path", "/no/route")])]).said(), [(OK, 0)]);
    let line = proxy.log.wait("request", |line| line["status"] == 429);
    assert_eq!(
        (&line["via"], &line["path"], &line["limit"]),
        (&"envoy".into(), &"/u/1".into(), &"user".into())
    );
    let page = Metrics::of(proxy.admin());
    let calls = |status: u16| {
        page.value(&format!("tidegate_decide_requests_total{{via=\"envoy\",status=\"{status}\"}}"))
    };
    assert_eq!((calls(200), calls(429)), (5.0, 1.0));
    assert_eq!(page.value("tidegate_decisions_total{limit=\"user\",decision=\"rejected\"}"), 1.0);
}

#[test]
fn all_descriptors_take_or_none() {
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{USERS}"));
        let mut envoy = open(&proxy);
        let refused = [user("a"), with_hits(4, &[("limit", "user"), ("header:x-user", "b")])];
        let answer = ask(&mut envoy, &refused);
        assert_eq!(answer.overall_code, OVER_LIMIT);
        assert_eq!(answer.said(), [(OK, 3), (OVER_LIMIT, 3)], "{store}");
        assert_eq!(answer.statuses[1].duration_until_reset, None, "it will never pass");
        // Nothing was taken. Of the limit in both, the two together take two.
        let answer = ask(&mut envoy, &[user("a"), user("b")]);
        assert_eq!(answer.said(), [(OK, 2), (OK, 2)], "{store}");
        let left = ask(&mut envoy, &[with_hits(0, &[("limit", "all")])]);
        assert_eq!(left.said(), [(OK, 2)], "{store}");
    });
}

/// Two asks of one bucket in one call must not overwrite each other.
#[test]
fn descriptors_of_one_bucket_add_up() {
    in_both_stores(|store| {
        for algorithm in ["token-bucket", "fixed-window", "sliding-window", "sliding-log"] {
            let limit = format!(
                "[store]\n{store}[limits.all]\nkey = []\nrate = \"5/h\"\nalgorithm = \"{algorithm}\"\n\
                 [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"all\"]\n"
            );
            let proxy = deciding("", &limit);
            let mut envoy = open(&proxy);
            let (one, two) =
                (descriptor(&[("path", "/a")]), with_hits(2, &[("limit", "all, all")]));
            let first = ask(&mut envoy, &[one.clone(), two.clone()]);
            assert_eq!(first.said(), [(OK, 2), (OK, 2)], "{store} {algorithm}");
            let over = ask(&mut envoy, &[two.clone(), one.clone()]);
            assert_eq!(over.said(), [(OVER_LIMIT, 2), (OVER_LIMIT, 2)], "{store} {algorithm}");
            assert_eq!(ask(&mut envoy, &[two]).said(), [(OK, 0)], "{store} {algorithm}");
        }
    });
}

#[test]
fn hits_are_the_cost_and_a_descriptors_own_zero_only_looks() {
    in_both_stores(|store| {
        for algorithm in ["token-bucket", "fixed-window", "sliding-log"] {
            let limit = format!(
                "[store]\n{store}[limits.one]\nkey = []\nrate = \"9/h\"\nalgorithm = \"{algorithm}\"\n\
                 [limits.other-{algorithm}]\nkey = []\nrate = \"9/h\"\n\
                 [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"one\", \"other-{algorithm}\"]\n"
            );
            let proxy = deciding("", &limit);
            let mut envoy = open(&proxy);
            let other = format!("other-{algorithm}");
            let of = |name: &str, hits| Descriptor {
                hits_addend: hits,
                ..descriptor(&[("limit", name)])
            };
            let mut ask = |hits_addend, descriptors: &[Descriptor]| {
                asked(&mut envoy, &Call { hits_addend, ..call(descriptors) })
            };
            assert_eq!(ask(0, &[of("one", None)]).said(), [(OK, 8)], "{store} {algorithm}");
            assert_eq!(ask(2, &[of("one", None)]).said(), [(OK, 6)], "{store} {algorithm}");
            assert_eq!(ask(2, &[of("one", Some(3))]).said(), [(OK, 3)], "{store} {algorithm}");
            let look = of("one", Some(0));
            assert_eq!(ask(2, slice::from_ref(&look)).said(), [(OK, 3)], "{store} {algorithm}");
            // One looks, and the other takes: of another bucket, and of the same.
            let mixed = ask(0, &[look.clone(), of(&other, Some(9))]);
            assert_eq!(mixed.said(), [(OK, 3), (OK, 0)], "{store} {algorithm}");
            let same = ask(0, &[look.clone(), of("one", Some(3)), look.clone()]);
            assert_eq!(same.said(), [(OK, 0); 3], "{store} {algorithm}");
            // Where nothing is left, a look says so, and stops the call.
            let looked = ask(0, slice::from_ref(&look));
            assert_eq!(looked.said(), [(OVER_LIMIT, 0)], "{store} {algorithm}");
            assert!(looked.reset(0) > 0.0 && looked.header("retry-after").is_some());
            assert_eq!(ask(0, &[of(&other, Some(0))]).overall_code, OVER_LIMIT);
        }
    });
}

#[test]
fn no_request_is_held() {
    in_both_stores(|store| {
        let limit = format!(
            "[store]\n{store}[limits.held]\nkey = []\nrate = \"2/h\"\nwait = \"1h\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"held\"]\n"
        );
        let proxy = deciding("", &limit);
        let mut envoy = open(&proxy);
        let one = [descriptor(&[("path", "/a")])];
        let said: Vec<_> = (0..3).map(|_| ask(&mut envoy, &one).overall_code).collect();
        assert_eq!(said, [OK, OK, OVER_LIMIT]);
    });
}

#[test]
fn a_call_that_is_no_question_says_what_is_wrong() {
    let proxy = deciding("", USERS);
    let mut envoy = open(&proxy);
    let entries = |entries: &[(&str, &str)]| call(&[user("a"), descriptor(entries)]);
    let many: Vec<_> = (0..101).map(|_| user("a")).collect();
    let fields: Vec<_> = (0..30_000).map(|field| format!("x-{field}")).collect();
    let fields: Vec<_> = fields.iter().map(|field| (&**field, "a")).collect();
    for (asked, says) in [
        (entries(&fields), "at most 1000 header fields"),
        (entries(&fields[..1_001]), "at most 1000 header fields"),
        (call(&[]), "1 to 100 descriptors"),
        (call(&many), "1 to 100 descriptors"),
        (entries(&[("limit", "nope")]), "descriptor 2: no limit has the name `nope`"),
        (entries(&[("limit", "user,")]), "no limit has the name ``"),
        (entries(&[("path", "/"), ("path", "/")]), "the entry `path` comes twice"),
        (entries(&[("remote_address", "nobody")]), "`remote_address` is not an IP address"),
        (entries(&[("method", "G T")]), "`method` cannot be read"),
        (entries(&[("a b", "c")]), "the entry `a b`"),
        (entries(&[("", "c")]), "the entry ``"),
    ] {
        let (status, message) = failed(&sent(&mut envoy, &asked));
        assert_eq!(status, INVALID_ARGUMENT, "{asked:?}");
        assert!(message.contains(says), "{message}");
    }
    // What the caller wrote may be long, and the message is a field.
    for key in ["limit", &"\u{e9}".repeat(30_000)] {
        let long = entries(&[(key, &"x".repeat(30_000))]);
        let (status, message) = failed(&sent(&mut envoy, &long));
        assert!(status == INVALID_ARGUMENT && message.len() < 10_000, "{}", message.len());
    }
    let whole = framed(&call(&[user("a")]).encode_to_vec());
    let compressed = [&[1], &whole[1..]].concat();
    for (body, status) in [
        (&b""[..], INVALID_ARGUMENT),
        (&whole[..4], INVALID_ARGUMENT),
        (&whole[..whole.len() - 1], INVALID_ARGUMENT),
        (&[&whole[..], &whole[..]].concat(), INVALID_ARGUMENT),
        (&framed(b"\xFF\xFF"), INVALID_ARGUMENT),
        (&compressed, UNIMPLEMENTED),
        (&framed(&vec![0; 2 << 20]), RESOURCE_EXHAUSTED),
    ] {
        assert_eq!(failed(&envoy.post(METHOD, &GRPC, body)).0, status, "{body:?}");
    }
    for path in
        ["/envoy.service.ratelimit.v3.RateLimitService/Other", "/grpc.health.v1.Health/Check", "/"]
    {
        assert_eq!(failed(&envoy.post(path, &GRPC, &whole)).0, UNIMPLEMENTED, "{path}");
    }
    // A caller that does not speak gRPC must not take the status 200 for a permission.
    assert_eq!(envoy.post(METHOD, &[("content-type", "application/json")], &whole).status, 404);
    assert_eq!(envoy.get(METHOD, &GRPC).status, 404);
    assert_eq!(envoy.get("/other", &GRPC).status, 404);
    let mut old = Connection::open(asked_at(&proxy));
    assert_eq!(old.request("POST", METHOD, &GRPC, &whole).status, 404);
    let page = Metrics::of(proxy.admin());
    assert_eq!(page.samples("tidegate_decisions_total"), 0, "nothing was decided");
    let bad = "tidegate_decide_requests_total{via=\"envoy\",status=\"400\"}";
    assert_eq!(page.value(bad), 18.0);
}

/// A client writes paths and fields. A call that fails by them would let the request pass where Envoy goes on without
/// an answer.
#[test]
fn what_a_client_writes_refuses_its_request_and_never_spoils_the_call() {
    let proxy = deciding("", USERS);
    let mut envoy = open(&proxy);
    for path in ["/u/a%2fb", "/u/..;x/b", "no path", "/u/\0", ""] {
        let answer = ask(&mut envoy, &[user("a"), descriptor(&[("path", path)])]);
        assert_eq!(answer.overall_code, OVER_LIMIT, "{path:?}");
        assert_eq!(answer.statuses[1].code, OVER_LIMIT, "{path:?}");
        let body: serde_json::Value = serde_json::from_slice(&answer.raw_body).unwrap();
        assert_eq!(body["status"], 400, "{path:?}");
    }
    let mut twice = user("a");
    twice.entries.push(twice.entries[3].clone());
    assert_eq!(ask(&mut envoy, &[twice]).overall_code, OVER_LIMIT, "which of both is it?");
    let mut bytes = user("a");
    bytes.entries[3].value = vec![0xFF, b'a'];
    assert_eq!(ask(&mut envoy, &[bytes.clone()]).said(), [(OK, 2)]);
    // Other servers take such a path, and so does the proxy.
    bytes.entries[2].value = b"/u/<\xFF>\"`?\"<`".to_vec();
    assert_eq!(ask(&mut envoy, &[bytes]).said(), [(OK, 1)]);
    let left = ask(&mut envoy, &[user("a")]);
    assert!(left.header("ratelimit").unwrap().starts_with("\"user\";r=2"), "nothing was taken");
}

/// A regression: the answer to a client of gRPC was put together here, although Envoy does that.
#[test]
fn a_client_of_grpc_gets_the_fields_and_the_body_of_every_refusal() {
    let proxy = deciding("", USERS);
    let mut envoy = open(&proxy);
    let mut grpc = user("a");
    grpc.entries.push(descriptor(&[("content-type", "application/grpc")]).entries.remove(0));
    grpc.hits_addend = Some(3);
    assert_eq!(ask(&mut envoy, slice::from_ref(&grpc)).said(), [(OK, 0)]);
    let over = ask(&mut envoy, &[grpc]);
    assert_eq!((over.header("grpc-status"), over.header("retry-after")), (None, Some("3600")));
    let body: serde_json::Value = serde_json::from_slice(&over.raw_body).unwrap();
    assert_eq!(body["status"], 429);
    proxy.log.wait("request", |line| line["status"] == 429);
}

/// A regression: each descriptor noted the time of the one question.
#[test]
fn a_question_about_several_descriptors_is_one_question_to_the_store() {
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{USERS}"));
        let mut envoy = open(&proxy);
        ask(&mut envoy, &[user("a")]);
        let asked = || Metrics::of(proxy.admin()).value("tidegate_store_duration_seconds_count");
        let before = asked();
        let free = descriptor(&[("path", "/no/limit")]);
        ask(&mut envoy, &[user("a"), user("b"), user("c"), free]);
        assert_eq!(asked(), before + 1.0, "{store}");
        // Where a request is refused before its limits, nobody asks.
        ask(&mut envoy, &[descriptor(&[("path", "")]), user("a")]);
        ask(&mut envoy, &[user("a"), descriptor(&[("path", "")])]);
        assert_eq!(asked(), before + 1.0, "{store}");
    });
}

#[test]
fn the_token_comes_in_either_field() {
    let proxy = deciding("token = \"secret\"", PER_CLIENT);
    let mut envoy = open(&proxy);
    let body = framed(&call(&[descriptor(&[("path", "/a/b")])]).encode_to_vec());
    for (field, value, is_right) in [
        ("authorization", "Bearer secret", true),
        ("x-tidegate-token", "secret", true),
        ("authorization", "Bearer other", false),
        ("x-other", "secret", false),
    ] {
        let reply = envoy.post(METHOD, &[GRPC[0], GRPC[1], (field, value)], &body);
        match is_right {
            true => assert_eq!(reply.trailers, [("grpc-status".to_owned(), "0".to_owned())]),
            false => assert_eq!(failed(&reply).0, UNAUTHENTICATED, "{field}: {value}"),
        }
    }
}

#[test]
fn the_client_is_the_remote_address_unless_that_is_a_trusted_proxy() {
    let trusting = "[server]\nlisten = []\ntrusted_proxies = [\"198.51.100.0/24\"]";
    let config = file("", PER_CLIENT).replace("[server]\nlisten = []", trusting);
    let proxy = Tidegate::start(&config);
    let mut envoy = open(&proxy);
    for (path, address, forwarded, client) in [
        ("/a/direct", "203.0.113.7", "6.6.6.6", "203.0.113.7"),
        ("/a/behind", "198.51.100.3", "6.6.6.6, 203.0.113.8", "203.0.113.8"),
        ("/a/six", "2001:db8::1", "", "2001:db8::1"),
    ] {
        let entries = [("path", path), ("remote_address", address), ("x-forwarded-for", forwarded)];
        assert_eq!(ask(&mut envoy, &[descriptor(&entries)]).overall_code, OK);
        let line = proxy.log.wait("request", |line| line["path"] == path);
        assert_eq!(line["client"], client, "{path}");
    }
}

#[test]
fn what_a_limit_marks_is_for_the_api_and_a_shadow_says_nothing() {
    let limits = "[limits.marked]\nkey = []\nrate = \"1/h\"\nmode = \"mark\"\n\
         [limits.shadow]\nkey = []\nrate = \"1/h\"\nmode = \"shadow\"\n\
         [limits.off]\nkey = []\nrate = \"1/h\"\nmode = \"off\"\n\
         [[routes]]\npath = \"/{*rest}\"\nlimits = [\"marked\", \"shadow\"]\n";
    let proxy = deciding("", limits);
    let mut envoy = open(&proxy);
    let one = [descriptor(&[("limit", "marked, shadow, off")])];
    assert!(ask(&mut envoy, &one).request_headers_to_add.is_empty());
    let marked = ask(&mut envoy, &one);
    let over = Header { key: "tidegate-over".to_owned(), value: "marked".to_owned() };
    assert_eq!((marked.said(), marked.request_headers_to_add), (vec![(OK, 0)], vec![over]));
}

#[test]
fn each_descriptor_has_the_figures_of_its_plan() {
    let limits = "[plans]\nby = \"header:x-plan\"\n\
         [limits.user]\nkey = [\"header:x-user\"]\nrate = \"3/h\"\nplans = { pro = \"9/h\" }\n\
         [[routes]]\npath = \"/{*rest}\"\nlimits = [\"user\"]\n";
    let proxy = deciding("", limits);
    let of = |user: &str, plan: &str| {
        descriptor(&[("path", "/a"), ("x-user", user), ("header:x-plan", plan)])
    };
    let both = ask(&mut open(&proxy), &[of("a", "pro"), of("b", "none")]);
    assert_eq!(both.said(), [(OK, 8), (OK, 2)]);
}

#[test]
fn a_limit_that_lets_nothing_pass_stops_the_whole_call() {
    in_both_stores(|store| {
        let limits = format!(
            "[store]\n{store}[limits.closed]\nkey = []\nrate = \"0/s\"\n[limits.open]\nkey = []\nrate = \"9/h\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"open\"]\n"
        );
        let proxy = deciding("", &limits);
        let mut envoy = open(&proxy);
        let of = |name: &str| descriptor(&[("limit", name)]);
        let answer = ask(&mut envoy, &[of("open"), of("closed")]);
        assert_eq!((answer.overall_code, answer.statuses[0].code), (OVER_LIMIT, OK), "{store}");
        assert_eq!(answer.header("retry-after"), None, "never");
        assert_eq!(ask(&mut envoy, &[of("open")]).said(), [(OK, 8)], "{store}");
    });
}

#[test]
fn it_is_served_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decide.sock");
    let config = file("", PER_CLIENT).replace(
        "[decide]\nlisten = \"LISTEN\"",
        &format!("[decide]\nlisten = \"unix:{}\"", path.display()),
    );
    let proxy = Tidegate::start(&config);
    proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    let mut envoy = Client::open_unix(path);
    let one = [descriptor(&[("path", "/a/b"), ("remote_address", "203.0.113.7")])];
    assert_eq!(ask(&mut envoy, &one).said(), [(OK, 1)]);
}

/// The calls that pass, of `each` by each of so many clients. `ask` makes the call of a client.
fn passed(
    clients: usize,
    each: usize,
    ask: impl Fn(usize) -> Box<dyn FnMut() -> bool + Send>,
) -> usize {
    let clients: Vec<_> = (0..clients)
        .map(|client| {
            let mut ask = ask(client);
            thread::spawn(move || (0..each).filter(|_| ask()).count())
        })
        .collect();
    clients.into_iter().map(|client| client.join().unwrap()).sum()
}

fn by_grpc(address: SocketAddr) -> Box<dyn FnMut() -> bool + Send> {
    let mut envoy = Client::open(address);
    let one = [descriptor(&[("path", "/b"), ("remote_address", "203.0.113.7")])];
    Box::new(move || ask(&mut envoy, &one).overall_code == OK)
}

#[test]
fn half_by_the_proxy_and_half_by_grpc_share_one_bucket() {
    let api = Upstream::echoing();
    let config = file("", "")
        .replace("listen = []", "listen = \"LISTEN\"\ntrusted_proxies = [\"127.0.0.1\"]");
    let proxy = Tidegate::start(&format!(
        "{config}[upstreams.api]\nservers = [\"http://{}\"]\n\
         [limits.ip]\nkey = [\"ip\"]\nrate = \"20/h\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\nlimits = [\"ip\"]\n",
        api.address
    ));
    let (address, asked) = (proxy.address, asked_at(&proxy));
    let passed = passed(4, 15, |client| match client % 2 {
        0 => by_grpc(asked),
        _ => {
            let mut client = Connection::open(address);
            Box::new(move || client.get("/a", &[("x-forwarded-for", "203.0.113.7")]).status == 200)
        }
    });
    assert_eq!(passed, 20);
}

#[test]
fn a_hundred_calls_at_once_on_one_connection_share_one_bucket() {
    in_both_stores(|store| {
        let limit = PER_CLIENT.replace("2/h", "60/h");
        let proxy = deciding("", &format!("[store]\n{store}{limit}"));
        let mut envoy = open(&proxy);
        let one = descriptor(&[("path", "/a/b"), ("remote_address", "203.0.113.7")]);
        let message = framed(&call(&[one]).encode_to_vec());
        let mut calls: Vec<_> = (0..100).map(|_| envoy.upload("POST", METHOD, &GRPC)).collect();
        calls.iter_mut().for_each(|call| call.send(&message));
        calls.iter_mut().for_each(Exchange::end);
        let codes = calls.iter_mut().map(|call| answered(&call.reply()).overall_code);
        assert_eq!(codes.filter(|code| *code == OK).count(), 60, "{store}");
    });
}

#[test]
fn fifty_clients_of_two_processes_pass_no_more_than_redis_allows() {
    let redis = RedisServer::start();
    let limits = format!(
        "[store]\nurl = \"{}\"\ntimeout = \"10s\"\n[limits.ip]\nkey = [\"ip\"]\nrate = \"300/h\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"ip\"]\n",
        redis.url()
    );
    let proxies = [deciding("", &limits), deciding("", &limits)];
    let addresses = proxies.each_ref().map(asked_at);
    assert_eq!(passed(50, 10, |client| by_grpc(addresses[client % 2])), 300);
}

#[test]
fn without_redis_each_limit_does_what_it_says() {
    let mut redis = RedisServer::start();
    let limits = ["reject", "allow", "local"].map(|name| {
        format!("[limits.{name}]\nkey = []\nrate = \"3/h\"\non_store_error = \"{name}\"\n")
    });
    let proxy = deciding(
        "",
        &format!(
            "[store]\nurl = \"{}\"\n{}[[routes]]\npath = \"/\"\nlimits = [\"reject\", \"allow\", \"local\"]\n",
            redis.url(),
            limits.concat()
        ),
    );
    let mut envoy = open(&proxy);
    let of = |name: &str| call(&[descriptor(&[("limit", name)])]);
    assert_eq!(asked(&mut envoy, &of("reject, allow, local")).overall_code, OK);
    redis.kill();
    wait_until("the store is known to be away", || {
        failed(&sent(&mut envoy, &of("reject"))).0 == UNAVAILABLE
    });
    let codes = |envoy: &mut Client, name: &str| -> Vec<i32> {
        (0..5).map(|_| asked(envoy, &of(name)).overall_code).collect()
    };
    assert_eq!(codes(&mut envoy, "allow"), [OK; 5]);
    let local = codes(&mut envoy, "local");
    assert!(local.is_sorted() && local[0] == OK && local[4] == OVER_LIMIT, "{local:?}");
    let line = proxy.log.wait("request", |line| line["status"] == 503);
    assert_eq!(line["via"], "envoy");
}

/// What the client gets is said by the descriptor that waits longest, wherever it stands.
#[test]
fn the_longest_wait_is_what_the_client_is_told() {
    let limits = "[limits.long]\nkey = []\nrate = \"1/h\"\n[limits.short]\nkey = []\nrate = \"1/m\"\n\
         [limits.free]\nkey = []\nrate = \"9/h\"\n\
         [[routes]]\npath = \"/{*rest}\"\nlimits = [\"free\"]\n";
    let proxy = deciding("", limits);
    let mut envoy = open(&proxy);
    let of = |name: &str| descriptor(&[("limit", name)]);
    let first = ask(&mut envoy, &[of("long"), of("short"), of("free")]);
    assert_eq!(first.said(), [(OK, 0), (OK, 0), (OK, 8)]);
    for order in [["short", "long", "free"], ["long", "free", "short"], ["free", "short", "long"]] {
        let answer = ask(&mut envoy, &order.map(of));
        assert_eq!(answer.header("retry-after"), Some("3600"), "{order:?}");
        assert!(answer.header("ratelimit").unwrap().starts_with("\"long\";r=0"), "{order:?}");
        let codes = order.map(|name| if name == "free" { OK } else { OVER_LIMIT });
        let said: Vec<_> = answer.statuses.iter().map(|status| status.code).collect();
        assert_eq!(said, codes, "{order:?}");
    }
    assert_eq!(ask(&mut envoy, &[of("free")]).said(), [(OK, 7)]);
    assert_eq!(ask(&mut envoy, &vec![of("free"); 100]).said(), [(OVER_LIMIT, 7); 100]);
    assert_eq!(
        ask(&mut envoy, &vec![with_hits(0, &[("limit", "free")]); 100]).said(),
        [(OK, 7); 100]
    );
    assert_eq!(ask(&mut envoy, &[of("free"), of("long")]).overall_code, OVER_LIMIT);
}

/// What one request of a call may do to the others: a key that cannot be read, a ban, and a bucket of this process
/// beside one in Redis.
#[test]
fn one_refused_descriptor_of_any_kind_keeps_the_others_from_taking() {
    in_both_stores(|store| {
        let limits = format!(
            "[store]\n{store}[limits.free]\nkey = []\nrate = \"9/h\"\n\
             [limits.here]\nkey = []\nrate = \"9/h\"\nscope = \"node\"\n\
             [limits.demands]\nkey = [\"header:x-key\"]\nrate = \"9/h\"\nmissing = \"reject\"\n\
             [limits.bans]\nkey = [\"header:x-key\"]\nrate = \"1/h\"\nban = {{ after = 2, within = \"1h\", for = \"1h\" }}\n\
             [[routes]]\npath = \"/{{*rest}}\"\nlimits = [\"free\"]\n"
        );
        let proxy = deciding("", &limits);
        let mut envoy = open(&proxy);
        let of = |name: &str| descriptor(&[("limit", name), ("x-key", "a")]);
        assert_eq!(ask(&mut envoy, &[of("bans")]).overall_code, OK);
        for _ in 0..2 {
            assert_eq!(ask(&mut envoy, &[of("bans")]).overall_code, OVER_LIMIT);
        }
        wait_until("the key is banned", || {
            let answer = ask(&mut envoy, &[of("bans"), of("free, here")]);
            assert_eq!(answer.overall_code, OVER_LIMIT, "{store}");
            answer.raw_body.windows(14).any(|text| text == b"abnormal-usage")
        });
        let keyless = descriptor(&[("limit", "demands")]);
        for call in [[of("free, here"), keyless.clone()], [keyless, of("here, free")]] {
            let answer = ask(&mut envoy, &call);
            assert_eq!(answer.overall_code, OVER_LIMIT, "{store}");
            let body: serde_json::Value = serde_json::from_slice(&answer.raw_body).unwrap();
            assert_eq!(body["status"], 400, "{store}");
        }
        let limit = ask(&mut envoy, &[of("here"), of("free")]);
        assert_eq!(limit.said(), [(OK, 8), (OK, 8)], "{store}");
    });
}
