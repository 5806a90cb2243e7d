//! Time-outs that came too early, or never.

use std::io::{BufReader, Write as _};
use std::sync::mpsc::channel;

use super::limited;
use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::{Upstream, read_head};

/// Waits for a while, by nobody's clock but the proxy's: until it has had enough of a client that says
/// nothing.
fn header_timeout_of(proxy: &Tidegate) {
    assert!(Connection::open(proxy.address).is_closed());
}

/// A timer that was set while the runtime's budget for the task was spent registered nothing, and was
/// taken for one that had: the connection had no time-out any more, and did not hear of a drain.
#[test]
fn many_requests_at_once_leave_a_connection_its_timer() {
    let (tell, left) = channel();
    let api = Upstream::raw(move |mut stream| {
        let _ = read_head(&mut BufReader::new(&stream));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n");
        while stream.write_all(&[b'x'; 64 * 1024]).is_ok() {}
        let _ = tell.send(());
    });
    let mut proxy = Proxy::of_one_worker(&api)
        .server("header_timeout = \"1s\"\nbody_timeout = \"1s\"")
        .server("idle_timeout = \"1d\"\ndrain_timeout = \"1d\"")
        .route("path = \"/here\"\nrespond = { status = 200 }")
        .route("path = \"/file\"")
        .start();
    let request = "GET /here HTTP/1.1\r\nhost: a\r\n\r\n";
    let counts = || (120..310).step_by(9);
    let asked = |count: usize| {
        let mut client = Connection::open(proxy.address);
        assert_eq!(client.get("/here", &[]).status, 200);
        (client, count)
    };
    let mut clients: Vec<_> =
        counts().flat_map(|count| [asked(count), asked(count), asked(count)]).collect();
    header_timeout_of(&proxy);
    for (client, count) in &mut clients {
        client.send(request.repeat(*count));
        for _ in 0..*count {
            assert_eq!(client.reply("GET").status, 200);
        }
    }
    let (mut half, mut taking, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for (at, (client, count)) in clients.into_iter().enumerate() {
        [&mut half, &mut taking, &mut idle][at % 3].push((client, count));
    }
    for (client, _) in &mut half {
        client.send("GET /here HT");
    }
    for (client, _) in &mut taking {
        client.send("GET /file HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for (client, count) in &mut half {
        assert!(client.is_closed(), "{count} requests, then half a head");
    }
    for _ in &taking {
        left.recv_timeout(PATIENCE).expect("a download that nobody takes ends");
    }
    proxy.signal("TERM");
    assert!(idle.iter_mut().all(|(client, _)| client.is_closed()));
    assert_eq!(proxy.wait().code(), Some(0));
}

/// A connection had no time left as well where nothing came between the requests: an idle one was kept.
#[test]
fn many_requests_at_once_do_not_keep_an_idle_connection() {
    let proxy = Proxy::answering().server("workers = 1\nidle_timeout = \"1s\"").start();
    let mut clients: Vec<_> =
        (120..310).step_by(9).map(|_| Connection::open(proxy.address)).collect();
    for (client, count) in clients.iter_mut().zip((120..310).step_by(9)) {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(count));
    }
    for client in &mut clients {
        assert!(client.rest().starts_with(b"HTTP/1.1 200 OK"));
    }
}

/// The time for a head ran over all that was left of an upload: one of up to 64 KiB that took longer was
/// cut off, after an answer that had promised to keep the connection.
#[test]
fn the_rest_of_a_rejected_upload_has_a_bodys_time() {
    let api = Upstream::echoing();
    let times = "header_timeout = \"400ms\"\nbody_timeout = \"1d\"";
    let proxy = limited(&api, "mode = \"enforce\"").server(times).start();
    let mut client = Connection::open(proxy.address);
    for _ in 0..2 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n");
    let reply = client.reply("POST");
    assert_eq!((reply.status, reply.header("connection")), (429, None));
    for _ in 0..3 {
        client.send([b'x'; 20_000]);
        header_timeout_of(&proxy);
    }
    assert_eq!(client.get("/", &[]).status, 429, "the connection is kept");
    // What is begun after it has a head's time again.
    client.send("GET / HT");
    assert!(client.is_closed());
}
