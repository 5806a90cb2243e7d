//! A request's body on its way upstream. Its length and its time are limited. At most its first pieces are
//! held, for a second try.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::Entry;
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::event_timeout::EventTimeout;
use super::times::ClientTimes;
use crate::wire::overhead::Overhead;

/// A request's body as the client sends it. The body is boxed: hyper moves a request many times, and most
/// requests have no body.
#[derive(Debug)]
pub(crate) struct RequestBody(Option<Box<Streamed>>);

#[derive(Debug)]
struct Streamed {
    /// The client's body, or a whole body that was kept.
    source: Either<Incoming, Full<Bytes>>,
    /// Bytes that may still come.
    allowance: u64,
    time_limit: EventTimeout,
    trailers: Trailers,
    end: BodyEnd,
    /// Where the pieces are noted that have come from the client; `None` for a body that was kept.
    overhead: Option<Rc<Overhead>>,
    /// What the connection had read when the last piece came, and when this was last looked at.
    read: (u64, u64),
}

/// The names of the fields that may follow a body.
pub(crate) type Trailers = SmallVec<[HeaderName; 2]>;

/// What went wrong with a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyFault {
    /// The client sent nothing for too long.
    #[error("the client sent nothing of the request's body for too long")]
    Stalled,
    /// The body is longer than allowed.
    #[error("the request's body is larger than max_body_size")]
    TooLarge,
    /// The client left, or reset the request's HTTP/2 stream, before the end of the body.
    #[error("the client left before the end of the request's body")]
    ClientLeft,
    /// The body's framing is not valid HTTP, or its length is another one than was announced.
    #[error("the request's body is not framed as HTTP demands")]
    Broken,
}

impl BodyFault {
    /// The fault that hyper reports with this error.
    fn of(error: &(dyn Error + 'static)) -> Self {
        let error = error.downcast_ref::<hyper::Error>().and_then(Error::source);
        // An error without a cause means that the connection has ended.
        let Some(error) = error else { return Self::ClientLeft };
        let is_reset = error.downcast_ref::<h2::Error>().is_some_and(h2::Error::is_remote);
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe | TimedOut) => {
                Self::ClientLeft
            }
            _ if is_reset => Self::ClientLeft,
            _ => Self::Broken,
        }
    }
}

/// The most bytes of an HTTP/2 frame with data, and its head (RFC 9113, 4.2). hyper hands over a frame when all of
/// it has come.
const MOST_OF_FRAME: u64 = 16 * 1024 + 9;

/// The most bytes of a body that are kept for a second try.
const MOST_KEPT: usize = 64 * 1024;

/// How far a body has come; `None` for an empty body, or one that nobody watches. This handle stays readable
/// while the exchange consumes the body.
///
/// It is in an `Arc`, though one thread alone uses it: hyper wants the pieces of a body to be `Send`.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyEnd(Option<Arc<Mutex<Handover>>>);

#[derive(Debug)]
struct Handover {
    progress: Progress,
    /// Everything that was handed on. `None` if nothing is kept, or if the body is too long for that.
    kept: Option<BytesMut>,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    /// The receiver has to take what was handed on. At this time it was handed on, or a part of it left.
    Offered(Instant),
    /// The sender has to send more.
    Awaited,
    /// All of the body was handed on. At this time the last piece was handed on, or a part of it left.
    Reached(Instant),
    Failed(BodyFault),
}

/// A piece of a body on its way out. hyper may hold a long piece for minutes: it takes away what the socket
/// takes and, over HTTP/2, what the receiver's window lets pass. That the piece shrinks is noted.
#[derive(Debug)]
pub(crate) struct BodyPiece {
    bytes: Bytes,
    body: BodyEnd,
}

impl BodyPiece {
    pub(crate) fn new(bytes: Bytes, body: BodyEnd) -> Self {
        Self { bytes, body }
    }
}

