//! A request's body on its way upstream. Its length and its time are limited, and it is never held as a
//! whole.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep};

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

/// How far a request's body has come; `None` for an empty body. This handle stays readable while the
/// exchange consumes the body.
#[derive(Clone, Debug, Default)]
pub struct BodyEnd(Option<Arc<Mutex<Progress>>>);

#[derive(Clone, Copy, Debug)]
enum Progress {
    /// The server has to take the piece that was handed on at this time.
    Offered(Instant),
    /// The client has to send more.
    Awaited,
    /// All of the body was handed on, the last piece at this time.
    Reached(Instant),
    Failed(BodyFault),
}

impl BodyEnd {
    fn progress(&self) -> Option<Progress> {
        self.0.as_ref().map(|progress| *progress.lock())
    }

    fn set(&self, now: Progress) {
        if let Some(progress) = &self.0 {
            *progress.lock() = now;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether all of the body was handed on.
    pub(crate) fn is_reached(&self) -> bool {
        matches!(self.progress(), None | Some(Progress::Reached(_)))
    }

    /// Why the body did not reach its end.
    pub fn fault(&self) -> Option<BodyFault> {
        match self.progress()? {
            Progress::Failed(fault) => Some(fault),
            _ => None,
        }
    }

    /// Since when the server has to act, for a request that was handed over at `sent`. `None` while the client
    /// has to send more, and after the body failed.
    pub(super) fn awaits_server_since(&self, sent: Instant) -> Option<Instant> {
        match self.progress() {
            None => Some(sent),
            Some(Progress::Offered(since) | Progress::Reached(since)) => Some(since),
            Some(Progress::Awaited | Progress::Failed(_)) => None,
        }
    }

    /// For a body of which nothing was handed on yet.
    pub(super) fn begin() -> Self {
        Self(Some(Arc::new(Mutex::new(Progress::Offered(Instant::now())))))
    }

    /// The client has to send more.
    pub(super) fn await_client(&self) {
        self.set(Progress::Awaited);
    }

    /// All of the body was handed on.
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
    pub fn empty() -> Self {
        Self(None)
    }

    /// The body that the client sends. It may have at most `most` bytes. Each read must come within
    /// `patience` of the read before. Trailers other than `trailers` are removed.
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
                        match ended {
                            true => body.end.reach(),
                            false => body.end.set(Progress::Offered(Instant::now())),
                        }
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
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        // A limit that the clock cannot express never ends.
        if !std::mem::replace(&mut self.waiting, true)
            && let Some(deadline) = Instant::now().checked_add(self.limit)
        {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx)
    }
}
