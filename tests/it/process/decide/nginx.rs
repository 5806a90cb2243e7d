//! Debian's nginx, which asks by `auth_request`.

use super::{PER_CLIENT, asked_at, deciding};
use crate::support::client::{Connection, get};
use crate::support::peer_server::PeerServer;
use crate::support::upstream::Upstream;

/// The recipe of docs/deciding.md.
#[test]
fn nginx_forwards_what_may_go_and_clients_get_the_true_refusal() {
    let (api, proxy) = (Upstream::echoing(), deciding("", PER_CLIENT));
    let recipe = include_str!("../../../../docs/deciding.md");
    let recipe = recipe.split("```nginx\n").nth(1).unwrap().split("```").next().unwrap();
    let recipe = recipe
        .replace("127.0.0.1:9091", &asked_at(&proxy).to_string())
        .replace("127.0.0.1:3000", &api.address.to_string());
    let Some(nginx) = PeerServer::nginx_with(&recipe) else { return };
    let mut client = Connection::open(nginx.address());
    for left in 0..2 {
        let reply = client.get("/a/%7Ex?y=1", &[]);
        assert_eq!((reply.status, reply.text().as_str()), (200, "/a/%7Ex?y=1"));
        assert_eq!(reply.header("ratelimit").unwrap(), format!("\"ip\";r={};t=3600", 1 - left));
    }
    // Over the same bucket, by another spelling of the path, another method, and with what only nginx may say.
    let lies = [("x-original-uri", "/free"), ("x-forwarded-for", "203.0.113.9")];
    let post = Connection::open(nginx.address()).request("POST", "/a/b", &[], b"body");
    for reply in [client.get("/a/~x", &lies), post] {
        assert_eq!(reply.status, 429);
        assert_eq!(reply.header("retry-after").as_deref(), Some("1800"));
        assert_eq!(reply.header("ratelimit-policy").as_deref(), Some("\"ip\";q=2;w=3600"));
        assert_eq!(reply.header("x-tidegate-status"), None);
    }
    assert_eq!(get(nginx.address(), "/a/..%2f", &[]).status, 400, "an ambiguous path");
    assert_eq!(get(nginx.address(), "/free", &[]).status, 200);
    assert_eq!(api.requests().len(), 3);
}
