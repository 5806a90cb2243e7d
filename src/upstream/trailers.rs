//! Looks at the frames of HTTP/2 as they come, for what h2 does not report, or counts in another way than we need.
//!
//! h2 drops the fields of HTTP/2 trailers that are beyond its bound, and does not report this. A message that lost its
//! last fields looks whole. So trailers are measured as they come, and a connection ends before h2 drops anything. With
//! compression, a few bytes can stand for many (RFC 7541, 6.1), and so a peer can still exceed h2's bound. Such a peer
//! loses fields, but no usual peer sends such fields.
//!
//! h2 ends a connection at its 101st frame without data. Some servers send such frames when they flush. They mean nothing
//! and are hidden from h2. Small frames are counted in `wire/streams.rs`.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::streams::StreamCosts;

/// The most bytes of an answer's head, and of its trailers.
pub(crate) const MOST_IN_ANSWER: usize = 256 * 1024;

/// Why a connection is ended whose peer sends too much after a body.
pub(crate) const TOO_LONG: &str = "the trailers of a message are too large (HTTP/2)";

/// The length of a frame's first part (RFC 9113, 4.1).
const FRAME_HEAD: usize = 9;

/// Where kind and flags stand in it.
const KIND: usize = 3;
const FLAGS: usize = 4;

/// Frames with data, and those that carry fields (RFC 9113, 6.1, 6.2 and 6.10).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// Frames of a kind that nobody knows are ignored (RFC 9113, 4.1).
const UNKNOWN: u8 = 0xff;

const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

