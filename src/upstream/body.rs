//! A request's body on its way upstream. It limits the length of the body, and the time between two reads.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::Entry;
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::event_timeout::EventTimeout;
use super::progress::{BodyEnd, BodyFault, BodyPiece, Progress};
use super::queue::UploadPermit;
use super::times::ClientTimes;
use crate::wire::upload::ClientBody;

/// A request's body as the client sends it. The body is boxed: hyper moves a request many times, and most
/// requests have no body.
#[derive(Debug)]
pub(crate) struct RequestBody(Option<Box<Streamed>>);

#[derive(Debug)]
struct Streamed {
    /// The client's body, or a whole body that was kept.
    source: Either<ClientBody, Full<Bytes>>,
    /// Bytes that may still come.
    allowance: u64,
    time_limit: EventTimeout,
    trailers: Trailers,
    end: BodyEnd,
    /// Set if the request outlives its client.
    outliving: Option<OutlivingBody>,
    /// The bytes that the connection had read when the last piece came, and when this was last checked.
    read: (u64, u64),
    /// What counts the request as an upload, until all of the body has come.
    upload: Option<UploadPermit>,
}

/// What a body has whose request goes on if the client sends no more of it. The server then waits for the rest: an end
/// of the connection would not stop every API, and its slots would be free.
#[derive(Debug)]
struct OutlivingBody {
    /// Who waits for the answer. `None` once the fault was told.
    told: Option<oneshot::Sender<BodyFault>>,
    /// Ends with the exchange.
    exchange: oneshot::Receiver<()>,
}

/// The names of the fields that may follow a body.
pub(crate) type Trailers = SmallVec<[HeaderName; 2]>;

/// The most bytes of an HTTP/2 frame with data, and its head (RFC 9113, 4.2). hyper hands over a frame when all of
/// it has come.
const MOST_OF_FRAME: u64 = 16 * 1024 + 9;

impl RequestBody {
    /// No body.
    pub(crate) fn empty() -> Self {
        Self(None)
    }

    /// The body that the client sends. It may have at most `most` bytes. Each read must come within the
    /// `body_timeout` of `times` after the read before. Trailers other than `trailers` are removed.
    pub(crate) fn streamed(
        body: ClientBody,
        most: Option<u64>,
        times: Rc<Cell<ClientTimes>>,
        trailers: Trailers,
    ) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        let time_limit = EventTimeout::of_client(times);
        Self::of(Either::Left(body), most.unwrap_or(u64::MAX), time_limit, trailers)
    }

    /// A whole body that was kept.
    pub(super) fn again(whole: Bytes) -> Self {
        let source = Either::Right(Full::new(whole));
        Self::of(source, u64::MAX, EventTimeout::new(Duration::MAX), Trailers::new())
    }

    fn of(
        source: Either<ClientBody, Full<Bytes>>,
        allowance: u64,
        time_limit: EventTimeout,
        trailers: Trailers,
    ) -> Self {
        let (end, outliving, upload) = (BodyEnd::begin(), None, None);
        let mut body = Streamed {
            source,
            allowance,
            time_limit,
            trailers,
            end,
            outliving,
            read: (0, 0),
            upload,
        };
        let read = body.bytes_read().unwrap_or_default();
        body.read = (read, read);
        Self(Some(Box::new(body)))
    }

    /// The permit is dropped when all of the body has come.
    pub(crate) fn counts_as(&mut self, upload: UploadPermit) {
        if let Some(body) = &mut self.0 {
            body.upload = Some(upload);
        }
    }

    /// Whether there is no body.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The client's body, without limits and time-outs; `None` if there is no body, or all of it has come.
    pub(crate) fn into_client_body(self) -> Option<ClientBody> {
        match self.0?.source {
            Either::Left(body) => Some(body),
            Either::Right(_) => None,
        }
    }

    /// The request goes on if the client sends no more of its body. The sender is to be dropped when the exchange is
    /// over. The receiver gets the fault.
    pub(crate) fn outlive_client(&mut self) -> (oneshot::Sender<()>, oneshot::Receiver<BodyFault>) {
        let ((open, exchange), (tell, fault)) = (oneshot::channel(), oneshot::channel());
        if let Some(body) = &mut self.0 {
            body.outliving = Some(OutlivingBody { told: Some(tell), exchange });
        }
        (open, fault)
    }

    /// A handle that shows how far the body has come.
    pub(crate) fn end(&self) -> BodyEnd {
        self.0.as_ref().map(|streamed| streamed.end.clone()).unwrap_or_default()
    }
}

impl Streamed {
    /// Whether bytes have come since the last call that may be a part of the next piece. The bytes may also belong to
    /// other streams of the connection. So at most the bytes of one frame count as such a part.
    fn has_part_come(&mut self) -> bool {
        let (at_piece, before) = self.read;
        let now = self.bytes_read().unwrap_or(before);
        self.read.1 = now;
        now != before && now - at_piece <= MOST_OF_FRAME
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPiece>, BodyFault>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.source).poll_frame(cx) else {
            self.end.await_sender();
            if self.has_part_come() {
                self.time_limit.renew();
            }
            ready!(self.time_limit.poll_over(cx));
            if let Either::Left(body) = &mut self.source {
                body.give_up();
            }
            return Poll::Ready(Some(Err(self.end.fail(BodyFault::Stalled))));
        };
        self.time_limit.renew();
        Poll::Ready(match frame {
            None => {
                self.end.reach();
                self.upload = None;
                None
            }
            Some(Err(error)) => Some(Err(self.end.fail(BodyFault::of(&*error)))),
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                if let Some(read) = self.bytes_read() {
                    self.read = (read, read);
                }
                match self.allowance.checked_sub(length as u64) {
                    None => Some(Err(self.end.fail(BodyFault::TooLarge))),
                    Some(rest) => {
                        self.allowance = rest;
                        // hyper does not poll again after the trailers or the last piece.
                        let ended = frame.is_trailers() || self.source.is_end_stream();
                        if ended {
                            self.upload = None;
                        }
                        let progress = if ended { Progress::Reached } else { Progress::Offered };
                        self.end.note(&frame, progress(Instant::now()));
                        let frame = self.limit_trailers(frame);
                        Some(Ok(frame.map_data(|bytes| BodyPiece::new(bytes, self.end.clone()))))
                    }
                }
            }
        })
    }

    /// All bytes that the client's connection has read. `None` for a body that was kept.
    fn bytes_read(&self) -> Option<u64> {
        match &self.source {
            Either::Left(body) => Some(body.overhead().read()),
            Either::Right(_) => None,
        }
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
        let failed = body.outliving.as_ref().and_then(|_| body.end.fault());
        let fault = match failed {
            Some(fault) => fault,
            None => match ready!(body.poll_next(cx)) {
                Some(Err(fault)) => fault,
                frame => return Poll::Ready(frame),
            },
        };
        if let Some(outliving) = &mut body.outliving {
            if let Some(told) = outliving.told.take() {
                // The client's connection need not read on.
                body.source = Either::Right(Full::default());
                let _ = told.send(fault);
            }
            let _ = ready!(Pin::new(&mut outliving.exchange).poll(cx));
            body.outliving = None;
        }
        Poll::Ready(Some(Err(fault)))
    }

    fn is_end_stream(&self) -> bool {
        let is_whole = |body: &Streamed| body.source.is_end_stream() && body.end.fault().is_none();
        self.0.as_deref().is_none_or(is_whole)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or(SizeHint::with_exact(0), |body| body.source.size_hint())
    }
}
