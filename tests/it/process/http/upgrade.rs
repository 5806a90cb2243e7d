//! Connections that change to another protocol.

use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::SockRef;

use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, ok, read_head};
use crate::support::{PATIENCE, wait_until};

const OFFER: &str = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\n\
                     upgrade: websocket\r\nsec-websocket-key: x\r\n\r\n";

/// A server that changes to a protocol in which it says everything again; `closed` hears when
/// its side has ended.
fn echo() -> (Upstream, std::sync::mpsc::Receiver<String>) {
    let (tell, told) = channel();
    let server = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(got) = read_head(&mut reader) else { return };
        if got.header("upgrade").as_deref() != Some("websocket") {
            let _ = stream.write_all(&ok("as it is"));
            return;
        }
        let _ = tell.send(format!("{} {:?}", got.line, got.header("connection")));
        // The first bytes of the new protocol come with the answer.
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
              sec-websocket-accept: y\r\n\r\nwelcome",
        );
        let mut space = [0; 1000];
        while let Ok(read @ 1..) = reader.read(&mut space) {
            if &space[..read] == b"bye" || stream.write_all(&space[..read]).is_err() {
                break;
            }
        }
        drop((reader, stream));
        let _ = tell.send("closed".to_owned());
    });
    (server, told)
}

fn upgraded(proxy: &Tidegate) -> Connection {
    let mut client = Connection::open(proxy.address);
    client.send(OFFER);
    let reply = client.any_reply("GET");
    assert_eq!(reply.status, 101);
    assert_eq!(reply.header("upgrade").as_deref(), Some("websocket"));
    assert_eq!(reply.header("connection").as_deref(), Some("upgrade"));
    assert_eq!(reply.header("sec-websocket-accept").as_deref(), Some("y"));
    assert_eq!(client.exactly(7), b"welcome");
    client
}

#[test]
fn an_upgraded_connection_flows_both_ways() {
    let (api, told) = echo();
    let proxy = Proxy::of_one_worker(&api)
        .server("body_timeout = \"100ms\"")
        .upstream("idle_timeout = \"100ms\"")
        .start();
    let mut client = upgraded(&proxy);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "GET /chat HTTP/1.1 Some(\"upgrade\")");
    for n in 0..100 {
        let said = format!("message {n:03}");
        client.send(&said);
        assert_eq!(client.exactly(said.len()), said.as_bytes());
    }
    let much = vec![b'x'; 5 << 20];
    let mut writer = client.stream.try_clone().unwrap();
    let said = much.clone();
    let writing = std::thread::spawn(move || writer.write_all(&said).unwrap());
    assert_eq!(client.exactly(much.len()), much);
    writing.join().unwrap();
}

#[test]
fn bytes_sent_with_the_offer_are_not_lost() {
    let (api, _told) = echo();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send(format!("{OFFER}early"));
    assert_eq!(client.any_reply("GET").status, 101);
    assert_eq!(client.exactly(12), b"welcomeearly");
}

#[test]
fn the_end_of_either_side_ends_both() {
    let (api, told) = echo();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = upgraded(&proxy);
    client.send("bye");
    assert!(client.is_closed());
    let last = || told.recv_timeout(PATIENCE).unwrap();
    assert_eq!((last().starts_with("GET"), last()), (true, "closed".to_owned()));
    let client = upgraded(&proxy);
    drop(client);
    assert_eq!((last().starts_with("GET"), last()), (true, "closed".to_owned()));
    let client = upgraded(&proxy);
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!((last().starts_with("GET"), last()), (true, "closed".to_owned()));
}

/// A server whose tunnel sends `said` and then nothing, and which keeps its side open whatever the client does.
fn deaf(said: &'static [u8]) -> (Upstream, Sender<()>) {
    let (end, ended) = channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let server = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(got) = read_head(&mut reader) {
            if got.header("upgrade").is_none() {
                let _ = stream.write_all(&ok("as it is"));
                continue;
            }
            let _ = stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-accept: y\r\n\r\nwelcome",
            );
            let _ = stream.write_all(said);
            // Until the test is over.
            let _ = ended.lock().unwrap().recv();
        }
    });
    (server, end)
}

/// A regression: each client that reset its tunnel left a port of this machine unusable for a minute.
#[test]
fn a_tunnel_that_its_client_resets_is_reset() {
    let (tell, told) = channel();
    let api = Upstream::raw(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_head(&mut reader).is_none() {
            return;
        }
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
              sec-websocket-accept: y\r\n\r\nwelcome",
        );
        let _ = tell.send(reader.read(&mut [0; 10]).map_err(|error| error.kind()));
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let client = upgraded(&proxy);
    SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset));
    let client = upgraded(&proxy);
    drop(client);
    let end = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(end, Err(ErrorKind::ConnectionReset), "so is a WebSocket that its client closes");
}