/// The size of fields in bytes, with 32 for each of them (RFC 9113, 6.5.2).
pub(crate) fn list_size(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// The bound for h2, if trailers may have at most `most` bytes on the wire. h2 counts decoded bytes. The shortest
/// Huffman code has five bits for eight (RFC 7541, B), and each field counts 32 bytes more.
pub(crate) fn list_bound(most: usize) -> u32 {
    u32::try_from(most.saturating_mul(2).saturating_add(64 * 1024)).unwrap_or(u32::MAX)
}

/// An HTTP/2 connection whose frames are looked at. It ends within trailers that are too long.
#[derive(Debug)]
pub(crate) struct WatchedFrames<S> {
    stream: S,
    costs: Rc<StreamCosts>,
    /// The most bytes of trailers, as they come.
    most: usize,
    head: [u8; FRAME_HEAD],
    /// How many bytes of `head` have come.
    known: usize,
    /// Bytes that still belong to the frame before.
    payload: usize,
    /// The newest stream whose head has come.
    newest: u32,
    /// The length of the last fields, if they are trailers.
    trailers: usize,
    is_head: bool,
}

impl<S> WatchedFrames<S> {
    /// A connection whose first frame follows `preface` bytes.
    pub(crate) fn new(stream: S, most: usize, preface: usize, costs: Rc<StreamCosts>) -> Self {
        let (head, known, payload) = ([0; FRAME_HEAD], 0, preface);
        Self { stream, costs, most, head, known, payload, newest: 0, trailers: 0, is_head: true }
    }

    /// Notes what has come. Returns false within trailers that are too long.
    fn came(&mut self, mut bytes: &mut [u8]) -> bool {
        while !bytes.is_empty() {
            let (payload, rest) = bytes.split_at_mut(self.payload.min(bytes.len()));
            self.payload -= payload.len();
            let (head, rest) = rest.split_at_mut((FRAME_HEAD - self.known).min(rest.len()));
            let known = self.known;
            self.head[known..][..head.len()].copy_from_slice(head);
            self.known += head.len();
            bytes = rest;
            if known <= KIND && self.known > FLAGS && self.is_meaningless() {
                head[KIND - known] = UNKNOWN;
            }
            if self.known == FRAME_HEAD {
                self.begin_frame();
            }
            if self.trailers > self.most {
                return false;
            }
        }
        true
    }

    /// Whether a frame has no data and does not end its stream.
    fn is_meaningless(&self) -> bool {
        self.head[..=KIND] == [0, 0, 0, DATA] && self.head[FLAGS] & (END_STREAM | PADDED) == 0
    }

    fn begin_frame(&mut self) {
        let [a, b, c, kind, flags, stream @ ..] = self.head;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
        (self.known, self.payload) = (0, length);
        if kind == DATA && length > 0 && flags & END_STREAM == 0 {
            self.costs.came(length);
        }
        if kind == HEADERS {
            // One bit is reserved. Fields of a stream that is not new may be its trailers.
            let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
            (self.is_head, self.trailers) = (stream > self.newest, 0);
            self.newest = self.newest.max(stream);
        }
        if !self.is_head && matches!(kind, HEADERS | CONTINUATION) {
            self.trailers = self.trailers.saturating_add(length);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedFrames<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // h2 has all that came before.
        self.costs.look();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let came = &mut buffer.filled_mut()[before..];
        if !came.is_empty() {
            self.costs.read();
        }
        let is_short = self.came(came);
        let too_long = || io::Error::new(io::ErrorKind::InvalidData, TOO_LONG);
        Poll::Ready(is_short.then_some(()).ok_or_else(too_long))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedFrames<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, length: u32) -> Vec<u8> {
        let [_, length @ ..] = length.to_be_bytes();
        let payload = vec![0; usize::from(length[2])];
        [&length[..], &[kind, 4], &stream.to_be_bytes(), &payload].concat()
    }

    /// Whether trailers of at most 100 bytes came, in reads of this length.
    fn pass(frames: &[Vec<u8>], reads: usize) -> bool {
        let mut watched = WatchedFrames::new((), 100, 3, Rc::default());
        let mut bytes = [b"PRI", &frames.concat()[..]].concat();
        bytes.chunks_mut(reads).all(|piece| watched.came(piece))
    }

    #[test]
    fn trailers_alone_are_measured_in_all_their_frames() {
        let (data, settings) = (0, 4);
        let head = [frame(HEADERS, 1, 200), frame(CONTINUATION, 1, 200), frame(data, 1, 200)];
        let trailers =
            |length| [&head[..], &[frame(HEADERS, 1, 60), frame(CONTINUATION, 1, length)]].concat();
        let next = [frame(settings, 0, 200), frame(HEADERS, 3, 200), frame(HEADERS, 3, 100)];
        for reads in [1, 2, 9, 10, 1000] {
            assert!(pass(&head, reads), "a head");
            assert!(pass(&[&trailers(40)[..], &next].concat(), reads), "100 bytes");
            assert!(!pass(&trailers(41), reads), "101 bytes");
        }
    }

    /// The frames that h2 gets, in reads of this length.
    fn shown(frames: &[Vec<u8>], reads: usize) -> Vec<u8> {
        let mut watched = WatchedFrames::new((), 100, 0, Rc::default());
        let mut bytes = frames.concat();
        assert!(bytes.chunks_mut(reads).all(|piece| watched.came(piece)));
        bytes
    }

    #[test]
    fn frames_without_data_are_hidden_unless_they_say_something() {
        let data = |flags, length| {
            let mut bytes = frame(DATA, 1, length);
            bytes[FLAGS] = flags;
            bytes
        };
        let hidden = [frame(HEADERS, 1, 5), data(0, 0), data(0, 3), data(0xf2, 0)];
        let kept = [frame(CONTINUATION, 1, 0), data(PADDED, 1), data(END_STREAM, 0)];
        let frames = [&hidden[..], &kept].concat();
        for reads in [5, 1000] {
            let shown = shown(&frames, reads);
            let kinds = [HEADERS, UNKNOWN, DATA, UNKNOWN, CONTINUATION, DATA, DATA];
            let mut at = 0;
            for (frame, kind) in frames.iter().zip(kinds) {
                assert_eq!(shown[at + KIND], kind, "{frame:?} in {reads}");
                at += frame.len();
            }
        }
    }
}
