//! `[decide]` by TLS.

use std::sync::Arc;

use rustls::ClientConfig;
use tidegate::tls::{H2, HTTP_1_1, IdentityFiles};

use super::{PER_CLIENT, as_nginx, asked_at, deciding, file};
use crate::support::client::Connection;
use crate::support::http2;
use crate::support::tidegate::Tidegate;
use crate::support::tls::{Folder, Stream, shake_hands};
use crate::support::wait_until;

/// The line of `[decide]` that has this certificate.
fn tls(files: &IdentityFiles, more: &str) -> String {
    let IdentityFiles { cert, key } = files;
    format!("tls = {{ certificates = [{{ cert = {cert:?}, key = {key:?} }}]{more} }}\n")
}

fn caller(proxy: &Tidegate, client: &Arc<ClientConfig>) -> Connection<Stream> {
    Connection::open_tls(asked_at(proxy), client, "a.test")
}

#[test]
fn callers_by_tls_speak_both_protocols_and_none_comes_in_clear_text() {
    let folder = Folder::new();
    let files = folder.write_server("cert", &["a.test"]);
    let proxy = deciding(&tls(&files, ""), PER_CLIENT);
    let mut old = caller(&proxy, &folder.client(&[HTTP_1_1], None));
    assert_eq!(as_nginx(&mut old, "/a/b", "203.0.113.7").status, 204);
    let client = folder.client(&[H2], None);
    let mut new = http2::Client::open_tls(asked_at(&proxy), client, "a.test");
    let fields = [
        ("x-original-method", "GET"),
        ("x-original-uri", "/a/b"),
        ("x-forwarded-for", "203.0.113.7"),
    ];
    let statuses = [0; 2].map(|_| new.get("/auth-request", &fields).status);
    assert_eq!(statuses, [204, 403], "of the same bucket");
    let body = br#"{"path": "/a/b", "ip": "203.0.113.7"}"#;
    assert_eq!(new.post("/check", &[], body).json()["status"], 429);
    let mut clear = Connection::open(asked_at(&proxy));
    clear.send("GET /auth-request HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(!clear.rest().starts_with(b"HTTP"));
}

#[test]
fn a_certificate_is_renewed_while_the_process_runs() {
    let folder = Folder::new();
    let files = folder.write_server("cert", &["a.test"]);
    let proxy = deciding(&tls(&files, ""), PER_CLIENT);
    let client = folder.client(&[HTTP_1_1], None);
    let shown = || {
        let stream = shake_hands(asked_at(&proxy), &client, "a.test").unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown();
    folder.write_server("cert", &["a.test", "b.test"]);
    wait_until("the new certificate is shown", || shown() != first);
    let line = proxy.log.wait("certificates loaded", |_| true);
    assert!(line.to_string().contains("b.test"), "{line}");
    let second = shown();
    let other = folder.write_server("other", &["a.test"]);
    proxy.reload(&file(&tls(&other, ""), PER_CLIENT));
    assert_ne!(shown(), second, "a reload names other files");
    assert_eq!(proxy.log.count("restart needed"), 0);
}

#[test]
fn callers_show_certificates_and_no_limit_counts_by_them() {
    let folder = Folder::new();
    let files = folder.write_server("cert", &["a.test"]);
    let by_cert = "[limits.cert]\nkey = [\"cert | ip\"]\nrate = \"1/h\"\n\
                   [[routes]]\npath = \"/\"\nlimits = [\"cert\"]\n";
    let clients = format!(", client_ca = {:?}", folder.ca());
    let proxy = deciding(&tls(&files, &clients), by_cert);
    let known = folder.write_client("nginx", "nginx");
    let mut nginx = caller(&proxy, &folder.client(&[HTTP_1_1], Some(&known)));
    let statuses = ["203.0.113.7", "203.0.113.8", "203.0.113.7"]
        .map(|client| as_nginx(&mut nginx, "/", client).status);
    assert_eq!(statuses, [204, 204, 403]);
    let stranger = shake_hands(asked_at(&proxy), &folder.client(&[HTTP_1_1], None), "a.test");
    let refused = stranger.map(|stream| {
        let mut stranger = Connection::of(stream);
        stranger.rest_with_end().1
    });
    assert!(!matches!(refused, Ok(Ok(()))), "{refused:?}");
}

#[test]
fn only_a_restart_begins_or_ends_tls() {
    let folder = Folder::new();
    let files = folder.write_server("cert", &["a.test"]);
    let (with, without) = (file(&tls(&files, ""), PER_CLIENT), file("", PER_CLIENT));
    let client = folder.client(&[HTTP_1_1], None);
    for (first, next) in [(&with, &without), (&without, &with)] {
        let proxy = Tidegate::start(first);
        proxy.reload(next);
        let line = proxy.log.wait("restart needed", |_| true);
        assert!(line.to_string().contains("[\"decide.tls\"]"), "{line}");
        let reloaded = proxy.log.find("config reloaded").unwrap();
        assert!(!reloaded.to_string().contains("decide"), "{reloaded}");
        let status = match first == &with {
            true => as_nginx(&mut caller(&proxy, &client), "/a/b", "203.0.113.7").status,
            false => {
                as_nginx(&mut Connection::open(asked_at(&proxy)), "/a/b", "203.0.113.7").status
            }
        };
        assert_eq!(status, 204, "as at the start");
    }
}
