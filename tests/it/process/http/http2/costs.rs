//! What one stream may cost its connection: uploads that nobody uses, and uploads in small pieces.

use std::io::Write as _;

use crate::support::http2::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, Frames, HEADERS, Outcome, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, asking, frame, request,
};
use crate::support::proxy::Proxy;
use crate::support::upstream::{Upstream, ok, read_head};

const ACK: u8 = 1;
const NO_ERROR: u32 = 0;

/// A connection that has the server's settings, and takes whatever comes.
fn open(proxy: std::net::SocketAddr) -> Frames {
    let mut client = Frames::open(proxy, &[]);
    client.find(|frame| frame.kind == SETTINGS && frame.flags & ACK == 0).expect("settings");
    client.send(frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
    client
}

/// What comes until the server has read all that was sent.
fn until_read(client: &mut Frames) -> Vec<Frame> {
    client.send(frame(PING, 0, 0, &[0; 8]));
    let mut came = Vec::new();
    loop {
        let frame = client.next().expect("the connection is there");
        if frame.kind == PING && frame.flags & ACK > 0 {
            return came;
        }
        came.push(frame);
    }
}

fn is_reset(frame: &Frame) -> bool {
    frame.kind == RST_STREAM
}

/// An API that answers each request before its body, and closes.
fn hasty() -> Upstream {
    Upstream::raw(|mut stream| {
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        if read_head(&mut reader).is_some() {
            let _ = stream.write_all(&ok("early"));
        }
    })
}

fn rejecting(api: &Upstream) -> Proxy {
    Proxy::of_one_worker(api)
        .limits("[limits.one]\nkey = []\nrate = \"1/h\"\n\n[limits.named]\nkey = [\"header:x-name\"]\nmissing = \"reject\"\nrate = \"9/s\"")
        .route("path = \"/hasty\"\nupstream = \"api\"\nmethods = [\"POST\"]")
        .route("path = \"/limited\"\nupstream = \"api\"\nlimits = [\"one\"]")
        .route("path = \"/named\"\nupstream = \"api\"\nlimits = [\"named\"]")
        .route("path = \"/small\"\nupstream = \"api\"\nmax_body_size = \"1KiB\"")
        .route("path = \"/own\"\nrespond = { status = 410, body = \"gone\" }")
}

/// A regression: h2 reset the stream together with the answer. What was on its way then counted against the connection.
#[test]
fn an_upload_that_nobody_uses_is_read_to_its_end() {
    let api = hasty();
    let proxy = rejecting(&api).start();
    let mut client = open(proxy.address);
    assert_eq!(client.ask(1, &asking("POST", "/limited")), Outcome::Status(200));
    let long = vec![b'x'; 40_000];
    let mut large = asking("POST", "/own").to_vec();
    large.push(("x-long", &long));
    let uploads = [
        (429, asking("POST", "/limited").to_vec()),
        (400, asking("POST", "/named").to_vec()),
        (404, asking("POST", "/nowhere").to_vec()),
        (405, asking("PUT", "/hasty").to_vec()),
        (400, asking("POST", "/a%2fb").to_vec()),
        (410, asking("POST", "/own").to_vec()),
        (431, large),
        (413, asking("POST", "/small").to_vec()),
        (200, asking("POST", "/hasty").to_vec()),
    ];
    for (stream, (status, head)) in (3..).step_by(2).zip(uploads) {
        let head = match status {
            // In two frames, since none may be that long.
            431 => {
                let block = crate::support::http2::frames::block(&head);
                let (first, rest) = block.split_at(16_000);
                let (second, third) = rest.split_at(16_000);
                [
                    frame(HEADERS, 0, stream, first),
                    frame(9, 0, stream, second),
                    frame(9, END_HEADERS, stream, third),
                ]
                .concat()
            }
            _ => request(stream, 0, &head),
        };
        client.send(head);
        client.send(frame(DATA, 0, stream, &[b'x'; 2_000]));
        assert_eq!(client.outcome(stream), Outcome::Status(status), "{status}");
        for _ in 0..3 {
            client.send(frame(DATA, 0, stream, &[b'x'; 16_000]));
        }
        let came = until_read(&mut client);
        assert!(!came.iter().any(is_reset), "{status}: {came:?}");
        client.send(frame(DATA, END_STREAM, stream, b"x"));
        let came = until_read(&mut client);
        assert!(!came.iter().any(is_reset), "{status}: {came:?}");
    }
}

/// A regression: after 550 to 1,750 rejected uploads the connection ended, with the requests of all others on it.
#[test]
fn rejected_uploads_do_not_end_their_connection() {
    let api = Upstream::echoing();
    let proxy = rejecting(&api).start();
    let mut client = open(proxy.address);
    assert_eq!(client.ask(1, &asking("POST", "/limited")), Outcome::Status(200));
    for stream in (3..).step_by(2).take(1_500) {
        client.send(request(stream, 0, &asking("POST", "/limited")));
        assert_eq!(client.outcome(stream), Outcome::Status(429), "{stream}");
        for flags in [0, 0, END_STREAM] {
            client.send(frame(DATA, flags, stream, &[b'x'; 16_000]));
        }
    }
    assert_eq!(client.ask(9_999, &asking("POST", "/hasty")), Outcome::Status(200));
}

/// Longer uploads are reset. What was sent before the client has heard of it is no error either.
#[test]
fn large_rejected_uploads_are_reset_and_do_not_end_their_connection() {
    let api = Upstream::echoing();
    let proxy = rejecting(&api).start();
    let mut client = open(proxy.address);
    assert_eq!(client.ask(1, &asking("POST", "/limited")), Outcome::Status(200));
    let (mut open, mut stream) = (0, 1);
    let mut awaited = 200;
    while awaited > 0 {
        if open < 100 && stream < 401 {
            (open, stream) = (open + 1, stream + 2);
            client.send(request(stream, 0, &asking("POST", "/limited")));
            (0..8).for_each(|_| client.send(frame(DATA, 0, stream, &[b'x'; 16_000])));
            continue;
        }
        let frame = client.next().expect("the connection is there");
        if frame.kind == RST_STREAM {
            assert_eq!(frame.payload, NO_ERROR.to_be_bytes());
            (open, awaited) = (open - 1, awaited - 1);
        }
    }
    assert_eq!(client.ask(9_999, &asking("POST", "/hasty")), Outcome::Status(200));
}

/// An API of HTTP/2 that takes nothing of any body, and answers GET alone.
fn taking_nothing() -> Upstream {
    Upstream::raw(|stream| {
        let mut proxy = Frames::accept(stream);
        proxy.try_send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
        while let Some(came) = proxy.next() {
            if came.kind == HEADERS && came.flags & END_STREAM > 0 {
                let answer = frame(HEADERS, END_HEADERS | END_STREAM, came.stream, &[0x88]);
                proxy.try_send(answer);
            }
        }
    })
}

/// A regression: the small frames of uploads waited for their API, and h2 ended the connection because of them.
#[test]
fn uploads_in_small_pieces_to_a_slow_api_harm_no_other_request() {
    for (uploads, length) in [(9, 20), (3, 1)] {
        let api = taking_nothing();
        let mut proxy = Proxy::of_one_worker(api.url().replace("http:", "h2c:"))
            .upstream("response_timeout = \"1h\"")
            .start();
        let mut client = open(proxy.address);
        let piece = vec![b'x'; length];
        for stream in (1..).step_by(2).take(uploads) {
            client.send(request(stream, 0, &asking("POST", "/")));
            let most = if length == 1 { 50_000 } else { 6_500 };
            client.send(frame(DATA, 0, stream, &piece).repeat(most));
        }
        assert_eq!(client.ask(99, &asking("GET", "/")), Outcome::Status(200), "{length}");
        assert!(until_read(&mut client).iter().all(|frame| !is_reset(frame)), "{length}");
        drop(client);
        proxy.stop();
        assert_eq!(proxy.log.count("malformed requests"), 0, "{length}");
    }
}

/// A regression: the 101st frame without data ended the connection, whoever had read the others.
#[test]
fn frames_without_data_do_not_end_a_connection() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = open(proxy.address);
    for stream in [1, 3, 5] {
        client.send(request(stream, 0, &asking("POST", "/")));
        client.send(frame(DATA, 0, stream, b"").repeat(100));
        client.send(frame(DATA, 0, stream, b"x"));
        client.send(frame(DATA, END_STREAM, stream, b""));
        assert_eq!(client.outcome(stream), Outcome::Status(200), "{stream}");
        assert_eq!(api.last().body, b"x");
    }
}
