//! What connections to servers cost this machine, and what this machine lacks.

use std::io::{BufReader, Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use rustls::{ServerConnection, StreamOwned};
use tidegate::tls::HTTP_1_1;

use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::tls::Folder;
use crate::support::upstream::{Upstream, read_head};
use crate::support::{PATIENCE, wait_until};

/// How a connection of the proxy ended, after `serve` had its turn.
fn ending(mut stream: impl Read) -> Result<(), ErrorKind> {
    let mut space = [0; 1024];
    loop {
        match stream.read(&mut space) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.kind()),
        }
    }
}

type Endings = std::sync::mpsc::Receiver<Result<(), ErrorKind>>;

/// An API that does `serve` with each connection, and tells how the connection ended.
fn api(serve: impl Fn(&TcpStream) + Send + Sync + 'static) -> (Upstream, Endings) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let api = Upstream::raw(move |stream| {
        let tell = tell.lock().unwrap().clone();
        serve(&stream);
        let _ = tell.send(ending(stream));
    });
    (api, told)
}

/// Each client that hung up left a port of this machine unusable for a minute.
#[test]
fn an_exchange_that_is_called_off_ends_with_a_reset() {
    let asked = Arc::<Mutex<usize>>::default();
    let count = asked.clone();
    let (api, told) = api(move |mut stream| {
        let head = read_head(&mut BufReader::new(stream)).unwrap();
        if head.path() == "/half" {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf");
        }
        *count.lock().unwrap() += 1;
    });
    let proxy = Proxy::of_one_worker(&api).upstream("response_timeout = \"1h\"").start();
    for (before, request) in [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /half HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf",
    ]
    .iter()
    .enumerate()
    {
        let mut client = Connection::open(proxy.address);
        client.send(request);
        wait_until("the API has it", || *asked.lock().unwrap() > before);
        drop(client);
        assert_eq!(
            told.recv_timeout(PATIENCE).unwrap(),
            Err(ErrorKind::ConnectionReset),
            "{request}"
        );
    }
}

#[test]
fn a_request_without_an_answer_in_time_ends_with_a_reset() {
    let (api, told) = api(|stream| drop(read_head(&mut BufReader::new(stream))));
    let proxy = Proxy::of_one_worker(&api).upstream("response_timeout = \"100ms\"").start();
    assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 504);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
fn an_exchange_by_tls_that_is_called_off_ends_with_a_reset() {
    let folder = Folder::new();
    let files = folder.write_server("api", &["127.0.0.1"]);
    let config = folder.server(&files, &[HTTP_1_1], None);
    for shakes_hands in [true, false] {
        let ((begin, begun), config) = (channel(), config.clone());
        let begin = Mutex::new(begin);
        let (api, told) = api(move |mut stream| {
            let begin = begin.lock().unwrap().clone();
            if shakes_hands {
                let mut stream =
                    StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
                if read_head(&mut BufReader::new(&mut stream)).is_none() {
                    // The proxy has looked whether somebody is there.
                    return;
                }
            } else {
                let _ = stream.read(&mut [0; 1]);
            }
            let _ = begin.send(());
        });
        let upstream = format!("tls = {{ ca = {:?} }}\nresponse_timeout = \"1h\"", folder.ca());
        let url = api.url().replace("http:", "https:");
        let proxy = Proxy::of_one_worker(url).upstream(&upstream).start();
        let mut client = Connection::open(proxy.address);
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        // Without a handshake the look itself does not end either.
        for _ in 0..if shakes_hands { 1 } else { 2 } {
            begun.recv_timeout(PATIENCE).unwrap();
        }
        drop(client);
        let ends = [(); 2].map(|()| told.recv_timeout(PATIENCE).unwrap());
        let resets = ends.iter().filter(|end| **end == Err(ErrorKind::ConnectionReset)).count();
        assert_eq!(resets, if shakes_hands { 1 } else { 2 }, "{shakes_hands}: {ends:?}");
    }
}

