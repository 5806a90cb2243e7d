//! Ways of writing one thing that some readers take for another: what nobody could tell apart goes no
//! further, and what is counted is what the API may read.

use crate::support::client::{Connection, get};
use crate::support::http2;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// A limit for `POST` on a path, beside a route for everything.
fn logins(api: &Upstream) -> Tidegate {
    Proxy::to(api)
        .limit("one", "rate = \"1/h\"")
        .route("path = \"/{*rest}\"")
        .route("path = \"/login\"\nmethods = [\"POST\"]\nlimits = [\"one\"]")
        .start()
}

/// `post` took the route for everything past the limit, and was `POST` to an API whose framework puts
/// methods in upper case; `trace` was passed on.
#[test]
fn a_method_in_lower_case_is_no_way_round_a_route() {
    let api = Upstream::echoing();
    let proxy = logins(&api);
    let mut client = Connection::open(proxy.address);
    for (method, status) in [
        ("POST", 200),
        ("POST", 429),
        ("post", 400),
        ("PoST", 400),
        ("trace", 400),
        ("connect", 400),
        ("GET", 200),
    ] {
        let reply = client.request(method, "/login", &[], b"");
        assert_eq!(reply.status, status, "{method}");
    }
    let lines: Vec<_> = api.requests().into_iter().map(|got| got.line).collect();
    assert_eq!(lines, ["POST /login HTTP/1.1", "GET /login HTTP/1.1"]);
}

/// What had been called so before it was `h2c` was offered to the API.
#[test]
fn http_2_is_offered_under_none_of_its_names() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for protocol in ["h2c", "H2C", "h2c-14", "HTTP/2.0", "http/2", "websocket, h2c-16", "h2c;q=1"] {
        let reply = Connection::open(proxy.address)
            .get("/", &[("connection", "upgrade"), ("upgrade", protocol)]);
        assert_eq!(reply.status, 200, "{protocol}");
        let got = api.last();
        assert_eq!((got.header("upgrade"), got.header("connection")), (None, None), "{protocol}");
    }
}

/// A regression: servers that merge trailers with the head read a key there that no limit had seen.
#[test]
fn what_a_limit_or_a_route_reads_does_not_come_behind_a_body() {
    let api = Upstream::echoing();
    let limit = "key = [\"header:x-api-key\"]\nrate = \"1000000/s\"\n\
                 cost = { header = \"x-cost\", max = 9 }\nexempt = { header = { x-internal = \"a\" } }";
    let proxy = Proxy::of_one_worker(&api)
        .limits(&format!("[limits.a]\n{limit}"))
        .route("path = \"/{*rest}\"\nheaders = { x-plan = \"free\" }\nlimits = [\"a\"]")
        .route("path = \"/{*rest}\"\nname = \"other\"\nlimits = [\"a\"]")
        .start();
    let names = ["cookie", "x-api-key", "X-Api_Key", "x-cost", "x-internal", "x-plan", "x-sum"];
    let lines: String = names.iter().map(|name| format!("{name}: 1\r\n")).collect();
    let mut client = Connection::open(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntrailer: {}\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{lines}\r\n",
        names.join(", ")
    ));
    assert_eq!(client.reply("POST").status, 200);
    assert_eq!(api.last().trailers, [("x-sum".to_owned(), "1".to_owned())]);
}

/// A stranger behind a trusted proxy wrote `x_forwarded_for`: the proxy passed it on, and an API that knows
/// no difference between a dash and an underscore read it as what the proxy had said.
#[test]
fn a_trusted_proxy_is_not_believed_what_it_has_not_said() {
    let api = Upstream::echoing();
    for (header, own, twin) in [
        ("x-forwarded-for", "x-forwarded-for", "x_forwarded_for"),
        ("x-forwarded-for", "x-forwarded-for", "x-forwarded_for"),
        ("x-real-ip", "x-real-ip", "x_real_ip"),
    ] {
        let server = format!("trusted_proxies = [\"127.0.0.1\"]\nclient_ip_header = \"{header}\"");
        let proxy = Proxy::of_one_worker(&api).server(&server).start();
        let fields = [(own, "203.0.113.7"), (twin, "198.51.100.9")];
        assert_eq!(Connection::open(proxy.address).get("/", &fields).status, 200);
        let got = api.last();
        assert!(got.header(own).is_some_and(|said| said.contains("203.0.113.7")), "{twin}");
        assert_eq!(got.header(twin), None, "{twin}");
    }
}

/// Who paid one by `x-cost` told the API another one by `x_cost`.
#[test]
fn a_cost_that_only_some_read_is_refused() {
    let limit = "rate = \"10/h\"\ncost = { header = \"x-cost\" }";
    let proxy = Proxy::answering().limit("all", limit).start();
    for (headers, status) in [
        (&[("x-cost", "2"), ("x_cost", "9")][..], 400),
        (&[("x_cost", "9")], 400),
        (&[("x-cost", "8")], 200),
        (&[], 200),
        (&[("xcost", "9")], 200),
        (&[], 429),
    ] {
        assert_eq!(get(proxy.address, "/", headers).status, status, "{headers:?}");
    }
}

