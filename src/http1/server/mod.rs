//! A server's end of a connection: one request after the other, each answered before the next.
//!
//! All of it is polled by one task, which owns the [`Connection`], the future that answers a request
//! and the response's body, and polls them in turn. Nothing here waits for a clock.

mod download;
#[cfg(test)]
mod tests;
mod upload;

use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::{Method, Version, request};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use self::download::{Download, Pushed, push};
use self::upload::{Fed, Upload};
use crate::http1::decode::{BodyFault, Decoder, Framing, Piece};
use crate::http1::encode::{Asked, CONTINUE, Persistence, ResponseHead, write_head};
use crate::http1::incoming::{Demand, Incoming, Reader};
use crate::http1::output::Output;
use crate::http1::request::{Head, HeadFault, HeadReader};
use crate::http1::room::make_room;

/// The least and the most bytes that one read asks for. It asks for more where the last one was
/// filled.
const LEAST_READ: usize = 4 * 1024;
const MOST_READ: usize = 256 * 1024;

/// A connection to a client.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    /// Read and not used yet.
    input: BytesMut,
    /// How much a read asks for.
    read: usize,
    /// Whether what may still come can be made sense of.
    readable: bool,
    heads: HeadReader,
    asked: Asked,
    upload: Option<Upload>,
    persistence: Persistence,
    /// Whether the connection ends with the request under way, whatever that says.
    last: bool,
    download: Download,
    output: Output,
}

/// What a client says next.
#[derive(Debug)]
pub enum Next {
    /// A request, with this body. It must be answered before the next one is asked for.
    Request(Incoming),
    /// Something that is no request. It may be answered, and the connection must be closed then.
    Fault(HeadFault),
    /// Nothing more.
    End,
}

/// What became of a connection that was tended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tended {
    /// The reader of the request's body, which is polled by this same task, has something to read.
    Fed,
    /// The client has closed its end.
    Left,
}

/// Why a response was not written to its end.
#[derive(Debug)]
pub enum SendFault {
    /// Its body ended before it should.
    Body,
    /// The client cannot be written to.
    Client(io::Error),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection whose first request is awaited, of which `early` was read before. A head may
    /// have up to `most` bytes.
    pub fn new(stream: S, early: BytesMut, most: usize) -> Self {
        Self {
            stream,
            input: early,
            read: LEAST_READ,
            readable: true,
            heads: HeadReader::new(most),
            asked: Asked { method: Method::GET, version: Version::HTTP_11, takes_trailers: false },
            upload: None,
            persistence: Persistence::Keep,
            last: false,
            download: Download::Awaited,
            output: Output::default(),
        }
    }

