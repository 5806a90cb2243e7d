//! How far a body has come, and why it did not reach its end. The first pieces of a request's body may be kept here,
//! for a second try.

use std::error::Error;
use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use http_body::Frame;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::wire::streams::TooManyFrames;

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
    /// The fault that hyper reports with this error, or that the small frames of a body are.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        if error.is::<TooManyFrames>() {
            return Self::Broken;
        }
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
pub(super) enum Progress {
    /// The receiver has to take what was handed on. The time is when it was handed on, or when a part of it last left.
    Offered(Instant),
    /// The sender has to send more.
    Awaited,
    /// All of the body was handed on. The time is when the last piece was handed on, or when a part of it last left.
    Reached(Instant),
    /// No more will come. The time is when it failed: a server that is still to answer has its time from then on.
    Failed(BodyFault, Instant),
}

/// A piece of a body on its way out. hyper may hold a long piece for minutes. It removes from the piece what the socket
/// takes and, over HTTP/2, what the receiver's window lets pass. Each time when the piece shrinks is noted.
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

    fn set(&self, now: impl FnOnce() -> Progress) {
        if let Some(handover) = &self.0 {
            handover.lock().progress = now();
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
    pub(super) fn note(&self, frame: &Frame<Bytes>, now: Progress) {
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
            Progress::Failed(fault, _) => Some(fault),
            _ => None,
        }
    }

    /// Since when the receiver has to act, for a message that was handed over at `sent`. `None` while the sender
    /// has to send more.
    pub(crate) fn awaits_receiver_since(&self, sent: Instant) -> Option<Instant> {
        match self.progress() {
            None => Some(sent),
            Some(
                Progress::Offered(since) | Progress::Reached(since) | Progress::Failed(_, since),
            ) => Some(since),
            Some(Progress::Awaited) => None,
        }
    }

    /// For a body that has not begun. Its receiver has to ask for it.
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
        self.set(|| Progress::Awaited);
    }

    pub(crate) fn offer(&self) {
        self.set(|| Progress::Offered(Instant::now()));
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
        self.set(|| Progress::Reached(Instant::now()));
    }

    pub(super) fn fail(&self, fault: BodyFault) -> BodyFault {
        self.set(|| Progress::Failed(fault, Instant::now()));
        fault
    }
}
