//! A client's connection over HTTP/2, frame by frame.
//!
//! `0xF7` divides what the client sends into frames. The first byte of a frame is its type, the second its flags,
//! and the third its stream. Only some bits of the three count, so that they can be written as digits. The
//! payload follows. In HEADERS and CONTINUATION it is lines of fields, such as `:method: GET`, and they are sent
//! as HPACK literals. The preface and the client's settings are sent before.
//!
//! What arrives at the API must be whole requests of streams that the client has ended. The client must receive
//! frames of its own streams, and nothing behind a stream's end. An answer may end well only if the API's did.

use std::collections::{BTreeMap, BTreeSet};

use super::messages::Message;
use super::scene::{self, Played};

const NEXT_FRAME: u8 = 0xF7;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(super) fn check(input: &[u8]) {
    let mut is_first = true;
    let played = scene::play(input, |piece| {
        let mut bytes = Vec::new();
        if std::mem::take(&mut is_first) {
            bytes.extend_from_slice(PREFACE);
            bytes.extend(Frame { kind: SETTINGS, ..Frame::default() }.bytes());
        }
        bytes.extend(
            piece.split(|byte| *byte == NEXT_FRAME).flat_map(|text| Frame::of(text).bytes()),
        );
        bytes
    });
    let sent = frames(&played.sent[PREFACE.len()..]);
    came_from_the_client(&sent, &played.requests());
    is_framed(&sent, &played);
}

/// A frame (RFC 9113, 4.1).
#[derive(Default)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    /// The frame that a part of the input describes.
    fn of(text: &[u8]) -> Self {
        let byte = |place: usize| text.get(place).copied().unwrap_or(b'0');
        let (kind, flags) = (byte(0) & 0xf, byte(1) & (END_STREAM | END_HEADERS));
        let payload = text.get(3..).unwrap_or_default();
        let payload = match kind {
            HEADERS | CONTINUATION => literals(payload),
            _ => payload.to_vec(),
        };
        Self { kind, flags, stream: u32::from(byte(2) & 0xf), payload }
    }

    fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[self.kind, self.flags], &self.stream.to_be_bytes()].concat();
        [head, self.payload.clone()].concat()
    }

    fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM > 0
    }
}

/// The whole frames that bytes begin with.
fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(([a, b, c, kind, flags, stream @ ..], rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((payload, behind)) = rest.split_at_checked(length) else { break };
        let (kind, flags, stream) = (*kind, *flags, u32::from_be_bytes(*stream));
        frames.push(Frame { kind, flags, stream, payload: payload.to_vec() });
        bytes = behind;
    }
    frames
}

/// Lines of fields as HPACK literals without indexing (RFC 7541, 6.2.2).
fn literals(lines: &[u8]) -> Vec<u8> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .flat_map(|line| {
            // A name such as `:path` begins with a colon.
            let colon = line.iter().skip(1).position(|byte| *byte == b':');
            let (name, value) = line.split_at(colon.map_or(line.len(), |place| place + 1));
            let value = value.strip_prefix(b":").unwrap_or(value);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            [vec![0], string(name), string(value)].concat()
        })
        .collect()
}

/// A string of HPACK (RFC 7541, 5.1 and 5.2).
fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match u8::try_from(text.len()) {
        Ok(length @ ..=126) => bytes.push(length),
        _ => {
            bytes.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                bytes.push(u8::try_from(rest % 128).unwrap() | 128);
                rest /= 128;
            }
            bytes.push(u8::try_from(rest).unwrap());
        }
    }
    bytes.extend_from_slice(text);
    bytes
}

/// What the client has sent on a stream up to its end.
#[derive(Default)]
struct Stream {
    /// The fields, as literals.
    fields: Vec<u8>,
    body: Vec<u8>,
    has_ended: bool,
}

impl Stream {
    /// Whether this may be what has arrived at the API.
    fn fits(&self, request: &Message) -> bool {
        let method = [string(b":method"), string(request.method().as_bytes())].concat();
        let asks_so = self.fields.windows(method.len()).any(|text| text == method);
        // A length that was announced ends a request as well.
        let is_whole = match request.has("content-length") {
            true => self.body.starts_with(&request.body),
            false => self.has_ended && self.body == request.body,
        };
        asks_so && is_whole
    }
}

/// Each request that has arrived is one of a stream of its own.
fn came_from_the_client(sent: &[Frame], arrived: &[Message]) {
    let mut streams: BTreeMap<u32, Stream> = BTreeMap::new();
    for frame in sent {
        let stream = match frame.kind {
            HEADERS => streams.entry(frame.stream).or_default(),
            DATA | CONTINUATION => match streams.get_mut(&frame.stream) {
                Some(stream) => stream,
                None => continue,
            },
            _ => continue,
        };
        match frame.kind {
            DATA if !stream.has_ended => stream.body.extend_from_slice(&frame.payload),
            DATA => {}
            _ => stream.fields.extend_from_slice(&frame.payload),
        }
        stream.has_ended |= frame.ends_stream();
    }
    let mut streams: Vec<_> = streams.into_values().collect();
    for request in arrived {
        let place = streams.iter().position(|stream| stream.fits(request));
        let place = place.unwrap_or_else(|| panic!("no stream has sent this: {request:?}"));
        streams.swap_remove(place);
    }
}

/// The client has received frames that fit to its own, and can tell a whole answer from half of one.
fn is_framed(sent: &[Frame], played: &Played) {
    let received = frames(&played.received);
    assert!(received.first().is_none_or(|frame| frame.kind == SETTINGS), "no settings");
    let opened: BTreeSet<_> = sent.iter().map(|frame| frame.stream).collect();
    let (mut begun, mut ended) = (BTreeMap::new(), BTreeSet::new());
    for frame in received.iter().filter(|frame| frame.stream != 0) {
        let (stream, kind) = (frame.stream, frame.kind);
        assert!(opened.contains(&stream), "a stream that is not the client's: {stream}");
        if matches!(kind, HEADERS | DATA) {
            assert!(!ended.contains(&stream), "stream {stream} goes on behind its end");
            assert!(kind == HEADERS || begun.contains_key(&stream), "no head: {stream}");
            let head = begun.entry(stream).or_insert(&frame.payload);
            let is_half = played.is_half_answered() && frame.ends_stream() && has_status_200(head);
            assert!(!is_half, "half an answer as whole on stream {stream}");
        }
        if frame.ends_stream() || kind == RST_STREAM {
            ended.insert(stream);
        }
    }
}

/// Whether an answer's head says 200: the entry 8 of the static table (RFC 7541, A), perhaps behind new sizes of
/// the other table.
fn has_status_200(head: &[u8]) -> bool {
    head.iter().find(|byte| **byte >> 5 != 1) == Some(&0x88)
}
