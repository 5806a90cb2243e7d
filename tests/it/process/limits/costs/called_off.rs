//! Requests that their client ends while the API may be at work: nothing of what they took goes back.

use std::sync::mpsc::Receiver;

use super::Place;
use crate::support::client::{Connection, Reply, get};
use crate::support::http2::Client;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody_accepts};
use crate::support::{PATIENCE, wait_until};

every_store! {
    a_client_that_ends_its_request_by_a_deadline_or_a_body_gets_nothing_back
    a_request_that_reached_no_server_before_its_deadline_gets_back_what_it_took
}

const LOGINS: &str = "algorithm = \"fixed-window\"\nrate = \"1000/d\"\nkey = []\n\
                      count_when = { status = [\"401\"] }";
const TOKENS: &str = "algorithm = \"fixed-window\"\nrate = \"1000/d\"\nkey = []\n\
                      cost = { response_json = \"used\", estimate = 1, max = 10, unknown = \"max\" }";

/// What is left of both limits.
fn left(proxy: &Tidegate) -> [Option<u64>; 2] {
    ["logins", "tokens"].map(|name| {
        let path = format!("/api/limits/{name}/keys/");
        get(proxy.admin(), &path, &[("host", "localhost")]).json()["remaining"].as_u64()
    })
}

const CALL: [(&str, &str); 2] = [("content-type", "application/grpc"), ("grpc-timeout", "300m")];

fn called(proxy: &Tidegate, fields: &[(&str, &str)]) -> Reply {
    Connection::open(proxy.address).request("POST", "/silent", fields, b"")
}

/// Sends this upload, and the rest of it when the API has its head. Returns the answer's status.
fn upload(proxy: &Tidegate, api: &Receiver<()>, head: &str, rest: &[u8]) -> u16 {
    let mut client = Connection::open(proxy.address);
    client.send(format!("POST /silent HTTP/1.1\r\nhost: a\r\n{head}"));
    api.recv_timeout(PATIENCE).unwrap();
    client.send(rest);
    client.reply("POST").status
}

/// Each way to end a request, and the status with which it ends; 0 without an answer.
type Way = (&'static str, u16, fn(&Tidegate, &Receiver<()>) -> u16);

const CHUNKS: &str = "transfer-encoding: chunked\r\n\r\n5\r\nhello";

const WAYS: [Way; 9] = [
    ("grpc-timeout", 504, |proxy, api| {
        let status = called(proxy, &CALL).header("grpc-status");
        api.recv_timeout(PATIENCE).unwrap();
        status.map_or(0, |_| 504)
    }),
    ("two of them", 504, |proxy, api| {
        let fields = [CALL[0], CALL[1], ("grpc-timeout", "1H")];
        let status = called(proxy, &fields).header("grpc-status");
        api.recv_timeout(PATIENCE).unwrap();
        status.map_or(0, |_| 504)
    }),
    ("grpc-timeout over HTTP/2, with a body that does not end", 504, |proxy, api| {
        let mut client = Client::open(proxy.address);
        let mut call = client.upload("POST", "/silent", &CALL);
        call.send(b"half");
        let status = call.head().unwrap().headers().get("grpc-status").cloned();
        api.recv_timeout(PATIENCE).unwrap();
        status.map_or(0, |_| 504)
    }),
    ("a broken chunk", 400, |proxy, api| upload(proxy, api, CHUNKS, b"\r\nnothing\r\n")),
    ("a body that becomes too large", 413, |proxy, api| {
        upload(proxy, api, CHUNKS, &[b"\r\n800\r\n".as_slice(), &[b'x'; 2048]].concat())
    }),
    ("a body that stalls", 408, |proxy, api| {
        upload(proxy, api, "content-length: 9\r\n\r\n", b"half")
    }),
    ("a body for which the API does not wait", 502, |proxy, api| {
        let mut client = Connection::open(proxy.address);
        client.send("POST /impatient HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf");
        api.recv_timeout(PATIENCE).unwrap();
        client.reply("POST").status
    }),
    ("a reset of the stream", 0, |proxy, api| {
        let mut client = Client::open(proxy.address);
        let call = client.begin("GET", "/silent", &[]);
        api.recv_timeout(PATIENCE).unwrap();
        call.reset();
        0
    }),
    ("a connection's end", 0, |proxy, api| {
        let mut client = Connection::open(proxy.address);
        client.send("GET /silent HTTP/1.1\r\nhost: a\r\n\r\n");
        api.recv_timeout(PATIENCE).unwrap();
        0
    }),
];

/// A regression: two header fields of a client ended its request at a moment that it chose, and then it had cost
/// nothing. A password was found at the 138th guess where five a minute are allowed.
fn a_client_that_ends_its_request_by_a_deadline_or_a_body_gets_nothing_back(place: &Place) {
    let (api, told) = Upstream::holding();
    let proxy = place
        .before(&api)
        .server("body_timeout = \"300ms\"\nmax_body_size = \"1KiB\"")
        .upstream("response_timeout = \"1h\"")
        .limit("logins", LOGINS)
        .limit("tokens", TOKENS)
        .start();
    for ((name, status, end), ways) in WAYS.iter().zip(1..) {
        assert_eq!(end(&proxy, &told), *status, "{name}");
        let all = [Some(1000 - ways), Some(1000 - 10 * ways)];
        wait_until(name, || left(&proxy) == all);
    }
}

fn a_request_that_reached_no_server_before_its_deadline_gets_back_what_it_took(place: &Place) {
    let deaf = nobody_accepts();
    let proxy = place
        .before(format!("http://{}", deaf.address))
        .upstream("connect_timeout = \"1h\"")
        .limit("logins", LOGINS)
        .limit("tokens", TOKENS)
        .start();
    let reply = called(&proxy, &[CALL[0], ("grpc-timeout", "50m")]);
    assert_eq!(reply.header("grpc-status").as_deref(), Some("4"));
    wait_until("one has come back, and the estimate stays", || {
        left(&proxy) == [Some(1000), Some(999)]
    });
}
