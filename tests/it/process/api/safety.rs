//! What the endpoint does so that no page of another site uses an operator's browser against it.

use super::limited;
use crate::support::client::{Connection, Reply};

const PATHS: [&str; 10] = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/api/status",
    "/api/stream",
    "/api/history",
    "/api/config",
    "/api/fleet",
    "/api/limits",
    "/api/why?limit=user&key=ann&plain",
];

fn assert_protected(reply: &Reply, path: &str) {
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(reply.header(name).as_deref(), Some(value), "{path}");
    }
    let of_cors = |(name, _): &(String, String)| name.starts_with("access-control-");
    assert!(!reply.headers.iter().any(of_cors), "{path}: {:?}", reply.headers);
}

#[test]
fn every_answer_is_protected_and_has_its_methods() {
    let proxy = limited().start();
    let admin = proxy.admin();
    let origin = [("host", "localhost"), ("origin", "http://evil.example")];
    let mut client = Connection::open(admin);
    for path in PATHS {
        let head = client.request("HEAD", path, &origin, b"");
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        assert_protected(&head, path);
        let post = client.request("POST", path, &[("host", "localhost")], b"");
        assert_eq!(post.status, 405, "{path}");
        assert_eq!(post.header("allow").as_deref(), Some("GET, HEAD"), "{path}");
        assert_eq!(post.header("content-type").as_deref(), Some("application/problem+json"));
        assert_protected(&post, path);
        let asked = client.request("OPTIONS", path, &origin, b"");
        assert_eq!(asked.status, 405, "{path}: no preflight is answered");
        assert_protected(&asked, path);
        let foreign = client.get(path, &[("host", "evil.example")]);
        assert_eq!(foreign.status, 403, "{path}");
        assert_protected(&foreign, path);
    }
    assert_protected(&client.get("/nothing", &[("host", "localhost")]), "/nothing");
}
