//! APIs behind TLS.

mod demands;
mod protocols;

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
use crate::support::wait_until;

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

    /// The same with a certificate for this name alone.
    fn named(&self, name: &str) -> Api {
        let files = self.folder.write_server("named", &[name]);
        Api::tls(self.folder.server(&files, &[], None))
    }

    /// How an API is served that asks for a certificate.
    fn demanding(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        self.folder.server(&self.files, alpn, Some(ClientAuth::Require))
    }

    /// A proxy that trusts the folder's authority. `tls` are further fields of that.
    fn trusting(&self, server: impl Into<String>, tls: &str) -> Proxy {
        let ca = self.folder.ca();
        Proxy::of_one_worker(server).upstream(&format!("tls = {{ ca = {ca:?}{tls} }}"))
    }

    fn proxy(&self, api: &Api, tls: &str) -> Tidegate {
        self.trusting(api, tls).start()
    }
}

const OLD: Version = Version::HTTP_11;
const NEW: Version = Version::HTTP_2;

/// The protocols that the requests came by.
fn versions(api: &Api) -> Vec<Version> {
    api.calls().iter().map(|call| call.version).collect()
}

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

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
fn an_api_that_cannot_be_spoken_with_is_a_502_that_is_told() {
    let (place, other) = (Place::new(), Folder::new());
    let strange = other.write_server("api", &["127.0.0.1"]);
    let strange = Api::tls(other.server(&strange, &[], None));
    let misnamed = place.named("other.test");
    // Over HTTP/2 hyper keeps to itself why a connection ended, and the log may say that alone.
    let demanding = Api::tls(place.demanding(&[HTTP_1_1]));
    let plain = Upstream::raw(|mut stream| {
        let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let cannot_connect = format!("cannot connect to {}", strange.url);
    for (case, url, parts) in [
        ("another authority", &strange.url, [&*cannot_connect, "invalid peer certificate"]),
        ("another name", &misnamed.url, ["certificate not valid for name", "other.test"]),
        ("no certificate of ours", &demanding.url, ["CertificateRequired", ""]),
        (
            "no TLS",
            &plain.url().replace("http:", "https:"),
            ["received corrupt message", "it answered in clear text"],
        ),
    ] {
        let mut proxy = place.trusting(url, "").start();
        let reply = get(proxy.address, "/", &[]);
        assert_eq!((reply.status, reply.json()["status"].as_u64()), (502, Some(502)), "{case}");
        proxy.stop();
        let line = proxy.log.find("upstream failed").unwrap();
        let error = line["error"].as_str().unwrap();
        assert!(parts.iter().all(|part| error.contains(part)), "{case}: {error}");
    }
    assert!(strange.calls().is_empty());
}

#[test]
fn a_server_name_takes_the_place_of_the_host() {
    let place = Place::new();
    let api = place.named("api.internal");
    let proxy = place.proxy(&api, ", server_name = \"api.internal\"");
    assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
    assert_eq!(api.last().server_name.as_deref(), Some("api.internal"));
    assert_eq!(api.last().headers["host"], "api.test", "which is not the request's host");
}

/// A regression: a health check asked for the server's address, even beside `server_name`. A server with several hosts
/// at this address did not know it, and was down for ever.
#[test]
fn a_health_check_asks_for_the_host_that_the_file_names() {
    let place = Place::new();
    let named = ", server_name = \"api.test\"";
    for protocol in [HTTP_1_1, H2] {
        let api = place.api(&[protocol]);
        let address = api.url.trim_start_matches("https://").to_owned();
        for (tls, health, host) in [
            ("", "", &*address),
            (named, "", "api.test"),
            (named, ", host = \"other.test:8443\"", "other.test:8443"),
            ("", ", host = \"other.test\"", "other.test"),
        ] {
            let path = format!("/{}", fastrand::u64(..));
            let health = format!("health = {{ path = {path:?}{health} }}");
            let proxy = place.trusting(&api, tls).upstream(&health).start();
            let asked = |path: &str| {
                let call = api.calls().into_iter().rfind(|call| call.uri.path() == path)?;
                let of_http2 = call.uri.authority().map(ToString::to_string);
                of_http2.or_else(|| Some(call.headers["host"].to_str().unwrap().to_owned()))
            };
            wait_until("a check comes", || asked(&path).is_some());
            assert_eq!(asked(&path).unwrap(), host, "{tls} {health}");
            let mut client = Connection::open(proxy.address);
            client.send("GET /old HTTP/1.0\r\n\r\n");
            assert_eq!(client.reply("GET").status, 200);
            let host = if tls.is_empty() { &*address } else { "api.test" };
            assert_eq!(asked("/old").unwrap(), host, "of a client that names none");
        }
    }
}

#[test]
fn the_urls_host_is_asked_for_where_it_is_a_name() {
    let place = Place::new();
    let api = place.named("localhost");
    let proxy = place.trusting(api.url_by("localhost"), "").start();
    assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
    assert_eq!(api.last().server_name.as_deref(), Some("localhost"));
}

#[test]
fn an_api_that_asks_for_a_certificate_is_shown_one() {
    let place = Place::new();
    let own = place.folder.write_client("own", "tidegate");
    for alpn in [H2, HTTP_1_1] {
        let api = Api::tls(place.demanding(&[alpn]));
        let proxy = place.proxy(&api, &format!(", cert = {:?}, key = {:?}", own.cert, own.key));
        assert_eq!(get(proxy.address, "/hello", &[]).text(), "/hello");
        assert_eq!(api.last().cert.as_deref(), Some("CN=tidegate"));
    }
}
