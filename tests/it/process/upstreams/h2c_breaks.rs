//! APIs of HTTP/2 that refuse, say goodbye, or break, written frame by frame.

use std::io::{Read, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::support::client::{Connection, get};
use crate::support::http2::Client;
use crate::support::http2::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame,
};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, wait_until};

/// `:status: 200` (RFC 7541, A).
const OK: &[u8] = &[0x88];

/// An API that answers a request, the `n`th on the connection of this number, with these bytes; an empty
/// answer closes the connection.
fn api(
    answer: impl Fn(usize, u32) -> Vec<u8> + Send + Sync + 'static,
) -> (Upstream, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let (count, connections) = (requests.clone(), AtomicUsize::new(0));
    let api = Upstream::raw(move |mut stream| {
        let mut connection = None;
        let _ = stream.write_all(&frame(SETTINGS, 0, 0, &[]));
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
        while let Some(frame) = next(&mut stream) {
            if frame.kind == HEADERS {
                count.fetch_add(1, Ordering::SeqCst);
                let next = || connections.fetch_add(1, Ordering::SeqCst);
                let said = answer(*connection.get_or_insert_with(next), frame.stream);
                if said.is_empty() || stream.write_all(&said).is_err() {
                    return;
                }
            }
        }
    });
    (api, requests)
}

/// The next frame.
pub(super) fn next(connection: &mut impl Read) -> Option<Frame> {
    let mut head = [0; 9];
    connection.read_exact(&mut head).ok()?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    connection.read_exact(&mut payload).ok()?;
    Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
}

fn proxy(api: &Upstream, upstream: &str) -> Tidegate {
    Proxy::of_one_worker(api.url().replace("http:", "h2c:")).upstream(upstream).start()
}

/// A whole answer.
fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, OK)
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// That streams beyond `last` were not looked at.
pub(super) fn goodbye(last: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat())
}

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

fn status(proxy: &Tidegate, method: &str, body: &[u8]) -> u16 {
    Connection::open(proxy.address).request(method, "/", &[], body).status
}

#[test]
fn a_request_that_was_refused_unread_is_sent_again() {
    for method in ["GET", "POST", "DELETE"] {
        let asked = AtomicUsize::new(0);
        let (api, requests) = api(move |_, stream| match asked.fetch_add(1, Ordering::SeqCst) {
            0 => reset(stream, REFUSED_STREAM),
            _ => ok(stream),
        });
        let proxy = proxy(&api, "");
        assert_eq!(status(&proxy, method, b""), 200, "{method}");
        assert_eq!(requests.load(Ordering::SeqCst), 2, "{method}");
    }
}

/// An API that reads whole bodies and notes them. It says of its first request that it did not process it.
fn refusing_after_the_body(refusal: fn(u32) -> Vec<u8>) -> (Upstream, Arc<Mutex<Vec<Vec<u8>>>>) {
    let bodies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let seen = bodies.clone();
    let api = Upstream::raw(move |mut stream| {
        let window = u32::try_from(1 << 20).unwrap().to_be_bytes();
        let large_windows = frame(SETTINGS, 0, 0, &[&[0, 4][..], &window[..]].concat());
        let _ = stream.write_all(&[large_windows, frame(WINDOW_UPDATE, 0, 0, &window)].concat());
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
        let mut body = Vec::new();
        while let Some(came) = next(&mut stream) {
            if came.kind != DATA {
                continue;
            }
            body.extend_from_slice(&came.payload);
            if came.flags & END_STREAM != 0 {
                let mut bodies = seen.lock().unwrap();
                bodies.push(std::mem::take(&mut body));
                let first = bodies.len() == 1;
                let answer = if first { refusal(came.stream) } else { ok(came.stream) };
                let _ = stream.write_all(&answer);
            }
        }
    });
    (api, bodies)
}

#[test]
fn a_body_that_was_refused_unread_is_sent_again_if_it_was_kept() {
    for refusal in [|stream| reset(stream, REFUSED_STREAM), |_| goodbye(0, NO_ERROR)] {
        for (length, expected) in [(2, 200), (64 * 1024, 200), (64 * 1024 + 1, 502)] {
            let (api, bodies) = refusing_after_the_body(refusal);
            let proxy = proxy(&api, "");
            let body = b"0123456789".repeat(length / 10 + 1);
            let body = &body[..length];
            assert_eq!(status(&proxy, "POST", body), expected, "{length} bytes");
            let bodies = bodies.lock().unwrap();
            assert_eq!(bodies.len(), if expected == 200 { 2 } else { 1 }, "{length} bytes");
            assert!(bodies.iter().all(|came| came == body), "{length} bytes");
        }
    }
}