impl Buf for BodyPiece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if count > 0 {
            self.body.moved();
        }
    }
}

impl BodyEnd {
    fn progress(&self) -> Option<Progress> {
        self.0.as_ref().map(|handover| handover.lock().progress)
    }

    fn set(&self, now: Progress) {
        if let Some(handover) = &self.0 {
            handover.lock().progress = now;
        }
    }

    /// From now on the body's pieces are kept, up to [`MOST_KEPT`] bytes.
    pub(super) fn keep(&self) {
        if let Some(handover) = &self.0 {
            handover.lock().kept = Some(BytesMut::new());
        }
    }

    /// Nothing is kept any longer. Returns the whole body, if all of it was kept.
    pub(super) fn take_kept(&self) -> Option<Bytes> {
        let kept = self.0.as_ref()?.lock().kept.take()?;
        self.is_reached().then(|| kept.freeze())
    }

    /// A frame was handed on.
    fn note(&self, frame: &Frame<Bytes>, now: Progress) {
        let Some(handover) = &self.0 else { return };
        let mut handover = handover.lock();
        handover.progress = now;
        let Some(kept) = &mut handover.kept else { return };
        match frame.data_ref() {
            // Copied: a piece would keep the buffer in which it came.
            Some(piece) if kept.len() + piece.len() <= MOST_KEPT => kept.extend_from_slice(piece),
            // Trailers are not kept.
            Some(_) | None => handover.kept = None,
        }
    }

    /// Whether the body is empty, or nobody watches it.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether all of the body was handed on.
    pub(crate) fn is_reached(&self) -> bool {
        matches!(self.progress(), None | Some(Progress::Reached(_)))
    }

    /// Whether the client has to send more.
    pub(crate) fn awaits_client(&self) -> bool {
        matches!(self.progress(), Some(Progress::Awaited))
    }

    /// Why the body did not reach its end.
    pub(crate) fn fault(&self) -> Option<BodyFault> {
        match self.progress()? {
            Progress::Failed(fault) => Some(fault),
            _ => None,
        }
    }

    /// Since when the receiver has to act, for a message that was handed over at `sent`. `None` while the sender
    /// has to send more, and after the body failed.
    pub(crate) fn awaits_receiver_since(&self, sent: Instant) -> Option<Instant> {
        match self.progress() {
            None => Some(sent),
            Some(Progress::Offered(since) | Progress::Reached(since)) => Some(since),
            Some(Progress::Awaited | Progress::Failed(_)) => None,
        }
    }

    /// For a body of which nothing was handed on yet. Its receiver has to ask for it.
    pub(super) fn begin() -> Self {
        Self::of(Progress::Offered(Instant::now()))
    }

    /// For a body whose sender has to begin.
    pub(crate) fn awaited() -> Self {
        Self::of(Progress::Awaited)
    }

    fn of(progress: Progress) -> Self {
        Self(Some(Arc::new(Mutex::new(Handover { progress, kept: None }))))
    }

    pub(crate) fn await_sender(&self) {
        self.set(Progress::Awaited);
    }

    pub(crate) fn offer(&self) {
        self.set(Progress::Offered(Instant::now()));
    }

    /// A part of what was handed on has left.
    fn moved(&self) {
        if let Some(handover) = &self.0
            && let Progress::Offered(at) | Progress::Reached(at) = &mut handover.lock().progress
        {
            *at = Instant::now();
        }
    }

    pub(super) fn reach(&self) {
        self.set(Progress::Reached(Instant::now()));
    }

    fn fail(&self, fault: BodyFault) -> BodyFault {
        self.set(Progress::Failed(fault));
        fault
    }
}

impl RequestBody {
    /// No body.
    pub(crate) fn empty() -> Self {
        Self(None)
    }

