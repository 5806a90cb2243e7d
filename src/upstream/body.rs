//! A request's body on its way upstream. Its length and its time are limited. At most its first pieces are
//! held, for a second try.

use std::error::Error;
use std::io;
use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::Entry;
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep};

use super::overhead::Overhead;

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
    /// Where the pieces are noted that have come from the client.
    overhead: Option<Arc<Overhead>>,
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

/// The most bytes of a body that are kept for a second try.
const MOST_KEPT: usize = 64 * 1024;

/// How far a request's body has come; `None` for an empty body. This handle stays readable while the
/// exchange consumes the body.
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

    pub(super) fn is_empty(&self) -> bool {
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
        let progress = Progress::Offered(Instant::now());
        Self(Some(Arc::new(Mutex::new(Handover { progress, kept: None }))))
    }

    pub(super) fn await_client(&self) {
        self.set(Progress::Awaited);
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

    /// The body that the client sends. It may have at most `most` bytes. Each read must come within
    /// `time_limit` of the read before. Trailers other than `trailers` are removed. `overhead` is that of the
    /// client's connection.
    pub(crate) fn streamed(
        incoming: Incoming,
        most: Option<u64>,
        time_limit: Duration,
        trailers: Trailers,
        overhead: Arc<Overhead>,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::empty();
        }
        Self(Some(Box::new(Streamed {
            source: Either::Left(incoming),
            allowance: most.unwrap_or(u64::MAX),
            time_limit: EventTimeout::new(time_limit),
            trailers,
            end: BodyEnd::begin(),
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
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(&mut body.source).poll_frame(cx) else {
            body.end.await_client();
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
                }
                match body.allowance.checked_sub(length as u64) {
                    None => Some(Err(body.end.fail(BodyFault::TooLarge))),
                    Some(rest) => {
                        body.allowance = rest;
                        // hyper does not poll again after the trailers or the last piece.
                        let ended = frame.is_trailers() || body.source.is_end_stream();
                        let progress = if ended { Progress::Reached } else { Progress::Offered };
                        body.end.note(&frame, progress(Instant::now()));
                        Some(Ok(body.limit_trailers(frame)))
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

    /// The event came. Returns whether it was waited for.
    pub(crate) fn renew(&mut self) -> bool {
        mem::replace(&mut self.waiting, false)
    }

    /// To be polled while the event has not come. Ready once the wait has been too long.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        // A limit that the clock cannot express never ends.
        if !mem::replace(&mut self.waiting, true)
            && let Some(deadline) = Instant::now().checked_add(self.limit)
        {
            timer.as_mut().reset(deadline);
        }
        // Polled without tokio's budget: a client that sends all the time uses the budget up, and the timer would
        // never fire.
        pin!(unconstrained(timer.as_mut())).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::task::coop::poll_proceed;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_time_out_fires_though_tokio_s_budget_is_used_up() {
        let mut silence = EventTimeout::new(Duration::from_secs(1));
        let waits = poll_fn(|cx| Poll::Ready(silence.poll_over(cx).is_pending())).await;
        assert!(waits, "it has just begun");
        advance(Duration::from_secs(2)).await;
        let is_over = poll_fn(|cx| {
            let units = (0..1_000).map_while(|_| match poll_proceed(cx) {
                Poll::Ready(unit) => {
                    unit.made_progress();
                    Some(())
                }
                Poll::Pending => None,
            });
            assert!(units.count() < 1_000, "the budget has an end");
            Poll::Ready(silence.poll_over(cx).is_ready())
        });
        assert!(is_over.await);
    }
}
