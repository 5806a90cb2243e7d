//! `/check` and `/settle`: anybody's code asks.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{as_traefik, asked_at, assert_wait, deciding, file};
use crate::support::client::{Connection, Reply};
use crate::support::http2::Client;
use crate::support::metrics::Metrics;
use crate::support::redis::{RedisServer, in_both_stores};
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

fn post(address: SocketAddr, path: &str, body: &str) -> Reply {
    Connection::open(address).request("POST", path, &[], body.as_bytes())
}

pub(super) fn check(address: SocketAddr, body: &Value) -> Value {
    let reply = post(address, "/check", &body.to_string());
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type").as_deref(), Some("application/json"));
    reply.json()
}

const USERS: &str = "[limits.user]\nkey = [\"header:x-user\"]\nrate = \"3/h\"\n\
                     [[routes]]\npath = \"/u/{*rest}\"\nmethods = [\"POST\"]\nhost = \"api.test\"\nlimits = [\"user\"]\n";

#[test]
fn a_request_is_decided_and_the_answer_says_by_which_limits() {
    let proxy = deciding("", USERS);
    let address = asked_at(&proxy);
    let one = json!({
        "method": "POST", "host": "api.test", "path": "/u/1?x=y", "ip": "203.0.113.7",
        "headers": { "x-user": "a" }, "cost": 2,
    });
    let first = check(address, &one);
    assert_eq!(first["allowed"], true, "{first}");
    assert_eq!((&first["decision"], &first["id"]), (&json!("allowed"), &Value::Null));
    assert_eq!(first["limits"], json!([{ "name": "user", "remaining": 1 }]));
    assert_eq!(first["headers"]["ratelimit"], "\"user\";r=1;t=3600");
    let refused = check(address, &one);
    assert_eq!((&refused["allowed"], &refused["decision"]), (&json!(false), &json!("rejected")));
    assert_eq!(refused["status"], 429);
    assert_wait(refused["headers"]["retry-after"].as_str(), 1_200);
    let wait = refused["limits"][0]["retry_after_ms"].as_u64().unwrap();
    assert!((1_140_000..=1_200_000).contains(&wait), "{wait}");
    // Each of a list by itself, in their order: what the first leaves is there for the next.
    let mut small = one.clone();
    small["cost"] = json!(1);
    let mut ambiguous = one.clone();
    ambiguous["path"] = json!("/u/a%2fb");
    let list = check(address, &json!([one, small, small, ambiguous, { "path": "/no/route" }]));
    let allowed: Vec<_> = list.as_array().unwrap().iter().map(|it| it["allowed"].clone()).collect();
    assert_eq!(Value::from(allowed), json!([false, true, false, false, true]));
    assert_eq!((&list[3]["decision"], &list[3]["status"]), (&json!("refused"), &json!(400)));
    assert_eq!(check(address, &json!([])), json!([]));
    let line = proxy.log.wait("request", |line| line["status"] == 429);
    assert_eq!((&line["via"], &line["client"]), (&json!("check"), &json!("203.0.113.7")));
    assert_eq!((&line["path"], &line["host"]), (&json!("/u/1"), &json!("api.test")));
    let page = Metrics::of(proxy.admin());
    let calls = |status: u16| {
        page.value(&format!("tidegate_decide_requests_total{{via=\"check\",status=\"{status}\"}}"))
    };
    assert_eq!((calls(200), calls(429), calls(400)), (3.0, 3.0, 1.0));
}

#[test]
fn the_body_of_a_request_may_be_told() {
    let limit = "[limits.user]\nkey = [\"body:user\"]\nrate = \"1/h\"\nmissing = \"reject\"\n\
                 [[routes]]\npath = \"/{*rest}\"\nlimits = [\"user\"]\n";
    let proxy = deciding("", limit);
    let address = asked_at(&proxy);
    let form = "application/x-www-form-urlencoded";
    for (kind, body, status) in [
        (None, json!("{\"user\":\"a\"}"), Value::Null),
        (None, json!("user=a"), json!(429)),
        (Some("application/json"), json!("{\"user\":\"a\"}"), json!(429)),
        (Some(form), json!("user=b"), Value::Null),
        (Some(form), json!("user=b&user=c"), json!(400)),
        (Some("text/plain"), json!("user=c"), json!(400)),
        (None, json!("x=1"), json!(400)),
        (None, Value::Null, json!(400)),
    ] {
        let mut request = json!({ "path": "/", "body": body });
        if let Some(kind) = kind {
            request["headers"] = json!({ "content-type": kind });
        }
        assert_eq!(check(address, &request)["status"], status, "{request}");
    }
    // Other calls have no body, whatever their fields say.
    let kind = [("content-type", "application/json")];
    assert_eq!(as_traefik(&mut Connection::open(address), "/", &kind).status, 400);
}

