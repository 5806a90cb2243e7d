//! Connections that were put aside while they were idle, and those that must not be.

use std::thread::sleep;
use std::time::Duration;

use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// Longer than a connection is idle before it is parked. That it is parked by then changes no
/// answer: a slow machine parks later, and these tests pass all the same.
const A_WHILE: Duration = Duration::from_millis(400);

fn proxy(api: &Upstream) -> Tidegate {
    Proxy::of_one_worker(api)
        .limit("none", "rate = \"0/s\"")
        .route("path = \"/{*rest}\"")
        .route("path = \"/closed\"\nlimits = [\"none\"]")
        .start()
}

#[test]
fn a_connection_goes_on_where_it_was() {
    let api = Upstream::echoing();
    let proxy = proxy(&api);
    let mut client = Connection::open(proxy.address);
    for path in ["/1", "/2"] {
        assert_eq!(client.get(path, &[]).text(), path);
        sleep(A_WHILE);
    }
    // A head that stops after the pause.
    client.send("GET /3 HTTP/1.1\r\nho");
    sleep(A_WHILE);
    client.send("st: api.test\r\n\r\n");
    assert_eq!(client.reply("GET").text(), "/3");
    // Half a head behind a request.
    client.send("GET /4 HTTP/1.1\r\nhost: api.test\r\n\r\nGET /5 HTTP/1.1\r\nhos");
    assert_eq!(client.reply("GET").text(), "/4");
    sleep(A_WHILE);
    client.send("t: api.test\r\n\r\n");
    assert_eq!(client.reply("GET").text(), "/5");
    assert_eq!(client.get("/6", &[]).text(), "/6");
}

#[test]
fn the_rest_of_a_rejected_upload_is_no_request() {
    let api = Upstream::echoing();
    let proxy = proxy(&api);
    let smuggled = "GET /smuggled HTTP/1.1\r\nhost: api.test\r\n\r\n";
    let mut client = Connection::open(proxy.address);
    let length = smuggled.len() + 3;
    client.send(format!(
        "POST /closed HTTP/1.1\r\nhost: api.test\r\ncontent-length: {length}\r\n\r\nabc"
    ));
    assert_eq!(client.reply("POST").status, 429);
    sleep(A_WHILE);
    client.send(smuggled);
    sleep(A_WHILE);
    assert_eq!(client.get("/after", &[]).text(), "/after");
    let paths: Vec<_> = api.requests().iter().map(|got| got.path().to_owned()).collect();
    assert_eq!(paths, ["/after"]);
}

#[test]
fn a_parked_connection_ends_with_the_process() {
    let api = Upstream::echoing();
    let mut proxy = proxy(&api);
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[]).status, 200);
    sleep(A_WHILE);
    proxy.signal("TERM");
    assert!(client.is_closed());
    assert!(proxy.wait().success());
}
