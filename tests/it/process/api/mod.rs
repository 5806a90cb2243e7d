//! The JSON interface of the admin endpoint, and `tidegate top`, which shows it.

mod config;
mod documented;
mod failures;
mod page;
mod safety;
mod status;
mod stream;
mod top;
mod why;

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;

/// The JSON of a path.
fn json(admin: SocketAddr, path: &str) -> Value {
    let reply = get(admin, path, &[("host", "localhost")]);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type").unwrap(), "application/json");
    reply.json()
}

fn status(admin: SocketAddr) -> Value {
    json(admin, "/api/status")
}

/// A proxy whose limit `user` allows two requests of each user.
fn limited() -> Proxy {
    Proxy::answering()
        .admin()
        .limit("user", "key = [\"header:x-user\"]\nrate = \"2/h\"")
        .limit("all", "key = []\nrate = \"1/h\"\nmode = \"shadow\"")
}

/// Sends requests of a user. Returns their statuses.
fn send(proxy: &Tidegate, user: &str, count: usize) -> Vec<u16> {
    let mut client = Connection::open(proxy.address);
    (0..count).map(|_| client.get("/", &[("x-user", user)]).status).collect()
}