/// A regression: a client that wrote `authorization: NTLM x` had a connection of its own, which the proxy closed. Eight
/// clients used up all ports, and all others got 502.
#[test]
fn a_connection_that_nobody_else_may_use_ends_with_a_reset() {
    for (shown, said) in [
        ("Negotiate x", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"),
        ("NTLM x", "HTTP/1.1 401 No\r\nwww-authenticate: NTLM\r\ncontent-length: 2\r\n\r\nhi"),
        (
            "Basic x",
            "HTTP/1.1 401 No\r\nwww-authenticate: Negotiate\r\ncontent-length: 2\r\n\r\nhi",
        ),
    ] {
        let (api, told) = api(move |mut stream| {
            read_head(&mut BufReader::new(stream));
            let _ = stream.write_all(said.as_bytes());
        });
        let proxy = Proxy::of_one_worker(&api).start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/", &[("authorization", shown)]).text(), "hi");
        drop(client);
        let end = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(end, Err(ErrorKind::ConnectionReset), "{shown}");
    }
}

/// The same over HTTP/2 without TLS. Here the server sees an end before the reset.
#[test]
fn a_connection_of_http_2_that_is_not_shared_leaves_no_port() {
    let (tell, told) = channel();
    let api = Upstream::raw(move |mut stream| {
        // Its settings come first. The request is stream 1, without a body (RFC 9113, 6.2 and 6.5).
        let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let (mut came, mut space) = (Vec::new(), [0; 4096]);
        while !came.windows(6).any(|frame| frame == [1, 5, 0, 0, 0, 1]) {
            let Ok(read @ 1..) = stream.read(&mut space) else { return };
            came.extend_from_slice(&space[..read]);
        }
        // The status 200.
        let _ = stream.write_all(&[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88]);
        let _ = ending(&stream);
        // The server's side stays open.
        let _ = tell.send(stream);
    });
    let proxy = Proxy::of_one_worker(api.url().replace("http:", "h2c:")).start();
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/", &[("authorization", "Negotiate x")]).status, 200);
    let _open = told.recv_timeout(PATIENCE).unwrap();
    wait_until("no socket waits for the server's end", || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        // Number, own address, the other's, and the state: 5 is FIN_WAIT2.
        let mut fields = sockets.lines().map(|line| line.split_whitespace().skip(2));
        let server = format!(":{:04X}", api.address.port());
        !fields.any(|mut it| it.next().unwrap().ends_with(&server) && it.next() == Some("05"))
    });
}

/// A regression: each WebSocket that its client closed left a port unusable for a minute, since the proxy closed its own
/// side first.
#[test]
fn a_websocket_that_its_client_closes_ends_with_all_bytes_and_a_reset() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let api = Upstream::raw(move |mut stream| {
        read_head(&mut BufReader::new(&stream));
        let switched =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: WebSocket\r\n\r\n";
        let _ = stream.write_all(switched.as_bytes());
        let mut came = Vec::new();
        let ended = stream.read_to_end(&mut came).map_err(|error| error.kind());
        let _ = tell.lock().unwrap().send((came.len(), ended.err()));
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
    assert_eq!(client.reply("GET").status, 101);
    client.send(vec![b'x'; 1_000_000]);
    drop(client);
    let reset = Some(ErrorKind::ConnectionReset);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (1_000_000, reset));
}

#[test]
fn what_is_finished_ends_without_a_reset() {
    let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
    let (api, told) = api(move |mut stream| {
        read_head(&mut BufReader::new(stream));
        let _ = stream.write_all(whole);
    });
    let mut proxy = Proxy::of_one_worker(&api).start();
    assert_eq!(Connection::open(proxy.address).get("/", &[]).text(), "hi");
    proxy.stop();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Ok(()), "an idle connection");

    let (api, told) = self::api(move |mut stream| {
        read_head(&mut BufReader::new(stream));
        let _ = stream.write_all(whole);
    });
    let health = "health = { path = \"/healthz\", interval = \"1h\" }";
    let _proxy = Proxy::of_one_worker(&api).upstream(health).start();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Ok(()), "a health check");
}

#[test]
fn the_last_bytes_of_a_tunnel_arrive() {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let api = Upstream::raw(move |mut stream| {
        read_head(&mut BufReader::new(&stream));
        let switched =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        let _ = stream.write_all(switched.as_bytes());
        let mut came = Vec::new();
        let ended = stream.read_to_end(&mut came).map_err(|error: Error| error.kind());
        let _ = tell.lock().unwrap().send((came.len(), ended.is_ok()));
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    assert_eq!(client.reply("GET").status, 101);
    client.send(vec![b'x'; 1_000_000]);
    drop(client);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (1_000_000, true));
}

/// A proxy that had no free port or file set healthy servers aside.
#[test]
fn what_this_machine_lacks_sets_no_server_aside() {
    let api =
        Upstream::saying(&["HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"]);
    let health = "health = { path = \"/\", interval = \"50ms\", unhealthy_after = 1 }";
    for upstream in ["", health] {
        let mut proxy = Proxy::of_one_worker(&api).upstream(upstream).start();
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/", &[]).status, 200);
        proxy.limit_files(3);
        for _ in 0..5 {
            assert_eq!(client.get("/", &[]).status, 502);
        }
        let line = proxy.log.wait("upstream failed", |_| true);
        let error = line["error"].as_str().unwrap();
        assert!(error.contains("not the server but this machine has no open file left"), "{error}");
        proxy.limit_files(1000);
        assert_eq!(client.get("/", &[]).status, 200);
        proxy.stop();
        assert!(proxy.log.find("server down").is_none(), "{upstream}");
    }
}