#[test]
fn what_may_have_been_read_is_sent_again_only_if_safe() {
    for (method, expected) in [("GET", 200), ("POST", 502)] {
        let asked = AtomicUsize::new(0);
        let (api, requests) = api(move |_, stream| match asked.fetch_add(1, Ordering::SeqCst) {
            0 => reset(stream, INTERNAL_ERROR),
            _ => ok(stream),
        });
        let proxy = proxy(&api, "");
        assert_eq!(status(&proxy, method, b""), expected, "{method}");
        let tries = if expected == 200 { 2 } else { 1 };
        assert_eq!(requests.load(Ordering::SeqCst), tries, "{method}");
    }
}

#[test]
fn a_request_taken_before_a_goodbye_is_not_sent_again() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let asked = Arc::<AtomicUsize>::default();
    let count = asked.clone();
    let api = Upstream::raw(move |mut stream| {
        let _ = stream.write_all(&frame(SETTINGS, 0, 0, &[]));
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
        loop {
            match next(&mut stream) {
                Some(frame) if frame.kind == HEADERS => break,
                Some(_) => {}
                None => return,
            }
        }
        count.fetch_add(1, Ordering::SeqCst);
        let _ = stream.write_all(&goodbye(1, NO_ERROR));
        let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
    });
    let proxy = proxy(&api, "");
    let mut client = Connection::open(proxy.address);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
    wait_until("the API has it", || asked.load(Ordering::SeqCst) == 1);
    go.send(()).unwrap();
    assert_eq!(client.reply("POST").status, 502);
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// An API that takes one request at a time and refuses more. It says so after the client's preface.
#[test]
fn no_request_is_sent_before_the_api_has_said_how_many_it_takes() {
    let api = Upstream::raw(|mut stream| {
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
        let one_at_a_time = [0, 3, 0, 0, 0, 1];
        let _ = stream.write_all(&frame(SETTINGS, 0, 0, &one_at_a_time));
        let mut open = Vec::new();
        while let Some(frame) = next(&mut stream) {
            match frame.kind {
                HEADERS if open.is_empty() => open.push(frame.stream),
                HEADERS => drop(stream.write_all(&reset(frame.stream, REFUSED_STREAM))),
                // The end of the request's body.
                DATA => drop(stream.write_all(&ok(open.pop().unwrap()))),
                _ => {}
            }
        }
    });
    let proxy = proxy(&api, "");
    let requests = 20;
    let mut clients: Vec<_> = (0..requests).map(|_| Connection::open(proxy.address)).collect();
    for client in &mut clients {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi");
    }
    assert!(clients.iter_mut().all(|client| client.reply("POST").status == 200));
}

#[test]
fn an_api_that_closes_without_a_word_is_a_502_that_is_told() {
    let api = Upstream::raw(|mut stream| {
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
    });
    let proxy = proxy(&api, "");
    assert_eq!(status(&proxy, "POST", b"hi"), 502);
    proxy.log.wait("server down", |line| line.to_string().contains("no HTTP/2 settings"));
}

#[test]
fn an_api_that_always_refuses_uses_up_its_retries() {
    for (retries, tries) in [(0, 1), (1, 2), (3, 4)] {
        let (api, requests) = api(|_, stream| reset(stream, REFUSED_STREAM));
        let proxy = proxy(&api, &format!("retries = {retries}"));
        assert_eq!(status(&proxy, "GET", b""), 502);
        assert_eq!(requests.load(Ordering::SeqCst), tries, "{retries}");
        proxy.log.wait("upstream failed", |line| line.to_string().contains("(REFUSED_STREAM)"));
    }
}

#[test]
fn a_request_behind_a_goodbye_takes_another_connection() {
    for method in ["GET", "POST"] {
        // The goodbye comes in the moment in which the request is on its way.
        let (api, requests) = api(|connection, stream| match connection {
            0 => goodbye(0, NO_ERROR),
            _ => ok(stream),
        });
        let proxy = proxy(&api, "");
        assert_eq!(status(&proxy, method, b""), 200, "{method}");
        assert_eq!(requests.load(Ordering::SeqCst), 2, "{method}");
    }
}

#[test]
fn a_connection_that_does_not_answer_in_time_takes_no_more_requests() {
    let connections = AtomicUsize::new(0);
    let api = Upstream::raw(move |mut stream| {
        let mut is_silent = None;
        let _ = stream.write_all(&frame(SETTINGS, 0, 0, &[]));
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
        while let Some(came) = next(&mut stream) {
            let is_first = || connections.fetch_add(1, Ordering::SeqCst) == 0;
            if came.kind == HEADERS && !*is_silent.get_or_insert_with(is_first) {
                let _ = stream.write_all(&ok(came.stream));
            }
        }
    });
    let proxy = proxy(&api, "response_timeout = \"1s\"");
    assert_eq!(status(&proxy, "GET", b""), 504);
    for _ in 0..3 {
        assert_eq!(status(&proxy, "GET", b""), 200);
    }
}

