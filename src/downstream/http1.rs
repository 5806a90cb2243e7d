//! HTTP/1.1 with a client: one request after another. Requests go to [`Service::handle`]. A connection that
//! is idle between two requests is parked: it gives up its buffers, and only its socket is watched.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, Parts};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use super::service::Service;
use super::stream::ClientStream;
use super::watch::{ConnectionWatch, Serving, WatchEnd, in_time};
use super::{GOODBYE, http2, tunnel};
use crate::exchange::body::ResponseBody;
use crate::exchange::client::{ClientConnection, Switched};

/// The most bytes that are read of a long body at once.
const MOST_READ: usize = 256 * 1024;

/// The most fields that hyper takes in a request's head. With a greater number, hyper would allocate memory for
/// as many fields at each request.
const MOST_FIELDS: usize = 100;
const TOO_MANY_FIELDS: &str = "message head has more than 100 fields";

/// How the serving of a connection ended.
enum Served {
    /// The connection is over.
    Ended,
    /// The connection is between two requests.
    Idle(ClientStream),
    /// The connection speaks HTTP/2.
    Http2(ClientStream),
    /// The connection has failed.
    Failed(hyper::Error),
    /// The connection has changed to another protocol.
    Switched(ClientStream, Box<Switched>),
}

/// Serves a connection to its end. Returns the error that ended it, if there was one.
pub(super) async fn serve(
    mut stream: ClientStream,
    client: Rc<ClientConnection>,
    service: Service,
    news: Receiver<bool>,
) -> Result<(), hyper::Error> {
    loop {
        // Boxed, so that a parked connection does not hold the memory of this future.
        match Box::pin(exchange(stream, &client, &service, news.clone())).await {
            Served::Ended => return Ok(()),
            Served::Failed(error) => return Err(error),
            Served::Http2(stream) => {
                return Box::pin(http2::serve(stream, client, service, news)).await;
            }
            Served::Switched(stream, switched) => {
                client.phase.switch();
                let tunnel = tunnel::join(stream, *switched, &client.phase.times, news);
                Box::pin(tunnel).await;
                return Ok(());
            }
            Served::Idle(parked) => {
                if !parked.has_early() && !is_awaited(&client, news.clone()).await {
                    // Over TLS the client must be told, or the end looks like a cut connection.
                    let _ = timeout(GOODBYE, Box::pin(parked).shutdown()).await;
                    return Ok(());
                }
                stream = parked;
            }
        }
    }
}

/// Waits until a parked client sends something. Returns false if the idle time is over, or if the process drains and
/// `LAST_CALL` is over.
async fn is_awaited(client: &ClientConnection, news: Receiver<bool>) -> bool {
    let due = || {
        client.phase.renew_idle();
        client.phase.idle_until()
    };
    in_time(due, news, client.socket.readable()).await.is_some()
}

/// Serves requests until the connection ends, changes to another protocol, or has been idle for a
/// moment.
async fn exchange(
    mut stream: ClientStream,
    client: &Rc<ClientConnection>,
    service: &Service,
    news: Receiver<bool>,
) -> Served {
    stream.open();
    let handle = service_fn(|request: Request<Incoming>| service.handle(request, client));
    let most = service.context().max_header_size();
    let mut builder = http1::Builder::new();
    builder.max_header_size(most).max_buf_size(most.max(MOST_READ));
    let mut connection = builder.serve_connection(TokioIo::new(stream), handle);
    let end = ConnectionWatch::new(client, news).during(&mut connection).await;
    let Parts { io, read_buf: unused, .. } = connection.into_parts();
    let mut stream = io.into_inner();
    stream.put_back(&unused);
    match end {
        WatchEnd::Left => Served::Ended,
        WatchEnd::Idle => Served::Idle(stream),
        WatchEnd::Ended(Ok(())) => match client.take_switched() {
            Some(switched) => Served::Switched(stream, switched),
            None => Served::Ended,
        },
        WatchEnd::Ended(Err(error)) if error.is_parse_version_h2() => Served::Http2(stream),
        WatchEnd::Ended(Err(error)) => {
            // hyper gives the same error for a long head and for too many fields. The head is still in hyper's
            // buffer, so the fields can be counted here.
            if error.is_parse_too_large() && has_too_many_fields(&unused) {
                client.head_fault.set(Some(TOO_MANY_FIELDS));
            }
            Served::Failed(error)
        }
    }
}

impl<S> Serving for http1::Connection<TokioIo<ClientStream>, S>
where
    S: HttpService<Incoming, ResBody = Box<ResponseBody>>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    Self: Future<Output = hyper::Result<()>> + Unpin,
{
    type End = hyper::Result<()>;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        Pin::new(self).poll(cx)
    }

    fn end_soon(&mut self) {
        Pin::new(self).graceful_shutdown();
    }
}

/// Whether a head has more fields than [`MOST_FIELDS`]. `read` begins with the head.
fn has_too_many_fields(read: &[u8]) -> bool {
    // An empty line ends the head. Empty lines may stand in front of a request.
    let lines = read.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let head = lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    head.skip(1).count() > MOST_FIELDS
}
