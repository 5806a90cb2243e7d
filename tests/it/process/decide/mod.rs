//! `[decide]`: other proxies ask whether a request may go.

mod asking;
mod check;
mod envoy;
mod hostile;
mod recipes;
mod shared;
mod tls;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::PATIENCE;
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
    file_at("LISTEN", decide, sections)
}

/// The same for callers at this address.
fn file_at(listen: &str, decide: &str, sections: &str) -> String {
    format!(
        "[server]\nlisten = []\n[decide]\nlisten = \"{listen}\"\n{decide}\n\
         [log]\naccess = true\n[admin]\nlisten = \"LISTEN\"\n{sections}"
    )
}

/// A proxy that only decides, and believes what proxies in 198.51.100.0/24 say of their clients.
fn trusting() -> Tidegate {
    let trust = "listen = []\ntrusted_proxies = [\"198.51.100.0/24\"]";
    Tidegate::start(&file("", PER_CLIENT).replace("listen = []", trust))
}

/// A socket for callers on this machine, the proxy that listens there, and the folder of both.
fn on_a_socket() -> (PathBuf, Tidegate, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decide.sock");
    let proxy = Tidegate::start(&file_at(&format!("unix:{}", path.display()), "", PER_CLIENT));
    proxy.log.wait("listening", |line| line["setting"] == "decide.listen");
    (path, proxy, folder)
}

const PER_CLIENT: &str = "[limits.ip]\nkey = [\"ip\"]\nrate = \"2/h\"\n[[routes]]\npath = \"/a/{*rest}\"\nlimits = [\"ip\"]\n";

/// A client is to wait so many seconds, but for those that have gone since its tokens were taken.
fn assert_wait(retry_after: Option<&str>, seconds: u64) {
    let wait: u64 = retry_after.expect("a time to come back").parse().unwrap();
    assert!(wait <= seconds && wait + PATIENCE.as_secs() > seconds, "{wait} instead of {seconds}");
}

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
