//! The connections of the endpoint: how many there may be, their time-outs, and their end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tokio_io_timeout::TimeoutStream;

use super::{Admin, access, stream};
use crate::downstream::AsyncListener;

/// The most connections at once. If there is no room for the next connection, the oldest stranger is closed:
/// otherwise anybody could keep out the probes of `/healthz`. If there is no stranger, the next connection waits,
/// because a late probe is better than a failed one. The wait ends, because idle connections end after
/// [`HEADER_TIMEOUT`].
const MOST: usize = 100;

const _: () = assert!(stream::MOST < MOST, "streams must leave room for other requests");

/// The timeout for a request's head, and for an idle connection. Not a setting, because only operators and
/// their tools use the endpoint.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// If a client reads nothing of its answer for this time, its connection is closed. Otherwise a client could open a
/// stream, never read, and keep the connection.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A pause after a failed accept: the process is out of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The connections of the endpoint.
pub(super) struct AdminConnections {
    /// A permit for each further connection.
    permits: Arc<Semaphore>,
    /// The connections that have asked for nothing but `/healthz` and `/readyz`, or were refused. The oldest comes
    /// first.
    strangers: Mutex<VecDeque<AbortHandle>>,
}

impl Default for AdminConnections {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MOST)), strangers: Mutex::default() }
    }
}

impl AdminConnections {
    /// A permit for one more connection.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        if self.permits.available_permits() == 0
            && let Some(oldest) = self.strangers().pop_front()
        {
            oldest.abort();
        }
        self.permits.clone().acquire_owned().await.ok()
    }

    /// The strangers whose connections are open.
    fn strangers(&self) -> MutexGuard<'_, VecDeque<AbortHandle>> {
        let mut strangers = self.strangers.lock();
        strangers.retain(|stranger| !stranger.is_finished());
        strangers
    }
}

/// Serves the endpoint on a listener for as long as the process runs.
pub(crate) async fn listen(listener: AsyncListener, admin: Arc<Admin>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(permit) = admin.connections.permit().await else { return };
        let serving = serve(stream, admin.clone());
        let connection = tokio::spawn(async move {
            serving.await;
            drop(permit);
        });
        admin.connections.strangers().push_back(connection.abort_handle());
    }
}

/// Answers the requests of a connection, until it ends. When the endpoint ends, an idle connection is closed at
/// once, and a busy connection after its answer.
pub(super) async fn serve(stream: impl AsyncRead + AsyncWrite + Send + 'static, admin: Arc<Admin>) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let mut event = admin.pulse.event.subscribe();
    let service = service_fn(move |request: Request<Incoming>| {
        let admin = admin.clone();
        async move {
            let is_open = access::is_open(request.uri());
            let answer = admin.answer(request).await;
            let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
            if !is_open && !refused.contains(&answer.status()) {
                let this = tokio::task::try_id();
                admin.connections.strangers().retain(|stranger| Some(stranger.id()) != this);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
    );
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = event.wait_for(Option::is_none) => connection.as_mut().graceful_shutdown(),
    }
    // It does not matter how a connection ends.
    let _ = connection.await;
}
