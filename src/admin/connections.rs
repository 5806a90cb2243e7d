//! The connections of the endpoint: how many there may be, their time-outs, and their end.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;
use tokio_io_timeout::TimeoutStream;

use super::{Admin, stream};
use crate::downstream::AsyncListener;

/// The most connections at once. More wait in the accept queue, and are served when another one ends. They are
/// not closed: a probe of `/healthz` that is late is better than one that fails. An idle connection ends after
/// [`HEADER_TIMEOUT`], so the wait ends as well.
pub(super) const MOST: usize = 100;

const _: () = assert!(stream::MOST < MOST, "streams must leave room for other requests");

/// The timeout for a request's head, and for an idle connection. Not a setting, because only operators and
/// their tools use the endpoint.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A client that takes nothing of an answer for this long is cut. Otherwise a reader of a stream that does
/// not read would keep its place.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A pause after a failed accept: the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the endpoint on a listener for as long as the process runs.
pub(crate) async fn listen(listener: AsyncListener, admin: Arc<Admin>) {
    while let Ok(permit) = admin.connections.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = serve(stream, admin.clone());
                tokio::spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Answers the requests of a connection, until it ends. When the endpoint ends, an idle connection is closed at
/// once, and another one after its answer.
pub(super) async fn serve(stream: impl AsyncRead + AsyncWrite + Send + 'static, admin: Arc<Admin>) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut ending = admin.pulse.ending.subscribe();
    let service = service_fn(move |request| {
        let admin = admin.clone();
        async move { Ok::<_, Infallible>(admin.answer(request).await) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
    );
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ending.wait_for(|ending| *ending) => connection.as_mut().graceful_shutdown(),
    }
    // How a connection ends is nobody's concern here.
    let _ = connection.await;
}
