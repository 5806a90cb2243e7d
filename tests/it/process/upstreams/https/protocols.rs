//! Which protocol a request goes by.

use super::*;
use crate::support::http2;

const OFFER: &str = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n\
                     upgrade: websocket\r\n\r\n";

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
    assert_eq!((call.version, api.connections()), (NEW, 1));
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
        assert_eq!(api.last().version, OLD, "{alpn:?}");
    }
}

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
    assert_eq!(versions(&api), [NEW, OLD, NEW]);
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
    assert_eq!(versions(&api), [OLD, NEW, NEW, NEW, OLD, NEW, NEW, NEW]);
    assert_eq!(api.connections(), 2, "the second offer goes on the connection of the first");
}

#[test]
fn grpc_goes_by_http_1_1_where_the_api_chooses_that() {
    let place = Place::new();
    for alpn in [&[HTTP_1_1, H2][..], &[HTTP_1_1], &[]] {
        let api = place.api(alpn);
        let proxy = place.proxy(&api, "");
        let mut caller = http2::Client::open(proxy.address);
        for _ in 0..3 {
            assert_eq!(caller.post("/call", &GRPC, b"hello").text(), "hello");
            assert_eq!(caller.get("/ordinary", &[]).text(), "/ordinary");
        }
        assert!(versions(&api).iter().all(|version| *version == OLD));
        assert_eq!(proxy.log.count("server down"), 0, "{alpn:?}");
        let used = api.calls().iter().map(|call| call.connection).max();
        assert!(used <= Some(1), "connections are used again: {used:?}");
    }
}
