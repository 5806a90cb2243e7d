//! The connections of the endpoint: how many there may be, their time-outs, and their end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tokio_io_timeout::TimeoutStream;

use super::{Admin, access, stream};
use crate::downstream::AsyncListener;
use crate::downstream::places::ConnectionPlace;

/// The most connections at once. If there is no place for the next connection, the stranger that has been idle for
/// longest is closed: otherwise anybody could keep out the probes of `/healthz`. A stranger is a connection that has
/// asked for nothing but `/healthz` and `/readyz`, or was refused. If none is idle, the next connection waits, because a
/// late probe is better than a failed one. The wait ends, because idle connections end after [`HEADER_TIMEOUT`].
pub(super) const MOST: usize = 100;

const _: () = assert!(stream::MOST < MOST, "streams must leave room for other requests");

/// The timeout for a request's head, and for an idle connection. Not a setting, because only operators and
/// their tools use the endpoint.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// If a client reads nothing of its answer for this time, its connection is closed. Otherwise a client could open a
/// stream, never read, and keep the connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A pause after a failed accept: the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the endpoint on a listener for as long as the process runs.
pub(crate) async fn listen(listener: AsyncListener, admin: Arc<Admin>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let place = admin.connections.take().await;
        tokio::spawn(serve(stream, admin.clone(), place));
        // The connections of a flood, accepted in one go, would close each other before anybody has read a request.
        yield_now().await;
    }
}

/// Answers the requests of a connection, until it ends. When the endpoint ends, an idle connection is closed at
/// once, and a busy connection after its answer.
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    admin: Arc<Admin>,
    place: ConnectionPlace,
) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut event = admin.pulse.event.subscribe();
    let (idleness, is_known) = (place.idleness.clone(), AtomicBool::new(false));
    let service = service_fn(async |request: Request<Incoming>| {
        idleness.busy();
        let is_open = access::is_open(request.uri());
        let answer = admin.answer(request).await;
        let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
        if !is_open && !refused.contains(&answer.status()) {
            is_known.store(true, Ordering::Relaxed);
        }
        // Whoever has shown a right to ask keeps the place.
        if !is_known.load(Ordering::Relaxed) {
            idleness.idle(Instant::now());
        }
        Ok::<_, Infallible>(answer)
    });
    let is_given_up = poll_fn(|cx| {
        idleness.wake(cx);
        if idleness.is_given_up() { Poll::Ready(()) } else { Poll::Pending }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
    );
    tokio::select! {
        () = is_given_up => return,
        _ = connection.as_mut() => return,
        _ = event.wait_for(Option::is_none) => connection.as_mut().graceful_shutdown(),
    }
    // It does not matter how a connection ends.
    let _ = connection.await;
}
