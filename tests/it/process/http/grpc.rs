//! gRPC through the proxy: what is passed on, and what the proxy says itself.

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};

use crate::support::api::{Api, echo};
use crate::support::client::{Connection, Reply, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody};

const CALL: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

/// A proxy before this API: `/limited` has a limit of one call, `/held` one that holds the second.
fn before(api: &Api) -> Tidegate {
    let dead = nobody().replace("http", "h2c");
    Proxy::of_one_worker(api)
        .server("max_body_size = \"1KiB\"")
        .section(&format!("[upstreams.dead]\nservers = [\"{dead}\"]"))
        .limit("one", "key = [\"ip\"]\nrate = \"1/h\"")
        .limit("slow", "key = [\"ip\"]\nrate = \"1/h\"\nwait = \"2h\"")
        .limit("counted", "key = [\"ip\"]\nrate = \"1/h\"\ncost = { header = \"x-cost\" }")
        .route("path = \"/t.T/{method}\"")
        .route("path = \"/limited\"\nlimits = [\"one\"]")
        .route("path = \"/held\"\nlimits = [\"slow\"]")
        .route("path = \"/counted\"\nlimits = [\"counted\"]")
        .route("path = \"/dead\"\nupstream = \"dead\"")
        .start()
}

/// The status of an answer that is trailers alone.
fn status(reply: &Reply) -> Option<String> {
    assert_eq!((reply.status, reply.body.len()), (200, 0), "{reply:?}");
    assert_eq!(reply.header("content-type").as_deref(), Some("application/grpc"), "{reply:?}");
    assert!(reply.header("grpc-message").is_some_and(|words| !words.is_empty()), "{reply:?}");
    reply.header("grpc-status")
}

#[test]
fn what_the_proxy_says_itself_is_a_grpc_status() {
    let api = Api::h2c();
    let proxy = before(&api);
    let mut client = Client::open(proxy.address);
    assert_eq!(client.post("/limited", &CALL, b"x").status, 200);
    for (path, headers, body, expected) in [
        ("/limited", &[][..], &b"x"[..], "8"),
        ("/nowhere", &[], b"x", "12"),
        ("/dead", &[], b"x", "14"),
        ("/t.T/a%2fb", &[], b"x", "13"),
        ("/counted", &[("x-cost", "many")], b"x", "3"),
        ("/t.T/Large", &[("content-length", "2000")], &[b'x'; 2000], "8"),
    ] {
        let headers = [&CALL[..], headers].concat();
        let mut exchange = client.upload("POST", path, &headers);
        // It may be answered before all of it is sent.
        let _ = exchange.try_send(body);
        exchange.end();
        assert_eq!(status(&exchange.reply()).as_deref(), Some(expected), "{path}");
    }
}

#[test]
fn a_call_whose_head_is_refused_gets_a_grpc_status() {
    let proxy = before(&Api::h2c());
    let mut client = Client::open(proxy.address);
    let large = "x".repeat(40_000);
    let refused = client.post("/t.T/Large", &[&CALL[..], &[("x-large", &large)]].concat(), b"x");
    assert_eq!(status(&refused).as_deref(), Some("8"));
    let plain = client.get("/t.T/Large", &[("x-large", &large)]);
    assert_eq!((plain.status, plain.json()["status"].as_u64()), (431, Some(431)));
    assert_eq!(client.begin("HEAD", "/", &[("x-large", &large)]).reply().body, b"");
}

#[test]
fn a_call_from_a_browser_is_answered_in_its_own_kind_of_grpc() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api).limit("one", "rate = \"1/h\"").start();
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    for (asked, answered) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("application/grpc-web", "application/grpc-web+proto"),
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text+proto"),
        ("application/grpc-web-text+proto", "application/grpc-web-text+proto"),
    ] {
        let call = [("content-type", asked)];
        let reply = Connection::open(proxy.address).request("POST", "/", &call, b"");
        assert_eq!((reply.status, reply.body.len()), (200, 0), "{asked}");
        assert_eq!(reply.header("content-type").as_deref(), Some(answered));
        assert_eq!(reply.header("grpc-status").as_deref(), Some("8"), "{asked}");
    }
}

/// A regression: one such request put an empty answer with the status 200 into a cache in front, for all others.
#[test]
fn a_request_that_is_no_call_gets_no_grpc_answer() {
    let proxy = before(&Api::h2c());
    let mut new = Client::open(proxy.address);
    let mut old = Connection::open(proxy.address);
    new.post("/limited", &CALL, b"x");
    let large = "x".repeat(40_000);
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc-web-text"] {
            let of_grpc = [("content-type", kind), ("te", "trailers")];
            for (path, status) in
                [("/limited", 429), ("/nowhere", 404), ("/t.T/a%2fb", 400), ("/dead", 502)]
            {
                for reply in [
                    old.request(method, path, &of_grpc, b""),
                    new.begin(method, path, &of_grpc).reply(),
                ] {
                    assert_eq!(reply.status, status, "{method} {path} {kind}: {reply:?}");
                    assert_eq!(reply.header("grpc-status"), None, "{method} {path}");
                    assert_eq!(reply.body.is_empty(), method == "HEAD", "{method} {path}");
                }
            }
            let head = [&of_grpc[..], &[("x-large", &large)]].concat();
            assert_eq!(new.begin(method, "/t.T/Large", &head).reply().status, 431, "{method}");
        }
    }
    for kind in ["application/grpcx", "application/grpc-other", "text/plain"] {
        let reply = new.post("/limited", &[("content-type", kind)], b"x");
        assert_eq!(reply.status, 429, "{kind} is no type of gRPC");
    }
}