    /// The body that the client sends. It may have at most `most` bytes. Each read must come within the
    /// `body_timeout` of `times` after the read before. Trailers other than `trailers` are removed. `overhead` is
    /// that of the client's connection.
    pub(crate) fn streamed(
        incoming: Incoming,
        most: Option<u64>,
        times: Rc<Cell<ClientTimes>>,
        trailers: Trailers,
        overhead: Rc<Overhead>,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::empty();
        }
        Self(Some(Box::new(Streamed {
            source: Either::Left(incoming),
            allowance: most.unwrap_or(u64::MAX),
            time_limit: EventTimeout::of_client(times),
            trailers,
            end: BodyEnd::begin(),
            read: (overhead.read(), overhead.read()),
            overhead: Some(overhead),
        })))
    }

    /// A whole body that was kept.
    pub(super) fn again(whole: Bytes) -> Self {
        Self(Some(Box::new(Streamed {
            source: Either::Right(Full::new(whole)),
            allowance: u64::MAX,
            time_limit: EventTimeout::new(Duration::MAX),
            trailers: Trailers::new(),
            end: BodyEnd::begin(),
            overhead: None,
            read: (0, 0),
        })))
    }

    /// Whether there is no body.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The client's body, without limits and time-outs; `None` if there is no body, or all of it has come.
    pub(crate) fn into_incoming(self) -> Option<Incoming> {
        match self.0?.source {
            Either::Left(incoming) => Some(incoming),
            Either::Right(_) => None,
        }
    }

    /// A handle that tells how far the body has come.
    pub(crate) fn end(&self) -> BodyEnd {
        self.0.as_ref().map_or(BodyEnd(None), |streamed| streamed.end.clone())
    }
}

impl Streamed {
    /// Whether bytes have come, since this was last asked, that may be a part of the next piece. Other streams of the
    /// connection may have sent them instead. So no more bytes than one frame has are taken for such a part.
    fn has_part_come(&mut self) -> bool {
        let (at_piece, before) = self.read;
        let now = self.overhead.as_ref().map_or(before, |overhead| overhead.read());
        self.read.1 = now;
        now != before && now - at_piece <= MOST_OF_FRAME
    }

    fn limit_trailers(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_trailers() {
            Ok(mut came) => {
                let mut kept = HeaderMap::new();
                for name in &self.trailers {
                    if let Entry::Occupied(lines) = came.entry(name) {
                        let (name, lines) = lines.remove_entry_mult();
                        kept.extend(lines.map(|line| (name.clone(), line)));
                    }
                }
                Frame::trailers(kept)
            }
            Err(frame) => frame,
        }
    }
}

impl Body for RequestBody {
    type Data = BodyPiece;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPiece>, BodyFault>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(&mut body.source).poll_frame(cx) else {
            body.end.await_sender();
            if body.has_part_come() {
                body.time_limit.renew();
            }
            ready!(body.time_limit.poll_over(cx));
            return Poll::Ready(Some(Err(body.end.fail(BodyFault::Stalled))));
        };
        body.time_limit.renew();
        Poll::Ready(match frame {
            None => {
                body.end.reach();
                None
            }
            Some(Err(error)) => Some(Err(body.end.fail(BodyFault::of(&*error)))),
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                if let Some(overhead) = &body.overhead {
                    overhead.piece(length);
                    body.read = (overhead.read(), overhead.read());
                }
                match body.allowance.checked_sub(length as u64) {
                    None => Some(Err(body.end.fail(BodyFault::TooLarge))),
                    Some(rest) => {
                        body.allowance = rest;
                        // hyper does not poll again after the trailers or the last piece.
                        let ended = frame.is_trailers() || body.source.is_end_stream();
                        let progress = if ended { Progress::Reached } else { Progress::Offered };
                        body.end.note(&frame, progress(Instant::now()));
                        let frame = body.limit_trailers(frame);
                        Some(Ok(frame.map_data(|bytes| BodyPiece::new(bytes, body.end.clone()))))
                    }
                }
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|body| body.source.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |body| body.source.size_hint())
    }
}
