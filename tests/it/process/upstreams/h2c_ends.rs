//! What the end of a shared HTTP/2 connection means for the requests on it, and for its server.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socket2::SockRef;

use crate::support::api::Api;
use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::http2::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, Frames, GOAWAY, HEADERS, RST_STREAM, block, frame,
};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::wait_until;

/// How many requests share a connection.
const MANY: usize = 50;

/// `:status: 200` (RFC 7541, A).
const OK: &[u8] = &[0x88];

fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, OK)
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Codes of errors (RFC 9113, 7).
const INTERNAL_ERROR: u32 = 2;
const HTTP_1_1_REQUIRED: u32 = 13;

/// Answers whose form h2 takes for the connection's fault.
fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let field = |name, value| [OK, &block(&[(name, value)])].concat();
    vec![
        ("a control character in a value", field("x-a", b"a\x01b")),
        ("a name in capitals", field("X-A", b"a")),
        ("a status of two digits", block(&[(":status", b"20")])),
        ("no status", block(&[("x-a", b"a")])),
        ("no header block", vec![0xff; 20]),
    ]
}

/// An API. The first connection has `many` requests when `ending` has them answered. On all later ones each request is
/// answered by `later`.
fn api(
    many: usize,
    ending: impl Fn(&mut Frames, &[Frame]) + Send + Sync + 'static,
    later: impl Fn(&Frame) -> Vec<u8> + Send + Sync + 'static,
) -> (Upstream, Arc<AtomicUsize>) {
    let connections = Arc::<AtomicUsize>::default();
    let count = connections.clone();
    let api = Upstream::raw(move |stream: TcpStream| {
        let (mut frames, mut requests) = (Frames::accept(stream), Vec::new());
        let mut is_first = None;
        while let Some(came) = frames.find(|frame| frame.kind == HEADERS) {
            let first = || count.fetch_add(1, Ordering::SeqCst) == 0;
            if !*is_first.get_or_insert_with(first) {
                frames.try_send(later(&came));
                continue;
            }
            requests.push(came);
            if requests.len() == many {
                ending(&mut frames, &requests);
            }
        }
    });
    (api, connections)
}

fn proxy(api: &Upstream, upstream: &str) -> Tidegate {
    Proxy::of_one_worker(api.url().replace("http:", "h2c:")).upstream(upstream).start()
}

/// The statuses of so many requests at once.
fn at_once(proxy: &Tidegate, method: &str, many: usize) -> Vec<u16> {
    let mut client = Client::open(proxy.address);
    let mut requests: Vec<_> = (0..many).map(|_| client.begin(method, "/", &[])).collect();
    requests.iter_mut().map(|request| request.reply().status).collect()
}

fn assert_up(mut proxy: Tidegate, what: &str) {
    proxy.stop();
    assert!(proxy.log.find("server down").is_none(), "{what}");
}

/// All answers that shared a connection with it were lost, and counted as failures in a row.
#[test]
fn a_malformed_answer_costs_no_other_request_anything() {
    for (what, bad) in malformed() {
        let again = bad.clone();
        let (api, _) = api(
            MANY + 1,
            move |frames, requests| {
                let (got, deleted): (Vec<_>, Vec<_>) = requests.iter().partition(|it| is_get(it));
                frames.try_send(answer_of(deleted[0].stream, &bad));
                // h2 ends the connection for most of these, but not for all.
                frames.try_send(got.iter().flat_map(|it| ok(it.stream)).collect::<Vec<_>>());
            },
            move |came| match is_get(came) {
                true => ok(came.stream),
                false => answer_of(came.stream, &again),
            },
        );
        let proxy = proxy(&api, "");
        let mut client = Client::open(proxy.address);
        let mut bad = client.begin("DELETE", "/", &[]);
        assert_eq!(at_once(&proxy, "GET", MANY), [200; MANY], "{what}");
        assert_eq!(bad.reply().status, 502, "{what}");
        assert_eq!(get(proxy.address, "/", &[]).status, 200, "{what}");
        assert_up(proxy, what);
    }
}

/// GET is 2 in the table of fields (RFC 7541, A), and DELETE is not in it.
fn is_get(request: &Frame) -> bool {
    request.payload[0] == 0x82
}

fn answer_of(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
}

type Ending = fn(&mut Frames, &[Frame]);

/// The ways in which all requests of a connection fail.
const ENDINGS: [(&str, Ending); 6] = [
    ("a reset", |frames, _| {
        SockRef::from(&frames.stream).set_linger(Some(Duration::ZERO)).unwrap();
        let other = TcpStream::connect(frames.stream.local_addr().unwrap()).unwrap();
        frames.stream = other;
    }),
    ("an end", |frames, _| frames.stream.shutdown(std::net::Shutdown::Both).unwrap()),
    ("a GOAWAY with an error", |frames, requests| goodbye(frames, requests, INTERNAL_ERROR)),
    ("a GOAWAY that asks for HTTP/1.1", |frames, requests| {
        goodbye(frames, requests, HTTP_1_1_REQUIRED)
    }),
    ("a reset of each stream", |frames, requests| each(frames, requests, INTERNAL_ERROR)),
    ("requests that ask for HTTP/1.1", |frames, requests| {
        each(frames, requests, HTTP_1_1_REQUIRED)
    }),
];