#[test]
fn calls_are_multiplied_by_the_cost_of_the_route() {
    let proxy = deciding(
        "",
        "[limits.budget]\nkey = []\nrate = \"100/365d\"\ncost = 7\n\
         [[routes]]\npath = \"/own\"\nlimits = [\"budget\"]\n\
         [[routes]]\npath = \"/dear\"\nlimits = [{ name = \"budget\", cost = 5 }]\n",
    );
    let address = asked_at(&proxy);
    for (request, left) in [
        (json!({ "path": "/dear" }), 95),
        (json!({ "path": "/dear", "cost": 3 }), 80),
        (json!({ "path": "/own" }), 73),
        (json!({ "path": "/own", "cost": 3 }), 70),
        (json!({ "path": "/dear", "cost": 15 }), 70),
        (json!({ "path": "/dear", "cost": 1_000_000_000 }), 70),
    ] {
        let said = check(address, &request);
        assert_eq!(said["limits"][0]["remaining"], left, "{said}");
    }
}

#[test]
fn a_body_that_is_no_question_is_told_what_is_wrong() {
    let proxy = deciding("token = \"secret\"", USERS);
    let address = asked_at(&proxy);
    let mut caller = Connection::open(address);
    let bearer = [("authorization", "Bearer secret")];
    for (path, body, says) in [
        ("/check", "", "EOF"),
        ("/check", "{}", "missing field `path`"),
        ("/check", "{\"path\": \"/\", \"cots\": 1}", "unknown field `cots`"),
        ("/check", "{\"path\": \"/\", \"cost\": 0}", "`cost` must be"),
        ("/check", "{\"path\": \"/\", \"path\": \"/\"}", "duplicate field `path`"),
        ("/settle", "{\"id\": \"a\", \"id\": \"b\"}", "duplicate field `id`"),
        ("/check", "{\"path\": \"/\", \"cost\": 18446744073709551616}", "expected u64"),
        ("/check", "{\"path\": \"/\", \"cost\": -1}", "expected u64"),
        ("/settle", "{\"id\": \"a\", \"used\": 1e400}", "number out of range"),
        ("/check", "{\"path\": [\"/\"]}", "a text"),
        ("/check", "{\"path\": \"/\", \"ip\": 1}", "a text"),
        ("/check", "{\"path\": \"/\", \"headers\": {\"a\": [[\"b\"]]}}", "a text"),
        ("/check", "[{\"path\": \"/\"}, {}]", "missing field `path` at line 1 column"),
        ("/check", "[{\"path\": \"/\"}, {\"path\": \"/\", \"cost\": 0}]", "request 2 of the list"),
        ("/check", "\"a\"", "expected a request, or a list of them"),
        (
            "/check",
            "{\"path\": \"/\", \"headers\": {\"a\": 1}}",
            "a header's text, or a list of texts",
        ),
        ("/settle", "\"a\"", "expected an object with an `id`"),
        ("/settle", "{}", "missing field `id`"),
        ("/settle", "{\"id\": \"a\", \"status\": 1}", "`status` must be"),
    ] {
        let reply = caller.request("POST", path, &bearer, body.as_bytes());
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.json()["detail"].as_str().unwrap().contains(says), "{}", reply.text());
    }
    assert_eq!(caller.request("POST", "/check", &[], b"{}").status, 401);
    let get = caller.get("/check", &bearer);
    assert_eq!((get.status, get.header("allow").as_deref()), (405, Some("POST")));
    let long = format!("[{}{{\"path\": \"/\"}}]", "{\"path\": \"/\"},".repeat(1_000));
    assert_eq!(caller.request("POST", "/check", &bearer, long.as_bytes()).status, 400);
    let huge = caller.request("POST", "/check", &bearer, &vec![b' '; 2 << 20]);
    assert_eq!(huge.status, 413);
    let page = Metrics::of(proxy.admin());
    assert_eq!(page.samples("tidegate_decisions_total"), 0, "nothing was decided");
}

