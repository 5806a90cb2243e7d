//! A connection to a server. Over HTTP/1.1 it carries one request at a time, over HTTP/2 many.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::future::Either;
use http::header::{CONNECTION, HOST, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery};
use http::{Request, Response, Uri, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::Parts;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;
use tokio::task::coop::unconstrained;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::Instant;

use super::body::RequestBody;
use super::deadline::Deadline;
use super::error::ServerFailure;
use super::executor::LocalExecutor;
use super::progress::BodyEnd;
use super::purpose::Purpose;
use super::stream::{ServerStream, ServerTransport, SocketState};
use super::trailers::WatchedFrames;
use crate::settings::{Scheme, ServerAddress};
use crate::wire::streams::StreamCosts;

/// The most requests at once on one HTTP/2 connection: what servers commonly allow (RFC 9113, 6.5.2). A
/// server that allows fewer says so in its settings.
pub(super) const MOST_STREAMS: u16 = 100;

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// An HTTP/2 connection as hyper drives it.
type Http2Connection = http2::Connection<TokioIo<Http2Transport>, RequestBody, LocalExecutor>;

/// What carries an HTTP/2 connection.
type Http2Transport = WatchedFrames<ServerTransport>;

/// A connection to send a request on.
#[derive(Debug)]
pub(super) enum Connection {
    Http1(Box<ExclusiveConnection>),
    Http2(SharedConnection),
}

/// An HTTP/1.1 connection, which one request uses at a time. To drop this value closes the connection, also in
/// the middle of an exchange.
#[derive(Debug)]
pub(super) struct ExclusiveConnection {
    sender: http1::SendRequest<RequestBody>,
    /// When it first came into the pool; `None` for a new connection. The server may have closed a pooled
    /// connection meanwhile.
    pub(super) pooled: Option<Instant>,
    pub(super) made_for: Purpose,
    pub(super) socket: Rc<SocketState>,
    /// The stream, once its connection carries another protocol.
    switched: oneshot::Receiver<ServerStream>,
    deadline: Deadline,
    driver: Driver,
}

/// An HTTP/2 connection. It is closed when the last of its users and the pool have dropped it.
#[derive(Clone, Debug)]
pub(super) struct SharedConnection {
    sender: http2::SendRequest<RequestBody>,
    /// Whether it comes from the pool. The server may have closed a pooled connection meanwhile.
    pooled: bool,
    /// The server's limit of concurrent requests.
    most: Rc<Cell<usize>>,
    /// How often something had been read when the request was sent.
    reads_before: usize,
    pub(super) costs: Rc<StreamCosts>,
    /// The head of the request, if there may be a second try.
    head: Option<Box<Request<()>>>,
    driver: Rc<Driver>,
}

/// The task that reads and writes a connection. It ends with the connection's last owner.
#[derive(Debug)]
struct Driver {
    task: AbortHandle,
    /// The error that ended the connection, if no request has failed with it.
    fault: Rc<RefCell<Option<hyper::Error>>>,
    /// An exchange on the connection broke.
    is_broken: Cell<bool>,
}

/// Why no response head has come.
pub(super) struct NoHead {
    pub(super) failure: ServerFailure,
    /// The request, if no byte of the request was sent.
    pub(super) unsent: Option<Box<Request<RequestBody>>>,
}

impl Driver {
    /// Drives a connection in its own task.
    fn start(connection: impl Future<Output = hyper::Result<()>> + 'static) -> Self {
        let fault = Rc::<RefCell<Option<hyper::Error>>>::default();
        let noted = fault.clone();
        let task = spawn_local(async move {
            noted.replace(connection.await.err());
        });
        Self { task: task.abort_handle(), fault, is_broken: Cell::default() }
    }

    /// The reason for a failed request. For a request that was not sent, hyper only says that it was
    /// cancelled. The error that ended the connection is then the better answer.
    fn explain(&self, error: hyper::Error, heard: bool) -> ServerFailure {
        let fault = if error.is_canceled() { self.fault.take() } else { None };
        ServerFailure::Exchange { source: fault.unwrap_or(error), heard }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ExclusiveConnection {
    /// Drives a connection that waits for its first request.
    pub(super) fn start(
        sender: http1::SendRequest<RequestBody>,
        mut connection: http1::Connection<TokioIo<ServerStream>, RequestBody>,
        socket: Rc<SocketState>,
    ) -> Self {
        let (give, switched) = oneshot::channel();
        let driver = Driver::start(async move {
            (&mut connection).await?;
            let Parts { io, read_buf, .. } = connection.into_parts();
            // If the protocol is the same as before, the connection is over, and nobody takes its stream.
            let _ = give.send(io.into_inner().after(read_buf));
            Ok(())
        });
        let (made_for, deadline) = (Purpose::Any, Deadline::default());
        Self { sender, pooled: None, made_for, socket, switched, deadline, driver }
    }

    /// Waits for the stream of a connection that carries another protocol from now on. `None` if the server has
    /// closed it instead.
    pub(super) async fn switched(&mut self) -> Option<ServerStream> {
        (&mut self.switched).await.ok()
    }

    /// Whether the connection must not be used again.
    pub(super) fn is_unusable(&self) -> bool {
        self.sender.is_closed() || self.socket.is_unusable()
    }

    /// Whether the connection can take a request now. If not, it is still writing its last request, and nobody knows
    /// how long the server takes to read it.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }
}

impl SharedConnection {
    /// Drives a connection whose server has sent its settings. The server may change its limit at any time.
    pub(super) fn start(
        sender: http2::SendRequest<RequestBody>,
        mut connection: Http2Connection,
        costs: Rc<StreamCosts>,
    ) -> Self {
        let most = Rc::new(Cell::new(connection.current_max_send_streams()));
        let newest = most.clone();
        let driver = Driver::start(poll_fn(move |cx| {
            let ended = Pin::new(&mut connection).poll(cx);
            newest.set(connection.current_max_send_streams());
            ended
        }));
        let (driver, reads_before, head) = (Rc::new(driver), 0, None);
        Self { sender, pooled: false, most, reads_before, costs, head, driver }
    }

    /// The same connection, for another request.
    pub(super) fn again(&self) -> Self {
        Self { pooled: true, ..self.clone() }
    }

    /// Whether the connection takes no more requests.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed() || self.driver.is_broken.get()
    }

    /// How often something was read from the server.
    pub(super) fn reads(&self) -> usize {
        self.costs.reads.get()
    }

    /// Whether no request is under way, if the pool has the connection. The owners of `driver` are counted: each
    /// request under way is one, and the pool is one.
    pub(super) fn is_idle(&self) -> bool {
        Rc::strong_count(&self.driver) <= 1
    }

    /// Whether the connection may carry one more request.
    pub(super) fn has_room(&self) -> bool {
        // At least 1: with a limit of 0, which may be temporary, each request would open a connection.
        let most = self.most.get().clamp(1, usize::from(MOST_STREAMS));
        self.sender.is_ready() && Rc::strong_count(&self.driver) <= most
    }
}

impl Connection {
    /// Whether the connection has been used before.
    pub(super) fn is_pooled(&self) -> bool {
        match self {
            Self::Http1(connection) => connection.pooled.is_some(),
            Self::Http2(connection) => connection.pooled,
        }
    }

    /// An exchange broke. A shared connection then takes no more requests, because they might break too. Returns
    /// whether this was the first exchange that broke here. If the connection breaks, all its exchanges break, but only
    /// one of them counts against the server.
    pub(super) fn breaks(&self) -> bool {
        !self.driver().is_broken.replace(true)
    }

    fn driver(&self) -> &Driver {
        match self {
            Self::Http1(connection) => &connection.driver,
            Self::Http2(connection) => &connection.driver,
        }
    }

    /// The exchange has come to its end, or need not go on.
    pub(super) fn finish(&self) {
        if let Self::Http1(connection) = self {
            connection.socket.finish();
        }
    }

    /// Nothing more has to arrive: over HTTP/1.1 the connection ends by a reset, unless it is used again.
    pub(super) fn abandon(&self) {
        if let Self::Http1(connection) = self {
            connection.socket.abandon();
        }
    }

    /// Whether the server has sent anything since the request.
    pub(super) fn has_heard(&self) -> bool {
        match self {
            Self::Http1(connection) => connection.socket.has_heard(),
            Self::Http2(shared) => shared.reads() != shared.reads_before,
        }
    }

    /// The request that was sent, with this body. `None` if its head was not kept.
    pub(super) fn request_again(&mut self, body: RequestBody) -> Option<Request<RequestBody>> {
        match self {
            Self::Http1(connection) => connection.socket.request_again(body),
            Self::Http2(connection) => connection.head.take().map(|head| head.map(|()| body)),
        }
    }

    /// Sends a request and waits for the head of its answer, within `limit` of the request's end. The
    /// answer may come before all of the request is sent. The request's head is kept if it `may_repeat`.
    // The request is handed to hyper before the future is made. Inside, it would be moved twice more.
    pub(super) fn send(
        &mut self,
        mut request: Request<RequestBody>,
        may_repeat: bool,
        server: &ServerAddress,
        limit: Duration,
    ) -> impl Future<Output = Result<Response<Incoming>, NoHead>> {
        let end = request.body().end();
        let exchange = match self {
            Self::Http1(connection) => {
                connection.socket.await_head(may_repeat);
                // A GET of unknown length would otherwise be sent without its body.
                if request.body().size_hint().exact().is_none() {
                    request.headers_mut().insert(TRANSFER_ENCODING, CHUNKED);
                }
                Either::Left(connection.sender.try_send_request(request))
            }
            Self::Http2(connection) => {
                connection.reads_before = connection.reads();
                connection.head = may_repeat.then(|| Box::new(head_of(&request)));
                into_http2(&mut request, server);
                // Boxed: the future of a request over HTTP/1.1 must not have the room for this one.
                Either::Right(Box::pin(connection.sender.try_send_request(request)))
            }
        };
        async move {
            let exchange = pin!(exchange);
            let sent = match self {
                Self::Http1(connection) => {
                    let head = in_time(exchange, &mut connection.deadline, limit, &end).await;
                    connection.socket.answered.set(true);
                    head
                }
                Self::Http2(_) => in_time(exchange, &mut Deadline::default(), limit, &end).await,
            };
            let too_late = NoHead { failure: ServerFailure::ResponseTimeout(limit), unsent: None };
            sent.ok_or(too_late)?.map_err(|mut failure| {
                let unsent = failure.take_message().map(|mut request| {
                    into_http1(&mut request);
                    request
                });
                let failure = self.driver().explain(failure.into_error(), self.has_heard());
                NoHead { failure, unsent: unsent.map(Box::new) }
            })
        }
    }
}

/// A copy of a request's head.
fn head_of(request: &Request<RequestBody>) -> Request<()> {
    let mut head = Request::new(());
    head.method_mut().clone_from(request.method());
    head.uri_mut().clone_from(request.uri());
    head.headers_mut().clone_from(request.headers());
    head
}

/// Turns a request into the form of HTTP/2: host and scheme stand in the URI (RFC 9113, 8.3.1), and fields
/// that HTTP/2 forbids are removed.
fn into_http2(request: &mut Request<RequestBody>, server: &ServerAddress) {
    let scheme = match server.scheme {
        Scheme::Https => http::uri::Scheme::HTTPS,
        Scheme::Http | Scheme::H2c => http::uri::Scheme::HTTP,
    };
    let headers = request.headers_mut();
    let host = headers.remove(HOST);
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let read = |host| Authority::from_maybe_shared(host).ok();
    let host = host.and_then(read).or_else(|| read(server.host()));
    let mut target = mem::take(request.uri_mut()).into_parts();
    (target.scheme, target.authority) = (Some(scheme), host);
    if target.path_and_query.is_none() {
        target.path_and_query = Some(PathAndQuery::from_static("/"));
    }
    // Scheme, authority and path together are always a valid URI.
    *request.uri_mut() = Uri::from_parts(target).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
}

/// Turns a request back into the form of HTTP/1.1.
fn into_http1(request: &mut Request<RequestBody>) {
    if request.version() != Version::HTTP_2 {
        return;
    }
    let target = mem::take(request.uri_mut()).into_parts();
    if let Some(Ok(host)) = target.authority.map(|host| HeaderValue::from_str(host.as_str())) {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = target.path_and_query.map(Uri::from).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
}

/// The result of an exchange; `None` if it did not come in time.
async fn in_time<F: Future>(
    mut exchange: Pin<&mut F>,
    deadline: &mut Deadline,
    limit: Duration,
    end: &BodyEnd,
) -> Option<F::Output> {
    let sent = Instant::now();
    poll_fn(|cx| {
        if let Poll::Ready(outcome) = exchange.as_mut().poll(cx) {
            return Poll::Ready(Some(outcome));
        }
        ready!(deadline.poll(cx, sent, limit, end));
        // The answer may have come without being seen, because a client that sends all the time uses up tokio's budget.
        // This is not the server's fault.
        Poll::Ready(match pin!(unconstrained(exchange.as_mut())).poll(cx) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::task::coop::{has_budget_remaining, poll_proceed};
    use tokio::time::advance;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_time_counts_though_it_is_seen_late() {
        let (sender, answer) = oneshot::channel();
        let mut answer = pin!(answer);
        let (mut deadline, end) = (Deadline::default(), BodyEnd::default());
        let mut waiting = pin!(in_time(answer.as_mut(), &mut deadline, LIMIT, &end));
        let is_pending = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending, "nothing has come");
        sender.send("an answer").unwrap();
        advance(LIMIT * 2).await;
        let seen = poll_fn(|cx| {
            while has_budget_remaining() {
                if let Poll::Ready(unit) = poll_proceed(cx) {
                    unit.made_progress();
                }
            }
            waiting.as_mut().poll(cx)
        });
        assert_eq!(seen.await, Some(Ok("an answer")));
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_in_time_is_none() {
        let (mut deadline, end) = (Deadline::default(), BodyEnd::default());
        let answer = pin!(std::future::pending::<()>());
        assert_eq!(in_time(answer, &mut deadline, LIMIT, &end).await, None);
    }
}
