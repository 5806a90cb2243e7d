//! Limits by a field of the body.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use crate::support::client::{Connection, Reply};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok};

const JSON: (&str, &str) = ("content-type", "application/json");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// One login an hour for each user.
fn logins(api: &Upstream, limit: &str) -> Proxy {
    Proxy::of_one_worker(api)
        .limit("login", &format!("key = [\"body:user\"]\nrate = \"1/h\"\n{limit}"))
}

fn post(address: SocketAddr, headers: &[(&str, &str)], body: &str) -> Reply {
    Connection::open(address).request("POST", "/login", headers, body.as_bytes())
}

/// The same over HTTP/2.
fn post2(address: SocketAddr, headers: &[(&str, &str)], body: &str) -> Reply {
    Client::open(address).post("/login", headers, body.as_bytes())
}

fn chunked(headers: &str, pieces: &[&[u8]], end: &str) -> Vec<u8> {
    let head =
        format!("POST /login HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{headers}");
    let mut request = format!("{head}\r\n").into_bytes();
    for piece in pieces {
        request.extend(format!("{:x}\r\n", piece.len()).as_bytes());
        request.extend([piece, &b"\r\n"[..]].concat());
    }
    [&request[..], b"0\r\n", end.as_bytes(), b"\r\n"].concat()
}

#[test]
fn a_user_has_one_bucket_however_the_body_says_the_name() {
    let api = Upstream::echoing();
    let proxy = logins(&api, "missing = \"reject\"").start();
    let at = proxy.address;
    for (user, first) in [("a", 200), ("b", 200), ("b", 429)] {
        let reply = post(at, &[JSON], &format!("{{\"user\":\"{user}\",\"password\":\"x\"}}"));
        assert_eq!(reply.status, first, "{user}");
    }
    assert_eq!(post(at, &[FORM], "password=y&user=a").status, 429);
    assert_eq!(post2(at, &[FORM], "user=%61").status, 429);
    assert_eq!(post2(at, &[JSON], "{ \"user\": \" a\" }").status, 429);
    assert_eq!(post2(at, &[JSON], "{\"user\":\"c\"}").status, 200);
    let mut client = Connection::open(at);
    client.send(chunked(
        "content-type: application/json\r\n",
        &[b"{\"us", b"er\":", b"\"c\"}"],
        "",
    ));
    assert_eq!(client.reply("POST").status, 429, "in chunks");
    assert_eq!(client.request("POST", "/", &[JSON], b"{\"user\":\"d\"}").status, 200, "in step");
    let both = [JSON, ("content-encoding", "gzip")];
    let long = format!("{{\"x\":\"{}\",\"user\":\"e\"}}", "x".repeat(65_536));
    for (name, headers, body) in [
        ("another type", &[("content-type", "text/plain")][..], "{\"user\":\"e\"}"),
        ("no type", &[], "user=e"),
        ("coded", &both, "{\"user\":\"e\"}"),
        ("long", &[JSON], &long),
        ("no body", &[JSON], ""),
        ("no text", &[JSON], "{\"user\":null}"),
    ] {
        let reply = post(at, headers, body);
        let says = reply.text().contains("the field `user` of the body is missing");
        assert_eq!((reply.status, says), (400, true), "{name}: {}", reply.text());
        assert_eq!(post2(at, headers, body).status, 400, "{name}");
    }
    for body in ["{\"user\":\"f\",\"user\":\"g\"}", "{\"user\":NaN}", "{\"user\":\"f\"} "] {
        let status = if body.ends_with(' ') { 200 } else { 400 };
        assert_eq!(post(at, &[JSON], body).status, status, "{body}");
    }
    assert_eq!(post(at, &[FORM], "user=h&user=h").status, 400);
    assert_eq!(api.requests().len(), 5, "of a, b, c, d and f");
}

#[test]
fn the_api_gets_the_body_as_it_came() {
    let api = Upstream::echoing();
    let proxy = logins(&api, "missing = \"skip\"").start();
    let got = |sent: &[u8]| {
        let got = api.last();
        assert!(got.body == sent, "{} of {} bytes", got.body.len(), sent.len());
        got
    };
    let user = |name: &str, length: usize| {
        let begin = format!(" {{\"user\" : \"{name}\", \"x\":\"");
        format!("{begin}{}\"}}", "x".repeat(length - begin.len() - 2)).into_bytes()
    };
    // As long as is read, a byte more, and much more.
    for (index, length) in [100, 65_535, 65_536, 65_537, 1_000_000].into_iter().enumerate() {
        let body = user(&format!("a{index}"), length);
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.request("POST", "/login", &[JSON], &body).status, 200, "{length}");
        assert_eq!(got(&body).header("content-length"), Some(length.to_string()));
        let body = user(&format!("b{index}"), length);
        let pieces: Vec<_> = body.chunks(9_999).collect();
        let head = "content-type: application/json\r\ntrailer: x-sum\r\n";
        client.send(chunked(head, &pieces, "x-sum: 7\r\n"));
        assert_eq!(client.reply("POST").status, 200, "{length} in chunks");
        let came = got(&body);
        assert_eq!(came.header("transfer-encoding").as_deref(), Some("chunked"));
        assert_eq!(came.trailers, [("x-sum".to_owned(), "7".to_owned())]);
        let body = user(&format!("c{index}"), length);
        let mut client = Client::open(proxy.address);
        let headers = [JSON, ("trailer", "x-sum"), ("te", "trailers")];
        let mut exchange = client.upload("POST", "/login", &headers);
        exchange.send(&body);
        exchange.end_with(&[("x-sum", "8")]);
        assert_eq!(exchange.reply().status, 200, "{length} over HTTP/2");
        assert_eq!(got(&body).trailers, [("x-sum".to_owned(), "8".to_owned())]);
    }
    let mut client = Connection::open(proxy.address);
    client.send(chunked("content-type: application/json\r\n", &[], ""));
    assert_eq!(client.reply("POST").status, 200, "an empty body");
    got(b"");
}

