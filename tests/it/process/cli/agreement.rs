//! A running proxy, `explain` and `replay` read the same odd requests alike: what is refused, and which of several
//! faults is the answer.

use std::fs;

use serde_json::{Map, Value, json};

use super::replay::json;
use super::told;
use crate::support::client::Connection;
use crate::support::proxy::Proxy;

/// An odd request, and what becomes of it.
struct Odd {
    /// The method, the target, and the headers besides `connection: close`.
    head: (&'static str, &'static str, &'static [(&'static str, &'static str)]),
    /// The status of the proxy's answer.
    status: u16,
    /// The route, or what is wrong with the request.
    is: Result<&'static str, &'static str>,
}

const fn odd(
    head: (&'static str, &'static str, &'static [(&'static str, &'static str)]),
    status: u16,
    is: Result<&'static str, &'static str>,
) -> Odd {
    Odd { head, status, is }
}

const HOST: (&str, &str) = ("host", "a.example");

/// 127.0.0.1, from where the requests come, is a trusted proxy. A body has at most 10 bytes.
const ODD: &[Odd] = &[
    // The first of several faults is the answer: host, framing, method, path.
    odd(("get", "/a", &[("host", "a b")]), 400, Err("host")),
    odd(("TRACE", "/a", &[("host", "a b")]), 400, Err("host")),
    odd(("GET", "/a", &[HOST, HOST]), 400, Err("host")),
    odd(("GET", "http://a.example/a", &[("host", "a b")]), 400, Err("host")),
    odd(
        ("trace", "/%2F", &[HOST, ("transfer-encoding", "gzip, chunked")]),
        400,
        Err("transfer-encoding"),
    ),
    odd(("POST", "/a", &[HOST, ("content-length", "1x")]), 400, Err("content-length")),
    odd(("get", "/%2F", &[HOST]), 400, Err("method")),
    odd(("TRACE", "/%2F", &[HOST]), 405, Err("method")),
    odd(("TRACE", "/a", &[HOST]), 405, Err("method")),
    odd(("GET", "/%2F", &[HOST]), 400, Err("path")),
    // Other servers would keep what the reader cuts off.
    odd(("GET", "/a#/../h", &[HOST]), 400, Err("path")),
    odd(("GET", "/a?x=1#&x-plan=pro", &[HOST]), 400, Err("path")),
    // Too large a body is refused where there is a route, and before its limits.
    odd(("POST", "/a", &[HOST, ("content-length", "11")]), 413, Err("content-length")),
    odd(("POST", "/wide", &[HOST, ("content-length", "11")]), 400, Err("key")),
    odd(("POST", "/none", &[HOST, ("content-length", "11")]), 404, Ok("none")),
    // Routes see what the API sees.
    odd(("GET", "/a", &[HOST, ("x-plan", "pro")]), 202, Ok("plan")),
    // A trusted proxy passes on what it has not read itself.
    odd(("GET", "/a", &[HOST, ("x-plan", "pro"), ("connection", "x-plan")]), 202, Ok("plan")),
    odd(("GET", "/a", &[HOST, ("x-forwarded-proto", "https")]), 201, Ok("secure")),
    odd(("GET", "/a", &[HOST, ("x_forwarded_proto", "https")]), 200, Ok("plain")),
    odd(
        ("GET", "/a", &[HOST, ("x-forwarded-for", "192.0.2.1"), ("x-forwarded-proto", "https")]),
        201,
        Ok("secure"),
    ),
    odd(("GET", "http://a.example/h", &[("host", "b.example")]), 203, Ok("host")),
    odd(("GET", "http://b.example/h", &[HOST]), 404, Ok("none")),
    odd(("GET", "/h", &[("host", "A.EXAMPLE.:80")]), 203, Ok("host")),
];

/// What is no request to explain.
const UNEXPLAINED: &[Odd] = &[
    odd(("CONNECT", "a.example:80", &[HOST]), 405, Err("method")),
    odd(("OPTIONS", "*", &[HOST]), 400, Err("path")),
];

fn proxy() -> Proxy {
    let on_a = |name: &str, more: &str, status: u16| {
        format!("name = \"{name}\"\npath = \"/a\"\n{more}respond = {{ status = {status} }}\n")
    };
    Proxy::answering()
        .server("trusted_proxies = [\"127.0.0.1\"]\nmax_body_size = \"10B\"")
        .limit("keyed", "key = [\"header:x-key\"]\nmissing = \"reject\"\nrate = \"9/s\"")
        .route(&on_a("plain", "limits = []\n", 200))
        .route(&on_a("secure", "headers = { x-forwarded-proto = \"https\" }\n", 201))
        .route(&on_a("plan", "headers = { x-plan = \"pro\" }\n", 202))
        .route("name = \"host\"\npath = \"/h\"\nhost = \"a.example\"\nrespond = { status = 203 }")
        .route("name = \"wide\"\npath = \"/wide\"\nmax_body_size = \"20B\"\nlimits = [\"keyed\"]")
}

/// The line of a log that has all headers.
fn line(odd: &Odd) -> String {
    let (method, target, headers) = odd.head;
    let mut all = Map::new();
    for (name, value) in headers {
        let values = all.entry(*name).or_insert_with(|| json!([]));
        values.as_array_mut().unwrap().push(json!(value));
    }
    let host = headers.iter().find(|(name, _)| *name == "host").map(|(_, host)| host);
    let request = json!({ "remote_ip": "127.0.0.1", "method": method, "host": host, "uri": target, "headers": all });
    json!({ "ts": 1_790_000_123, "request": request, "status": 200 }).to_string()
}

#[test]
fn odd_requests_are_read_alike() {
    let proxy = proxy().start();
    let explained = ODD.iter().map(|odd| (odd, true));
    for (odd, is_explained) in explained.chain(UNEXPLAINED.iter().map(|odd| (odd, false))) {
        let (method, target, headers) = odd.head;
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut connection = Connection::open(proxy.address);
        connection.send(format!("{head}\r\n"));
        assert_eq!(connection.reply(method).status, odd.status, "the proxy, of {head}");

        if is_explained {
            let request = format!("{method} {target}");
            let headers: Vec<_> =
                headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let headers = headers.iter().flat_map(|header| ["-H", header.as_str()]);
            let arguments: Vec<_> =
                ["explain", &request, "--json"].into_iter().chain(headers).collect();
            let (code, said, errors) = told(proxy.folder(), &arguments);
            assert_eq!((code, errors.as_str()), (0, ""), "explain, of {head}");
            let said: Value = serde_json::from_str(&said).unwrap();
            assert_eq!(said["status"], odd.status, "explain, of {head}: {said}");
            if let Ok(route) = odd.is {
                let route = if route == "none" { Value::Null } else { route.into() };
                assert_eq!(said["route"], route, "explain, of {head}");
            }
        }

        fs::write(proxy.folder().join("odd.log"), format!("{}\n", line(odd))).unwrap();
        let result = &json(proxy.folder(), &["replay", "odd.log"])["result"];
        let bad = match odd.is {
            Ok(_) => json!({}),
            Err(wrong) => json!({ wrong: 1 }),
        };
        assert_eq!(result["bad_requests"], bad, "replay, of {head}");
        if let Ok(route) = odd.is {
            let routes = result["routes"].as_array().unwrap();
            let met = routes.iter().find(|it| it["requests"] == 1).unwrap();
            assert_eq!(met["name"], route, "replay, of {head}");
        }
    }
}
