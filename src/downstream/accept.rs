//! Accepts client connections: at most `max_connections` of the process at once, as many of proxies that ask, and of
//! each client at most `max_connections_per_client`. Each worker runs [`listen`] for each of its listeners. Each
//! connection is then a task that runs `serve` in the parent module.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::listener::AsyncListener;
use super::places::{ConnectionPlace, ConnectionPlaces};
use super::service::Service;
use super::{Port, serve};
use crate::exchange::client::AcceptedStream;
use crate::observe::events;
use crate::observe::log_interval::LogIntervals;
use crate::observe::repeated::RefusedConnections;
use crate::request::client::PeerAddress;

/// The pause after a failed accept: the process is out of descriptors or memory, and another try at once would fail
/// too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The pause between two log lines about failed accepts, or about too many connections. A client that holds
/// all connections must not fill the disk as well.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// How many connections of a listener the kernel completes before they are accepted. When a drain begins, at most
/// this number is still accepted.
pub(crate) const LONGEST_QUEUE: u16 = 4096;

/// After this number of accepted connections, other tasks of the worker run.
const ACCEPTED_AT_ONCE: u16 = 64;

/// The client connections of the process: no more than `max_connections` at once.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    clients: Arc<ConnectionPlaces>,
    /// For proxies that ask for decisions: clients must not take their places.
    of_callers: Arc<ConnectionPlaces>,
    listening: AtomicUsize,
    complaints: LogIntervals<Complaint>,
}

/// Why connections are not accepted, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Complaint {
    Failing,
    Full,
}

impl ConnectionLimit {
    /// At most `max` connections at once.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            clients: ConnectionPlaces::new(max),
            of_callers: ConnectionPlaces::new(max),
            listening: AtomicUsize::default(),
            complaints: LogIntervals::new(COMPLAINT_PAUSE),
        }
    }

    /// Changes the maximum. Open connections stay open.
    pub(crate) fn resize(&self, max: usize) {
        self.clients.resize(max);
        self.of_callers.resize(max);
    }

    /// Listeners that still accept.
    pub(crate) fn listening(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.clients.open() + self.of_callers.open()
    }

    /// The connections that were refused, because their client had too many.
    pub(crate) fn refused(&self) -> &RefusedConnections {
        &self.clients.refused
    }

    async fn take(&self, port: &Port) -> ConnectionPlace {
        let places = match port {
            Port::Plain | Port::Tls(_) => &self.clients,
            Port::Decide(_) => &self.of_callers,
        };
        if let Some(place) = places.try_take() {
            return place;
        }
        if self.complaints.next(Complaint::Full) {
            events::connections_full(places.open());
        }
        places.take().await
    }
}

/// Accepts and serves the connections of one listener until the news say that the process drains. Then accepts
/// the connections that already wait, and returns.
pub(crate) async fn listen(
    listener: AsyncListener,
    port: Port,
    service: Service,
    limit: Arc<ConnectionLimit>,
    mut draining: watch::Receiver<bool>,
) {
    limit.listening.fetch_add(1, Ordering::Relaxed);
    let news = draining.clone();
    while let Some(accepted) = accept(&listener, &mut draining).await {
        take(accepted, &port, &service, &limit, &news).await;
        // tokio looks for input before it goes on with a task that has yielded. Otherwise the other clients
        // would wait until all connections of a flood are accepted and served.
        yield_now().await;
    }
    // The kernel has completed these connections already, so their clients expect an answer. The number is
    // bounded: a successor has the same queue, and can accept the connections that come later.
    for count in 0..LONGEST_QUEUE {
        if count % ACCEPTED_AT_ONCE == 0 {
            // Only now does the runtime see which connections wait.
            yield_now().await;
        }
        let Some(Ok(accepted)) = unconstrained(listener.accept()).now_or_never() else { break };
        take(Ok(accepted), &port, &service, &limit, &news).await;
    }
    limit.listening.fetch_sub(1, Ordering::Relaxed);
}

/// The next connection. `None` once the process drains, even if connections wait in the accept queue. After a handover
/// the successor accepts the waiting connections. A process that went on accepting would never end on a busy listener.
async fn accept(
    listener: &AsyncListener,
    draining: &mut watch::Receiver<bool>,
) -> Option<io::Result<(AcceptedStream, PeerAddress)>> {
    tokio::select! {
        biased;
        _ = draining.wait_for(|draining| *draining) => None,
        accepted = listener.accept() => Some(accepted),
    }
}

async fn take(
    accepted: io::Result<(AcceptedStream, PeerAddress)>,
    port: &Port,
    service: &Service,
    limit: &Arc<ConnectionLimit>,
    draining: &watch::Receiver<bool>,
) {
    match accepted {
        Ok((stream, peer)) => {
            let place = limit.take(port).await;
            let (port, draining) = (port.clone(), draining.clone());
            service.context().tasks.add(serve(
                stream,
                peer,
                port,
                service.clone(),
                place,
                draining,
            ));
        }
        Err(error) if is_serious(&error) => {
            if limit.complaints.next(Complaint::Failing) {
                events::accept_failed(&error);
            }
            sleep(ACCEPT_PAUSE).await;
        }
        Err(_) => {}
    }
}

/// Whether a failed accept is a problem of this process and not of one client.
fn is_serious(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_waits_obeys_a_new_maximum() {
        let limit = Arc::new(ConnectionLimit::new(1));
        let one_more = || {
            let limit = limit.clone();
            tokio::spawn(async move { limit.take(&Port::Plain).await })
        };
        let mut open = vec![limit.take(&Port::Plain).await];
        let waiting = one_more();
        yield_now().await;
        assert!(!waiting.is_finished(), "there is one");
        limit.resize(3);
        open.push(timeout(ACCEPT_PAUSE, waiting).await.unwrap().unwrap());
        open.push(limit.take(&Port::Plain).await);
        limit.resize(2);
        let waiting = one_more();
        open.pop();
        yield_now().await;
        assert!(!waiting.is_finished(), "there are still two");
        open.pop();
        assert!(timeout(ACCEPT_PAUSE, waiting).await.is_ok());
    }

    /// A queue that is never empty must not hide the drain.
    #[tokio::test]
    async fn a_drain_begins_though_connections_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (listener, (drain, mut draining)) =
            (AsyncListener::Tcp(listener), watch::channel(false));
        let _client = TcpStream::connect(address).await.unwrap();
        assert!(accept(&listener, &mut draining).await.unwrap().is_ok());
        let _another = TcpStream::connect(address).await.unwrap();
        drain.send_replace(true);
        assert!(accept(&listener, &mut draining).await.is_none());
        assert!(listener.accept().now_or_never().is_some(), "the connection still waits");
    }
}
