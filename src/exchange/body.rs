//! A response's body on its way to the client. It is passed on piece by piece and never held as a whole.

use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::num::NonZeroU64;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::pace::ResponsePace;
use super::record::RequestRecord;
use super::trailers::limit_trailers;
use crate::answer::grpc;
use crate::answer::protocol::{GrpcKind, Protocol};
use crate::observe::metrics::UpstreamFailure;
use crate::throttle::Permit;
use crate::upstream::event_timeout::EventTimeout;
use crate::upstream::progress::{BodyEnd, BodyFault, BodyPiece};
use crate::upstream::trailers::{MOST_IN_ANSWER, list_size};
use crate::upstream::{Cause, ConnectionLease};
use crate::wire::streams::{PeerBody, TooManyFrames, peer_body};

/// The most bytes that an HTTP/2 stream gets at once. A stream has ended when it has its last piece. If its client then
/// takes nothing more, at most these bytes beyond the client's window stay in memory until the connection ends.
const MOST_AT_ONCE: usize = 16 * 1024;

/// A response to a client.
pub(crate) type Answer = Response<Box<ResponseBody>>;

/// Removes the body of an answer that must not have one: an answer to HEAD, or with status 204 or 304.
/// hyper does this over HTTP/1.1 only. An answer to HEAD still says in `content-length` how long the body
/// would be. An answer with status 204 must not have the field (RFC 9110, 8.6).
pub(crate) fn withhold_body(answer: &mut Answer, method: &Method) {
    let bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&answer.status());
    if !bodiless && *method != Method::HEAD {
        return;
    }
    let length = answer.body_mut().withhold();
    if answer.status() == StatusCode::NO_CONTENT {
        answer.headers_mut().remove(CONTENT_LENGTH);
    }
    if let (Some(length @ 1..), false) = (length, bodiless) {
        answer.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
}

/// The body of a response, and what is done when the body has ended.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    source: BodySource,
    /// How long an API's answer is still read after its client has left. `None` if it is called off.
    outlives_client: Option<Duration>,
    /// What is left of the source's last piece. Only HTTP/2 and a pace split pieces.
    rest: Bytes,
    /// `Some` if the route has a `response_rate`.
    pace: Option<Box<ResponsePace>>,
    /// Over HTTP/2: how far the client has taken the body. A stream does not poll its body while it waits for the
    /// client's window, so the body cannot time this itself.
    uptake: BodyEnd,
    /// Counts and logs the request. It is dropped together with the body: at the body's end, or when the
    /// client has left.
    record: Option<RequestRecord>,
}

#[derive(Debug)]
enum BodySource {
    Whole(Option<Bytes>),
    /// The message of a gRPC call, whose status follows in trailers.
    Message(Option<Bytes>),
    UpstreamAnswer(UpstreamAnswer),
    /// The server broke off. The error is returned at the next poll, when the earlier data has been sent.
    Broken(Option<io::Error>),
}

#[derive(Debug)]
struct UpstreamAnswer {
    incoming: PeerBody,
    /// The connection that the body comes on; `None` after the body's end.
    lease: Option<ConnectionLease>,
    time_limit: EventTimeout,
    /// When the client got the last piece, if more are to come.
    given: Option<Instant>,
}

/// A client that asks for the next piece later than this has left the answer unread. If the answer has broken
/// meanwhile, the server is not to blame: it need not wait for ever.
const UNREAD: Duration = Duration::from_secs(1);

impl UpstreamAnswer {
    /// The body has come to its end. The connection can take another request.
    fn complete(&mut self, record: Option<&mut RequestRecord>) {
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
        if let Some(record) = record {
            record.permit.completed();
        }
    }

    /// The server's URL.
    fn server(&self) -> Arc<str> {
        self.lease.as_ref().map_or_else(|| Arc::from("-"), |lease| lease.server().clone())
    }
}

