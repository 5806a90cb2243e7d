//! The main job: forwarded, throttled, logged.

use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

#[test]
fn what_the_limit_allows_is_forwarded() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api).limit("per-client", "key = [\"ip\"]\nrate = \"1000000/s\"").start();
    let reply = get(proxy.address, "/hello?x=1", &[]);
    assert_eq!((reply.status, reply.text().as_str()), (200, "/hello?x=1"));
    assert_eq!(api.last().header("host").as_deref(), Some("api.test"));
    assert_eq!(api.last().header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
}

#[test]
fn what_is_too_much_is_rejected_and_logged_once() {
    let api = Upstream::echoing();
    let mut proxy = Proxy::to(&api).limit("per-client", "key = [\"ip\"]\nrate = \"2/h\"").start();
    let mut client = Connection::open(proxy.address);
    let statuses: Vec<_> = (0..6).map(|_| client.get("/", &[]).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    assert!(proxy.stop().success());
    let lines = proxy.log.with("throttled");
    assert_eq!(lines.len(), 2, "the first at once, the rest at the end: {lines:?}");
    let count: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(count, 4);
    assert_eq!(lines[0]["limit"], "per-client");
    assert_eq!(lines[0]["key"], "127.0.0.1");
    assert_eq!(lines[0]["decision"], "rejected");
    assert_eq!(api.requests().len(), 2);
}
