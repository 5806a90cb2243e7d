//! `[decide]`: other proxies ask whether a request may go.

mod asking;
mod check;
mod envoy;
mod hostile;
mod recipes;
mod tls;

use std::io::{Read, Write};
use std::net::SocketAddr;

use crate::support::client::{Connection, Reply};
use crate::support::tidegate::Tidegate;

/// Where a proxy is asked.
fn asked_at(proxy: &Tidegate) -> SocketAddr {
    let line = proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    line["address"].as_str().unwrap().parse().unwrap()
}

/// A proxy that only decides, with these further lines of `[decide]` and these sections.
fn deciding(decide: &str, sections: &str) -> Tidegate {
    Tidegate::start(&file(decide, sections))
}

fn file(decide: &str, sections: &str) -> String {
    format!(
        "[server]\nlisten = []\n[decide]\nlisten = \"LISTEN\"\n{decide}\n\
         [log]\naccess = true\n[admin]\nlisten = \"LISTEN\"\n{sections}"
    )
}

const PER_CLIENT: &str = "[limits.ip]\nkey = [\"ip\"]\nrate = \"2/h\"\n[[routes]]\npath = \"/a/{*rest}\"\nlimits = [\"ip\"]\n";

/// Asks as nginx does.
fn as_nginx<S: Read + Write>(connection: &mut Connection<S>, path: &str, client: &str) -> Reply {
    connection.get(
        "/auth-request",
        &[("x-original-method", "GET"), ("x-original-uri", path), ("x-forwarded-for", client)],
    )
}

/// Asks as Traefik does, with these further fields.
fn as_traefik(connection: &mut Connection, path: &str, more: &[(&str, &str)]) -> Reply {
    let mut fields = vec![
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", path),
        ("x-forwarded-host", "api.test"),
        ("x-forwarded-proto", "https"),
    ];
    fields.extend_from_slice(more);
    connection.get("/forward-auth", &fields)
}