/// An API that reads an underscore as a dash ended the body at `content_length`, and took the rest for another request,
/// beyond all limits. `x_role` was read as the role that the proxy sets, `accept_encoding` hid the usage.
#[test]
fn what_an_api_may_take_for_a_field_of_the_proxy_does_not_reach_it() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api)
        .limits(
            "[limits.keys]\nkey = [\"header:x-key\"]\nrate = \"1000000/s\"\n\
             [limits.tokens]\nkey = []\nrate = \"1000000/s\"\n\
             cost = { response_json = \"usage\", estimate = 1 }",
        )
        .route("path = \"/counted\"\nlimits = [\"keys\", \"tokens\"]")
        .route(
            "path = \"/{*rest}\"\n\
             request_headers = { set = { x-role = \"user\" }, remove = [\"x-debug\", \"x_old\"] }",
        )
        .start();
    let alike = [
        "content_length",
        "content.length",
        "transfer_encoding",
        "accept_encoding",
        "keep_alive",
        "proxy_connection",
        "proxy_authorization",
        "proxy_status",
        "grpc_timeout",
        "tidegate_over",
        "x_forwarded_for",
        "x_role",
        "x~role",
        "x_debug",
        "x-old",
        "x_key",
    ];
    let reaches = ["x_own", "x-keys", "x_roles"];
    let names: Vec<_> = alike.iter().chain(&reaches).collect();
    for path in ["/", "/counted"] {
        let headers: Vec<_> = names
            .iter()
            .filter(|name| path == "/" || ***name != "x_key")
            .map(|name| (**name, "1"))
            .collect();
        assert_eq!(
            Connection::open(proxy.address).request("POST", path, &headers, b"12").status,
            200
        );
        let over_http_1 = api.last();
        assert_eq!(http2::Client::open(proxy.address).post(path, &headers, b"12").status, 200);
        for got in [over_http_1, api.last()] {
            let seen: Vec<_> = got.headers.iter().map(|(name, _)| name.as_str()).collect();
            let came: Vec<_> = names.iter().filter(|name| seen.contains(**name)).collect();
            assert_eq!(came.len(), reaches.len(), "{path}: {seen:?}");
            assert_eq!(got.body, b"12");
        }
    }
    let headers = [("x-key", "a"), ("x_key", "b")];
    assert_eq!(get(proxy.address, "/counted", &headers).status, 400);
    let fields = alike.map(|name| format!("{name}: 1\r\n")).concat();
    let mut client = Connection::open(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nhost: a\r\ntrailer: {}, x-role, x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nx\r\n0\r\n{fields}x-role: admin\r\nx-sum: 1\r\n\r\n",
        alike.join(", ")
    ));
    assert_eq!(client.reply("POST").status, 200);
    let trailers = api.last().trailers;
    assert_eq!(trailers, [("x-sum".to_owned(), "1".to_owned())]);
}

/// A field that the route removes from answers came to the client behind the body.
#[test]
fn what_a_route_decides_in_answers_does_not_come_behind_the_body() {
    let answer = "HTTP/1.1 200 OK\r\ntrailer: x-internal, x_cost, x-sum\r\n\
                  transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\
                  x-internal: 1\r\nx_cost: 1\r\nx-sum: 1\r\n\r\n";
    let api = Upstream::saying(&[answer]);
    let changes = "response_headers = { remove = [\"x-internal\"], set = { x-cost = \"5\" } }";
    let proxy = Proxy::of_one_worker(&api).route(&format!("path = \"/\"\n{changes}")).start();
    let reply =
        Connection::open(proxy.address).get("/", &[("te", "trailers"), ("connection", "te")]);
    assert_eq!(reply.header("x-cost").as_deref(), Some("5"));
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "1".to_owned())]);
}

/// A trusted proxy passed on the client's `connection: x-api-key`. The key was removed, and then the request was
/// counted without it, while the API had it from the proxy.
#[test]
fn what_a_trusted_proxy_passes_on_is_not_hidden_by_connection() {
    let api = Upstream::echoing();
    let limit = "key = [\"header:x-api-key\"]\nmissing = \"skip\"\nrate = \"1/h\"";
    let proxy = Proxy::of_one_worker(&api)
        .server("trusted_proxies = [\"127.0.0.1\"]")
        .limit("one", limit)
        .start();
    let statuses = ["x-api-key", "close, X-API-Key", "x_api_key"]
        .map(|named| get(proxy.address, "/", &[("x-api-key", "a"), ("connection", named)]).status);
    assert_eq!(statuses, [200, 429, 429]);
    assert_eq!(api.last().header("x-api-key").as_deref(), Some("a"));
}
