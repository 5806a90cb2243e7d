//! APIs behind TLS.

use std::sync::Arc;

use http::Version;
use rustls::ServerConfig;
use tidegate::tls::server::ClientAuth;
use tidegate::tls::{H2, HTTP_1_1, IdentityFiles};

use crate::support::api::Api;
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::upstream::Upstream;

/// An API with a certificate for `api.test` and 127.0.0.1.
struct Place {
    folder: Folder,
    files: IdentityFiles,
}

impl Place {
    fn new() -> Self {
        let folder = Folder::new();
        let files = folder.write_server("api", &["api.test", "127.0.0.1"]);
        Self { folder, files }
    }

    /// An API that chooses of these protocols, the preferred one first.
    fn api(&self, alpn: &[&[u8]]) -> Api {
        Api::tls(self.folder.server(&self.files, alpn, None))
    }

    /// A proxy that trusts the folder's authority. `tls` are further fields of that.
    fn proxy(&self, api: &Api, tls: &str) -> Tidegate {
        let ca = self.folder.ca();
        Proxy::of_one_worker(api).upstream(&format!("tls = {{ ca = {ca:?}{tls} }}")).start()
    }
}

/// What the log says of the one request that was answered 502.
fn failure(mut proxy: Tidegate) -> String {
    let reply = get(proxy.address, "/", &[]);
    assert_eq!((reply.status, reply.json()["status"].as_u64()), (502, Some(502)));
    proxy.stop();
    let line = proxy.log.find("upstream failed").unwrap();
    line["error"].as_str().unwrap().to_owned()
}

#[test]
fn an_api_of_the_named_authority_is_trusted() {
    let place = Place::new();
    let api = place.api(&[]);
    let proxy = place.proxy(&api, "");
    let mut client = Connection::open(proxy.address);
    for path in ["/1", "/2"] {
        assert_eq!(client.get(path, &[]).text(), path);
    }
    assert_eq!(client.request("POST", "/", &[], b"hello").text(), "hello");
    assert_eq!(api.connections(), 1);
    assert_eq!(api.last().server_name, None, "an address is no name to ask for");
}

#[test]
fn an_api_of_another_authority_is_a_502_that_is_told() {
    let (place, other) = (Place::new(), Folder::new());
    let files = other.write_server("api", &["127.0.0.1"]);
    let api = Api::tls(other.server(&files, &[], None));
    let error = failure(place.proxy(&api, ""));
    assert!(error.contains(&format!("cannot connect to {}", api.url)), "{error}");
    assert!(error.contains("invalid peer certificate"), "{error}");
    assert!(api.calls().is_empty());
}

#[test]
fn a_certificate_for_another_name_is_a_502_that_is_told() {
    let place = Place::new();
    let files = place.folder.write_server("other", &["other.test"]);
    let api = Api::tls(place.folder.server(&files, &[], None));
    let error = failure(place.proxy(&api, ""));
    assert!(error.contains("certificate not valid for name"), "{error}");
    assert!(error.contains("other.test"), "{error}");
}

#[test]
fn a_server_name_takes_the_place_of_the_host() {
    let place = Place::new();
    let files = place.folder.write_server("internal", &["api.internal"]);
    let api = Api::tls(place.folder.server(&files, &[], None));
    let proxy = place.proxy(&api, ", server_name = \"api.internal\"");
    assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
    assert_eq!(api.last().server_name.as_deref(), Some("api.internal"));
    assert_eq!(api.last().headers["host"], "api.test", "which is not the request's host");
}

#[test]
fn the_urls_host_is_asked_for_where_it_is_a_name() {
    let place = Place::new();
    let files = place.folder.write_server("localhost", &["localhost"]);
    let api = Api::tls(place.folder.server(&files, &[], None));
    let by_name = format!("tls = {{ ca = {:?} }}", place.folder.ca());
    let proxy = Proxy::of_one_worker(api.url_by("localhost")).upstream(&by_name).start();
    assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
    assert_eq!(api.last().server_name.as_deref(), Some("localhost"));
}

fn demanding(place: &Place, alpn: &[&[u8]]) -> Arc<ServerConfig> {
    place.folder.server(&place.files, alpn, Some(ClientAuth::Require))
}

