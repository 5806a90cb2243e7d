//! A request's body on its way upstream. Its length and its time are limited, and it is never held as a
//! whole.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep};

/// A request's body as the client sends it. The body is boxed: hyper moves a request many times, and most
/// requests have no body.
#[derive(Debug)]
pub struct RequestBody(Option<Box<Streamed>>);

#[derive(Debug)]
struct Streamed {
    incoming: Incoming,
    /// Bytes that may still come.
    allowance: u64,
    patience: EventTimeout,
    trailers: Trailers,
    end: BodyEnd,
}

/// The names of the fields that may follow a body.
pub(crate) type Trailers = SmallVec<[HeaderName; 2]>;

/// What went wrong with a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// The client sent nothing for too long.
    #[error("the client sent nothing of the request's body for too long")]
    Stalled,
    /// The body is longer than allowed.
    #[error("the request's body is larger than max_body_size")]
    TooLarge,
    /// The body broke off, or its framing is not valid HTTP.
    #[error("the request's body broke off or is not framed as HTTP demands")]
    Broken,
}

/// How far a request's body has come. This handle stays readable while the exchange consumes the body.
#[derive(Clone, Debug)]
pub struct BodyEnd(Option<Arc<Progress>>);

#[derive(Debug)]
struct Progress {
    state: AtomicU8,
    began: Instant,
    /// Microseconds after `began` at which a piece of the body was last handed on.
    moved: AtomicU64,
}

/// The server has to take more.
const OFFERED: u8 = 0;
/// The client has to send more.
const AWAITED: u8 = 1;
const REACHED: u8 = 2;
const STALLED: u8 = 3;
const TOO_LARGE: u8 = 4;
const BROKEN: u8 = 5;

/// Whose turn it is while a request is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedSide {
    /// The client's, to send more of the body.
    Client,
    /// The server's, since this time. `None` means since the request was handed over.
    Server(Option<Instant>),
}

impl BodyEnd {
    /// Whether all of the body was handed on.
    pub(crate) fn is_reached(&self) -> bool {
        self.0.as_ref().is_none_or(|progress| progress.state.load(Ordering::Relaxed) == REACHED)
    }

    /// Why the body did not reach its end.
    pub fn fault(&self) -> Option<BodyFault> {
        match self.0.as_ref()?.state.load(Ordering::Relaxed) {
            STALLED => Some(BodyFault::Stalled),
            TOO_LARGE => Some(BodyFault::TooLarge),
            BROKEN => Some(BodyFault::Broken),
            _ => None,
        }
    }

    /// Whether the client or the server has to act next.
    pub(super) fn turn(&self) -> AwaitedSide {
        let Some(progress) = &self.0 else { return AwaitedSide::Server(None) };
        if progress.state.load(Ordering::Relaxed) == AWAITED {
            return AwaitedSide::Client;
        }
        let moved = Duration::from_micros(progress.moved.load(Ordering::Relaxed));
        AwaitedSide::Server(Some(progress.began + moved))
    }

    /// For a body of which nothing was handed on yet.
    pub(super) fn begin() -> Self {
        Self(Some(Arc::new(Progress {
            state: AtomicU8::new(OFFERED),
            began: Instant::now(),
            moved: AtomicU64::new(0),
        })))
    }

    /// The client has to send more.
    pub(super) fn await_client(&self) {
        if let Some(progress) = &self.0 {
            progress.state.store(AWAITED, Ordering::Relaxed);
        }
    }

    /// All of the body was handed on.
    pub(super) fn reach(&self) {
        self.moved(REACHED);
    }

    fn fail(&self, fault: BodyFault) -> BodyFault {
        self.moved(match fault {
            BodyFault::Stalled => STALLED,
            BodyFault::TooLarge => TOO_LARGE,
            BodyFault::Broken => BROKEN,
        });
        fault
    }

    fn moved(&self, state: u8) {
        if let Some(progress) = &self.0 {
            progress.state.store(state, Ordering::Relaxed);
            let moved = u64::try_from(progress.began.elapsed().as_micros());
            progress.moved.store(moved.unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }
}

impl Default for BodyEnd {
    /// For an empty body.
    fn default() -> Self {
        Self(None)
    }
}

impl RequestBody {
    /// No body.
    pub fn empty() -> Self {
        Self(None)
    }

    /// The body that the client sends. It may have at most `most` bytes. Each read must come within
    /// `patience` of the one before. Trailers other than `trailers` are removed.
    pub(crate) fn streamed(
        incoming: Incoming,
        most: Option<u64>,
        patience: Duration,
        trailers: Trailers,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::empty();
        }
        Self(Some(Box::new(Streamed {
            incoming,
            allowance: most.unwrap_or(u64::MAX),
            patience: EventTimeout::new(patience),
            trailers,
            end: BodyEnd::begin(),
        })))
    }

    /// Whether there is no body.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The client's body, without limits and time-outs; `None` if there is no body.
    pub(crate) fn into_incoming(self) -> Option<Incoming> {
        self.0.map(|body| body.incoming)
    }

    /// A handle that tells how far the body has come.
    pub fn end(&self) -> BodyEnd {
        self.0.as_ref().map_or(BodyEnd(None), |streamed| streamed.end.clone())
    }
}

impl Streamed {
    fn limit_trailers(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_trailers() {
            Ok(mut came) => {
                let named =
                    |name: &HeaderName| came.remove(name).map(|value| (name.clone(), value));
                Frame::trailers(self.trailers.iter().filter_map(named).collect())
            }
            Err(frame) => frame,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(&mut body.incoming).poll_frame(cx) else {
            body.end.await_client();
            ready!(body.patience.poll_over(cx));
            return Poll::Ready(Some(Err(body.end.fail(BodyFault::Stalled))));
        };
        body.patience.renew();
        Poll::Ready(match frame {
            None => {
                body.end.reach();
                None
            }
            Some(Err(_)) => Some(Err(body.end.fail(BodyFault::Broken))),
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match body.allowance.checked_sub(length) {
                    None => Some(Err(body.end.fail(BodyFault::TooLarge))),
                    Some(rest) => {
                        body.allowance = rest;
                        // hyper does not poll again after the trailers or the last piece.
                        let ended = frame.is_trailers() || body.incoming.is_end_stream();
                        body.end.moved(if ended { REACHED } else { OFFERED });
                        Some(Ok(body.limit_trailers(frame)))
                    }
                }
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|body| body.incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |body| body.incoming.size_hint())
    }
}

/// A time-out between two events. The timer is created and moved only while an event is waited for.
#[derive(Debug)]
pub(crate) struct EventTimeout {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl EventTimeout {
    /// A time-out of this length.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, timer: None, waiting: false }
    }

    /// The event came.
    pub(crate) fn renew(&mut self) {
        self.waiting = false;
    }

    /// To be polled while the event has not come. Ready once the wait has been too long.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.waiting {
            self.waiting = true;
            match &mut self.timer {
                Some(timer) => {
                    // A limit that the clock cannot express never ends.
                    if let Some(deadline) = Instant::now().checked_add(self.limit) {
                        timer.as_mut().reset(deadline);
                    }
                }
                None => self.timer = Some(Box::pin(tokio::time::sleep(self.limit))),
            }
        }
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}
