//! What the answer to one client may cost the others on the same connection to an API of HTTP/2.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};

use super::h2c_breaks::next;
use crate::support::PATIENCE;
use crate::support::client::Connection;
use crate::support::http2::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, asking, frame, request,
};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// `:status: 200` (RFC 7541, A).
const OK: &[u8] = &[0x88];

const EVENT: &[u8] = b"data: x\n\n";

/// The window of a stream of ours, which an API may fill.
const WINDOW: usize = 256 * 1024;

/// An API that does this with its first connection, after the preface.
fn api(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> (Upstream, Tidegate) {
    let api = Upstream::raw(move |mut stream| {
        let settings = [frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, ACK, 0, &[])].concat();
        let _ = stream.write_all(&settings);
        let _ = stream.read_exact(&mut [0; PREFACE.len()]);
        handle(stream);
    });
    let proxy = Proxy::of_one_worker(api.url().replace("http:", "h2c:"))
        .upstream("response_timeout = \"1h\"\nidle_timeout = \"1h\"")
        .server("body_timeout = \"1h\"")
        .start();
    (api, proxy)
}

/// The stream of the next request.
fn next_request(stream: &mut TcpStream) -> Option<u32> {
    loop {
        let came = next(stream)?;
        if came.kind == HEADERS {
            return Some(came.stream);
        }
    }
}

fn head(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, OK)
}

/// Begins a request whose answer comes last, and returns its connection.
fn slow(proxy: &Tidegate) -> Connection {
    let mut slow = Connection::open(proxy.address);
    slow.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    slow
}

fn wait<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(PATIENCE).expect("it comes so far")
}

/// A regression: the events of three clients that did not read ended the answers of all clients.
#[test]
fn small_events_that_nobody_reads_cut_off_no_other_answer() {
    const CLIENTS: usize = 5;
    let (tell, told) = channel();
    let (_api, proxy) = api(move |mut stream| {
        let Some(slow) = next_request(&mut stream) else { return };
        tell.send(()).unwrap();
        let all = frame(DATA, 0, 0, EVENT).repeat(WINDOW / EVENT.len());
        for _ in 0..CLIENTS {
            let Some(id) = next_request(&mut stream) else { return };
            let mut answer = all.clone();
            for event in answer.chunks_mut(9 + EVENT.len()) {
                event[5..9].copy_from_slice(&id.to_be_bytes());
            }
            let _ = stream.write_all(&[head(id), answer].concat());
            let _ = stream.write_all(&frame(DATA, END_STREAM, id, b""));
        }
        let _ = stream.write_all(&[head(slow), frame(DATA, END_STREAM, slow, b"slow")].concat());
        while next(&mut stream).is_some() {}
    });
    let mut slow = slow(&proxy);
    wait(&told);
    let mut deaf = Frames::open(proxy.address, &[(4, 0)]);
    for stream in (1..).step_by(2).take(CLIENTS) {
        deaf.send(request(stream, END_STREAM, &asking("GET", "/events")));
    }
    assert_eq!(slow.reply("GET").text(), "slow");
    // What was not read is there still.
    for stream in (1..).step_by(2).take(CLIENTS) {
        for id in [0, stream] {
            deaf.send(frame(WINDOW_UPDATE, 0, id, &1_000_000_u32.to_be_bytes()));
        }
        let mut came = Vec::new();
        loop {
            let frame = deaf.next().expect("the connection is there");
            assert_ne!(frame.kind, RST_STREAM);
            if frame.kind == DATA && frame.stream == stream {
                came.extend_from_slice(&frame.payload);
                if frame.flags & END_STREAM > 0 {
                    break;
                }
            }
        }
        assert!(came == EVENT.repeat(WINDOW / EVENT.len()), "{stream}: {}", came.len());
    }
}