#[test]
fn a_client_that_waits_for_100_is_told_to_send() {
    let api = Upstream::echoing();
    let proxy = logins(&api, "").start();
    let mut client = Connection::open(proxy.address);
    let body = "{\"user\":\"a\"}";
    for status in [200, 429, 429] {
        client.send(format!(
            "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\
             content-type: application/json\r\n\r\n",
            body.len()
        ));
        assert_eq!(client.any_reply("POST").status, 100);
        client.send(body);
        let reply = client.reply("POST");
        assert_eq!((reply.status, reply.header("connection")), (status, None), "it is kept");
    }
    let mut client = Client::open(proxy.address);
    let mut exchange = client.upload("POST", "/", &[JSON, ("expect", "100-continue")]);
    exchange.send(body.as_bytes());
    exchange.end();
    assert_eq!(exchange.reply().status, 429);
}

#[test]
fn a_body_that_trickles_has_no_more_time_than_another() {
    let api = Upstream::echoing();
    let proxy = logins(&api, "").server("body_timeout = \"300ms\"").start();
    let mut client = Connection::open(proxy.address);
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\ncontent-type: application/json\r\n\r\n",
    );
    client.stream.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
    // Each byte comes in time.
    while client.stream.peek(&mut [0]).is_err() {
        let _ = client.stream.write_all(b" ");
    }
    client.stream.set_read_timeout(None).unwrap();
    assert_eq!(client.reply("POST").status, 408);
    let mut client = Client::open(proxy.address);
    let mut exchange = client.upload("POST", "/", &[FORM]);
    exchange.send(b"user=");
    assert_eq!(exchange.reply().status, 408);
    assert!(api.requests().is_empty());
    assert_eq!(post(proxy.address, &[FORM], "user=").status, 200, "what did not come took nothing");
}

/// A limit in shadow brought a 408 that the API's clients never had.
#[test]
fn a_late_body_goes_on_where_no_limit_enforces() {
    for mode in ["shadow", "mark"] {
        let (api, accepted) = Upstream::listening();
        let limit = format!("mode = \"{mode}\"\nmissing = \"reject\"");
        let proxy = logins(&api, &limit).server("body_timeout = \"1s\"").start();
        let mut client = Connection::open(proxy.address);
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\ncontent-type: application/x-www-form-urlencoded\r\n\r\nuser=");
        let mut client2 = Client::open(proxy.address);
        let mut exchange = client2.upload("POST", "/", &[FORM, ("content-length", "8")]);
        exchange.send(b"user=");
        let mut servers = Vec::new();
        let until = |heard: &Receiver<Vec<u8>>, end: &[u8]| {
            let mut all = Vec::new();
            while !all.ends_with(end) {
                all.extend(heard.recv_timeout(Duration::from_secs(30)).expect(mode));
            }
        };
        for _ in 0..2 {
            let heard = accepted.recv_timeout(Duration::from_secs(30)).expect(mode);
            until(&heard, b"\r\n\r\nuser=");
            servers.push(heard);
        }
        client.send("ann");
        exchange.send(b"ann");
        exchange.end();
        servers.iter().for_each(|heard| until(heard, b"ann"));
    }
}

#[test]
fn a_body_may_be_no_larger_than_another() {
    let api = Upstream::echoing();
    let proxy = logins(&api, "").server("max_body_size = \"20B\"").start();
    let body = format!("{{\"user\":\"{}\"}}", "x".repeat(20));
    assert_eq!(post(proxy.address, &[JSON], &body).status, 413);
    let mut client = Connection::open(proxy.address);
    client.send(chunked("content-type: application/json\r\n", &[body.as_bytes()], ""));
    assert_eq!(client.reply("POST").status, 413);
    assert_eq!(post2(proxy.address, &[JSON], &body.replace('x', "y")).status, 413);
    assert_eq!(post(proxy.address, &[JSON], "{\"user\":\"a\"}").status, 200);
}

