//! Accepts connections, no more than the process may have at once.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Port, Worker, serve};
use crate::observe::events;
use crate::observe::seldom::Seldom;

/// A pause after a failed accept: the process is out of descriptors or memory, and the next try
/// would fail the same way.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Between two log lines about failed accepts, or too many connections: a client that holds all of
/// them must not fill the disk as well.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// The client connections of the process: no more than `max_connections` at once.
#[derive(Debug)]
pub struct ConnectionSlots {
    free: Arc<Semaphore>,
    /// Slots to be withdrawn when their connections end, after the maximum was lowered.
    owed: AtomicUsize,
    open: AtomicUsize,
    listening: AtomicUsize,
    complaints: Seldom<Complaint>,
}

/// What the log says of connections that are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Complaint {
    Failing,
    Full,
}

/// One open connection, or what became of it.
#[derive(Debug)]
pub struct Slot {
    permit: Option<OwnedSemaphorePermit>,
    slots: Arc<ConnectionSlots>,
}

impl ConnectionSlots {
    /// `max` slots.
    pub fn new(max: usize) -> Self {
        let free = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        let [owed, open, listening] = [(); 3].map(|()| AtomicUsize::new(0));
        let complaints = Seldom::new(COMPLAINT_PAUSE);
        Self { free, owed, open, listening, complaints }
    }

    /// Changes their number from `old` to `new`. Open connections stay open.
    pub fn resize(&self, old: usize, new: usize) {
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
    pub fn listening(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    async fn take(self: &Arc<Self>) -> Option<Slot> {
        let free = || self.free.clone();
        let permit = match free().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                if self.complaints.is_due(Complaint::Full) {
                    events::connections_full(self.open());
                }
                free().acquire_owned().await.ok()?
            }
        };
        self.open.fetch_add(1, Ordering::Relaxed);
        Some(Slot { permit: Some(permit), slots: self.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.open.fetch_sub(1, Ordering::Relaxed);
        let owed = self
            .slots
            .owed
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| owed.checked_sub(1));
        if let (Ok(_), Some(permit)) = (owed, self.permit.take()) {
            permit.forget();
        }
    }
}

/// A worker's connections, each a task of its own.
#[derive(Debug)]
pub struct Connections {
    slots: Arc<ConnectionSlots>,
    tasks: Mutex<JoinSet<()>>,
}

impl Connections {
    /// None yet; each will take one of the process's slots.
    pub fn new(slots: Arc<ConnectionSlots>) -> Self {
        Self { slots, tasks: Mutex::default() }
    }

    fn add(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(connection);
    }

    /// Cuts those that are left. When this returns, what their requests held is on its way back.
    pub async fn cut(&self) {
        let mut left = std::mem::take(&mut *self.tasks.lock());
        left.shutdown().await;
    }
}

/// Serves the connections of one listener until `draining` says so, and then those that wait to be
/// accepted.
pub async fn listen(
    (listener, port): (TcpListener, Port),
    worker: Arc<Worker>,
    connections: Arc<Connections>,
    mut draining: watch::Receiver<bool>,
) {
    let slots = &connections.slots;
    slots.listening.fetch_add(1, Ordering::Relaxed);
    let told = draining.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        take(accepted, &port, (&worker, &connections, &told)).await;
    }
    // What the kernel has completed by now was promised an answer.
    if let Ok(queue) = listener.into_std() {
        while let Ok((stream, peer)) = queue.accept() {
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            take(stream.map(|stream| (stream, peer)), &port, (&worker, &connections, &told)).await;
        }
    }
    slots.listening.fetch_sub(1, Ordering::Relaxed);
}

async fn take(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    port: &Port,
    (worker, connections, draining): (&Arc<Worker>, &Connections, &watch::Receiver<bool>),
) {
    match accepted {
        Ok(accepted) => {
            let Some(slot) = connections.slots.take().await else { return };
            connections.add(serve(accepted, port.clone(), worker.clone(), slot, draining.clone()));
        }
        Err(error) if is_serious(&error) => {
            if connections.slots.complaints.is_due(Complaint::Failing) {
                events::accept_failed(&error);
            }
            sleep(ACCEPT_PAUSE).await;
        }
        Err(_) => {}
    }
}

/// Whether a failed accept says something about this process and not about one client.
fn is_serious(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}
