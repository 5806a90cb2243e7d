//! Clients that go away before they have their answer: nothing is done for them any more.

use std::io::{BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::PATIENCE;
use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody_accepts, read_request, until_closed};

/// A proxy whose log says what became of each request.
fn logging(api: &Upstream, server: &str, upstream: &str) -> Tidegate {
    Proxy::of_one_worker(api)
        .server(server)
        .upstream(&format!("{upstream}\n[log]\naccess = true"))
        .start()
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let (api, accepted) = Upstream::listening();
    let proxy = logging(&api, "", "response_timeout = \"1h\"");
    for (name, request) in [
        ("waiting for a head", "GET /a HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("in an upload", "POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf"),
        (
            "in a chunked upload",
            "POST /g HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf",
        ),
        (
            "with another request behind",
            "GET /c HTTP/1.1\r\nhost: a\r\n\r\nGET /d HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        ("with half a request behind", "GET /e HTTP/1.1\r\nhost: a\r\n\r\nGET /f"),
    ] {
        let mut client = Connection::open(proxy.address);
        client.send(request);
        let heard = accepted.recv_timeout(PATIENCE).expect(name);
        heard.recv_timeout(PATIENCE).expect(name);
        drop(client);
        // The server's connection ends too.
        until_closed(&heard);
    }
    for path in ["/a", "/b", "/c", "/g"] {
        proxy.log.wait("request", |line| line["path"] == path && line["status"] == 499);
    }
}

/// Where the end of a known connection came with its request, the request left no trace.
#[test]
fn a_client_that_has_left_already_is_in_the_access_log() {
    let api = Upstream::echoing();
    let proxy = logging(&api, "", "");
    let mut client = Connection::open(proxy.address);
    assert_eq!(client.get("/before", &[]).status, 200);
    proxy.pause();
    client.send("GET /gone HTTP/1.1\r\nhost: a\r\n\r\n");
    drop(client);
    proxy.signal("CONT");
    proxy.log.wait("request", |line| line["path"] == "/gone" && line["status"] == 499);
    assert_eq!(api.last().path(), "/before", "the API is not asked");
}

#[test]
fn a_client_that_leaves_ends_an_upload_nobody_reads() {
    let (tell, accepted) = channel();
    let api = Upstream::raw(move |stream| {
        let _ = tell.send(stream);
    });
    let proxy = logging(&api, "", "response_timeout = \"1h\"");
    let upload = |path: &str, most: usize| {
        let mut client = Connection::open(proxy.address);
        client
            .send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n"));
        let stuck = accepted.recv_timeout(PATIENCE).unwrap();
        client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut sent = 0;
        while sent < most && client.stream.write_all(&[b'x'; 65536]).is_ok() {
            sent += 65536;
        }
        (sent, client, stuck)
    };
    // As long as the buffers on the way are full the client's end cannot arrive; so find out what fits,
    // and how much less lets it: that depends on how the system sizes buffers meanwhile.
    let (fits, _full, _stuck) = upload("/full", usize::MAX);
    let left = (2..8).find_map(|part| {
        let path = format!("/part-{part}");
        let (_, client, stuck) = upload(&path, fits / part);
        let ports = [client.stream.local_addr().unwrap().port(), proxy.address.port()];
        drop(client);
        let is_told = || proxy.log.with("request").iter().any(|line| line["path"] == path.as_str());
        (0..50).any(|_| has_arrived(ports) || is_told()).then_some((path, stuck))
    });
    let (path, _stuck) = left.expect("a client whose end arrives");
    // A server whose buffers have grown meanwhile takes all of it, and the body ends too soon: also 499.
    proxy.log.wait("request", |line| line["path"] == path.as_str() && line["status"] == 499);
}

/// Whether the other side's system has the end of what a client, which has left, sent between these ports.
/// Looked at for a moment only.
fn has_arrived(ports: [u16; 2]) -> bool {
    std::thread::sleep(Duration::from_millis(10));
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // sl, local address, remote address, state. Connections to elsewhere may have the same port.
    let own = |line: &&str| {
        let addresses = line.split_whitespace().skip(1);
        addresses.zip(ports).all(|(address, port)| address.ends_with(&format!(":{port:04X}")))
    };
    let state = sockets.lines().find(own).and_then(|line| line.split_whitespace().nth(3));
    // Neither established nor waiting for its end to be acknowledged. One that is not in the list may
    // have been passed over: the list changes while it is read.
    state.is_some_and(|state| !matches!(state, "01" | "04"))
}

#[test]
fn a_client_that_leaves_a_download_ends_it() {
    let (api, told) = Upstream::endless();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.exactly(100_000);
    drop(client);
    told.recv_timeout(PATIENCE).expect("the API's connection is closed");
}

#[test]
fn a_client_that_leaves_ends_a_stalled_download() {
    let (api, closed) = {
        let (tell, told) = channel();
        let api = Upstream::raw(move |mut stream| {
            let _ = read_request(&mut BufReader::new(&stream));
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
            let _ = tell.send(());
        });
        (api, told)
    };
    let proxy = Proxy::of_one_worker(&api).upstream("idle_timeout = \"1h\"").start();
    // Nothing behind the request, and something.
    for behind in ["", "GET /next HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let mut client = Connection::open(proxy.address);
        client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n\r\n{behind}"));
        client.until(b"x\r\n");
        drop(client);
        closed.recv_timeout(PATIENCE).expect("the API's connection is closed");
    }
}

#[test]
fn a_client_gone_while_the_proxy_connects_is_let_go() {
    let deaf = nobody_accepts();
    let proxy = Proxy::of_one_worker(format!("http://{}", deaf.address))
        .server("max_connections = 1")
        .upstream("connect_timeout = \"1h\"")
        .route("path = \"/gone\"")
        .start();
    for behind in ["", "GET /next HTTP/1.1\r\nhost: a\r\n\r\n"] {
        let mut client = Connection::open(proxy.address);
        client.send(format!("GET /gone HTTP/1.1\r\nhost: a\r\n\r\n{behind}"));
        drop(client);
    }
    // There is room for one at a time.
    assert_eq!(get(proxy.address, "/elsewhere", &[]).status, 404);
}

#[test]
fn a_request_whose_client_has_left_already_is_not_sent() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for behind in ["", "GET /next HTTP/1.1\r\nhost: a\r\n\r\n"] {
        // So that the request and the client's end are there at once.
        proxy.pause();
        let mut client = Connection::open(proxy.address);
        client.send(format!("POST /late HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n{behind}"));
        drop(client);
        proxy.signal("CONT");
        assert_eq!(get(proxy.address, "/after", &[]).status, 200);
    }
    assert_eq!(api.requests().iter().map(|got| got.path()).collect::<Vec<_>>(), ["/after"; 2]);
}

/// Such a client was sent an answer with the status 499, which is for logs and metrics alone.
#[test]
fn a_client_that_has_closed_its_side_is_sent_nothing() {
    let api = Upstream::echoing();
    let proxy = logging(&api, "", "");
    for (path, head) in [("/upload", "content-length: 10\r\n\r\nhalf"), ("/whole", "\r\n")] {
        // So that the request and the client's end are there at once.
        proxy.pause();
        let mut client = Connection::open(proxy.address);
        client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\n{head}"));
        client.stream.shutdown(Shutdown::Write).unwrap();
        proxy.signal("CONT");
        assert!(client.is_closed(), "{path}");
        proxy.log.wait("request", |line| line["path"] == path && line["status"] == 499);
    }
    assert!(api.requests().is_empty());
}