impl ResponseBody {
    /// A body that is complete already.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Box<Self> {
        let bytes = Some(bytes.into()).filter(|bytes: &Bytes| !bytes.is_empty());
        Self::of(BodySource::Whole(bytes))
    }

    /// The answer to a gRPC call that has ended well.
    pub(crate) fn message(message: Bytes) -> Box<Self> {
        Self::of(BodySource::Message(Some(message)))
    }

    /// The body is boxed: hyper moves a response many times.
    fn of(source: BodySource) -> Box<Self> {
        let (rest, uptake) = (Bytes::new(), BodyEnd::default());
        Box::new(Self { source, outlives_client: None, rest, pace: None, uptake, record: None })
    }

    /// Removes the body. Returns its length, if that is known.
    pub(crate) fn withhold(&mut self) -> Option<u64> {
        let length = self.size_hint().exact();
        self.source = BodySource::Whole(None);
        length
    }

    /// The body that a server sends. Each read must come within `time_limit` of the read before.
    pub(crate) fn streamed(
        incoming: Incoming,
        lease: ConnectionLease,
        time_limit: Duration,
        outlives_client: Option<Duration>,
    ) -> Box<Self> {
        if incoming.is_end_stream() {
            lease.release();
            return Self::whole(Bytes::new());
        }
        let incoming = peer_body(incoming, lease.stream_costs());
        let (lease, time_limit) = (Some(lease), EventTimeout::new(time_limit));
        let streamed = UpstreamAnswer { incoming, lease, time_limit, given: None };
        let mut body = Self::of(BodySource::UpstreamAnswer(streamed));
        body.outlives_client = outlives_client;
        body
    }

    /// Reads the body to its end and throws it away. `permit` is what the request holds until then.
    pub(crate) async fn read_out(mut self: Box<Self>, mut permit: Permit) {
        while let Some(frame) = poll_fn(|cx| self.poll_source(cx)).await {
            let Ok(frame) = frame else { return };
            if let Some(piece) = frame.data_ref() {
                permit.read(piece);
            }
        }
        permit.completed();
    }

    /// From now on, notes in `uptake` since when the client has to take a piece.
    pub(crate) fn watched_by(&mut self, uptake: BodyEnd) {
        self.uptake = uptake;
    }

    /// Limits the body's speed from now on. The rate is in bytes a second.
    pub(crate) fn pace(&mut self, rate: NonZeroU64) {
        self.pace = Some(Box::new(ResponsePace::new(rate)));
    }

    /// Sets the record that ends with the body.
    pub(crate) fn record(&mut self, mut record: RequestRecord) {
        if let BodySource::Whole(_) = self.source {
            record.permit.completed();
        }
        self.record = Some(record);
    }

    /// Ends the body early, because of `error`.
    ///
    /// A gRPC client gets a status in trailers: without one it would report an internal error. All other
    /// clients get the error at the next poll and not now. hyper drops its write buffer when it sees an
    /// error, and the client must get all data that came before.
    fn break_off(
        &mut self,
        error: io::Error,
        cx: &Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let takes_trailers = |record: &&RequestRecord| {
            // gRPC-Web has its trailers in the body, where they cannot be added to a message that broke off.
            record.protocol == Protocol::Grpc(GrpcKind::Native)
                && record.client.phase.is_multiplexed()
        };
        if let Some(record) = self.record.as_ref().filter(takes_trailers) {
            let stalled = record.body_end.fault() == Some(BodyFault::Stalled);
            let (status, message) = match stalled || error.kind() == io::ErrorKind::TimedOut {
                true => (grpc::Status::DeadlineExceeded, "nothing came for too long"),
                false => (grpc::Status::Unavailable, "the API broke off"),
            };
            self.source = BodySource::Whole(None);
            return Poll::Ready(Some(Ok(Frame::trailers(grpc::trailers(status, message)))));
        }
        self.source = BodySource::Broken(Some(error));
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_source(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self;
        let streamed = match &mut this.source {
            BodySource::Whole(bytes) => {
                return Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b))));
            }
            BodySource::Message(message) => {
                let frame = message.take().map(Frame::data).unwrap_or_else(|| {
                    this.source = BodySource::Whole(None);
                    Frame::trailers(grpc::ok())
                });
                return Poll::Ready(Some(Ok(frame)));
            }
            BodySource::Broken(error) => return Poll::Ready(error.take().map(Err)),
            BodySource::UpstreamAnswer(streamed) => streamed,
        };
        let Poll::Ready(frame) = Pin::new(&mut streamed.incoming).poll_frame(cx) else {
            ready!(streamed.time_limit.poll_over(cx));
            let server = streamed.server();
            let limit = streamed.time_limit.limit();
            let error = format!("no more of the answer from {server} in time ({limit:?})");
            this.failed(&server, UpstreamFailure::Timeout, &error);
            return this.break_off(io::ErrorKind::TimedOut.into(), cx);
        };
        let was_awaited = streamed.time_limit.renew();
        let is_unread = || !was_awaited && streamed.given.is_some_and(|at| at.elapsed() >= UNREAD);
        let (cause, error) = match frame {
            Some(Err(error)) if error.is::<TooManyFrames>() => {
                if let Some(record) = &mut this.record {
                    record.broke_off();
                }
                return this.break_off(io::Error::other(error), cx);
            }
            Some(Err(error)) => (Cause(&*error).to_string(), io::Error::other(error)),
            Some(Ok(frame)) if frame.trailers_ref().is_some_and(is_too_large) => {
                let cause = format!("its trailers have more than {} KiB", MOST_IN_ANSWER / 1024);
                (cause.clone(), io::Error::other(cause))
            }
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    let record = this.record.as_ref();
                    limit_trailers(trailers, record.and_then(RequestRecord::response_changes));
                }
                // After trailers, or a piece that is known to be the last, hyper does not poll again.
                if frame.is_trailers() || streamed.incoming.is_end_stream() {
                    streamed.complete(this.record.as_mut());
                } else {
                    streamed.given = Some(Instant::now());
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            None => {
                streamed.complete(this.record.as_mut());
                return Poll::Ready(None);
            }
        };
        let server = streamed.server();
        let message = format!("the answer from {server} broke off: {cause}");
        if let (false, Some(lease)) = (is_unread(), &streamed.lease)
            && this.record.as_ref().is_some_and(|record| {
                record.body_end.fault().is_none() && !record.body_end.awaits_client()
            })
        {
            lease.broke_off(&message);
        }
        this.failed(&server, UpstreamFailure::Broken, &message);
        this.break_off(error, cx)
    }

    /// The source's next frame. What is counted of a piece is counted here.
    fn poll_counted(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let frame = self.poll_source(cx);
        if let (Poll::Ready(Some(Ok(frame))), Some(record)) = (&frame, &mut self.record)
            && let Some(piece) = frame.data_ref()
        {
            record.sent += piece.len() as u64;
            record.permit.read(piece);
            record.client.overhead.answered(piece.len());
        }
        frame
    }

    fn failed(&mut self, server: &str, failure: UpstreamFailure, error: &dyn Display) {
        if let Some(record) = &mut self.record {
            record.broke_off();
            // If the client did not send its whole request, the server is not to blame.
            if record.body_end.fault().is_none() {
                record.failed(Some(server), failure, error);
            }
        }
    }
}

