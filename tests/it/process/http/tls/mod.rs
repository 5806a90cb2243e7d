//! TLS towards clients.

mod certificates;
mod clients;
mod connections;
mod ends;

use std::sync::Arc;

use rustls::{ClientConfig, HandshakeKind, ProtocolVersion};
use tidegate::tls::{H2, HTTP_1_1, IdentityFiles};

use crate::support::client::Connection;
use crate::support::http2;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::{Folder, shake_hands};
use crate::support::upstream::Upstream;

/// A proxy with TLS alone that sends everything to `api`.
struct Place {
    folder: Folder,
    api: Upstream,
    files: IdentityFiles,
}

impl Place {
    /// With a certificate for `a.test`.
    fn new() -> Self {
        let folder = Folder::new();
        let files = folder.write_server("cert", &["a.test", "127.0.0.1"]);
        Self { folder, api: Upstream::echoing(), files }
    }

    fn proxy(&self) -> Proxy {
        let tls = format!("listen = \"LISTEN\"\ncertificates = [{}]", pair(&self.files));
        let server = "listen = []\nworkers = 1";
        Proxy::to(&self.api).server(server).section(&format!("[server.tls]\n{tls}"))
    }

    fn start(&self) -> Tidegate {
        self.proxy().start()
    }

    /// A client that offers HTTP/1.1 alone.
    fn client(&self) -> Arc<ClientConfig> {
        self.folder.client(&[HTTP_1_1], None)
    }
}

/// One of `certificates`.
fn pair(files: &IdentityFiles) -> String {
    format!("{{ cert = {:?}, key = {:?} }}", files.cert, files.key)
}

#[test]
fn tls_1_2_and_1_3_are_spoken() {
    let place = Place::new();
    let proxy = place.start();
    for (client, version) in [
        (place.client(), ProtocolVersion::TLSv1_3),
        (place.folder.old_client(), ProtocolVersion::TLSv1_2),
    ] {
        let mut client = Connection::open_tls(proxy.address, &client, "a.test");
        assert_eq!(client.stream.conn.protocol_version(), Some(version));
        assert_eq!(client.get("/hello", &[]).text(), "/hello", "{version:?}");
    }
}

#[test]
fn a_client_that_offers_both_protocols_gets_http_2() {
    let place = Place::new();
    let proxy = place.start();
    let config = place.folder.client(&[HTTP_1_1, H2], None);
    let mut client = http2::Client::open_tls(proxy.address, config, "a.test");
    assert_eq!(client.get("/hello", &[]).text(), "/hello");
    assert_eq!(client.post("/upload", &[], b"hello").status, 200);
    assert_eq!(place.api.last().body, b"hello");
}

#[test]
fn a_client_that_offers_http_1_1_or_nothing_gets_it_and_one_of_another_protocol_is_refused() {
    let place = Place::new();
    let proxy = place.start();
    for (offered, agreed) in [(&[HTTP_1_1][..], Some(HTTP_1_1)), (&[], None)] {
        let client = place.folder.client(offered, None);
        let mut client = Connection::open_tls(proxy.address, &client, "a.test");
        assert_eq!(client.stream.conn.alpn_protocol(), agreed);
        assert_eq!(client.get("/hello", &[]).text(), "/hello");
    }
    let client = place.folder.client(&[b"spdy/3"], None);
    let refused = shake_hands(proxy.address, &client, "a.test").err().unwrap();
    assert!(refused.to_string().contains("NoApplicationProtocol"), "{refused}");
}

#[test]
fn an_api_is_told_that_its_client_came_by_tls() {
    let place = Place::new();
    let proxy = place.start();
    let forged = [("x-forwarded-proto", "http")];
    Connection::open_tls(proxy.address, &place.client(), "a.test").get("/", &forged);
    assert_eq!(place.api.last().header("x-forwarded-proto").as_deref(), Some("https"));
    let config = place.folder.client(&[H2], None);
    http2::Client::open_tls(proxy.address, config, "a.test").get("/", &forged);
    assert_eq!(place.api.last().header("x-forwarded-proto").as_deref(), Some("https"));
}

/// How a client that keeps its sessions shakes hands.
fn handshake(proxy: &Tidegate, client: &Arc<ClientConfig>) -> HandshakeKind {
    let mut connection = Connection::open_tls(proxy.address, client, "a.test");
    // Of TLS 1.3 the tickets come behind the handshake.
    assert_eq!(connection.get("/", &[]).status, 200);
    connection.stream.conn.handshake_kind().unwrap()
}

#[test]
fn sessions_outlive_a_reload() {
    let place = Place::new();
    let proxy = place.start();
    let clients = [place.client(), place.folder.old_client()];
    for client in &clients {
        assert_ne!(handshake(&proxy, client), HandshakeKind::Resumed);
    }
    proxy.reload(&place.proxy().server("max_body_size = \"1MB\"").text());
    for client in &clients {
        assert_eq!(handshake(&proxy, client), HandshakeKind::Resumed);
    }
}
