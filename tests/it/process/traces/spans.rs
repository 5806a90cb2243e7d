//! What spans tell of requests.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use crate::support::api::Api;
use crate::support::client::{Connection, get};
use crate::support::collector::{Collector, attribute, said, told};
use crate::support::http2::Client;
use crate::support::metrics::Metrics;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, nobody, read_head};
use crate::support::wait_until;

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code == i32::from(StatusCode::Error))
}

/// The decisions of a span: limit, decision, mode.
fn decisions(span: &Span) -> Vec<Vec<String>> {
    told(span, "decision", &["tidegate.limit", "tidegate.decision", "tidegate.mode"])
}

#[test]
fn a_span_tells_of_an_allowed_request() {
    let (collector, api) = (Collector::start(), Upstream::echoing());
    let proxy = Proxy::to(&api)
        .section(&collector.section())
        .limit("client", "key = [\"ip\"]\nrate = \"5/h\"")
        .route("name = \"users\"\npath = \"/users/{id}\"\nlimits = [\"client\"]")
        .start();
    let headers = [("host", "API.test:8080"), ("user-agent", "me/1"), ("x-secret", "s3cret")];
    assert_eq!(get(proxy.address, "/users/7?token=s3cret", &headers).status, 200);
    let span = collector.span("/users/7");
    let server = api.url();
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.route", "/users/{id}"),
        ("tidegate.route", "users"),
        ("url.scheme", "http"),
        ("http.response.status_code", "200"),
        ("client.address", "127.0.0.1"),
        ("server.address", "api.test"),
        ("network.protocol.name", "http"),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "me/1"),
        ("tidegate.upstream", "api"),
        ("tidegate.server", &server),
        ("tidegate.rejected_by", ""),
        ("error.type", ""),
    ] {
        assert_eq!(said(&span, name), value, "{name}");
    }
    assert_eq!(span.name, "GET /users/{id}");
    assert_eq!(span.kind, i32::from(SpanKind::Server));
    assert!(!is_error(&span));
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    assert_eq!((span.parent_span_id.as_slice(), span.flags), (&[][..], 1));
    assert!(said(&span, "tidegate.store.duration_ms").parse::<f64>().unwrap() >= 0.0);
    assert_eq!(decisions(&span), [["client", "allowed", "enforce"]]);
    assert_eq!(told(&span, "decision", &["tidegate.remaining"]), [["4"]]);
    assert_eq!(told(&span, "upstream answered", &["http.response.status_code"]), [["200"]]);
    // The times of day, in order.
    let times = span.events.iter().map(|event| event.time_unix_nano);
    let times: Vec<_> = [span.start_time_unix_nano]
        .into_iter()
        .chain(times)
        .chain([span.end_time_unix_nano])
        .collect();
    assert!(times.is_sorted(), "{times:?}");
    let day = std::fs::metadata(proxy.config_file()).unwrap().modified().unwrap();
    let day = day.duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = Duration::from_nanos(times[0]).abs_diff(day);
    assert!(age < Duration::from_secs(300), "{age:?}");
    assert!(!format!("{span:?}").contains("s3cret"), "{span:?}");
    let call = &collector.calls()[0];
    assert_eq!(call.headers["content-type"], "application/grpc");
    assert_eq!(call.headers["te"], "trailers");
    let resource = collector.exports()[0].resource_spans[0].resource.clone().unwrap().attributes;
    assert_eq!(attribute(&resource, "service.name"), "tidegate");
    assert_eq!(attribute(&resource, "service.version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(attribute(&resource, "service.instance.id").len(), 36);
}

#[test]
fn a_span_tells_what_the_limits_said() {
    let (collector, api) = (Collector::start(), Upstream::echoing());
    let limit =
        |rest: &str| format!("key = [\"header:x-key\"]\nrate = \"10/s\"\nburst = 1\n{rest}");
    let proxy = Proxy::to(&api)
        .section(&collector.section())
        .limit("slow", &limit("wait = \"10s\""))
        .limit("seen", &limit("rate = \"1/h\"\nmode = \"shadow\"").replace("rate = \"10/s\"\n", ""))
        .limit("hard", &limit("").replace("10/s", "1/h"))
        .route("path = \"/slow/{n}\"\nlimits = [\"slow\"]")
        .route("path = \"/seen/{n}\"\nlimits = [\"seen\"]")
        .route("path = \"/hard/{n}\"\nlimits = [\"seen\", \"hard\"]")
        .admin()
        .start();
    let key = [("x-key", "s3cret")];
    let delayed = "tidegate_decisions_total{limit=\"slow\",decision=\"delayed\"}";
    let mut asked = 0;
    wait_until("a request was held", || {
        asked += 1;
        assert_eq!(get(proxy.address, &format!("/slow/{asked}"), &key).status, 200);
        Metrics::of(proxy.admin()).value(delayed) > 0.0
    });
    for (path, status) in [("/seen/1", 200), ("/seen/2", 200), ("/hard/1", 200), ("/hard/2", 429)] {
        assert_eq!(get(proxy.address, path, &key).status, status, "{path}");
    }
    let spans = collector.wait(asked + 4);
    assert!(!format!("{spans:?}").contains("s3cret"));
    let slow = collector.span(&format!("/slow/{asked}"));
    assert_eq!(decisions(&slow), [["slow", "delayed", "enforce"]]);
    let delay = told(&slow, "decision", &["tidegate.delay_ms"]).concat().concat();
    let delay: f64 = delay.parse().unwrap();
    assert!(delay > 0.0 && delay <= 100.0, "{delay}");
    let seen = collector.span("/seen/2");
    assert_eq!(decisions(&seen), [["seen", "shadow", "shadow"]]);
    assert_eq!(said(&seen, "tidegate.rejected_by"), "");
    let hard = collector.span("/hard/2");
    assert_eq!(decisions(&hard), [["seen", "shadow", "shadow"], ["hard", "rejected", "enforce"]]);
    let wait = told(&hard, "decision", &["tidegate.retry_after_ms"])[1][0].parse::<f64>().unwrap();
    assert!(wait > 3_000_000.0 && wait <= 3_600_000.0, "{wait}");
    for (name, value) in [
        ("tidegate.rejected_by", "hard"),
        ("http.response.status_code", "429"),
        ("tidegate.upstream", "api"),
        ("tidegate.server", ""),
        ("error.type", ""),
    ] {
        assert_eq!(said(&hard, name), value, "{name}");
    }
    // A client's fault is no error of the server.
    assert!(!is_error(&hard));
    assert!(told(&hard, "upstream answered", &[]).is_empty());
}

#[test]
fn a_span_tells_that_the_store_did_not_decide() {
    let (collector, api) = (Collector::start(), Upstream::echoing());
    let away = nobody().replace("http", "redis");
    let limit = |rest: &str| format!("key = [\"ip\"]\nrate = \"1/h\"\non_store_error = {rest}");
    let proxy = Proxy::to(&api)
        .store(&format!("url = \"{away}\""))
        .section(&collector.section())
        .limit("strict", &limit("\"reject\""))
        .limit("lax", &limit("\"allow\""))
        .route("path = \"/strict\"\nlimits = [\"strict\"]")
        .route("path = \"/lax\"\nlimits = [\"lax\"]")
        .start();
    for (path, status, is_failed) in [("/strict", 503, true), ("/lax", 200, false)] {
        assert_eq!(get(proxy.address, path, &[]).status, status, "{path}");
        let span = collector.span(path);
        assert_eq!(decisions(&span), [[&path[1..], "error", "enforce"]]);
        assert_eq!(told(&span, "decision", &["tidegate.remaining"]), [[""]], "{path}");
        assert_eq!(is_error(&span), is_failed, "{path}");
        assert_eq!(said(&span, "tidegate.rejected_by"), "", "{path}");
    }
}

/// Closes the connection within the body of an answer.
fn break_off(mut stream: TcpStream) {
    let _ = read_head(&mut BufReader::new(&stream));
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc");
}

#[test]
fn a_span_tells_of_a_failure() {
    let (collector, api) = (Collector::start(), Upstream::raw(break_off));
    let dead = nobody();
    let proxy = Proxy::to(&api)
        .upstream("retries = 0")
        .section(&collector.section())
        .section(&format!("[upstreams.dead]\nservers = [\"{dead}\"]"))
        .route("path = \"/dead\"\nupstream = \"dead\"")
        .route("path = \"/broken\"")
        .route("path = \"/error\"\nrespond = { status = 503 }")
        .start();
    assert_eq!(get(proxy.address, "/dead", &[]).status, 502);
    assert_eq!(get(proxy.address, "/error", &[]).status, 503);
    assert_eq!(get(proxy.address, "/nowhere", &[]).status, 404);
    let mut connection = Connection::open(proxy.address);
    connection.send("GET /broken HTTP/1.1\r\nhost: a\r\n\r\n");
    let _ = connection.rest_with_end();
    for (path, status, error, server) in [
        ("/dead", "502", "connect", dead.as_str()),
        ("/error", "503", "503", ""),
        ("/broken", "200", "broken", &api.url()),
        ("/nowhere", "404", "", ""),
    ] {
        let span = collector.span(path);
        assert_eq!(said(&span, "http.response.status_code"), status, "{path}");
        assert_eq!(said(&span, "error.type"), error, "{path}");
        assert_eq!(said(&span, "tidegate.server"), server, "{path}");
        assert_eq!(is_error(&span), !error.is_empty(), "{path}");
    }
    let nowhere = collector.span("/nowhere");
    assert_eq!((nowhere.name.as_str(), said(&nowhere, "http.route").as_str()), ("GET", ""));
}

#[test]
fn what_clients_invent_does_not_make_names_of_spans() {
    let (collector, api) = (Collector::start(), Upstream::echoing());
    let proxy = Proxy::to(&api).section(&collector.section()).start();
    let long = format!("/{}", "é".repeat(2000).replace('é', "%C3%A9"));
    assert_eq!(Connection::open(proxy.address).request("BREW", &long, &[], b"").status, 200);
    let spans = collector.wait(1);
    assert_eq!(spans[0].name, "HTTP /{*rest}");
    assert_eq!(said(&spans[0], "http.request.method"), "_OTHER");
    assert_eq!(said(&spans[0], "http.request.method_original"), "BREW");
    assert_eq!(said(&spans[0], "url.path"), long[..1024]);
}

#[test]
fn clients_of_http2_and_grpc_are_traced_too() {
    let (collector, api) = (Collector::start(), Api::h2c());
    let dead = nobody().replace("http", "h2c");
    let proxy = Proxy::of_one_worker(&api)
        .section(&collector.section())
        .section(&format!("[upstreams.dead]\nservers = [\"{dead}\"]"))
        .limit("one", "key = [\"ip\"]\nrate = \"1/h\"")
        .route("path = \"/t.T/{method}\"\nlimits = [\"one\"]")
        .route("path = \"/get\"")
        .route("path = \"/dead\"\nupstream = \"dead\"")
        .start();
    let mut client = Client::open(proxy.address);
    let call = [("content-type", "application/grpc"), ("te", "trailers")];
    assert_eq!(client.get("/get", &[]).status, 200);
    assert_eq!(client.post("/t.T/First", &call, b"x").status, 200);
    assert_eq!(client.post("/t.T/Second", &call, b"x").header("grpc-status").as_deref(), Some("8"));
    assert_eq!(client.post("/dead", &call, b"x").header("grpc-status").as_deref(), Some("14"));
    let spans = collector.wait(4);
    assert!(spans.iter().all(|span| said(span, "network.protocol.version") == "2"));
    assert_eq!(collector.span("/get").name, "GET /get");
    let second = collector.span("/t.T/Second");
    assert_eq!(second.name, "POST /t.T/{method}");
    assert_eq!(said(&second, "tidegate.rejected_by"), "one");
    assert_eq!(said(&second, "rpc.grpc.status_code"), "8");
    assert!(!is_error(&second));
    let dead = collector.span("/dead");
    assert_eq!(said(&dead, "rpc.grpc.status_code"), "14");
    assert!(is_error(&dead));
    let told = api.last().headers["traceparent"].to_str().unwrap().to_owned();
    assert!(told.ends_with("-01"), "{told}");
}
