//! APIs behind TLS.

use std::io::{BufReader, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::Reason;
use http::Version;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tidegate::tls::server::ClientAuth;
use tidegate::tls::{H2, HTTP_1_1, IdentityFiles};

use super::h2c_breaks::{goodbye, next};
use crate::support::api::{Api, echo};
use crate::support::client::{Connection, get};
use crate::support::http2;
use crate::support::http2::frames::{DATA, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::tls::Folder;
use crate::support::upstream::{Upstream, read_request};
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

const HTTP_1_1_REQUIRED: u32 = 13;

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

/// The protocols that the requests came by.
fn versions(api: &Api) -> Vec<Version> {
    api.calls().iter().map(|call| call.version).collect()
}

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

/// nginx's issue 1716: the declined upgrade's connection was used for all requests, and gRPC failed.
#[test]
fn a_declined_upgrade_leaves_no_http_1_1_to_others() {
    let place = Place::new();
    let api = place.api(&[H2, HTTP_1_1]);
    let proxy = place.proxy(&api, "");
    let offer = OFFER.replace("/chat", "/declined");
    let mut client = Connection::open(proxy.address);
    let mut caller = http2::Client::open(proxy.address);
    for _ in 0..2 {
        client.send(&offer);
        assert_eq!(client.reply("GET").text(), "/declined");
        assert_eq!(caller.post("/call", &GRPC, b"hello").text(), "hello");
        assert_eq!(client.get("/ordinary", &[]).text(), "/ordinary");
        assert_eq!(client.get("/te", &[("te", "trailers"), ("connection", "te")]).text(), "/te");
    }
    let (old, new) = (Version::HTTP_11, Version::HTTP_2);
    assert_eq!(versions(&api), [old, new, new, new, old, new, new, new]);
    assert_eq!(api.connections(), 2, "the second offer goes on the connection of the first");
}

#[test]
fn grpc_goes_by_http_2_to_an_api_that_prefers_http_1_1() {
    let place = Place::new();
    let api = place.api(&[HTTP_1_1, H2]);
    let proxy = place.proxy(&api, "");
    let mut caller = http2::Client::open(proxy.address);
    for _ in 0..2 {
        assert_eq!(caller.get("/before", &[]).text(), "/before");
        assert_eq!(caller.post("/call", &GRPC, b"hello").text(), "hello");
        assert_eq!(caller.get("/after", &[]).text(), "/after");
    }
    let (old, new) = (Version::HTTP_11, Version::HTTP_2);
    assert_eq!(versions(&api), [old, new, old, old, new, old]);
}

#[test]
fn grpc_goes_by_http_1_1_where_that_is_all() {
    let place = Place::new();
    for alpn in [&[HTTP_1_1][..], &[]] {
        let api = place.api(alpn);
        let proxy = place.proxy(&api, "");
        let mut caller = http2::Client::open(proxy.address);
        for _ in 0..3 {
            assert_eq!(caller.post("/call", &GRPC, b"hello").text(), "hello");
            assert_eq!(caller.get("/ordinary", &[]).text(), "/ordinary");
        }
        assert!(versions(&api).iter().all(|version| *version == Version::HTTP_11));
        assert_eq!(proxy.log.count("server down"), 0, "{alpn:?}");
        let used = api.calls().iter().map(|call| call.connection).max();
        assert!(used <= Some(1), "connections are used again: {used:?}");
    }
}

/// An API that reads whole requests, and demands HTTP/1.1 for paths that begin with `/old`.
fn demanding_http_1_1(place: &Place, alpn: &[&[u8]]) -> Api {
    let config = place.folder.server(&place.files, alpn, None);
    Api::answering_tls(config, async |request, mut respond| {
        if !request.uri().path().starts_with("/old") {
            return echo(request, respond).await;
        }
        // A body that has not come by then cannot be sent again.
        let mut body = request.into_body();
        while body.data().await.is_some() {}
        respond.send_reset(Reason::HTTP_1_1_REQUIRED);
    })
}

#[test]
fn a_demand_for_http_1_1_is_met_and_remembered() {
    let place = Place::new();
    let (old, new) = (Version::HTTP_11, Version::HTTP_2);
    for (method, body) in [("GET", &b""[..]), ("POST", b"hello"), ("POST", b"")] {
        let api = demanding_http_1_1(&place, &[H2, HTTP_1_1]);
        let ca = place.folder.ca();
        let lines = format!("retries = 0\ntls = {{ ca = {ca:?} }}");
        let proxy = Proxy::of_one_worker(&api).upstream(&lines).start();
        let mut client = Connection::open(proxy.address);
        let expected = if body.is_empty() { "/old" } else { "hello" };
        for _ in 0..3 {
            assert_eq!(client.request(method, "/old", &[], body).text(), expected, "{method}");
        }
        assert_eq!(client.get("/any", &[]).text(), "/any");
        assert_eq!(versions(&api), [new, old, old, old, old], "{method}");
        assert_eq!(proxy.log.count("upstream failed"), 0);
    }
}

#[test]
fn a_demand_for_http_1_1_does_not_concern_grpc() {
    let place = Place::new();
    let api = demanding_http_1_1(&place, &[H2, HTTP_1_1]);
    let proxy = place.proxy(&api, "");
    let mut caller = http2::Client::open(proxy.address);
    for path in ["/old", "/old/call", "/call"] {
        let headers = if path == "/old" { &[][..] } else { &GRPC };
        assert_eq!(caller.post(path, headers, b"hello").text(), "hello", "{path}");
    }
    let (old, new) = (Version::HTTP_11, Version::HTTP_2);
    assert_eq!(versions(&api), [new, old, new, old, new], "{:?}", api.calls());
}

#[test]
fn a_long_body_meets_a_demand_for_http_1_1_once() {
    let place = Place::new();
    let api = demanding_http_1_1(&place, &[H2, HTTP_1_1]);
    let proxy = place.proxy(&api, "");
    let statuses = [502, 200, 200].map(|expected| {
        // Longer than what is kept for a second try.
        let reply = Connection::open(proxy.address).request("POST", "/old", &[], &[b'x'; 100_000]);
        (reply.status, expected)
    });
    assert!(statuses.iter().all(|(status, expected)| status == expected), "{statuses:?}");
}

#[test]
fn a_demand_for_http_1_1_that_cannot_be_met_is_a_502_that_says_so() {
    let place = Place::new();
    let alone = demanding_http_1_1(&place, &[H2]);
    let h2c = Api::answering_h2c(async |_, mut respond: h2::server::SendResponse<_>| {
        respond.send_reset(Reason::HTTP_1_1_REQUIRED);
    });
    for (api, advice) in [(&alone, "(HTTP_1_1_REQUIRED)"), (&h2c, "http://")] {
        let tls = format!("tls = {{ ca = {:?} }}", place.folder.ca());
        let tls = if advice == "http://" { "" } else { &tls };
        let proxy = Proxy::of_one_worker(api).upstream(tls).start();
        for _ in 0..4 {
            assert_eq!(get(proxy.address, "/old", &[]).status, 502);
        }
        let line = proxy.log.wait("upstream failed", |_| true);
        let error = line["error"].as_str().unwrap();
        assert!(error.contains("demands HTTP/1.1") && error.ends_with(advice), "{error}");
        assert_eq!(proxy.log.count("server down"), 0);
    }
    // Of HTTP/2 alone: what it serves by that is still served, on one connection.
    let proxy = place.proxy(&alone, "");
    let before = alone.connections();
    assert_eq!(get(proxy.address, "/old", &[]).status, 502);
    for _ in 0..5 {
        assert_eq!(get(proxy.address, "/new", &[]).status, 200);
    }
    assert!(alone.connections() <= before + 3, "{}", alone.connections() - before);
}

#[test]
fn a_health_check_meets_a_demand_for_http_1_1() {
    let place = Place::new();
    let api = demanding_http_1_1(&place, &[H2, HTTP_1_1]);
    let ca = place.folder.ca();
    let health = "health = { path = \"/old/health\", interval = \"50ms\", unhealthy_after = 1 }";
    let lines = format!("{health}\ntls = {{ ca = {ca:?} }}");
    let proxy = Proxy::of_one_worker(&api).upstream(&lines).start();
    wait_until("checks have come by HTTP/1.1", || {
        versions(&api).iter().filter(|version| **version == Version::HTTP_11).count() > 2
    });
    assert_eq!(proxy.log.count("server down"), 0);
}

/// An API that says goodbye to its first request over HTTP/2, and demands HTTP/1.1. Whether its GOAWAY counts
/// that request as seen is another matter: it ends the connection.
#[test]
fn a_goodbye_can_demand_http_1_1() {
    let place = Place::new();
    for seen in [0, 1] {
        for (method, body) in [("GET", &b""[..]), ("POST", b"hello")] {
            let config = place.folder.server(&place.files, &[H2, HTTP_1_1], None);
            let heads = Arc::<AtomicUsize>::default();
            let count = heads.clone();
            let api = Upstream::raw(move |stream| {
                let session = ServerConnection::new(config.clone()).unwrap();
                let mut stream = StreamOwned::new(session, stream);
                let _ = stream.conn.complete_io(&mut stream.sock);
                if stream.conn.alpn_protocol() != Some(H2) {
                    let got = read_request(&mut BufReader::new(&mut stream));
                    let Some(got) = got else { return };
                    // A POST on a connection that is being closed could not be sent again.
                    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n";
                    let length = format!("content-length: {}\r\n\r\n", got.body.len());
                    let answer = [head.as_bytes(), length.as_bytes(), &got.body].concat();
                    let _ = stream.write_all(&answer);
                    return;
                }
                let _ = stream.write_all(&frame(SETTINGS, 0, 0, &[]));
                let _ = stream.read_exact(&mut [0; PREFACE.len()]);
                while let Some(came) = next(&mut stream) {
                    let is_whole = came.flags & END_STREAM != 0;
                    if matches!(came.kind, HEADERS | DATA) && is_whole {
                        count.fetch_add(1, Ordering::SeqCst);
                        let _ = stream.write_all(&goodbye(seen, HTTP_1_1_REQUIRED));
                        stream.conn.send_close_notify();
                        let _ = stream.flush();
                        // A reset could destroy what was said.
                        let _ = std::io::copy(&mut stream.sock, &mut std::io::sink());
                        return;
                    }
                }
            });
            let tls = format!("tls = {{ ca = {:?} }}", place.folder.ca());
            let url = api.url().replace("http:", "https:");
            let proxy = Proxy::of_one_worker(url).upstream(&tls).start();
            for _ in 0..3 {
                let reply = Connection::open(proxy.address).request(method, "/", &[], body);
                assert_eq!((reply.status, &*reply.body), (200, body), "{method} {seen}");
            }
            assert_eq!(heads.load(Ordering::SeqCst), 1, "{method} {seen}");
        }
    }
}