const SETTLED: &str = "[limits.slots]\nkey = [\"ip\"]\nalgorithm = \"concurrency\"\nlimit = 1\n\
     [limits.tokens]\nkey = [\"ip\"]\nrate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 1 }\n\
     [limits.failed]\nkey = [\"ip\"]\nrate = \"1/h\"\ncount_when = { status = [\"401\"] }\n\
     [[routes]]\npath = \"/slots\"\nlimits = [\"slots\"]\n[[routes]]\npath = \"/tokens\"\nlimits = [\"tokens\"]\n\
     [[routes]]\npath = \"/failed\"\nlimits = [\"failed\"]\n";

pub(super) fn settle(address: SocketAddr, body: &Value) -> u16 {
    post(address, "/settle", &body.to_string()).status
}

#[test]
fn what_is_settled_later_has_an_id_that_ends_it() {
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{SETTLED}"));
        // Each call may come to another worker.
        let address = asked_at(&proxy);
        let ask = |path: &str| check(address, &json!({ "path": path, "ip": "203.0.113.7" }));
        let slot = ask("/slots");
        assert_eq!(ask("/slots")["decision"], "rejected");
        assert_eq!(settle(address, &json!({ "id": slot["id"] })), 204);
        wait_until("the slot is free", || ask("/slots")["allowed"] == true);
        assert_eq!(settle(address, &json!({ "id": slot["id"] })), 404, "it has ended");
        let tokens = ask("/tokens");
        assert_eq!(tokens["limits"][0]["remaining"], 99);
        assert_eq!(
            settle(address, &json!({ "id": tokens["id"], "status": 200, "used": 100 })),
            204
        );
        let mut asked = 0;
        wait_until("the difference is taken", || {
            asked += 1;
            ask("/tokens")["decision"] == "rejected"
        });
        assert!(asked < 50, "those alone would not use it up");
        let failed = ask("/failed");
        assert_eq!(settle(address, &json!({ "id": failed["id"], "status": 200 })), 204);
        let mut again = Value::Null;
        wait_until("it did not count", || {
            again = ask("/failed");
            again["allowed"] == true
        });
        assert_eq!(settle(address, &json!({ "id": again["id"], "status": 401 })), 204);
        assert_eq!(ask("/failed")["decision"], "rejected");
        assert_eq!(settle(address, &json!({ "id": "00000000000000000000000000000000" })), 404);
    });
}

/// A regression: what a request was said to have used was only looked at where it was more than the estimate.
#[test]
fn what_was_estimated_and_not_used_goes_back() {
    let limits = "[limits.tokens]\nkey = []\nrate = \"100/h\"\n\
         cost = { response_json = \"usage.total\", estimate = 60, unknown = \"max\", max = 80 }\n\
         [[routes]]\npath = \"/\"\nlimits = [\"tokens\"]\n";
    in_both_stores(|store| {
        let proxy = deciding("", &format!("[store]\n{store}{limits}"));
        let address = asked_at(&proxy);
        let ask = || check(address, &json!({ "path": "/" }));
        let first = ask();
        assert_eq!(first["limits"][0]["remaining"], 40, "{store}");
        assert_eq!(ask()["decision"], "rejected", "{store}");
        assert_eq!(settle(address, &json!({ "id": first["id"], "used": 10 })), 204);
        let mut next = Value::Null;
        wait_until("fifty are back", || {
            next = ask();
            next["allowed"] == true
        });
        assert_eq!(next["limits"][0]["remaining"], 30, "{store}");
        assert_eq!(settle(address, &json!({ "id": next["id"] })), 204);
        wait_until("nobody knows, so it is the most", || ask()["limits"][0]["remaining"] == 10);
    });
}