#[test]
fn a_throttled_call_is_told_when_to_come_back() {
    let api = Api::h2c();
    let proxy = before(&api);
    let mut client = Client::open(proxy.address);
    client.post("/limited", &CALL, b"x");
    let reply = client.post("/limited", &CALL, b"x");
    assert_eq!(status(&reply).as_deref(), Some("8"));
    assert!(reply.header("retry-after").is_some() && reply.header("ratelimit").is_some());
}

#[test]
fn a_call_is_answered_by_its_deadline() {
    let api = Api::answering_h2c(|request, respond| async move {
        std::future::pending::<()>().await;
        drop((request, respond));
    });
    let proxy = before(&api);
    let mut client = Client::open(proxy.address);
    let deadline = [CALL[0], CALL[1], ("grpc-timeout", "50m")];
    // The API does not answer, and then the limit would hold the call for an hour.
    for path in ["/t.T/Never", "/held", "/held"] {
        let reply = client.post(path, &deadline, b"x");
        assert_eq!(status(&reply).as_deref(), Some("4"), "{path}");
    }
    assert_eq!(api.calls()[0].headers["grpc-timeout"], "50m");
}

/// Answers with a message and these trailers, or with trailers alone.
async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let alone = request.uri().path().ends_with("/Alone");
    let status = HeaderMap::from_iter([
        ("grpc-status".parse().unwrap(), "5".parse().unwrap()),
        ("grpc-message".parse().unwrap(), "no such thing".parse().unwrap()),
        ("x-own".parse().unwrap(), "1".parse().unwrap()),
    ]);
    let mut head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    if alone {
        head.headers_mut().extend(status);
        let _ = respond.send_response(head, true);
        return;
    }
    let Ok(mut body) = respond.send_response(head, false) else { return };
    let _ = body.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), false);
    let _ = body.send_trailers(status);
}

#[test]
fn an_apis_status_goes_through_behind_its_messages_or_alone() {
    let api = Api::answering_h2c(answer);
    let proxy = before(&api);
    let mut client = Client::open(proxy.address);
    let reply = client.post("/t.T/Get", &CALL, b"x");
    assert_eq!(reply.body, b"\0\0\0\0\x02hi");
    let trailers: Vec<_> = reply.trailers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    for trailer in [("grpc-status", "5"), ("grpc-message", "no such thing"), ("x-own", "1")] {
        assert!(trailers.contains(&trailer), "{trailers:?}");
    }
    let alone = client.post("/t.T/Alone", &CALL, b"x");
    assert_eq!(status(&alone).as_deref(), Some("5"));
    assert_eq!(alone.header("grpc-message").as_deref(), Some("no such thing"));
    assert_eq!(api.last().headers["te"], "trailers");
}

#[test]
fn messages_go_to_and_fro_while_the_call_lasts() {
    let api = Api::answering_h2c(echo);
    let proxy = before(&api);
    let mut client = Client::open(proxy.address);
    let mut call = client.upload("POST", "/t.T/Talk", &CALL);
    call.send(b"first");
    assert_eq!(call.head().unwrap().status(), 200);
    assert_eq!(call.piece().unwrap().unwrap(), "first");
    for message in ["one", "two", "three"] {
        call.send(message.as_bytes());
        assert_eq!(call.piece().unwrap().unwrap(), message);
    }
    call.end();
    assert_eq!(call.piece().and_then(Result::ok).unwrap_or_default(), "", "the end");
}

/// Begins an answer and breaks it off.
async fn break_off(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let Ok(mut body) = respond.send_response(head, false) else { return };
    let _ = body.send_data(Bytes::from_static(b"half"), false);
    if request.uri().path().ends_with("/Break") {
        body.send_reset(h2::Reason::INTERNAL_ERROR);
    } else {
        std::future::pending::<()>().await;
    }
}

#[test]
fn a_call_that_breaks_off_ends_with_a_status() {
    let api = Api::answering_h2c(break_off);
    let proxy = Proxy::to(&api).upstream("idle_timeout = \"50ms\"").start();
    let mut client = Client::open(proxy.address);
    for (path, expected) in [("/Break", "14"), ("/Stall", "4")] {
        let reply = client.post(path, &CALL, b"x");
        // A reset may overtake the head of the answer.
        let mut fields = reply.trailers.iter().chain(&reply.headers);
        let status = fields.find(|(name, _)| name == "grpc-status");
        assert_eq!(status.map(|(_, value)| value.as_str()), Some(expected), "{path}: {reply:?}");
        assert!(path == "/Break" || !reply.trailers.is_empty(), "behind what came");
    }
}
