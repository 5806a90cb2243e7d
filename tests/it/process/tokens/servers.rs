//! Keys that a server has: fetched, rotated, withdrawn, and away.

use serde_json::Value;

use super::{ask, statuses};
use crate::support::metrics::Metrics;
use crate::support::port::Port;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::tokens::{KeyServer, Signer, jwks};
use crate::support::wait_until;

const LIMIT: &str = "key = [\"jwt:sub\"]\nrate = \"100000/h\"";

fn proxy(table: &str) -> Proxy {
    Proxy::answering().section(table).limit("one", LIMIT)
}

#[test]
fn keys_are_fetched_rotated_and_withdrawn() {
    let (old, new) = (Signer::new("old"), Signer::new("new"));
    let server = KeyServer::start(&[&old]);
    let proxy = proxy(&server.table("invalid = \"reject\"\nrefresh = \"1h\"")).start();
    proxy.log.wait("jwt keys read", |line| line["jwt"] == "main" && line["level"] == "INFO");
    let got = server.server.last();
    assert_eq!(got.path(), "/realms/main/certs?a=b");
    assert_eq!(got.header("host").unwrap(), server.server.address.to_string());
    assert_eq!(statuses(&proxy, &[&old.of("a"), &old.of("b")]), [200, 200]);
    assert_eq!(server.fetches(), 1, "no request has fetched anything");
    // A token that names an unknown key has the keys fetched, and then counts.
    server.has(&[&old, &new]);
    wait_until("the new key is known", || ask(proxy.address, &new.of("a")).status == 200);
    assert_eq!(statuses(&proxy, &[&old.of("a")]), [200]);
    // Twice a minute at most, however many such tokens come.
    server.has(&[&new]);
    let unknown = Signer::new("unknown");
    wait_until("the old key is withdrawn", || {
        let _ = ask(proxy.address, &unknown.of("a"));
        ask(proxy.address, &old.of("a")).status == 401
    });
    assert_eq!(statuses(&proxy, &[&new.of("a")]), [200]);
    for _ in 0..100 {
        assert_eq!(ask(proxy.address, &unknown.of("a")).status, 401);
    }
    assert_eq!(server.fetches(), 3);
}

#[test]
fn without_the_server_the_last_keys_stay_and_each_way_is_told_once() {
    let (port, signer) = (Port::hold(), Signer::new("a"));
    let table = |lines: &str| {
        format!(
            "[jwt.main]\nkeys = \"http://{}/keys\"\ninvalid = \"reject\"\n{lines}",
            port.address
        )
    };
    let access = "[log]\naccess = true";
    let proxy = proxy(&table("refresh = \"100ms\"")).section(access).admin().start();
    let line = proxy.log.wait("jwt keys unavailable", |_| true);
    assert_eq!((&line["jwt"], &line["level"]), (&"main".into(), &"WARN".into()));
    assert!(line["error"].as_str().unwrap().contains("Connection refused"), "{line}");
    let reply = ask(proxy.address, &signer.of("a"));
    assert_eq!(reply.status, 503, "before any were read, the token may be right");
    assert_eq!(reply.header("retry-after").as_deref(), Some("1"));
    assert_eq!(proxy.log.wait("request", |_| true)["reason"], "no_keys", "the token has no fault");
    proxy.log.wait("refused", |line| line["reason"] == "no_keys");
    let metrics = Metrics::of(proxy.admin());
    assert_eq!(metrics.value("tidegate_refused_total{reason=\"no_keys\"}"), 1.0);
    assert_eq!(metrics.value("tidegate_refused_total{reason=\"invalid_token\"}"), 0.0);
    assert_eq!(ask(proxy.address, "no.jwt.at-all").status, 401);
    let server = KeyServer::on(&port, &[&signer]);
    proxy.log.wait("jwt keys read", |line| line["keys"] == 1);
    assert_eq!(ask(proxy.address, &signer.of("a")).status, 200);
    for away in [
        String::new(),
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".to_owned(),
        format!(
            "HTTP/1.1 302 Found\r\nlocation: http://{}/keys\r\ncontent-length: 0\r\n\r\n",
            port.address
        ),
        "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"keys\":[]}".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n<htm>".to_owned(),
        "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort".to_owned(),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n{}", " ".repeat(2_000_000)),
    ] {
        let (down, up) =
            (proxy.log.count("jwt keys unavailable"), proxy.log.count("jwt keys read"));
        server.says(&away);
        wait_until("it is told", || proxy.log.count("jwt keys unavailable") > down);
        let fetches = server.fetches();
        wait_until("more fetches fail", || server.fetches() > fetches + 2);
        assert_eq!(
            ask(proxy.address, &signer.of("b")).status,
            200,
            "the last keys stay: {away:.40}"
        );
        server.has(&[&signer]);
        wait_until("it is told", || proxy.log.count("jwt keys read") > up);
        assert_eq!(proxy.log.count("jwt keys unavailable"), down + 1, "once: {away:.40}");
        assert_eq!(proxy.log.count("jwt keys read"), up + 1, "once: {away:.40}");
    }
}

