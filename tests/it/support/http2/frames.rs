//! HTTP/2 from the client's side, by one that says what a test wants.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::support::PATIENCE;

/// What a connection begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame as it came.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered with this status, to the end.
    Status(u16),
    /// Reset with this code, whatever came before.
    Reset(u32),
    /// The connection ended, with this code where it was told one.
    Closed(Option<u32>),
}

/// A connection on which every frame is written by hand.
pub(crate) struct Frames {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Frames {
    /// Says hello with these settings.
    pub(crate) fn open(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut frames = Self::silent(address);
        frames.send(PREFACE);
        // A table of its own would be needed to read what refers to earlier fields.
        let pairs = [(1, 0)].iter().chain(settings).flat_map(|(name, value)| {
            name.to_be_bytes().into_iter().chain(value.to_be_bytes()).collect::<Vec<_>>()
        });
        frames.send(frame(SETTINGS, 0, 0, &pairs.collect::<Vec<_>>()));
        frames
    }

    /// The server's end of a connection.
    pub(crate) fn accept(stream: TcpStream) -> Self {
        let mut frames = Self { stream, buffer: Vec::new() };
        frames.try_send(frame(SETTINGS, 0, 0, b""));
        let _ = frames.exactly(PREFACE.len());
        frames
    }

    /// Says nothing yet.
    pub(crate) fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        assert!(self.try_send(bytes), "it is listened to");
    }

    /// Whether the server, which may have closed the connection, still listens.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        match self.stream.write_all(bytes.as_ref()) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nobody reads"),
            Err(_) => false,
        }
    }

    /// The next frame, answered where it has to be; `None` where the connection has ended.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.exactly(9)?.try_into().unwrap();
        let [a, b, c, kind, flags, stream @ ..] = head;
        let payload = self.exactly(u32::from_be_bytes([0, a, b, c]) as usize)?;
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        match (kind, flags & ACK) {
            (PING, 0) => drop(self.try_send(frame(PING, ACK, 0, &payload))),
            (SETTINGS, 0) => drop(self.try_send(frame(SETTINGS, ACK, 0, b""))),
            _ => {}
        }
        Some(Frame { kind, flags, stream, payload })
    }

    /// Waits for a frame that fits; `None` where the connection ends before.
    pub(crate) fn find(&mut self, fits: impl Fn(&Frame) -> bool) -> Option<Frame> {
        std::iter::from_fn(|| self.next()).find(fits)
    }

    /// Waits for the connection's end. The code that its client was told, where there was one.
    pub(crate) fn end(&mut self) -> Option<u32> {
        std::iter::from_fn(|| self.next()).filter_map(|frame| frame.goodbye()).last()
    }

    /// Sends a request without a body and waits for what becomes of it.
    pub(crate) fn ask(&mut self, stream: u32, fields: &[(&str, &[u8])]) -> Outcome {
        self.send(request(stream, END_STREAM, fields));
        self.outcome(stream)
    }

    /// What becomes of a stream.
    pub(crate) fn outcome(&mut self, stream: u32) -> Outcome {
        let (mut status, mut goodbye) = (None, None);
        while let Some(frame) = self.next() {
            goodbye = frame.goodbye().or(goodbye);
            if frame.stream != stream {
                continue;
            }
            match frame.kind {
                HEADERS if status.is_none() => status = Some(frame.status()),
                RST_STREAM => return Outcome::Reset(code(&frame.payload)),
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM > 0 {
                return Outcome::Status(status.expect("a head"));
            }
        }
        Outcome::Closed(goodbye)
    }

    fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut space = [0; 64 * 1024];
        while self.buffer.len() < length {
            match self.stream.read(&mut space) {
                Ok(read @ 1..) => self.buffer.extend_from_slice(&space[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
                _ => return None,
            }
        }
        Some(self.buffer.drain(..length).collect())
    }
}

impl Frame {
    /// The code of a GOAWAY.
    fn goodbye(&self) -> Option<u32> {
        (self.kind == GOAWAY).then(|| code(&self.payload[4..]))
    }

    /// The status that a response's head begins with (RFC 7541, A): one of the table, or digits in
    /// Huffman's code (B), of which those below 3 have five bits and the others six.
    pub(crate) fn status(&self) -> u16 {
        let block =
            &self.payload[self.payload.iter().take_while(|byte| **byte >> 5 == 1).count()..];
        match block {
            [indexed @ 0x88..=0x8e, ..] => {
                [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)]
            }
            [0x08 | 0x48, length, text @ ..] if length & 0x80 == 0 => {
                std::str::from_utf8(&text[..usize::from(*length)]).unwrap().parse().unwrap()
            }
            [0x08 | 0x48, _, a, b, c, ..] => {
                let (bits, mut at) = (u32::from_be_bytes([*a, *b, *c, 0]), 0);
                (0..3).fold(0, |status, _| {
                    let five = (bits << at) >> 27;
                    let (digit, length) = match five {
                        0..=2 => (five, 5),
                        _ => (((bits << at) >> 26) - 0b011001 + 3, 6),
                    };
                    at += length;
                    status * 10 + u16::try_from(digit).unwrap()
                })
            }
            other => panic!("no status: {other:x?}"),
        }
    }
}

fn code(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// A frame's bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length.to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A request's head in one frame.
pub(crate) fn request(stream: u32, flags: u8, fields: &[(&str, &[u8])]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

/// Fields as literals that nobody indexes (RFC 7541, 6.2.2).
pub(crate) fn block(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name.as_bytes(), value] {
            match text.len() {
                short @ 0..127 => bytes.push(u8::try_from(short).unwrap()),
                long => {
                    bytes.push(127);
                    let mut rest = long - 127;
                    while rest >= 128 {
                        bytes.push(u8::try_from(rest % 128).unwrap() | 0x80);
                        rest /= 128;
                    }
                    bytes.push(u8::try_from(rest).unwrap());
                }
            }
            bytes.extend_from_slice(text);
        }
    }
    bytes
}

/// The pseudo-headers of a plain request.
pub(crate) fn asking<'f>(method: &'f str, path: &'f str) -> [(&'f str, &'f [u8]); 4] {
    [
        (":method", method.as_bytes()),
        (":scheme", b"http"),
        (":authority", b"api.test"),
        (":path", path.as_bytes()),
    ]
}
