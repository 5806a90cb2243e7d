//! What passes through, and what changes on its way.

mod bodies;
mod pieces_and_spellings;

use std::sync::{Arc, Barrier};

use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok};

/// A proxy with one API behind it that answers with the request's path.
fn pair() -> (Upstream, Tidegate) {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    (api, proxy)
}

#[test]
fn connections_are_kept_on_both_sides() {
    let (api, proxy) = pair();
    let mut client = Connection::open(proxy.address);
    for n in 0..20 {
        assert_eq!(client.get(&format!("/{n}"), &[]).text(), format!("/{n}"));
    }
    for n in 20..25 {
        assert_eq!(get(proxy.address, &format!("/{n}"), &[]).text(), format!("/{n}"));
    }
    let earlier: Vec<_> = api.requests().iter().map(|got| got.earlier).collect();
    assert_eq!(earlier, (0..25).collect::<Vec<_>>(), "all on one connection");
}

#[test]
fn the_connection_used_last_is_used_next() {
    let both = Arc::new(Barrier::new(2));
    let api = Upstream::answering(move |got| {
        if got.path() == "/together" {
            both.wait();
        }
        ok("")
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut clients = [0, 1].map(|_| Connection::open(proxy.address));
    for client in &mut clients {
        client.send("GET /together HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.reply("GET").status, 200);
    }
    for _ in 0..5 {
        assert_eq!(clients[0].get("/alone", &[]).status, 200);
    }
    let earlier: Vec<_> = api.requests().iter().map(|got| got.earlier).collect();
    assert_eq!(earlier, [0, 0, 1, 2, 3, 4, 5]);
}

#[test]
fn http_1_0_is_served_with_and_without_keep_alive() {
    let (api, proxy) = pair();
    let mut client = Connection::open(proxy.address);
    client.send("GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
    let reply = client.reply("GET");
    assert_eq!((reply.status, reply.text().as_str()), (200, "/a"));
    assert_eq!(reply.header("connection").as_deref(), Some("keep-alive"));
    let own = api.url();
    assert_eq!(api.last().header("host").as_deref(), own.strip_prefix("http://"));
    client.send("GET /b HTTP/1.0\r\nhost: a\r\n\r\n");
    assert_eq!(client.reply("GET").text(), "/b");
    assert!(client.is_closed());
    assert_eq!(api.last().line, "GET /b HTTP/1.1");
    assert_eq!(api.last().header("host").as_deref(), Some("a"));
}

#[test]
fn what_concerns_one_connection_stays_there() {
    let api = Upstream::saying(&[
        "HTTP/1.1 200 OK\r\nconnection: x-inner, keep-alive\r\nx-inner: 1\r\nkeep-alive: timeout=5\r\n\
         proxy-authenticate: Basic\r\nupgrade: h2c\r\nx-kept: 1\r\ncontent-length: 0\r\n\r\n",
    ]);
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    let reply = client.get(
        "/",
        &[
            ("connection", "X-One, close-not, TE"),
            ("Connection", "x-two, host, content-length"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("close-not", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eA=="),
            ("te", "deflate"),
            ("upgrade", "websocket"),
            ("x-kept", "1"),
        ],
    );
    let mut names: Vec<_> = api.last().headers.into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(
        names,
        ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-kept"]
    );
    let mut names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "date", "x-kept"]);
}

#[test]
fn strangers_are_not_believed_about_who_they_are() {
    let (api, proxy) = pair();
    let forged = [
        ("host", "Api.Test:8080"),
        ("x-forwarded-for", "1.2.3.4"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.test"),
        ("x-forwarded-port", "443"),
        ("x_forwarded_for", "1.2.3.4"),
        ("X-Forwarded_Anything", "1"),
        ("forwarded", "for=1.2.3.4"),
    ];
    get(proxy.address, "/", &forged);
    let got = api.last();
    let mut headers = got.headers;
    headers.sort();
    let expected = [
        ("host", "Api.Test:8080"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "Api.Test:8080"),
        ("x-forwarded-proto", "http"),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn the_clients_host_goes_upstream_unless_a_route_says() {
    let api = Upstream::echoing();
    let proxy = Proxy::to(&api)
        .route("path = \"/\"")
        .route("path = \"/set\"\nrequest_headers = { set = { host = \"internal.test\" } }")
        .start();
    for (path, host) in [("/", "api.test"), ("/set", "internal.test")] {
        get(proxy.address, path, &[("host", "api.test")]);
        let got = api.last();
        assert_eq!(got.header("host").as_deref(), Some(host), "{path}");
        assert_eq!(got.header("x-forwarded-host").as_deref(), Some("api.test"), "{path}");
    }
}

#[test]
fn trusted_proxies_are_believed() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .server("trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]")
        .start();
    let said = [
        ("x-forwarded-for", "6.6.6.6, 1.2.3.4, 10.0.0.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop.test"),
    ];
    get(proxy.address, "/", &said);
    let got = api.last();
    assert_eq!(got.header("x-forwarded-for").as_deref(), Some("1.2.3.4, 10.0.0.7, 127.0.0.1"));
    assert_eq!(got.header("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(got.header("x-forwarded-host").as_deref(), Some("shop.test"));
}

#[test]
fn the_host_of_an_absolute_target_counts() {
    let (api, proxy) = pair();
    let mut client = Connection::open(proxy.address);
    client.send("GET http://Other.test:81/a?b HTTP/1.1\r\nhost: api.test\r\n\r\n");
    assert_eq!(client.reply("GET").status, 200);
    assert_eq!(api.last().line, "GET /a?b HTTP/1.1");
    assert_eq!(api.last().header("host").as_deref(), Some("Other.test:81"));
    client.send("GET http://other.test HTTP/1.1\r\nhost: api.test\r\n\r\n");
    assert_eq!(client.reply("GET").status, 200);
    assert_eq!(api.last().line, "GET / HTTP/1.1");
}

#[test]
fn methods_that_concern_the_proxy_itself_are_refused() {
    let (api, proxy) = pair();
    let mut client = Connection::open(proxy.address);
    client.send("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n");
    let reply = client.reply("TRACE");
    assert_eq!(reply.status, 405);
    assert_eq!(reply.json()["status"], 405);
    assert_eq!(
        reply.header("allow").as_deref(),
        Some("DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
    );
    client.send("CONNECT a.test:443 HTTP/1.1\r\nhost: a.test:443\r\n\r\n");
    assert_eq!(client.reply("CONNECT").status, 405);
    assert!(api.requests().is_empty());
}

#[test]
fn a_target_without_a_path_is_refused_and_ends_the_connection() {
    let (api, proxy) = pair();
    for (method, target) in [("OPTIONS", "*"), ("GET", "*"), ("POST", "*"), ("GET", "a")] {
        let mut client = Connection::open(proxy.address);
        let reply = client.request(method, target, &[], b"");
        assert_eq!(reply.status, 400, "{method} {target}");
        assert_eq!(reply.header("connection").as_deref(), Some("close"), "{method} {target}");
        assert!(client.is_closed(), "{method} {target}");
    }
    assert!(api.requests().is_empty());
}

#[test]
fn provisional_responses_stay_with_the_proxy() {
    let api = Upstream::saying(&[
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n\
         HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    ]);
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let reply = client.any_reply("GET");
    assert_eq!((reply.status, reply.text().as_str()), (200, "hi"));
    assert_eq!(reply.header("link"), None);
}

#[test]
fn the_path_reaches_the_api_in_its_normal_form() {
    let (api, proxy) = pair();
    let mut client = Connection::open(proxy.address);
    for (asked, sent) in [
        ("/a/b?c=d%20e&f", "/a/b?c=d%20e&f"),
        ("/%61/./b/../c", "/a/c"),
        ("/a//b", "/a/b"),
        ("/a%c3%a9", "/a%C3%A9"),
        ("/a?", "/a?"),
        ("/?q=/../x", "/?q=/../x"),
    ] {
        assert_eq!(client.get(asked, &[]).status, 200, "{asked}");
        assert_eq!(api.last().path(), sent, "{asked}");
    }
}

#[test]
fn an_unusual_response_keeps_its_words() {
    let api = Upstream::saying(&[
        "HTTP/1.1 299 Somehow Fine\r\nset-cookie: a=1\r\nset-cookie: b=2\r\nx-bytes: \u{e9}\r\n\
         content-length: 0\r\n\r\n",
    ]);
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = String::from_utf8_lossy(&client.until(b"\r\n\r\n")).into_owned();
    for line in ["HTTP/1.1 299 Somehow Fine", "set-cookie: a=1", "set-cookie: b=2", "x-bytes: é"] {
        assert!(head.contains(line), "{line} in {head}");
    }
}
