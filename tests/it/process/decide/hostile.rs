//! Callers that make mistakes, and callers that mean harm.

use std::net::SocketAddr;

use serde_json::json;

use super::{PER_CLIENT, as_nginx, asked_at, deciding, file};
use crate::support::client::{Connection, Reply};
use crate::support::metrics::Metrics;
use crate::support::redis::RedisServer;
use crate::support::tidegate::Tidegate;
use crate::support::wait_until;

/// Sends this text and reads one answer to it.
fn told(address: SocketAddr, text: &str) -> Reply {
    let mut caller = Connection::open(address);
    caller.send(text);
    caller.reply(text.split(' ').next().unwrap())
}

fn call(head: &str, body: &str) -> String {
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

const ONE: &str = r#"{"path": "/a/b", "ip": "203.0.113.7"}"#;

#[test]
fn calls_of_old_and_odd_spellings_are_read() {
    let free = "[[routes]]\npath = \"/a/{*rest}\"\n";
    let proxy = deciding("token = \"se+cret\"", free);
    let address = asked_at(&proxy);
    for (head, status) in [
        ("POST /check HTTP/1.0\r\nx-tidegate-token: se+cret", 200),
        ("POST http://elsewhere.test/check HTTP/1.1\r\nhost: a\r\nx-tidegate-token: se+cret", 200),
        ("POST /check?token=se%2bcret HTTP/1.1\r\nhost: a", 200),
        ("POST /check?token=%73%65%2Bcret HTTP/1.1\r\nhost: a\r\nx-tidegate-token: wrong", 200),
        ("POST /check HTTP/1.1\r\nhost: a\r\nhost: b\r\nx-tidegate-token: se+cret", 200),
        ("POST /%63heck HTTP/1.1\r\nhost: a\r\nx-tidegate-token: se+cret", 404),
        ("POST //check HTTP/1.1\r\nhost: a\r\nx-tidegate-token: se+cret", 404),
        ("POST /check?token=se%252bcret HTTP/1.1\r\nhost: a", 401),
        ("POST /check?tokens=se%2bcret HTTP/1.1\r\nhost: a", 401),
        ("POST /check HTTP/1.1\r\nhost: a\r\ncookie: token=se%2bcret", 401),
        ("POST /check HTTP/1.1\r\nhost: a\r\nauthorization: Basic se+cret", 401),
        ("PUT /check HTTP/1.1\r\nhost: a\r\nx-tidegate-token: se+cret", 405),
        ("HEAD /settle HTTP/1.1\r\nhost: a\r\nx-tidegate-token: se+cret", 405),
    ] {
        assert_eq!(told(address, &call(head, ONE)).status, status, "{head}");
    }
}

#[test]
fn a_body_that_is_too_much_is_refused_and_decides_nothing() {
    let proxy = deciding("", PER_CLIENT);
    let address = asked_at(&proxy);
    let head = "POST /check HTTP/1.1\r\nhost: a";
    let list = |count: usize| format!("[{}]", vec![ONE; count].join(","));
    let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    let inner = format!(
        "{{\"path\": \"/a/b\", \"headers\": {}1{}}}",
        "{\"a\":".repeat(90_000),
        "}".repeat(90_000)
    );
    for (body, status) in [
        (list(1_001), 400),
        (deep, 400),
        (inner, 400),
        (format!("{ONE}{ONE}"), 400),
        (format!("[{ONE}"), 400),
        ("null".to_owned(), 400),
        ("\u{feff}{}".to_owned(), 400),
        (" ".repeat((1 << 20) + 1), 413),
        (format!("{ONE}{}", " ".repeat((1 << 20) - ONE.len() + 1)), 413),
    ] {
        let told = told(address, &call(head, &body));
        assert_eq!(told.status, status, "{}", &body[..body.len().min(50)]);
    }
    let mut chunked = Connection::open(address);
    chunked.send(format!("{head}\r\ntransfer-encoding: chunked\r\n\r\n"));
    let piece = format!("10000\r\n{}\r\n", " ".repeat(0x1_0000));
    // The answer may come before all pieces are sent.
    for _ in 0..16 {
        chunked.send(&piece);
    }
    chunked.send("1\r\n \r\n0\r\n\r\n");
    assert_eq!(chunked.reply("POST").status, 413);
    let page = Metrics::of(proxy.admin());
    assert_eq!(page.samples("tidegate_decisions_total"), 0, "nothing was decided");
    let whole = format!("{ONE}{}", " ".repeat((1 << 20) - ONE.len()));
    assert_eq!(told(address, &call(head, &whole)).status, 200);
}

/// A regression: bodies counted as bytes that are worth nothing, and the third such call ended the connection.
#[test]
fn long_bodies_may_follow_one_another_on_a_connection() {
    let proxy = deciding("", PER_CLIENT);
    let mut caller = Connection::open(asked_at(&proxy));
    let body = format!("{ONE}{}", " ".repeat((1 << 20) - ONE.len()));
    for _ in 0..8 {
        assert_eq!(caller.request("POST", "/check", &[], body.as_bytes()).status, 200);
    }
}

/// A regression: more fields than the map of a head can hold were a fault of the program.
#[test]
fn a_request_of_very_many_fields_is_refused() {
    let proxy = deciding("", PER_CLIENT);
    let ask = |count: usize| {
        let fields: Vec<_> = (0..count).map(|field| format!("\"x-{field}\": \"a\"")).collect();
        let body = format!("{{\"path\": \"/a/b\", \"headers\": {{{}}}}}", fields.join(","));
        let told = told(asked_at(&proxy), &call("POST /check HTTP/1.1\r\nhost: a", &body));
        assert_eq!(told.status, 200, "the call is answered: a client may have sent the fields");
        told.json()["status"].as_u64()
    };
    let refused = Some(400);
    assert_eq!(
        [1_000, 1_001, 24_576, 24_577, 40_000].map(ask),
        [None, refused, refused, refused, refused]
    );
    assert_eq!(proxy.log.count("panic"), 0);
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let proxy = Tidegate::start(
        &file("", PER_CLIENT).replace("[server]", "[server]\nbody_timeout = \"200ms\""),
    );
    let address = asked_at(&proxy);
    let mut slow = Connection::open(address);
    slow.send("POST /check HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{");
    assert_eq!(slow.reply("POST").status, 408);
    assert!(slow.is_closed());
    assert_eq!(told(address, &call("POST /check HTTP/1.1\r\nhost: a", ONE)).status, 200);
}

#[test]
fn calls_in_one_piece_are_answered_in_their_order() {
    let proxy = deciding("", PER_CLIENT);
    let mut caller = Connection::open(asked_at(&proxy));
    let check = call("POST /check HTTP/1.1\r\nhost: a", ONE);
    let auth = "GET /auth-request HTTP/1.1\r\nhost: a\r\nx-original-method: POST\r\nx-original-uri: /a/b\r\n\
                x-forwarded-for: 203.0.113.7\r\ncontent-length: 5\r\n\r\nhello";
    let wrong = call("POST /check HTTP/1.1\r\nhost: a", "{}");
    let nowhere = "GET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n";
    caller.send([&check, auth, &wrong, nowhere, &check, auth].concat());
    let statuses = [0; 6].map(|_| caller.reply("GET").status);
    assert_eq!(statuses, [200, 204, 400, 404, 200, 403]);
}

/// What clients write into their requests says nothing about what is asked.
#[test]
fn a_field_that_comes_twice_or_in_disguise_does_not_count() {
    let proxy = deciding("", PER_CLIENT);
    let mut nginx = Connection::open(asked_at(&proxy));
    for _ in 0..2 {
        assert_eq!(as_nginx(&mut nginx, "/a/b", "203.0.113.7").status, 204);
    }
    let usual = [("x-original-method", "GET"), ("x-forwarded-for", "203.0.113.7")];
    for (fields, status) in [
        (&[("x-original-uri", "/a/b"), ("x_original_uri", "/free")][..], "429"),
        (
            &[("x-original-uri", "/a/b"), ("x-forwarded-uri", "/free"), ("x-forwarded-host", "b")],
            "429",
        ),
        (&[("x-original-uri", "/a/b"), ("x-forwarded-for", "203.0.113.7")], "429"),
        (&[("x-original-uri", "/a/b"), ("connection", "x-forwarded-for, x-original-uri")], "429"),
        (&[("x-original-uri", "http://b.test/a/b")], "429"),
        (&[("x-original-uri", "/a/../a/b")], "400"),
        (&[("x-original-uri", "/a/b"), ("host", "b"), ("host", "c")], "400"),
        (&[("x-original-uri", "/a/b"), ("host", "b c")], "400"),
    ] {
        let fields = [&usual[..], fields].concat();
        let reply = nginx.get("/auth-request", &fields);
        let told = reply.header("x-tidegate-status");
        assert_eq!((reply.status, told.as_deref()), (403, Some(status)), "{fields:?}");
    }
    let twice = [&usual[..], &[("x-original-uri", "/a/b"), ("x-original-uri", "/free")]].concat();
    assert_eq!(nginx.get("/auth-request", &twice).status, 400);
}

/// The caller handed on the client's `connection: x-api-key`, and the key was not counted.
#[test]
fn what_a_caller_hands_on_is_not_hidden_by_connection() {
    let limit = "[limits.one]\nkey = [\"header:x-api-key\"]\nmissing = \"skip\"\nrate = \"1/h\"\n";
    let proxy = deciding("", &format!("{limit}[[routes]]\npath = \"/\"\nlimits = [\"one\"]\n"));
    let address = asked_at(&proxy);
    let allowed = ["x-api-key", "close, X-API-Key"].map(|named| {
        let headers = json!({ "x-api-key": "a", "connection": named });
        let one = json!({ "path": "/", "ip": "203.0.113.7", "headers": headers }).to_string();
        told(address, &call("POST /check HTTP/1.1\r\nhost: a", &one)).json()["allowed"] == true
    });
    assert_eq!(allowed, [true, false]);
}

#[test]
fn one_address_in_another_spelling_is_the_same_client() {
    let proxy = deciding("", PER_CLIENT);
    let address = asked_at(&proxy);
    let allowed = ["203.0.113.7", "::ffff:203.0.113.7", "::FFFF:cb00:7107"].map(|ip| {
        let one = json!({ "path": "/a/b", "ip": ip }).to_string();
        told(address, &call("POST /check HTTP/1.1\r\nhost: a", &one)).json()["allowed"] == true
    });
    assert_eq!(allowed, [true, true, false]);
}

const TOO_MANY: &str = "too many requests were allowed and have not ended: settle them";

#[test]
fn requests_that_nobody_ends_are_bounded_and_others_go_on() {
    let settled = "[limits.failed]\nkey = []\nrate = \"1000000/s\"\ncount_when = { status = [\"401\"] }\n\
                   [limits.plain]\nkey = []\nalgorithm = \"fixed-window\"\nrate = \"1000000/365d\"\n\
                   [[routes]]\npath = \"/settled\"\nlimits = [\"plain\", \"failed\"]\n\
                   [[routes]]\npath = \"/plain\"\nlimits = [\"plain\"]\n";
    let proxy = deciding("", &format!("{settled}{PER_CLIENT}"));
    let mut caller = Connection::open(asked_at(&proxy));
    let list = format!("[{}]", vec![r#"{"path": "/settled"}"#; 1_000].join(","));
    let mut lists = (0..101).map(|_| caller.request("POST", "/check", &[], list.as_bytes()).json());
    let first = lists.next().unwrap();
    let last = lists.last().unwrap();
    assert!(first.as_array().unwrap().iter().all(|one| one["allowed"] == true));
    assert!(last.as_array().unwrap().iter().all(|one| one["status"] == 503), "{}", last[0]);
    let mut ask = |path: &str, body: &serde_json::Value| {
        caller.request("POST", path, &[], body.to_string().as_bytes())
    };
    let one = ask("/check", &json!({ "path": "/settled" })).json();
    assert_eq!((&one["allowed"], &one["id"]), (&json!(false), &json!(null)));
    assert_eq!((&one["reason"], &one["limits"]), (&json!(TOO_MANY), &json!([])));
    let plain = ask("/check", &json!({ "path": "/plain" })).json();
    assert_eq!(plain["limits"][0]["remaining"], 899_999, "a regression: the 503 kept its tokens");
    assert_eq!(ask("/check", &json!({ "path": "/a/b" })).json()["allowed"], true);
    assert_eq!(ask("/settle", &json!({ "id": first[0]["id"], "status": 200 })).status, 204);
    assert_eq!(ask("/settle", &json!({ "id": first[0]["id"], "status": 200 })).status, 404);
    assert_eq!(ask("/check", &json!({ "path": "/settled" })).json()["allowed"], true);
}

#[test]
fn what_one_process_has_allowed_another_cannot_end() {
    let slots = "[limits.slots]\nkey = []\nalgorithm = \"concurrency\"\nlimit = 1\n\
                 [[routes]]\npath = \"/slots\"\nlimits = [\"slots\"]\n";
    let redis = RedisServer::start();
    let shared = format!("[store]\n{}{slots}", redis.fields());
    let (one, other) = (deciding("", &shared), deciding("", &shared));
    let ask = |proxy: &Tidegate, path: &str, body: &serde_json::Value| {
        told(asked_at(proxy), &call(&format!("POST {path} HTTP/1.1\r\nhost: a"), &body.to_string()))
    };
    let slot = json!({ "path": "/slots" });
    let id = json!({ "id": ask(&one, "/check", &slot).json()["id"] });
    assert_eq!(ask(&other, "/settle", &id).status, 404);
    assert_eq!(ask(&other, "/check", &slot).json()["allowed"], false, "it is still held");
    assert_eq!(ask(&one, "/settle", &id).status, 204);
    wait_until("the slot is free", || ask(&other, "/check", &slot).json()["allowed"] == true);
}