/// The bodies of other routes are read by the API alone.
#[test]
fn a_body_is_read_only_where_a_limit_reads_it() {
    let (api, heard) = Upstream::listening();
    let proxy = Proxy::of_one_worker(&api)
        .limits("[limits.login]\nkey = [\"body:user\"]\nrate = \"1/h\"")
        .route("path = \"/login\"\nlimits = [\"login\"]")
        .route("path = \"/{*rest}\"")
        .start();
    let mut client = Connection::open(proxy.address);
    client.send("POST /a HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n");
    assert!(heard.recv_timeout(Duration::from_secs(30)).is_ok(), "before any of the body came");
}

#[test]
fn limits_of_all_requests_read_bodies_too() {
    let proxy = Proxy::answering()
        .server("limits = [\"user\"]")
        .limits(
            "[limits.user]\nkey = [\"body:user | ip\"]\nrate = \"1/h\"\n\
             overrides = [{ key = [\"vip\"], rate = \"0/s\" }]",
        )
        .route("path = \"/there\"")
        .start();
    let ask = |body: &str| {
        Connection::open(proxy.address).request("POST", "/gone", &[JSON], body.as_bytes()).status
    };
    for (body, status) in [
        ("{\"user\":\"a\"}", 404),
        ("{\"user\":\"a\"}", 429),
        ("{}", 404),
        ("{\"user\":\"127.0.0.1\"}", 404),
        ("{\"user\":\"vip\"}", 429),
        ("{", 400),
    ] {
        assert_eq!(ask(body), status, "{body}");
    }
    assert_eq!(Connection::open(proxy.address).get("/gone", &[]).status, 429, "by its address");
}

/// Plans may be read from bodies, and count there alone where limits have plans.
#[test]
fn a_body_may_say_the_plan() {
    let proxy = Proxy::answering()
        .limit("all", "key = []\nrate = \"1/h\"\nplans = { pro = \"0/s\" }")
        .section("[plans]\nby = \"body:plan\"")
        .start();
    assert_eq!(post(proxy.address, &[JSON], "{\"plan\":\"pro\"}").status, 429);
    assert_eq!(post(proxy.address, &[JSON], "{\"plan\":\"free\"}").status, 200);
}

/// The keys of one limit may be shown, and a reload says what it does.
#[test]
fn a_limit_may_show_its_keys() {
    let start = |limits: &str| -> Proxy { Proxy::answering().admin().limits(limits) };
    let limits = "[limits.user]\nkey = [\"body:user\"]\nrate = \"1/h\"\n\
                  [limits.tool]\nkey = [\"header:x-tool\"]\nrate = \"1/h\"\nmode = \"shadow\"\nlog_keys = \"plain\"";
    let proxy: Tidegate = start(limits).start();
    let headers = [JSON, ("x-tool", "ann")];
    for status in [200, 429] {
        assert_eq!(post(proxy.address, &headers, "{\"user\":\"ann\"}").status, status);
    }
    // SHA-256 of `ann`.
    let hash = "SZFeDX1LQC4wF9AQvBwOgw";
    let key = |limit: &str| {
        proxy.log.wait("throttled", |line| line["limit"] == limit)["key"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!((key("user"), key("tool")), (hash.to_owned(), "ann".to_owned()));
    let admin = proxy.admin();
    let host = admin.to_string();
    let look = |path: &str| Connection::open(admin).get(path, &[("host", &host)]).json();
    assert_eq!(look("/api/limits/tool/keys/ann")["remaining"], 0);
    assert_eq!(look(&format!("/api/limits/user/keys/{hash}"))["remaining"], 0);
    let other = limits.replace("log_keys = \"plain\"", "log_keys = \"hashed\"");
    proxy.reload(&start(&other).text());
    let line = proxy.log.wait("config reloaded", |_| true);
    let changed = line["changed"].to_string();
    for part in ["limits.tool log_keys plain -> hashed", "limits.tool begins anew"] {
        assert!(changed.contains(part), "{part} in {changed}");
    }
    assert_eq!(look(&format!("/api/limits/tool/keys/{hash}"))["remaining"], 1, "a new bucket");
}

/// README's recipe: what fails counts, by the account and not by the address.
#[test]
fn failed_logins_count_by_account() {
    let api = Upstream::answering(|got| match got.body.ends_with(b"right\"}") {
        true => ok("welcome"),
        false => b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".to_vec(),
    });
    let proxy = Proxy::of_one_worker(&api)
        .limit(
            "failed",
            "key = [\"body:user\"]\nrate = \"5/15m\"\nmissing = \"reject\"\ncount_when = { status = [\"401\"] }",
        )
        .start();
    let login = |user: &str, word: &str| {
        let body = format!("{{\"user\":\"{user}\",\"password\":\"{word}\"}}");
        post(proxy.address, &[JSON], &body).status
    };
    for (user, word, status) in [
        ("ann", "right", 200),
        ("ann", "a", 401),
        ("ann", "b", 401),
        ("ann", "right", 200),
        ("ann", "c", 401),
        ("ann", "d", 401),
        ("ann", "e", 401),
        ("ann", "right", 429),
        ("bob", "right", 200),
    ] {
        assert_eq!(login(user, word), status, "{user} {word}");
    }
}