fn is_too_large(trailers: &HeaderMap) -> bool {
    list_size(trailers) > MOST_IN_ANSWER
}

impl Drop for ResponseBody {
    /// The client has left before the end of an answer that is to be read to its end.
    fn drop(&mut self) {
        if let BodySource::UpstreamAnswer(answer) = &self.source
            && let Some(limit) = self.outlives_client
            && answer.lease.is_some()
            && let Some(record) = &mut self.record
        {
            let rest = Self::of(mem::replace(&mut self.source, BodySource::Whole(None)));
            let permit = mem::take(&mut record.permit);
            record.client.tasks.go_on(limit, rest.read_out(permit));
        }
    }
}

impl Body for ResponseBody {
    type Data = BodyPiece;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPiece>, io::Error>>> {
        let this = &mut *self;
        if let Some(pace) = &mut this.pace
            && pace.poll_ready(cx).is_pending()
        {
            this.uptake.await_sender();
            return Poll::Pending;
        }
        let frame = match this.rest.is_empty() {
            // A panic ends this response, and not the other requests of the connection.
            true => panic::catch_unwind(AssertUnwindSafe(|| this.poll_counted(cx)))
                .unwrap_or_else(|_| this.break_off(io::Error::other("a fault of the proxy"), cx)),
            false => Poll::Ready(Some(Ok(Frame::data(mem::take(&mut this.rest))))),
        };
        match frame.is_ready() {
            true => this.uptake.offer(),
            false => this.uptake.await_sender(),
        }
        frame.map_ok(|frame| {
            frame.map_data(|mut piece| {
                let most = if this.uptake.is_empty() { usize::MAX } else { MOST_AT_ONCE };
                let most = this.pace.as_ref().map_or(most, |pace| most.min(pace.part()));
                if piece.len() > most {
                    this.rest = piece.split_off(most);
                }
                if let Some(pace) = &mut this.pace {
                    pace.sent(piece.len());
                }
                BodyPiece::new(piece, this.uptake.clone())
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
            && match &self.source {
                BodySource::Whole(bytes) => bytes.is_none(),
                BodySource::UpstreamAnswer(streamed) => streamed.incoming.is_end_stream(),
                BodySource::Message(_) | BodySource::Broken(_) => false,
            }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            BodySource::UpstreamAnswer(streamed) => streamed.incoming.size_hint(),
            BodySource::Message(_) | BodySource::Broken(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::Request;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::duplex;
    use tokio::task::spawn_local;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::upstream::executor::LocalExecutor;

    /// A regression: a piece of 256 KiB counted as one event, so a client had to take all of it within `body_timeout`.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn each_byte_that_an_http_2_client_takes_is_noted() {
        let (ours, theirs) = duplex(1024 * 1024);
        let uptake = BodyEnd::awaited();
        let watched = uptake.clone();
        let service = service_fn(move |_| {
            let mut body = ResponseBody::whole(vec![b'x'; 1024 * 1024]);
            body.watched_by(watched.clone());
            async { Ok::<_, Infallible>(Response::new(body)) }
        });
        let server = http2::Builder::new(LocalExecutor);
        spawn_local(server.serve_connection(TokioIo::new(ours), service));
        let (mut sender, connection) = h2::client::Builder::new()
            .initial_window_size(2_000)
            .handshake::<_, Bytes>(theirs)
            .await
            .unwrap();
        tokio::spawn(connection);
        let (answer, _) = sender.send_request(Request::new(()), true).unwrap();
        let mut body = answer.await.unwrap().into_body();
        for _ in 0..100 {
            let piece = body.data().await.unwrap().unwrap();
            sleep(Duration::from_secs(10)).await;
            let since = uptake.awaits_receiver_since(Instant::now()).unwrap();
            // Two pieces may have come at once.
            assert!(since.elapsed() <= Duration::from_secs(20), "{:?}", since.elapsed());
            body.flow_control().release_capacity(piece.len()).unwrap();
        }
    }
}
