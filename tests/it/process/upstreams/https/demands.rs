//! APIs that demand HTTP/1.1 of a request that came by HTTP/2.

use std::io::{BufReader, Read as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use h2::Reason;
use rustls::{ServerConnection, StreamOwned};

use super::*;
use crate::process::upstreams::h2c_breaks::{goodbye, next};
use crate::support::api::echo;
use crate::support::http2;
use crate::support::http2::frames::{DATA, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use crate::support::upstream::read_request;
use crate::support::wait_until;

const HTTP_1_1_REQUIRED: u32 = 13;

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
    for (method, body) in [("GET", &b""[..]), ("POST", b"hello"), ("POST", b"")] {
        let api = demanding_http_1_1(&place, &[H2, HTTP_1_1]);
        let proxy = place.trusting(&api, "").upstream("retries = 0").start();
        let mut client = Connection::open(proxy.address);
        let expected = if body.is_empty() { "/old" } else { "hello" };
        for _ in 0..3 {
            assert_eq!(client.request(method, "/old", &[], body).text(), expected, "{method}");
        }
        assert_eq!(client.get("/any", &[]).text(), "/any");
        assert_eq!(versions(&api), [NEW, OLD, OLD, OLD, OLD], "{method}");
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
    assert_eq!(versions(&api), [NEW, OLD, NEW, OLD, NEW], "{:?}", api.calls());
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
    for (proxy, advice) in [
        (place.trusting(&alone, ""), "(HTTP_1_1_REQUIRED)"),
        (Proxy::of_one_worker(&h2c), "http://"),
    ] {
        let proxy = proxy.start();
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
    let health = "health = { path = \"/old/health\", interval = \"50ms\", unhealthy_after = 1 }";
    let proxy = place.trusting(&api, "").upstream(health).start();
    wait_until("checks have come by HTTP/1.1", || {
        versions(&api).iter().filter(|version| **version == OLD).count() > 2
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
            let proxy = place.trusting(api.url().replace("http:", "https:"), "").start();
            for _ in 0..3 {
                let reply = Connection::open(proxy.address).request(method, "/", &[], body);
                assert_eq!((reply.status, &*reply.body), (200, body), "{method} {seen}");
            }
            assert_eq!(heads.load(Ordering::SeqCst), 1, "{method} {seen}");
        }
    }
}