#[test]
fn an_api_that_asks_for_a_certificate_is_shown_one() {
    let place = Place::new();
    let own = place.folder.write_client("own", "tidegate");
    for alpn in [H2, HTTP_1_1] {
        let api = Api::tls(demanding(&place, &[alpn]));
        let proxy = place.proxy(&api, &format!(", cert = {:?}, key = {:?}", own.cert, own.key));
        assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
        assert_eq!(api.last().cert.as_deref(), Some("CN=tidegate"));
    }
}

#[test]
fn an_api_that_gets_no_certificate_is_a_502_that_is_told() {
    // Over HTTP/2 hyper keeps to itself why a connection ended, and the log may say that alone.
    let place = Place::new();
    let api = Api::tls(demanding(&place, &[HTTP_1_1]));
    let error = failure(place.proxy(&api, ""));
    assert!(error.contains("CertificateRequired"), "{error}");
}

#[test]
fn an_api_that_speaks_no_tls_is_a_502_that_is_told() {
    let place = Place::new();
    let tls = format!("tls = {{ ca = {:?} }}", place.folder.ca());
    let plain = Upstream::raw(|mut stream| {
        let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let error = failure(
        Proxy::of_one_worker(plain.url().replace("http:", "https:")).upstream(&tls).start(),
    );
    assert!(error.contains("received corrupt message"), "{error}");
}

#[test]
fn an_api_that_prefers_http_2_gets_it_on_one_connection() {
    let place = Place::new();
    let api = place.api(&[H2, HTTP_1_1]);
    let proxy = place.proxy(&api, "");
    let mut clients = [0, 1, 2].map(|_| Connection::open(proxy.address));
    for _ in 0..3 {
        for client in &mut clients {
            assert_eq!(client.request("POST", "/hello", &[], b"hello").text(), "hello");
        }
    }
    let call = api.last();
    assert_eq!((call.version, api.connections()), (Version::HTTP_2, 1));
    assert_eq!(call.uri.to_string(), "https://api.test/hello");
    assert_eq!(call.headers["x-forwarded-proto"], "http");
    assert!(!call.headers.contains_key("host"));
}

#[test]
fn an_api_that_prefers_http_1_1_gets_it() {
    let place = Place::new();
    for alpn in [&[HTTP_1_1, H2][..], &[HTTP_1_1], &[]] {
        let api = place.api(alpn);
        let proxy = place.proxy(&api, "");
        assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
        assert_eq!(api.last().version, Version::HTTP_11, "{alpn:?}");
    }
}

const OFFER: &str = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n\
                     upgrade: websocket\r\n\r\n";

#[test]
fn an_upgrade_goes_by_http_1_1_whatever_the_api_prefers() {
    let place = Place::new();
    let api = place.api(&[H2, HTTP_1_1]);
    let proxy = place.proxy(&api, "");
    assert_eq!(get(proxy.address, "/before", &[]).status, 200);
    let mut client = Connection::open(proxy.address);
    client.send(OFFER);
    let reply = client.any_reply("GET");
    assert_eq!((reply.status, reply.header("upgrade").as_deref()), (101, Some("websocket")));
    client.send("hello");
    assert_eq!(client.exactly(5), b"hello");
    assert_eq!(get(proxy.address, "/after", &[]).status, 200);
    let versions: Vec<_> = api.calls().iter().map(|call| call.version).collect();
    assert_eq!(versions, [Version::HTTP_2, Version::HTTP_11, Version::HTTP_2]);
}

#[test]
fn an_offer_to_an_api_of_http_2_alone_is_served_as_it_is() {
    let place = Place::new();
    let api = place.api(&[H2]);
    let proxy = place.proxy(&api, "");
    let mut client = Connection::open(proxy.address);
    for _ in 0..3 {
        client.send(OFFER);
        let reply = client.reply("GET");
        assert_eq!((reply.status, reply.text().as_str()), (200, "/chat"));
    }
    assert!(api.calls().iter().all(|call| !call.headers.contains_key("upgrade")));
    assert_eq!(proxy.log.count("server down"), 0, "a client's wish is no fault of the server's");
}

#[test]
fn a_kept_connection_of_http_1_1_takes_an_upgrade() {
    let place = Place::new();
    let api = place.api(&[HTTP_1_1]);
    let proxy = place.proxy(&api, "");
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/before", &[]).status, 200);
    client.send(OFFER);
    assert_eq!(client.any_reply("GET").status, 101);
    assert_eq!(api.connections(), 1);
}