/// A goodbye by a server that has begun with all requests.
fn goodbye(frames: &mut Frames, requests: &[Frame], code: u32) {
    let last = requests.iter().map(|request| request.stream).max().unwrap();
    frames.send(frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat()));
    frames.stream.shutdown(std::net::Shutdown::Both).unwrap();
}

fn each(frames: &mut Frames, requests: &[Frame], code: u32) {
    frames
        .send(requests.iter().flat_map(|request| reset(request.stream, code)).collect::<Vec<_>>());
}

#[test]
fn the_end_of_a_connection_is_one_failure() {
    for (what, ending) in ENDINGS {
        let (api, _) = api(MANY, ending, |came| ok(came.stream));
        let proxy = proxy(&api, "");
        let statuses = at_once(&proxy, "POST", MANY);
        assert!(statuses.iter().all(|status| [200, 502].contains(status)), "{what}: {statuses:?}");
        assert_up(proxy, what);
    }
}

#[test]
fn requests_of_a_connection_that_ends_are_sent_again() {
    for (what, ending) in &ENDINGS[..3] {
        let (api, _) = api(MANY, ending, |came| ok(came.stream));
        let proxy = proxy(&api, "");
        assert_eq!(at_once(&proxy, "GET", MANY), [200; MANY], "{what}");
        assert_up(proxy, what);
    }
}

/// A server that ends each connection is set aside as before.
#[test]
fn connections_that_end_one_after_the_other_set_a_server_aside() {
    let (api, _) = api(
        1,
        |frames, requests| each(frames, requests, INTERNAL_ERROR),
        |came| reset(came.stream, INTERNAL_ERROR),
    );
    let proxy = proxy(&api, "");
    for _ in 0..3 {
        assert_eq!(get(proxy.address, "/", &[]).status, 502);
    }
    proxy.log.wait("server down", |_| true);
}

#[test]
fn answers_that_break_off_together_are_one_failure() {
    for (what, ending) in ENDINGS {
        let (api, _) = api(
            MANY,
            move |frames, requests| {
                for request in requests {
                    frames.send(frame(HEADERS, END_HEADERS, request.stream, OK));
                    frames.send(frame(DATA, 0, request.stream, b"half"));
                }
                // Once the answers have begun, nothing is sent again.
                frames.find(|frame| frame.kind == DATA);
                ending(frames, requests);
            },
            |came| ok(came.stream),
        );
        let proxy = proxy(&api, "retries = 0");
        let mut client = Client::open(proxy.address);
        let mut requests: Vec<_> = (0..MANY - 1).map(|_| client.begin("GET", "/", &[])).collect();
        let mut last = client.upload("POST", "/", &[]);
        for request in requests.iter_mut().chain([&mut last]) {
            assert_eq!(request.head().unwrap().status(), 200);
            assert_eq!(request.piece().unwrap().unwrap(), "half");
        }
        last.send(b"all is there");
        for request in &mut requests {
            assert!(request.piece().is_none_or(|piece| piece.is_err()), "{what}");
        }
        assert_up(proxy, what);
    }
}

/// A server of Node that held too much for slow clients reset each new stream, and its connection was used on.
#[test]
fn a_connection_on_which_a_stream_fails_takes_no_more_requests() {
    // A server of `h2c://` that asks for HTTP/1.1 (code 13) has no other connection to offer.
    for code in 0..13 {
        let (api, connections) = api(
            1,
            move |frames, requests| {
                frames.send(ok(requests[0].stream));
                while let Some(came) = frames.find(|frame| frame.kind == HEADERS) {
                    frames.try_send(reset(came.stream, code));
                }
            },
            |came| ok(came.stream),
        );
        let proxy = proxy(&api, "");
        for _ in 0..5 {
            assert_eq!(get(proxy.address, "/", &[]).status, 200, "{code}");
        }
        // One for the request that is sent again, and one for all that follow.
        assert_eq!(connections.load(Ordering::SeqCst), 3, "{code}");
    }
}

/// Uploads that their clients spoil say nothing of the server, nor of its connection.
#[test]
fn an_upload_that_its_client_breaks_is_not_the_servers_fault() {
    let api = Api::answering_h2c(|request, mut respond| async move {
        let mut body = request.into_body();
        while let Some(Ok(_)) = body.data().await {}
        if body.is_end_stream() {
            let _ = respond.send_response(http::Response::new(()), true);
        }
    });
    let proxy = Proxy::of_one_worker(&api).server("max_body_size = \"1KiB\"").start();
    for _ in 0..5 {
        let mut client = Connection::open(proxy.address);
        client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3e8\r\n");
        client.send([b'x'; 1000]);
        let before = api.calls().len();
        wait_until("the API has it", || before > 0 || !api.calls().is_empty());
        client.send("\r\n3e8\r\n");
        client.send([b'x'; 1000]);
        assert_eq!(client.reply("POST").status, 413);
    }
    assert_eq!(get(proxy.address, "/", &[]).status, 200);
    assert_eq!(api.connections(), 1);
    assert_up(proxy, "uploads");
}