#[test]
fn what_was_under_way_before_a_goodbye_is_finished() {
    let (api, _) = api(|_, stream| [goodbye(stream, NO_ERROR), ok(stream)].concat());
    let proxy = proxy(&api, "retries = 0");
    let mut client = Connection::open(proxy.address);
    for _ in 0..5 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
}

#[test]
fn an_api_that_always_says_goodbye_uses_up_its_retries() {
    for (retries, tries) in [(0, 1), (2, 3)] {
        let (api, requests) = api(|_, _| goodbye(0, NO_ERROR));
        let proxy = proxy(&api, &format!("retries = {retries}"));
        assert_eq!(status(&proxy, "GET", b""), 502);
        assert_eq!(requests.load(Ordering::SeqCst), tries, "{retries}");
    }
}

#[test]
fn an_api_that_greets_with_a_goodbye_is_not_tried_for_ever() {
    let accepted = Arc::<AtomicUsize>::default();
    let count = accepted.clone();
    let api = Upstream::raw(move |mut stream| {
        count.fetch_add(1, Ordering::SeqCst);
        let _ = stream.write_all(&[frame(SETTINGS, 0, 0, &[]), goodbye(0, NO_ERROR)].concat());
    });
    let proxy = proxy(&api, "");
    assert_eq!(status(&proxy, "GET", b""), 502);
    assert!(accepted.load(Ordering::SeqCst) <= 3, "{accepted:?}");
}

/// An API that begins an answer of ten bytes, says half of it, waits, and then ends as `ending` says: with
/// these bytes and the connection's end.
fn dying(ending: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> (Upstream, Go) {
    let (go, wait) = channel::<()>();
    let wait: Mutex<Receiver<()>> = Mutex::new(wait);
    let api = Upstream::raw(move |mut stream| {
        let _ = stream.write_all(&frame(SETTINGS, 0, 0, &[]));
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
        while let Some(Frame { kind, stream: id, .. }) = next(&mut stream) {
            if kind == HEADERS {
                let begun =
                    [frame(HEADERS, END_HEADERS, id, OK), frame(DATA, 0, id, b"half.")].concat();
                let _ = stream.write_all(&begun);
                let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
                let _ = stream.write_all(&ending(id));
                return;
            }
        }
    });
    (api, go)
}

type Go = std::sync::mpsc::Sender<()>;

/// Half of the answer comes to a client of HTTP/1.1, and then the API ends it.
fn breaks_off((api, go): &(Upstream, Go)) -> Tidegate {
    let proxy = proxy(api, "");
    let mut client = Connection::open(proxy.address);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.until(b"half.");
    go.send(()).unwrap();
    let (rest, _) = client.rest_with_end();
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it looks whole");
    proxy
}

#[test]
fn an_answer_whose_api_dies_breaks_off() {
    let proxy = breaks_off(&dying(|_| Vec::new()));
    proxy.log.wait("upstream failed", |line| {
        line["error"].as_str().is_some_and(|error| error.contains("broke off"))
    });
}

#[test]
fn an_answer_that_is_reset_breaks_off() {
    for code in [0, INTERNAL_ERROR] {
        breaks_off(&dying(move |stream| reset(stream, code)));
    }
}

#[test]
fn a_client_of_http_2_sees_a_reset_where_the_api_dies() {
    let (api, go) = dying(|_| Vec::new());
    let proxy = proxy(&api, "");
    let mut client = Client::open(proxy.address);
    let mut request = client.begin("GET", "/", &[]);
    assert_eq!(request.head().unwrap().status(), 200);
    assert_eq!(request.piece().unwrap().unwrap(), "half.");
    go.send(()).unwrap();
    assert!(request.piece().unwrap().unwrap_err().is_reset(), "it looks whole");
    assert_eq!(client.get("/%2f", &[]).status, 400, "its connection is as good as before");
}

#[test]
fn an_api_that_was_started_again_costs_no_request() {
    // Each connection takes one request, and is closed with the next.
    let (api, _) = api(|_, stream| if stream == 1 { ok(stream) } else { Vec::new() });
    let proxy = proxy(&api, "");
    for _ in 0..5 {
        assert_eq!(get(proxy.address, "/", &[]).status, 200);
    }
}
