//! Clients that show a certificate of their own.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::{ClientConfig, HandshakeKind};
use tidegate::tls::{HTTP_1_1, IdentityFiles};

use super::Place;
use crate::support::client::Connection;
use crate::support::tidegate::Tidegate;
use crate::support::tls::{Folder, shake_hands};

/// A proxy that asks clients for a certificate, as `auth` says, and limits each subject to one request
/// an hour.
fn proxy(place: &Place, auth: &str, missing: &str) -> Tidegate {
    let tls = format!("client_ca = {:?}\nclient_auth = {auth:?}", place.folder.ca());
    let limit = format!("key = [\"cert\"]\nrate = \"1/h\"\nmissing = {missing:?}");
    place.proxy().section(&tls).limit("per-client", &limit).start()
}

fn showing(place: &Place, files: &IdentityFiles) -> Arc<ClientConfig> {
    place.folder.client(&[HTTP_1_1], Some(files))
}

fn status(proxy: &Tidegate, client: &Arc<ClientConfig>) -> u16 {
    Connection::open_tls(proxy.address, client, "a.test").get("/", &[]).status
}

/// Why a client was refused, as it was told.
fn refusal(proxy: &Tidegate, client: &Arc<ClientConfig>) -> String {
    let asked = || {
        let mut stream = shake_hands(proxy.address, client, "a.test")?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n")?;
        stream.read_to_string(&mut String::new())
    };
    let refused: std::io::Result<usize> = asked();
    refused.unwrap_err().to_string()
}

#[test]
fn each_subject_has_a_limit_of_its_own() {
    let place = Place::new();
    let proxy = proxy(&place, "require", "shared");
    let alice = showing(&place, &place.folder.write_client("alice", "alice"));
    let bob = showing(&place, &place.folder.write_client("bob", "bob"));
    let statuses = [&alice, &bob, &alice, &bob].map(|client| status(&proxy, client));
    assert_eq!(statuses, [200, 200, 429, 429]);
    proxy.log.wait("throttled", |line| line["key"] == "CN=alice");
}

#[test]
fn a_subjects_certificates_share_its_limit() {
    let place = Place::new();
    let proxy = proxy(&place, "require", "shared");
    let clients = ["old", "new"].map(|name| place.folder.write_client(name, "alice"));
    let statuses = clients.map(|files| status(&proxy, &showing(&place, &files)));
    assert_eq!(statuses, [200, 429]);
}

#[test]
fn a_resumed_session_remembers_whose_it_is() {
    let place = Place::new();
    let proxy = proxy(&place, "require", "shared");
    let alice = showing(&place, &place.folder.write_client("alice", "alice"));
    assert_eq!(status(&proxy, &alice), 200);
    let mut again = Connection::open_tls(proxy.address, &alice, "a.test");
    assert_eq!(again.stream.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    assert_eq!(again.get("/", &[]).status, 429);
    let bob = showing(&place, &place.folder.write_client("bob", "bob"));
    assert_eq!(status(&proxy, &bob), 200);
}

#[test]
fn a_client_without_a_required_certificate_is_refused() {
    let place = Place::new();
    let proxy = proxy(&place, "require", "shared");
    let told = refusal(&proxy, &place.client());
    assert!(told.contains("CertificateRequired"), "{told}");
    let line = proxy.log.wait("malformed requests", |_| true);
    assert_eq!(line["reason"], "TLS handshake failed: peer sent no certificates");
    assert!(place.api.requests().is_empty());
}

#[test]
fn another_authoritys_certificate_is_always_refused() {
    for auth in ["require", "request"] {
        let place = Place::new();
        let proxy = proxy(&place, auth, "shared");
        let other = Folder::new();
        let mallory = other.write_client("mallory", "alice");
        let told = refusal(&proxy, &showing(&place, &mallory));
        // rustls names no reason that would help whoever tries.
        assert!(told.contains("received fatal alert"), "{told}");
        let line = proxy.log.wait("malformed requests", |_| true);
        let reason = line["reason"].as_str().unwrap();
        assert!(reason.contains("invalid peer certificate: no authority"), "{reason}");
        assert_eq!(line["client"], "127.0.0.1");
        assert!(place.api.requests().is_empty());
    }
}

/// The times of a certificate are its owner's choice. They are not in the reason: otherwise each of these
/// refusals would be a line of its own.
#[test]
fn certificates_of_many_times_do_not_fill_the_log() {
    let place = Place::new();
    let mut proxy = proxy(&place, "require", "shared");
    for years in [(2001, 2002), (2001, 2003), (2001, 2004), (2101, 2102), (2101, 2103)] {
        let files = place.folder.write_client_of("mallory", "mallory", years);
        assert!(refusal(&proxy, &showing(&place, &files)).contains("received fatal alert"));
    }
    proxy.stop();
    let lines = proxy.log.with("malformed requests");
    let mut told = BTreeMap::<_, u64>::new();
    for line in &lines {
        *told.entry(line["reason"].as_str().unwrap()).or_default() +=
            line["count"].as_u64().unwrap();
    }
    let fault = "TLS handshake failed: invalid peer certificate";
    assert_eq!(told, BTreeMap::from([(&*format!("{fault}: it has expired"), 3), (fault, 2)]));
}

#[test]
fn an_optional_certificate_may_be_missing() {
    let place = Place::new();
    let proxy = proxy(&place, "request", "shared");
    let alice = showing(&place, &place.folder.write_client("alice", "alice"));
    let statuses =
        [&place.client(), &alice, &alice, &place.client()].map(|client| status(&proxy, client));
    assert_eq!(statuses, [200, 200, 429, 429], "who shows none shares one bucket");
}

#[test]
fn a_limit_by_certificate_may_reject_who_has_none() {
    let place = Place::new();
    let proxy = proxy(&place, "request", "reject");
    let alice = showing(&place, &place.folder.write_client("alice", "alice"));
    assert_eq!([&place.client(), &alice].map(|client| status(&proxy, client)), [400, 200]);
}
