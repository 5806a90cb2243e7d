//! Connections that were closed or kept, or read on, where they should not have been.

use std::io::{BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, nobody, read_head};

const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";

fn tunnel(proxy: &Tidegate) -> Connection {
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
    assert_eq!(client.any_reply("GET").status, 101);
    client
}

/// The end of what the server says was taken for that of a response, behind which what a client still
/// sends is thrown away: the server got a part of it and then its end, as if that had been all.
#[test]
fn a_tunnel_that_its_server_half_closed_loses_nothing() {
    let (end, ending) = channel();
    let (read, reading) = channel();
    let (tell, told) = channel();
    let orders = Mutex::new((ending, reading));
    let api = Upstream::raw(move |mut stream| {
        let (ending, reading) = &*orders.lock().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let _ = read_head(&mut reader);
        let _ = stream.write_all(SWITCHED);
        let _ = ending.recv();
        let _ = stream.shutdown(Shutdown::Write);
        let _ = reading.recv();
        let mut heard = Vec::new();
        let _ = reader.read_to_end(&mut heard);
        let _ = tell.send(heard);
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = tunnel(&proxy);
    // Until all buffers on the way are full, and something waits to be read by the proxy.
    client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let piece: Vec<u8> = (0..65_521).map(|n: usize| n.to_le_bytes()[n % 2]).collect();
    let mut said: Vec<u8> = Vec::new();
    while let Ok(sent) = client.stream.write(&piece[said.len() % piece.len()..]) {
        let from = said.len() % piece.len();
        said.extend(&piece[from..from + sent]);
    }
    end.send(()).unwrap();
    assert!(client.is_closed(), "the server's end is passed on");
    read.send(()).unwrap();
    client.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    client.send(&piece);
    said.extend(&piece);
    client.stream.shutdown(Shutdown::Write).unwrap();
    let heard = told.recv_timeout(PATIENCE).unwrap();
    assert!(heard == said, "{} of {} bytes", heard.len(), said.len());
}

/// What a server did not take any more was thrown away, which is right for an upload whose answer is on
/// its way: in a tunnel nothing was to come, and the client went on talking to nobody.
#[test]
fn a_tunnel_whose_server_is_gone_ends() {
    let api = Upstream::raw(move |mut stream| {
        let _ = read_head(&mut BufReader::new(stream.try_clone().unwrap()));
        let _ = stream.write_all(SWITCHED);
        let _ = stream.shutdown(Shutdown::Write);
        // Its side is closed only once the client knows that it says no more.
        let _ = stream.read(&mut [0]);
    });
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = tunnel(&proxy);
    assert!(client.is_closed(), "the server's end is passed on");
    crate::support::wait_until("it is closed", || {
        client.stream.write_all(&[b'x'; 64 * 1024]).is_err()
    });
}

/// Behind a rejected CONNECT may come what a client wants to tell another server, and was read as its
/// next request here. So it was behind a target that nobody understands.
#[test]
fn nothing_is_read_behind_a_request_that_may_not_be_one() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let behind = "GET /behind HTTP/1.1\r\nhost: a\r\n\r\n";
    for (status, line) in [
        (405, "CONNECT a.test:443 HTTP/1.1"),
        (405, "CONNECT a.test:443 HTTP/1.0"),
        (405, "CONNECT / HTTP/1.1"),
        (405, "CONNECT http://a.test/ HTTP/1.1"),
        (400, "CONNECT  HTTP/1.1"),
        (400, "GET a.test:443 HTTP/1.1"),
        (400, "GET a.test HTTP/1.1"),
        (405, "TRACE a.test:443 HTTP/1.1"),
        (400, "brew a.test:443 HTTP/1.1"),
        (400, "GET ?a HTTP/1.1"),
        (400, "GET #a HTTP/1.1"),
        (400, "GET a/b HTTP/1.1"),
        (400, "GET http:// HTTP/1.1"),
        (400, "GET http:///a HTTP/1.1"),
        (400, "GET :// HTTP/1.1"),
        (400, "GET \\a HTTP/1.1"),
    ] {
        for length in ["", "content-length: 0\r\n", "content-length: 5\r\n"] {
            let mut client = Connection::open(proxy.address);
            client.send(format!("{line}\r\nhost: a.test:443\r\n{length}\r\n{behind}{behind}"));
            let said = String::from_utf8_lossy(&client.rest()).into_owned();
            let head = format!("HTTP/1.{} {status} ", u8::from(!line.ends_with("1.0")));
            assert!(said.starts_with(&head), "{line}: {said}");
            assert_eq!(said.matches("HTTP/1.").count(), 1, "{line}: {said}");
            assert!(
                said.contains("connection: close\r\n") || head.contains("1.0"),
                "{line}: {said}"
            );
        }
    }
    assert!(api.requests().is_empty());
}

/// The connection ended with the 502 for a server that could not be reached, even where all of the
/// request had come.
#[test]
fn an_unreachable_server_costs_no_client_its_connection() {
    let proxy = Proxy::to(nobody()).start();
    let mut client = Connection::open(proxy.address);
    for (name, rest) in [
        ("no body", "\r\n".to_owned()),
        ("a short one", "content-length: 5\r\n\r\nhello".to_owned()),
        ("a long one", format!("content-length: 60000\r\n\r\n{}", "x".repeat(60_000))),
        ("chunks", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_owned()),
    ] {
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{rest}"));
        let reply = client.reply("POST");
        assert_eq!((reply.status, reply.header("connection")), (502, None), "{name}");
    }
    // Of one that is longer nobody wants to read the rest.
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n");
    let reply = client.reply("POST");
    assert_eq!((reply.status, reply.header("connection").as_deref()), (502, Some("close")));
    assert!(client.is_closed());
}