#[test]
fn an_answer_of_too_many_frames_that_nobody_reads_breaks_off_alone() {
    let (tell, told) = channel();
    let (_api, proxy) = api(move |mut stream| {
        let Some(slow) = next_request(&mut stream) else { return };
        tell.send(()).unwrap();
        let Some(deaf) = next_request(&mut stream) else { return };
        let _ = stream.write_all(&head(deaf));
        let _ = stream.write_all(&frame(DATA, 0, deaf, &[b'x'; 16 * 1024]).repeat(15));
        let (small, mut room) = (frame(DATA, 0, deaf, b"x").repeat(1_000), 16 * 1024_u32);
        // As many as the window allows, until it is reset.
        loop {
            if room >= 1_000 {
                let _ = stream.write_all(&small);
                room -= 1_000;
                continue;
            }
            let Some(came) = next(&mut stream) else { return };
            match came.kind {
                WINDOW_UPDATE if came.stream == deaf => {
                    room += u32::from_be_bytes(came.payload.try_into().unwrap());
                }
                RST_STREAM if came.stream == deaf => break,
                _ => {}
            }
        }
        let _ = stream.write_all(&[head(slow), frame(DATA, END_STREAM, slow, b"slow")].concat());
        while next(&mut stream).is_some() {}
    });
    let mut slow = slow(&proxy);
    wait(&told);
    let mut deaf = Frames::open(proxy.address, &[(4, 0)]);
    deaf.send(request(1, END_STREAM, &asking("GET", "/events")));
    assert_eq!(slow.reply("GET").text(), "slow");
    assert_eq!(proxy.log.count("upstream failed"), 0, "it is not the server's fault");
}

/// A regression: the 101st frame without data ended the connection.
#[test]
fn an_api_that_sends_frames_without_data_keeps_its_connection() {
    let (_api, proxy) = api(|mut stream| {
        while let Some(id) = next_request(&mut stream) {
            let empty = frame(DATA, 0, id, b"").repeat(200);
            let last = frame(DATA, END_STREAM, id, b"");
            let _ = stream.write_all(&[head(id), empty, frame(DATA, 0, id, b"hi"), last].concat());
        }
    });
    let mut client = Connection::open(proxy.address);
    for _ in 0..3 {
        assert_eq!(client.request("GET", "/", &[], b"").text(), "hi");
    }
    assert_eq!(proxy.log.count("upstream failed"), 0);
}

/// A regression: what an API sent until it heard of clients that had left ended its connection.
#[test]
fn clients_that_leave_together_cut_off_no_other_answer() {
    const CLIENTS: usize = 90;
    let (tell, told) = channel();
    let (_api, proxy) = api(move |mut stream| {
        let Some(slow) = next_request(&mut stream) else { return };
        let mut left = Vec::new();
        tell.send(()).unwrap();
        while left.len() < CLIENTS {
            let Some(id) = next_request(&mut stream) else { return };
            left.push(id);
            let _ = stream.write_all(&head(id));
        }
        tell.send(()).unwrap();
        let resets = std::iter::from_fn(|| next(&mut stream));
        assert_eq!(resets.filter(|it| it.kind == RST_STREAM).take(CLIENTS).count(), CLIENTS);
        // Piece by piece: h2 counts what it reads at once only once for each stream.
        for _ in 0..30 {
            let late = left.iter().flat_map(|id| frame(DATA, 0, *id, &[b'x'; 300]));
            let ping = frame(PING, 0, 0, &[0; 8]);
            let _ = stream.write_all(&late.chain(ping).collect::<Vec<_>>());
            if !std::iter::from_fn(|| next(&mut stream)).any(|frame| frame.kind == PING) {
                return;
            }
        }
        let _ = stream.write_all(&[head(slow), frame(DATA, END_STREAM, slow, b"slow")].concat());
        while next(&mut stream).is_some() {}
    });
    let mut slow = slow(&proxy);
    wait(&told);
    let mut others = Frames::open(proxy.address, &[]);
    let streams = || (1..).step_by(2).take(CLIENTS);
    for stream in streams() {
        others.send(request(stream, END_STREAM, &asking("GET", "/")));
    }
    wait(&told);
    for stream in streams() {
        others.send(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    assert_eq!(slow.reply("GET").text(), "slow");
}