/// A regression: a tunnel whose client had gone lived as long as a silent one may, with its slots and connections.
#[test]
fn a_tunnel_of_which_one_side_has_ended_does_not_live_as_long_as_a_silent_one() {
    let (api, _end) = deaf(b"");
    let limit = "algorithm = \"concurrency\"\nlimit = 1\nkey = []";
    let proxy = Proxy::of_one_worker(&api)
        .server("tunnel_timeout = \"1h\"\nbody_timeout = \"200ms\"")
        .limit("tunnels", limit)
        .start();
    let client = upgraded(&proxy);
    assert_eq!(get(proxy.address, "/", &[]).status, 429, "the tunnel holds the slot");
    drop(client);
    wait_until("the slot is free", || get(proxy.address, "/", &[]).status == 200);
    let client = upgraded(&proxy);
    client.stream.shutdown(Shutdown::Write).unwrap();
    wait_until("the slot is free", || get(proxy.address, "/", &[]).status == 200);
}

/// A regression: the bytes of a tunnel cost nothing, and the estimate came back when the tunnel began.
#[test]
fn what_the_server_sends_in_a_tunnel_costs_what_its_bytes_cost() {
    let (api, _end) = deaf(&[b'x'; 5_000]);
    let limit = "algorithm = \"fixed-window\"\nrate = \"5007/h\"\nkey = []\n\
                 cost = { response_bytes = true, estimate = 3000 }";
    let proxy = Proxy::of_one_worker(&api)
        .admin()
        .server("body_timeout = \"200ms\"")
        .limit("bytes", limit)
        .start();
    let remaining = || {
        let bucket = get(proxy.admin(), "/api/limits/bytes/keys/", &[("host", "localhost")]);
        bucket.json()["remaining"].as_u64()
    };
    let mut client = upgraded(&proxy);
    assert_eq!(client.exactly(5_000).len(), 5_000);
    assert_eq!(remaining(), Some(2_007), "the estimate is reserved as long as the tunnel lives");
    drop(client);
    wait_until("all that was sent is counted", || remaining() == Some(0));
}

/// A regression: two idle tunnels held both places, and all others got 503.
#[test]
fn a_tunnel_leaves_its_place_among_the_requests_in_flight() {
    let (api, _end) = deaf(b"");
    let proxy =
        Proxy::of_one_worker(&api).upstream("max_requests = 1\nqueue_timeout = \"20s\"").start();
    let tunnels = [upgraded(&proxy), upgraded(&proxy)];
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    drop(tunnels);
}

#[test]
fn an_offer_that_is_no_offer_is_served_as_it_is() {
    let (api, _told) = echo();
    let proxy = Proxy::of_one_worker(&api).start();
    for (name, request) in [
        (
            "h2c",
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
        ),
        (
            "h2c among others",
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket, h2c\r\n\r\n",
        ),
        ("not named in connection", "GET / HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\n\r\n"),
        (
            "HTTP/1.0",
            "GET / HTTP/1.0\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        ),
    ] {
        let mut client = Connection::open(proxy.address);
        client.send(request);
        let reply = client.any_reply("GET");
        assert_eq!((reply.status, reply.text().as_str()), (200, "as it is"), "{name}");
        assert_eq!(reply.header("upgrade"), None, "{name}");
    }
}

#[test]
fn an_offer_that_the_server_declines_is_an_ordinary_request() {
    let api = Upstream::answering(|got| ok(&got.header("upgrade").unwrap_or_default()));
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    for _ in 0..3 {
        client.send(OFFER);
        assert_eq!(client.reply("GET").text(), "websocket");
    }
    assert_eq!(client.get("/", &[]).status, 200);
}

/// RFC 9110, 15.5.22: an answer with the status 426 must say to which protocols.
#[test]
fn an_answer_that_wants_an_upgrade_says_to_what() {
    let api = Upstream::answering(|_| {
        b"HTTP/1.1 426 Upgrade Required\r\nconnection: x-own, Upgrade\r\nx-own: 1\r\n\
          upgrade: TLS/1.3, a/1\r\nupgrade: b\r\n\
          transfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
            .to_vec()
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    // A client of HTTP/1.0 knows the body's end by the connection's.
    for (version, connection) in [("1.1", "upgrade"), ("1.1", "upgrade"), ("1.0", "upgrade, close")]
    {
        client.send(format!("GET / HTTP/{version}\r\nhost: a\r\n\r\n"));
        let reply = client.reply("GET");
        assert_eq!((reply.status, reply.text().as_str()), (426, "no"));
        assert_eq!(reply.header("upgrade").as_deref(), Some("TLS/1.3, a/1, b"));
        assert_eq!(reply.header("connection").as_deref(), Some(connection), "{version}");
        assert_eq!(reply.header("x-own"), None);
    }
    let reply = Client::open(proxy.address).get("/", &[]);
    assert_eq!((reply.status, reply.text().as_str()), (426, "no"));
    assert_eq!((reply.header("upgrade"), reply.header("connection")), (None, None));
}
