//! What clients say about themselves, and what their limits and their API made of it.

use super::limited;
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

/// A client named its key in `connection`: it was counted by a new key each time, and the API got
/// requests without any.
#[test]
fn nobody_is_counted_by_a_field_its_api_never_sees() {
    let api = Upstream::echoing();
    for (limit, header) in
        [("key = [\"header:x-api-key\"]", "x-api-key"), ("key = [\"cookie:session\"]", "cookie")]
    {
        let proxy = limited(&api, limit).start();
        let statuses: Vec<_> = (0..3)
            .map(|n| {
                let (key, connection) = (format!("session={n}"), format!("keep-alive, {header}"));
                get(proxy.address, "/", &[(header, &key), ("connection", &connection)]).status
            })
            .collect();
        assert_eq!(statuses, [200, 200, 429], "{header}");
        assert_eq!(api.last().header(header), None);
    }
}

/// A limit by the header of a trusted proxy counted what strangers wrote there, though the API was sent something else.
#[test]
fn a_stranger_is_not_counted_by_who_it_says_it_is() {
    let api = Upstream::echoing();
    let server = "client_ip_header = \"x-real-ip\"";
    let proxy = limited(&api, "key = [\"header:x-real-ip\"]").server(server).start();
    let statuses: Vec<_> = (0..3)
        .map(|n| get(proxy.address, "/", &[("x-real-ip", &format!("203.0.113.{n}"))]).status)
        .collect();
    assert_eq!(statuses, [200, 200, 429]);
}

/// Servers that read an underscore as a dash believed a stranger's `x_real_ip`.
#[test]
fn a_stranger_does_not_name_its_address_with_an_underscore() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "").server("client_ip_header = \"x-real-ip\"").start();
    get(proxy.address, "/", &[("x_real_ip", "203.0.113.7")]);
    assert_eq!(api.last().header("x_real_ip"), None);
}

/// A limit by `header:host` counted a host beside the target's, which the API never saw.
#[test]
fn a_host_beside_an_absolute_target_counts_for_nothing() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "key = [\"header:host\"]").start();
    let statuses: Vec<_> = (0..3)
        .map(|n| get(proxy.address, "http://api.test/", &[("host", &format!("h{n}.test"))]).status)
        .collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(api.last().header("host").as_deref(), Some("api.test"));
}

/// A client took out what a trusted proxy in front of it had said.
#[test]
fn a_client_does_not_take_out_its_proxys_word() {
    let api = Upstream::echoing();
    let proxy =
        limited(&api, "key = [\"ip\"]").server("trusted_proxies = [\"127.0.0.0/8\"]").start();
    let headers = [
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-proto", "https"),
        ("connection", "x-forwarded-for, x-forwarded-proto"),
    ];
    assert_eq!(get(proxy.address, "/", &headers).status, 200);
    let got = api.last();
    assert_eq!(got.header("x-forwarded-proto").as_deref(), Some("https"));
    assert_eq!(got.header("x-forwarded-for").as_deref(), Some("203.0.113.7, 127.0.0.1"));
    let server = "trusted_proxies = [\"127.0.0.0/8\"]\nclient_ip_header = \"cf-connecting-ip\"";
    let proxy = limited(&api, "key = [\"ip\"]").server(server).start();
    let own = ("cf-connecting-ip", "203.0.113.7");
    let statuses: Vec<_> =
        (0..3).map(|_| get(proxy.address, "/", &[own, ("connection", own.0)]).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(api.last().header(own.0).as_deref(), Some(own.1));
}

/// A client named the header of the request ID in `connection`: the API got requests without an ID, and its log
/// could not be compared with tidegate's.
#[test]
fn a_client_does_not_take_out_the_request_id() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "").server("request_id = \"x-request-id\"").start();
    for connection in ["x-request-id", "keep-alive, X-Request-Id"] {
        let reply = get(proxy.address, "/", &[("connection", connection)]);
        assert!(reply.header("x-request-id").is_some());
        assert_eq!(api.last().header("x-request-id"), reply.header("x-request-id"));
    }
}

/// A byte beyond ASCII in the list hid the offer of h2c beside it, and a server that took the offer
/// was no longer limited.
#[test]
fn an_offer_of_h2c_does_not_hide_behind_a_strange_byte() {
    let api = Upstream::echoing();
    let proxy = limited(&api, "").start();
    let mut connection = Connection::open(proxy.address);
    connection
        .send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c, \xe9\r\n\r\n");
    assert_eq!(connection.reply("GET").status, 200);
    assert_eq!(api.last().header("upgrade"), None);
}

/// A stranger announced `x-forwarded-for` as a trailer: it went to the API behind the body.
#[test]
fn a_stranger_does_not_say_who_it_is_behind_its_body() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).server("client_ip_header = \"x-real-ip\"").start();
    let trailers = ["x-forwarded-for", "forwarded", "x_real_ip", "connection", "upgrade", "x-sum"];
    let lines: String = trailers.iter().map(|name| format!("{name}: 203.0.113.7\r\n")).collect();
    let mut client = Connection::open(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntrailer: {}\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\n{lines}\r\n",
        trailers.join(", ")
    ));
    assert_eq!(client.reply("POST").status, 200);
    let got = api.last();
    assert_eq!(got.trailers, [("x-sum".to_owned(), "203.0.113.7".to_owned())]);
    assert_eq!(got.header("trailer").as_deref(), Some("x-sum"));
}

/// What is compressed cannot be read, so a client that offered to take it paid the estimate alone.
#[test]
fn a_client_does_not_pay_less_by_taking_json_compressed() {
    let api = Upstream::answering(|got| {
        let (coding, body) = match got.header("accept-encoding") {
            Some(coding) => (format!("content-encoding: {coding}\r\n"), "compressed"),
            None => (String::new(), "{\"usage\":2}"),
        };
        let length = body.len();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{coding}content-length: {length}\r\n\r\n\
             {body}"
        )
        .into_bytes()
    });
    let cost = "cost = { response_json = \"usage\", estimate = 1 }";
    for (route, statuses) in [
        ("", [200, 429]),
        ("request_headers = { set = { accept-encoding = \"gzip\" } }", [200, 200]),
    ] {
        let proxy = limited(&api, cost)
            .route(&format!("path = \"/p\"\nlimits = [\"two\"]\n{route}"))
            .start();
        let mut client = Connection::open(proxy.address);
        let said = statuses.map(|_| client.get("/p", &[("accept-encoding", "gzip")]).status);
        assert_eq!(said, statuses, "{route}");
    }
}