    /// Waits for the next request, which is put into `parts` in place of what is there.
    pub fn poll_request(&mut self, parts: &mut request::Parts, cx: &mut Context<'_>) -> Poll<Next> {
        loop {
            let head = match self.input.is_empty() {
                true => Ok(None),
                false => self.heads.next(&mut self.input, parts),
            };
            match head {
                Ok(Some(head)) => {
                    self.asked.method.clone_from(&parts.method);
                    self.asked.version = parts.version;
                    return Poll::Ready(self.begin(head, cx.waker()));
                }
                Ok(None) => {}
                Err(fault) => {
                    self.end_input();
                    self.asked.version = Version::HTTP_11;
                    self.asked.method = Method::GET;
                    self.download = Download::Awaited;
                    return Poll::Ready(Next::Fault(fault));
                }
            }
            if self.last && self.input.is_empty() {
                return Poll::Ready(Next::End);
            }
            match ready!(self.poll_read(cx)) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Poll::Ready(Next::End),
            }
        }
    }

    fn begin(&mut self, head: Head, waker: &Waker) -> Next {
        let Head { framing, keeps_alive, awaits_continue, takes_trailers } = head;
        self.asked.takes_trailers = takes_trailers;
        self.persistence = match keeps_alive && !self.last {
            true => Persistence::Keep,
            false => Persistence::Close,
        };
        self.download = Download::Awaited;
        self.read = LEAST_READ;
        let length = match framing {
            Framing::None => return Next::Request(Incoming::empty()),
            Framing::Length(length) => Some(length),
            Framing::Chunked | Framing::UntilClose => None,
        };
        let (incoming, slot) = Incoming::new(length);
        let mut upload = Upload { slot, decoder: Decoder::new(framing), awaits_continue };
        // What came with the head is there before anybody asks.
        match upload.feed(&mut self.input, waker) {
            Fed::Nothing | Fed::Some(_) => self.upload = Some(upload),
            Fed::Last(_) => {}
            Fed::Faulty(_) => self.end_input(),
        }
        Next::Request(incoming)
    }

    /// Whether something was read that is not used yet.
    pub fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Whether the request's body has not come to its end.
    pub fn has_upload(&self) -> bool {
        self.upload.is_some()
    }

    /// The request under way, or the one whose head is awaited, is the last.
    pub fn end_soon(&mut self) {
        self.last = true;
        self.persistence = Persistence::Close;
    }

    /// Whether the connection goes on after the request under way.
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    /// Reads of the request's body what its reader waits for, and notices the client's end. To be
    /// polled after whatever may read the body.
    pub fn poll_tend(&mut self, cx: &mut Context<'_>) -> Poll<Tended> {
        loop {
            let Some(upload) = &mut self.upload else { return self.poll_left(cx) };
            match upload.slot.demand(cx.waker()) {
                Demand::Nothing => return Poll::Pending,
                Demand::Dropped => {
                    self.leave_upload(cx);
                    continue;
                }
                Demand::Frame => {}
            }
            if matches!(self.download, Download::Awaited) {
                if std::mem::take(&mut upload.awaits_continue) {
                    self.output.buffer().extend_from_slice(CONTINUE);
                }
                if ready!(self.output.poll_flush(&mut self.stream, cx)).is_err() {
                    return Poll::Ready(Tended::Left);
                }
            }
            let fed = match upload.feed(&mut self.input, cx.waker()) {
                Fed::Nothing => match ready!(self.poll_read(cx)) {
                    Ok(1..) => continue,
                    Ok(0) | Err(_) => Fed::Faulty(self.break_upload(cx.waker())),
                },
                fed => fed,
            };
            let reader = match fed {
                Fed::Nothing => continue,
                Fed::Some(reader) => reader,
                Fed::Last(reader) => {
                    self.upload = None;
                    reader
                }
                Fed::Faulty(reader) => {
                    self.upload = None;
                    self.end_input();
                    reader
                }
            };
            if reader == Reader::Same {
                return Poll::Ready(Tended::Fed);
            }
        }
    }

    /// Reads ahead, for no other purpose than to see the client's end.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<Tended> {
        if !self.readable || !self.input.is_empty() {
            return Poll::Pending;
        }
        match ready!(self.poll_read(cx)) {
            Ok(1..) => Poll::Pending,
            Ok(0) | Err(_) => {
                self.end_input();
                Poll::Ready(Tended::Left)
            }
        }
    }

    /// The client closed in the middle of a body.
    fn break_upload(&mut self, waker: &Waker) -> Reader {
        let Some(upload) = &mut self.upload else { return Reader::Other };
        let fault = upload.decoder.end_of_stream().err().unwrap_or(BodyFault::Short);
        upload.slot.put(Some(Err(fault)), true, waker)
    }

    /// Nobody wants the rest of the request's body. Where it is there already the connection can go
    /// on.
    fn leave_upload(&mut self, cx: &mut Context<'_>) {
        let Some(mut upload) = self.upload.take() else { return };
        let mut has_read = false;
        loop {
            match upload.decoder.next(&mut self.input) {
                Ok(Piece::Data(_) | Piece::Trailers(_)) => {}
                Ok(Piece::End) => return,
                Ok(Piece::More) if !has_read => {
                    has_read = true;
                    if !matches!(self.poll_read(cx), Poll::Ready(Ok(1..))) {
                        break;
                    }
                }
                Ok(Piece::More) | Err(_) => break,
            }
        }
        self.end_input();
    }

    /// Nothing more can be read, so the connection ends with the response.
    fn end_input(&mut self) {
        self.readable = false;
        self.persistence = Persistence::Close;
    }

    /// Begins a response. Its body, if `head.size` says that there is one, goes through
    /// [`Connection::poll_send`].
    pub fn begin_response(&mut self, head: &ResponseHead<'_>, cx: &mut Context<'_>) {
        if self.upload.as_ref().is_some_and(|upload| upload.slot.is_dropped()) {
            self.leave_upload(cx);
        }
        let out = self.output.buffer();
        let (frame, persistence) = write_head(out, head, &self.asked, self.persistence);
        self.persistence = persistence;
        self.download = match frame.framing {
            Framing::None => Download::Ending,
            Framing::Length(left) => Download::Body { frame, left },
            Framing::Chunked | Framing::UntilClose => Download::Body { frame, left: u64::MAX },
        };
    }

    /// Writes the response to its end. The body is dropped when its last byte was taken from it.
    ///
    /// # Errors
    /// Where the body breaks off or the client does. The connection must be closed then.
    pub fn poll_send<B>(
        &mut self,
        body: &mut Option<B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendFault>>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        loop {
            let mut waits = false;
            while !self.output.is_full() {
                let Download::Body { frame, left } = &mut self.download else {
                    *body = None;
                    break;
                };
                let Some(source) = body else { return Poll::Ready(Err(SendFault::Body)) };
                let next = match Pin::new(&mut *source).poll_frame(cx) {
                    Poll::Ready(next) => next,
                    Poll::Pending => {
                        waits = true;
                        break;
                    }
                };
                let Ok(next) = next.transpose() else {
                    // What came until then was meant for the client.
                    let _ = self.output.poll_flush(&mut self.stream, cx);
                    return Poll::Ready(Err(SendFault::Body));
                };
                let ends = next.is_none() || source.is_end_stream();
                match push(&mut self.output, frame, left, (next, ends)) {
                    Pushed::More => {}
                    Pushed::End => self.download = Download::Ending,
                    Pushed::Short => {
                        let _ = self.output.poll_flush(&mut self.stream, cx);
                        return Poll::Ready(Err(SendFault::Body));
                    }
                }
            }
            if matches!(self.download, Download::Ending) {
                *body = None;
            }
            ready!(self.output.poll_flush(&mut self.stream, cx)).map_err(SendFault::Client)?;
            if matches!(self.download, Download::Ending) {
                return Poll::Ready(Ok(()));
            }
            if waits {
                return Poll::Pending;
            }
        }
    }

    /// Waits for the end of the request's body, once it is answered.
    pub fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.upload.is_some() {
            // A body whose end was just found leaves nothing to wait for.
            if self.poll_tend(cx).is_pending() && self.upload.is_some() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Closes the connection's write side.
    ///
    /// # Errors
    /// Where it is closed already.
    pub fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    /// The stream, and what was read from it and not used.
    pub fn into_parts(self) -> (S, BytesMut) {
        (self.stream, self.input)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < self.read / 2 {
            make_room(&mut self.input, self.read);
        }
        let space = self.input.capacity() - self.input.len();
        let read = ready!(pin!(self.stream.read_buf(&mut self.input)).poll(cx))?;
        if read == space {
            self.read = (2 * self.read).min(MOST_READ);
        }
        Poll::Ready(Ok(read))
    }
}
