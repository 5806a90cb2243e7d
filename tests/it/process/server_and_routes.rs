//! What holds for every request, and what a route has in its place.

use std::time::Duration;

use crate::support::client::{Connection, get};
use crate::support::http2;
use crate::support::metrics::Metrics;
use crate::support::now;
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, nobody, ok};

#[test]
fn the_servers_limits_meet_requests_without_a_route_too() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .server("limits = [\"all\"]")
        .admin()
        .limit("all", "key = [\"ip\"]\nrate = \"3/h\"")
        .limit("one", "key = [\"path\"]\nrate = \"1/h\"")
        .route("path = \"/a/{id}\"\nlimits = [\"one\", \"all\"]\nmethods = [\"GET\"]")
        .route("path = \"/b\"")
        .start();
    let status = |path: &str| get(proxy.address, path, &[]).status;
    assert_eq!(status("/a/1"), 200);
    let refused = get(proxy.address, "/a/1", &[]);
    assert_eq!((refused.status, refused.violated()), (429, vec!["one".to_owned()]));
    // Nothing was taken from the other.
    assert_eq!(status("/none"), 404, "it is counted");
    assert_eq!(status("/b"), 200);
    for path in ["/a/2", "/b", "/none"] {
        let refused = get(proxy.address, path, &[]);
        assert_eq!((refused.status, refused.violated()), (429, vec!["all".to_owned()]), "{path}");
    }
    let post = Connection::open(proxy.address).request("POST", "/a/1", &[], b"");
    assert_eq!(post.status, 429, "and not 405");
    let page = Metrics::of(proxy.admin());
    assert_eq!(page.value("tidegate_decisions_total{limit=\"all\",decision=\"allowed\"}"), 4.0);
    assert_eq!(page.value("tidegate_requests_total{route=\"none\",status=\"429\"}"), 2.0);
    assert_eq!(api.requests().len(), 2);
}

#[test]
fn a_route_has_its_own_time_and_size() {
    let (slow, _heard) = Upstream::listening();
    let proxy = Proxy::to(&slow)
        .server("max_body_size = \"16B\"")
        .route("path = \"/slow\"\nresponse_timeout = \"50ms\"")
        .route("path = \"/small\"\nrespond = { status = 200 }\nmax_body_size = \"4B\"")
        .route("path = \"/large\"\nrespond = { status = 200 }\nmax_body_size = \"1KiB\"")
        .route("path = \"/other\"\nrespond = { status = 200 }")
        .start();
    assert_eq!(get(proxy.address, "/slow", &[]).status, 504);
    let put = |path: &str, size: usize| {
        Connection::open(proxy.address).request("PUT", path, &[], &vec![b'x'; size]).status
    };
    for (path, most) in [("/small", 4), ("/large", 1_024), ("/other", 16)] {
        assert_eq!((put(path, most), put(path, most + 1)), (200, 413), "{path}");
    }
}

/// It may come later than here, and never sooner.
#[test]
fn a_body_comes_no_faster_than_its_routes_rate() {
    let body: String = "0123456789".repeat(2_000);
    let api = Upstream::answering({
        let body = body.clone();
        move |_| ok(&body)
    });
    let proxy = Proxy::of_one_worker(&api)
        .route("path = \"/api\"\nupstream = \"api\"\nresponse_rate = \"40KB/s\"")
        .route(&format!(
            "path = \"/own\"\nrespond = {{ body = {body:?} }}\nresponse_rate = \"40KB/s\""
        ))
        .route("path = \"/slow\"\nupstream = \"api\"\nresponse_rate = \"1B/s\"")
        .route("path = \"/{*rest}\"\nupstream = \"api\"")
        .start();
    // The first part of a body, and one that is late, are 4,000 bytes together.
    let least = Duration::from_millis(400);
    let mut multiplexed = http2::Client::open(proxy.address);
    for path in ["/api", "/own"] {
        let began = now();
        assert_eq!(get(proxy.address, path, &[]).text(), body, "{path}");
        assert!(began.elapsed() >= least, "{path}: {:?}", began.elapsed());
        let began = now();
        assert_eq!(multiplexed.get(path, &[]).body, body.as_bytes(), "{path}");
        assert!(began.elapsed() >= least, "{path}, HTTP/2: {:?}", began.elapsed());
    }
    // A body that takes hours holds up no other one of its connection.
    let mut slow = multiplexed.begin("GET", "/slow", &[]);
    slow.end();
    assert_eq!(slow.head().unwrap().status(), 200);
    assert_eq!(slow.piece().unwrap().unwrap().len(), 1);
    assert_eq!(multiplexed.get("/other", &[]).body, body.as_bytes());
    let head = Connection::open(proxy.address).request("HEAD", "/slow", &[], b"");
    assert_eq!(head.header("content-length"), Some("20000".to_owned()));
}

