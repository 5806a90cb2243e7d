//! Accepts client connections: at most `max_connections` of the process at once, and of each client at most
//! `max_connections_per_client`. Each worker runs [`listen`] for each of its listeners. Each connection is
//! then a task that runs `serve` in the parent module.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::counts::ConnectionCounts;
use super::listener::AsyncListener;
use super::{Port, Worker, serve};
use crate::observe::events;
use crate::observe::log_interval::LogIntervals;
use crate::observe::repeated::RefusedConnections;
use crate::proxy::client::AcceptedStream;
use crate::request::client::PeerAddress;

/// A pause after a failed accept: the process is out of descriptors or memory, and the next try
/// would fail the same way.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The pause between two log lines about failed accepts, or about too many connections. A client that holds
/// all connections must not fill the disk as well.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// How many connections of a listener the kernel completes before they are accepted. When a drain begins, no more
/// than these are still accepted.
pub(crate) const LONGEST_QUEUE: u16 = 4096;

/// After this number of accepted connections, other tasks of the worker run.
const ACCEPTED_AT_ONCE: u16 = 64;

/// The client connections of the process: no more than `max_connections` at once.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    free: Arc<Semaphore>,
    /// Permits to be withdrawn when their connections end, after the maximum was lowered.
    owed: AtomicUsize,
    open: AtomicUsize,
    listening: AtomicUsize,
    of_clients: ConnectionCounts,
    refused: RefusedConnections,
    complaints: LogIntervals<Complaint>,
}

/// Why connections are not accepted, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Complaint {
    Failing,
    Full,
}

/// The right of one connection to be open. Dropped, it goes to the next connection, or is withdrawn if the maximum was
/// lowered.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    semaphore: Option<OwnedSemaphorePermit>,
    /// The client with whose connections this connection is counted.
    client: Option<IpAddr>,
    limit: Arc<ConnectionLimit>,
}

impl ConnectionLimit {
    /// At most `max` connections at once.
    pub(crate) fn new(max: usize) -> Self {
        let free = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        let [owed, open, listening] = [(); 3].map(|()| AtomicUsize::new(0));
        let complaints = LogIntervals::new(COMPLAINT_PAUSE);
        let (of_clients, refused) = (ConnectionCounts::default(), RefusedConnections::default());
        Self { free, owed, open, listening, of_clients, refused, complaints }
    }

    /// Changes the maximum from `old` to `new`. Open connections stay open.
    pub(crate) fn resize(&self, old: usize, new: usize) {
        if new > old {
            let more = new - old;
            let forgiven = self
                .owed
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| {
                    Some(owed.saturating_sub(more))
                })
                .map_or(0, |owed| owed.min(more));
            self.free.add_permits(more - forgiven);
        } else {
            let fewer = old - new;
            let withdrawn = self.free.forget_permits(fewer);
            self.owed.fetch_add(fewer - withdrawn, Ordering::Relaxed);
        }
    }

    /// Listeners that still accept.
    pub(crate) fn listening(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// The connections that were refused, because their client had too many.
    pub(crate) fn refused(&self) -> &RefusedConnections {
        &self.refused
    }

    async fn take(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let free = || self.free.clone();
        let permit = match free().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                if self.complaints.next(Complaint::Full) {
                    events::connections_full(self.open());
                }
                free().acquire_owned().await.ok()?
            }
        };
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPermit { semaphore: Some(permit), client: None, limit: self.clone() })
    }
}

impl ConnectionPermit {
    /// Counts this connection with those of `client`, which may have `most` at once. Returns false if the
    /// client has too many. The connection is then to be closed. `client` is the address without the bits
    /// that do not tell clients apart.
    pub(super) fn count_for(&mut self, client: IpAddr, most: usize) -> bool {
        let fits = self.limit.of_clients.add(client, most);
        self.client = fits.then_some(client);
        fits
    }

    pub(super) fn refused(&self) -> &RefusedConnections {
        &self.limit.refused
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.limit.of_clients.remove(client);
        }
        self.limit.open.fetch_sub(1, Ordering::Relaxed);
        let owed = self
            .limit
            .owed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| owed.checked_sub(1));
        if let (Ok(_), Some(permit)) = (owed, self.semaphore.take()) {
            permit.forget();
        }
    }
}

/// A worker's connections. Each is a task.
#[derive(Debug)]
pub(crate) struct Connections {
    limit: Arc<ConnectionLimit>,
    tasks: RefCell<JoinSet<()>>,
}

impl Connections {
    /// No connections yet. `limit` is that of the process.
    pub(crate) fn new(limit: Arc<ConnectionLimit>) -> Self {
        Self { limit, tasks: RefCell::default() }
    }

    fn add(&self, connection: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(connection);
    }

    /// Ends all connections that are left. When this returns, everything that their requests held is being
    /// given back.
    pub(crate) async fn cut(&self) {
        self.tasks.take().shutdown().await;
    }
}

/// Accepts and serves the connections of one listener until the news say that the process drains. Then accepts
/// the connections that already wait, and returns.
pub(crate) async fn listen(
    listener: AsyncListener,
    port: Port,
    worker: Rc<Worker>,
    connections: Rc<Connections>,
    mut draining: watch::Receiver<bool>,
) {
    let limit = &connections.limit;
    limit.listening.fetch_add(1, Ordering::Relaxed);
    let news = draining.clone();
    while let Some(accepted) = accept(&listener, &mut draining).await {
        take(accepted, &port, &worker, &connections, &news).await;
        // tokio looks for input before it goes on with a task that has yielded. Otherwise the other clients
        // would wait until all connections of a flood are accepted and served.
        yield_now().await;
    }
    // The kernel has completed these connections already, so their clients expect an answer. The number is
    // bounded, because connections that come meanwhile can be left to a successor, which has the same queue.
    if let Ok(queue) = listener.into_std() {
        for count in 1..=LONGEST_QUEUE {
            let Ok(accepted) = queue.accept_waiting() else { break };
            take(Ok(accepted), &port, &worker, &connections, &news).await;
            if count % ACCEPTED_AT_ONCE == 0 {
                yield_now().await;
            }
        }
    }
    limit.listening.fetch_sub(1, Ordering::Relaxed);
}

/// The next connection. `None` once the process drains, even if connections wait: in a handover a successor
/// accepts them, and without an end to them the drain would not begin.
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
    worker: &Rc<Worker>,
    connections: &Connections,
    draining: &watch::Receiver<bool>,
) {
    match accepted {
        Ok((stream, peer)) => {
            let Some(permit) = connections.limit.take().await else { return };
            let (port, worker, draining) = (port.clone(), worker.clone(), draining.clone());
            connections.add(serve(stream, peer, port, worker, permit, draining));
        }
        Err(error) if is_serious(&error) => {
            if connections.limit.complaints.next(Complaint::Failing) {
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

    use super::*;

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
        let queue = listener.into_std().unwrap();
        assert!(queue.accept_waiting().is_ok(), "the connection still waits");
    }
}