/// A client writes its path and its fields. What is odd there concerns its request alone, whatever the others of the
/// list are.
#[test]
fn what_a_client_writes_refuses_its_request_and_never_spoils_the_call() {
    let proxy = deciding("", USERS);
    let address = asked_at(&proxy);
    let of = |path: &str| json!({ "method": "POST", "host": "api.test", "path": path, "headers": { "x-user": "a" } });
    let odd = ["", "a b", "/u/\u{1}", "/u/\u{0}", "elsewhere.test:80", "/u/a%2fb"];
    let list: Vec<_> = odd.into_iter().chain(["/u/1"]).map(of).collect();
    let answers = check(address, &list.into());
    let [mut odd_field, mut odd_host, mut odd_method] = [of("/u/1"), of("/u/1"), of("/u/1")];
    odd_field["headers"]["x-other"] = json!("a\u{1}b");
    odd_host["host"] = json!("api.test\u{0}");
    odd_method["method"] = json!("G T");
    let refused = check(address, &json!([odd_field, odd_host, odd_method]));
    for answer in refused.as_array().unwrap() {
        assert_eq!(answer["status"], 400, "{answer}");
    }
    for (path, answer) in odd.iter().zip(answers.as_array().unwrap()) {
        assert_eq!((&answer["allowed"], &answer["status"]), (&json!(false), &json!(400)), "{path}");
        assert_eq!(answer["decision"], "refused", "{path}");
    }
    assert_eq!(answers[odd.len()]["limits"], json!([{ "name": "user", "remaining": 2 }]));
    // Other servers take these, and so does the proxy.
    for path in ["/u/<script>", "/u/\"?q={\"a\":`1`}", "/u/\u{e9}?\u{e9}"] {
        assert_eq!(check(address, &of(path))["limits"][0]["name"], "user", "{path}");
    }
}

/// A regression: the name of a field, an address, many fields or bytes that are not UTF-8 failed the whole call, and
/// with it the other requests of the list. Callers pass on what their clients send.
#[test]
fn a_field_that_a_client_invents_never_spoils_the_call() {
    let proxy = deciding("", USERS);
    let address = asked_at(&proxy);
    let of = |more: &str| {
        let one = r#"{"method": "POST", "host": "api.test", "path": "/u/1""#;
        format!("{one}, {more}}}").into_bytes()
    };
    let many: Vec<_> = (0..1_001).map(|number| format!("\"x-{number}\": \"\"")).collect();
    let most: Vec<_> = (0..30_000).map(|number| format!("\"x-{number}\": \"\"")).collect();
    let fields = |fields: &str| of(&format!("\"headers\": {{\"x-user\": \"b\", {fields}}}"));
    let refused = [
        fields("\"a b\": \"c\""),
        fields("\"\": \"c\""),
        fields("\"a\\u0000\": \"c\""),
        fields("\"a\": [\"c\", \"d\\r\\n\"]"),
        fields("\"\\ud800\": \"c\""),
        fields(&many.join(",")),
        fields(&most.join(",")),
        of("\"ip\": \"nobody\""),
        of("\"ip\": \"\""),
        of("\"ip\": \"203.0.113.7, 203.0.113.8\""),
    ];
    for odd in refused {
        let list = [&b"["[..], &odd, b",", &fields("\"x-other\": \"a\""), b"]"].concat();
        let reply = Connection::open(address).request("POST", "/check", &[], &list);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let odd = String::from_utf8_lossy(&odd);
        let odd = odd.get(..200).unwrap_or(&odd);
        let answers = reply.json();
        assert_eq!(
            (&answers[0]["decision"], &answers[0]["status"]),
            (&json!("refused"), &json!(400)),
            "{odd}"
        );
        assert_eq!(answers[1]["limits"][0]["name"], "user", "{odd}");
    }
    // Bytes beyond ASCII, as they are and as half of a surrogate pair: the API gets them too.
    for other in [&b"\xff"[..], b"\xc3", b"\\udcff", b"\\ud800", "\u{e9}".as_bytes()] {
        let value = fields("\"x-other\": \"?\", \"y-others\": [\"?\", \"a\"]");
        let value: Vec<u8> = value.split(|byte| *byte == b'?').collect::<Vec<_>>().join(other);
        let reply = Connection::open(address).request("POST", "/check", &[], &value);
        assert_eq!((reply.status, &reply.json()["limits"][0]["name"]), (200, &json!("user")));
    }
}