#[test]
fn a_reload_keeps_the_keys_of_a_table_that_stays() {
    let signer = Signer::new("a");
    let server = KeyServer::start(&[&signer]);
    let file = proxy(&server.table("invalid = \"reject\"\nrefresh = \"1h\""));
    let proxy = file.start();
    proxy.log.wait("jwt keys read", |_| true);
    server.says("");
    proxy.reload(
        &file.clone().route("path = \"/other\"").route("path = \"/\"\nlimits = [\"one\"]").text(),
    );
    assert_eq!(ask(proxy.address, &signer.of("a")).status, 200);
    assert_eq!(server.fetches(), 1);
    // Another field of the table threw its keys away, while their server was away. The log shows what has changed.
    let table = server.table("invalid = \"reject\"\nrefresh = \"2h\"");
    proxy.reload(&Proxy::answering().section(&table).limit("one", LIMIT).text());
    let changed = proxy.log.with("config reloaded").pop().unwrap();
    assert!(
        changed["changed"].as_array().unwrap().contains(&Value::from("jwt.main refresh 1h -> 2h")),
        "{changed}"
    );
    assert_eq!(ask(proxy.address, &signer.of("a")).status, 200);
    let table = table.replace("[jwt.main]", "[jwt.other]");
    proxy.reload(&Proxy::answering().section(&table).limit("one", LIMIT).text());
    assert_eq!(ask(proxy.address, &signer.of("a")).status, 200, "another name");
    let fetches = server.fetches();
    server.has(&[&signer]);
    wait_until("the keys are fetched again", || server.fetches() > fetches);
    assert_eq!(ask(proxy.address, &signer.of("a")).status, 200);
}

/// A process took requests before the first keys had come, at a start and at each upgrade.
#[test]
fn the_first_request_finds_the_keys() {
    let signer = Signer::new("a");
    let server = KeyServer::start(&[]);
    server.says("");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_until("a fetch fails", || server.fetches() > 0);
            server.has(&[&signer]);
        });
        let proxy = proxy(&server.table("invalid = \"reject\"")).start();
        assert_eq!(statuses(&proxy, &[&signer.of("a")]), [200]);
    });
}

#[test]
fn keys_are_fetched_by_tls_from_a_server_that_can_be_trusted() {
    let (folder, signer) = (Folder::new(), Signer::new("a"));
    folder.write_server("cert", &["localhost"]);
    let body = jwks(&[&signer]);
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let api = crate::support::upstream::Upstream::answering(move |_| answer.clone().into_bytes());
    // Another tidegate speaks TLS for the server of the keys.
    let tls = format!(
        "tls = {{ listen = \"LISTEN\", certificates = [{{ cert = \"{0}/cert.pem\", key = \"{0}/key.pem\" }}] }}",
        folder.path().display()
    );
    let keys = Proxy::to(&api).server("listen = []").server(&tls).start();
    let table = format!(
        "[jwt.main]\nkeys = \"https://localhost:{}/keys\"\nrefresh = \"100ms\"\ninvalid = \"reject\"\n",
        keys.address.port()
    );
    let text = proxy(&table).text();
    let trusting =
        Tidegate::start_with(&text, |command| _ = command.env("SSL_CERT_FILE", folder.ca()));
    trusting.log.wait("jwt keys read", |_| true);
    assert_eq!(ask(trusting.address, &signer.of("a")).status, 200);
    let other = Folder::new();
    let doubting =
        Tidegate::start_with(&text, |command| _ = command.env("SSL_CERT_FILE", other.ca()));
    let line = doubting.log.wait("jwt keys unavailable", |_| true);
    assert!(line["error"].as_str().unwrap().contains("certificate"), "{line}");
    assert_eq!(ask(doubting.address, &signer.of("a")).status, 503);
}