#[test]
fn a_request_has_a_name_on_its_whole_way() {
    let api = Upstream::echoing();
    let named = Proxy::to(&api)
        .server("request_id = \"x-request-id\"")
        .limit("one", "key = [\"path\"]\nrate = \"1/h\"")
        .section("[log]\naccess = true");
    let proxy = named.start();
    let given = ("x-request-id", "mine");
    let reply = get(proxy.address, "/a", &[given]);
    let id = reply.header("x-request-id").unwrap();
    // A UUID of version 7, and not what a stranger says.
    assert_eq!((id.len(), &id[14..15]), (36, "7"), "{id}");
    assert_eq!(api.last().header("x-request-id").unwrap(), id);
    let line = proxy.log.wait("request", |line| line["path"] == "/a");
    assert_eq!(line["request_id"], id);
    let refused = get(proxy.address, "/a", &[]);
    let other = refused.header("x-request-id").unwrap();
    assert_eq!(refused.status, 429);
    assert_ne!(other, id);
    assert_eq!(proxy.log.wait("throttled", |_| true)["request_id"], other);

    let proxy = named.server("trusted_proxies = [\"127.0.0.0/8\"]").start();
    assert_eq!(get(proxy.address, "/b", &[given]).header("x-request-id").unwrap(), "mine");
    assert_eq!(api.last().header("x-request-id").unwrap(), "mine");
    let made = get(proxy.address, "/c", &[]).header("x-request-id").unwrap();
    assert_eq!(made.len(), 36, "where there is none one is made");
}

/// A page of another site can read an answer only where CORS fields allow it.
#[test]
fn the_routes_changes_are_on_every_answer_of_the_route() {
    let api = Upstream::echoing();
    let changes = "response_headers = { set = { access-control-allow-origin = \"*\", ratelimit = \"mine\" }, \
                   add = { x-more = \"1\" }, remove = [\"ratelimit-policy\"] }";
    let proxy = Proxy::to(&api)
        .section(&format!("[upstreams.dead]\nservers = [\"{}\"]", nobody()))
        .limit("one", "rate = \"1/h\"")
        .route(&format!("path = \"/a\"\nlimits = [\"one\"]\nmax_body_size = \"4B\"\n{changes}"))
        .route(&format!("path = \"/dead\"\nupstream = \"dead\"\n{changes}"))
        .route("path = \"/bare\"\nlimits = [\"one\"]")
        .start();
    let call = [("content-type", "application/grpc")];
    for (path, headers, body, status) in [
        ("/a", &[][..], "", 200),
        ("/a", &[], "", 429),
        ("/a", &[], "12345", 413),
        ("/a", &call, "", 200),
        ("/dead", &[], "", 502),
    ] {
        let mut client = Connection::open(proxy.address);
        let reply = client.request("POST", path, headers, body.as_bytes());
        assert_eq!(reply.status, status, "{path} {reply:?}");
        for (name, value) in [
            ("access-control-allow-origin", Some("*")),
            ("ratelimit", Some("mine")),
            ("x-more", Some("1")),
            ("ratelimit-policy", None),
        ] {
            assert_eq!(reply.header(name).as_deref(), value, "{path} {reply:?}");
        }
        assert_eq!(reply.header("retry-after").is_some(), status == 429 || !headers.is_empty());
    }
    let other = Connection::open(proxy.address).get("/bare", &[]);
    assert_eq!((other.status, other.header("x-more")), (429, None), "another route");
}
