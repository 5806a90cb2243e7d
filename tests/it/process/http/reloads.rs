//! Connections that are open when proxy.toml changes.

use crate::support::client::Connection;
use crate::support::http2::Client;
use crate::support::http2::frames::{END_STREAM, Frames, Outcome, RST_STREAM, asking, request};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// A proxy with long time-outs, and the file that shortens one of them.
fn proxy(api: &Upstream, setting: &str) -> (Tidegate, String) {
    let hours = "header_timeout = \"1h\"\nbody_timeout = \"1h\"\nidle_timeout = \"1h\"\n\
                 tunnel_timeout = \"1h\"\n";
    let long = Proxy::of_one_worker(api).server(hours).text();
    let line = format!("{setting} = \"1h\"");
    assert!(long.contains(&line), "{long}");
    let short = long.replace(&line, &format!("{setting} = \"300ms\""));
    (Tidegate::start(&long), short)
}

#[test]
fn a_shorter_body_timeout_ends_stalled_responses_of_an_open_connection() {
    let (api, _told) = Upstream::endless();
    let (proxy, short) = proxy(&api, "body_timeout");
    let mut client = Frames::open(proxy.address, &[]);
    client.send(request(1, END_STREAM, &asking("GET", "/before")));
    client.find(|frame| frame.stream == 1).expect("it has begun");
    proxy.reload(&short);
    client.find(|frame| frame.kind == RST_STREAM && frame.stream == 1).expect("it is reset");
    let outcome = client.ask(3, &asking("GET", "/after"));
    assert!(matches!(outcome, Outcome::Reset(_)), "{outcome:?}");
}

#[test]
fn a_shorter_body_timeout_ends_stalled_uploads_of_open_connections() {
    let (api, _accepted) = Upstream::listening();
    let (proxy, short) = proxy(&api, "body_timeout");
    let mut shared = Client::open(proxy.address);
    let mut before = shared.upload("POST", "/", &[]);
    before.send(b"half");
    let mut alone = Connection::open(proxy.address);
    alone.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf");
    proxy.reload(&short);
    assert_eq!(before.reply().status, 408);
    assert_eq!(alone.reply("POST").status, 408);
    let mut after = shared.upload("POST", "/", &[]);
    after.send(b"half");
    assert_eq!(after.reply().status, 408);
}

#[test]
fn a_shorter_idle_timeout_ends_idle_connections() {
    let api = Upstream::echoing();
    let (proxy, short) = proxy(&api, "idle_timeout");
    let mut shared = Client::open(proxy.address);
    assert_eq!(shared.get("/", &[]).status, 200);
    let mut alone = Connection::open(proxy.address);
    assert_eq!(alone.get("/", &[]).status, 200);
    proxy.reload(&short);
    shared.ended().expect("a goodbye without an error");
    assert!(alone.is_closed());
}

#[test]
fn a_shorter_header_timeout_ends_connections_in_a_head() {
    let api = Upstream::echoing();
    let (proxy, short) = proxy(&api, "header_timeout");
    let mut waiting =
        [b"".as_slice(), b"GET / HT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].map(|part| {
            let mut client = Connection::open(proxy.address);
            client.send(part);
            client
        });
    proxy.reload(&short);
    for client in &mut waiting {
        client.rest();
    }
}

#[test]
fn a_shorter_tunnel_timeout_ends_silent_tunnels() {
    let upgraded = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let api = Upstream::raw(|mut stream| {
        let _ = crate::support::upstream::read_head(&mut std::io::BufReader::new(&stream));
        let _ = std::io::Write::write_all(&mut stream, upgraded);
        let _ = std::io::Read::read(&mut stream, &mut [0]);
    });
    let (proxy, short) = proxy(&api, "tunnel_timeout");
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    assert_eq!(client.reply("GET").status, 101);
    proxy.reload(&short);
    assert!(client.is_closed());
}

#[test]
fn a_smaller_max_header_size_holds_on_an_open_http_2_connection() {
    let api = Upstream::echoing();
    let file = |size: &str| {
        Proxy::of_one_worker(&api).server(&format!("max_header_size = \"{size}\"")).text()
    };
    let proxy = Tidegate::start(&file("64KiB"));
    let mut client = Client::open(proxy.address);
    let long = "x".repeat(20_000);
    assert_eq!(client.get("/", &[("x-long", &long)]).status, 200);
    proxy.reload(&file("8KiB"));
    assert_eq!(client.get("/", &[("x-long", &long)]).status, 431);
    proxy.reload(&file("64KiB"));
    assert_eq!(client.get("/", &[("x-long", &long)]).status, 200);
}