/// A regression: a page of any site could ask and settle, in a browser on the machine.
#[test]
fn a_page_of_another_site_asks_and_settles_nothing() {
    let of = |port: u16, host: &str| format!("http://{host}:{port}");
    for (token, status) in [("", 403), ("token = \"secret\"", 200)] {
        let proxy = deciding(token, USERS);
        let address = asked_at(&proxy);
        let mut caller = Connection::open(address);
        let host = address.to_string();
        let rebound = of(address.port(), "evil.example");
        let (own, other) = (format!("http://{address}"), of(1, "127.0.0.1"));
        for (host, fields, expected) in [
            (host.as_str(), &[("origin", "https://evil.example")][..], status),
            (&host, &[("origin", "null")], status),
            (&host, &[("origin", &other)], status),
            (&host, &[("sec-fetch-site", "cross-site")], status),
            (&host, &[("sec-fetch-site", "same-site")], status),
            (
                &rebound["http://".len()..],
                &[("origin", &rebound), ("sec-fetch-site", "same-origin")],
                status,
            ),
            (&host, &[("origin", &own)], 200),
            (&host, &[("sec-fetch-site", "none")], 200),
            ("tidegate.internal", &[], 200),
        ] {
            let fields = [fields, &[("host", host), ("x-tidegate-token", "secret")]].concat();
            let reply = caller.request("POST", "/check", &fields, b"{\"path\": \"/\"}");
            assert_eq!(reply.status, expected, "{fields:?}");
            let reply = caller.request("POST", "/settle", &fields, b"{\"id\": \"a\"}");
            assert_eq!(reply.status, if expected == 403 { 403 } else { 404 }, "{fields:?}");
        }
        // In the other forms the fields are the client's.
        let client = [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")];
        let fields = [&client[..], &[("x-tidegate-token", "secret")]].concat();
        assert_eq!(as_traefik(&mut caller, "/u/1", &fields).status, 200);
    }
}

/// A regression: a refusal by gRPC has the status 200, and was told and counted as if the request may go.
#[test]
fn a_grpc_request_that_is_refused_has_the_status_of_its_refusal() {
    let proxy = deciding("", USERS);
    let address = asked_at(&proxy);
    let one = json!({
        "method": "POST", "host": "api.test", "path": "/u/1", "cost": 2,
        "headers": { "x-user": "a", "content-type": "application/grpc" },
    });
    assert_eq!(check(address, &one)["allowed"], true);
    let refused = check(address, &one);
    assert_eq!(
        (&refused["allowed"], &refused["status"]),
        (&json!(false), &json!(429)),
        "{refused}"
    );
    assert_eq!(refused["headers"]["grpc-status"], Value::Null);
    let counted = "tidegate_decide_requests_total{via=\"check\",status=\"429\"}";
    assert_eq!(Metrics::of(proxy.admin()).value(counted), 1.0);
}

#[test]
fn a_lease_ends_by_itself() {
    let lease = SETTLED.replace("limit = 1\n", "limit = 1\nlease = \"1s\"\n");
    let proxy = deciding("", &lease);
    let address = asked_at(&proxy);
    let ask = || check(address, &json!({ "path": "/slots", "ip": "203.0.113.7" }));
    let first = ask();
    assert_eq!((&first["allowed"], &ask()["allowed"]), (&json!(true), &json!(false)));
    wait_until("the lease is over", || ask()["allowed"] == true);
    assert_eq!(settle(address, &json!({ "id": first["id"] })), 404);
}

/// A lease may be of another worker than the one that ends it.
#[test]
fn leases_end_with_the_process_and_another_one_has_their_slots() {
    let server = RedisServer::start();
    let file = file("", &format!("[store]\n{}{SETTLED}", server.fields()))
        .replace("listen = []", "listen = []\nworkers = 4")
        .replace("limit = 1\n", "limit = 40\nlease = \"1h\"\n");
    let (mut proxy, other) = (Tidegate::start(&file), Tidegate::start(&file));
    let slots = json!({ "path": "/slots", "ip": "203.0.113.7" });
    for _ in 0..40 {
        assert_eq!(check(asked_at(&proxy), &slots)["allowed"], true);
    }
    assert_eq!(check(asked_at(&other), &slots)["allowed"], false);
    assert_eq!(proxy.stop().code(), Some(0));
    for _ in 0..40 {
        assert_eq!(check(asked_at(&other), &slots)["allowed"], true);
    }
}

/// A regression: what the first of a list was given stayed with a caller that had left, and did not know the id.
#[test]
fn a_caller_that_leaves_before_its_answer_holds_nothing() {
    let held = "[limits.held]\nkey = []\nrate = \"1/h\"\nalgorithm = \"leaky-bucket\"\nqueue = 5\n\
                [[routes]]\npath = \"/held\"\nlimits = [\"held\"]\n";
    let proxy = deciding("", &format!("{SETTLED}{held}"));
    let address = asked_at(&proxy);
    let slot = json!({ "path": "/slots", "ip": "203.0.113.7" });
    assert_eq!(check(address, &json!({ "path": "/held" }))["allowed"], true);
    let list = json!([slot, { "path": "/held" }]).to_string();
    let mut caller = Connection::open(address);
    let length = list.len();
    caller
        .send(format!("POST /check HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{list}"));
    let asked = || Metrics::of(proxy.admin());
    let taken = "tidegate_decisions_total{limit=\"slots\",decision=\"allowed\"}";
    wait_until("the first is decided", || asked().value(taken) == 1.0);
    assert_eq!(check(address, &slot)["decision"], "rejected", "the caller may still be answered");
    drop(caller);
    wait_until("the slot is free", || check(address, &slot)["allowed"] == true);
}

/// Over HTTP/2 a call may end while its connection stays.
#[test]
fn a_call_that_is_given_up_while_it_is_held_leaves_the_queue() {
    let held = "[limits.held]\nkey = []\nrate = \"1/h\"\nalgorithm = \"leaky-bucket\"\nqueue = 1\n\
                [[routes]]\npath = \"/\"\nlimits = [\"held\"]\n";
    let proxy = deciding("", held);
    let one = json!({ "path": "/" });
    assert_eq!(check(asked_at(&proxy), &one)["allowed"], true);
    let mut caller = Client::open(asked_at(&proxy));
    let mut call = caller.upload("POST", "/check", &[]);
    call.send(one.to_string().as_bytes());
    call.end();
    let held = || Metrics::of(proxy.admin()).value("tidegate_waiting");
    wait_until("it is held", || held() == 1.0);
    assert_eq!(check(asked_at(&proxy), &one)["decision"], "rejected", "the queue has one place");
    call.reset();
    wait_until("nobody is held", || held() == 0.0);
    // The request was given up. The call, which asked about no other, is not one more.
    let counted = "tidegate_decide_requests_total{via=\"check\",status=\"499\"}";
    wait_until("it is counted once", || Metrics::of(proxy.admin()).value(counted) == 1.0);
}

#[test]
fn a_rejection_has_its_sentence_and_its_id_in_each_form() {
    let user = "[limits.all]\nkey = []\nrate = \"0/s\"\n[[routes]]\npath = \"/{*rest}\"\nlimits = [\"all\"]\n";
    let proxy = deciding("", user);
    let address = asked_at(&proxy);
    let says = "Limit \"all\" counts for everyone together: nothing passes. No such request will ever pass.";
    let refused = check(address, &json!({ "path": "/a" }));
    assert_eq!(refused["rejection"]["detail"], says);
    let line = proxy.log.wait("throttled", |_| true);
    assert_eq!(refused["rejection"]["id"], line["id"]);
    let reply = super::as_nginx(&mut Connection::open(address), "/a", "203.0.113.7");
    assert_eq!((reply.status, reply.header("x-tidegate-id").map(|id| id.len())), (403, Some(36)));
    let reply = as_traefik(&mut Connection::open(address), "/a", &[]);
    assert_eq!((reply.status, &reply.json()["detail"]), (429, &json!(says)));
    let bad = check(address, &json!({ "path": "/a%2fb" }));
    assert_eq!(bad.get("rejection"), None, "no limit rejects it: {bad}");
}
