//! Accepts connections, and closes those whose client takes too long.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::exchange::{FAR, Served, exchange};
use super::headers::forwarded::Peer;
use super::io::Socket;
use super::phase::{Phase, Times};
use super::{Connection, Proxy, tunnel};
use crate::observe::events;
use crate::plan::ServerSpec;

/// A pause after a failed accept: the process is out of descriptors or memory, and the next try
/// would fail the same way.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Between two log lines about failed accepts, or too many connections: a client that holds all of
/// them must not fill the disk as well.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// The client connections of the process: no more than `max_connections` at once.
#[derive(Debug)]
pub struct Slots {
    free: Arc<Semaphore>,
    /// Slots to be withdrawn when their connections end, after the maximum was lowered.
    owed: AtomicUsize,
    open: AtomicUsize,
    listening: AtomicUsize,
    failing: Complaint,
    full: Complaint,
}

/// Something that the log says again only after a while.
#[derive(Debug, Default)]
struct Complaint(Mutex<Option<Instant>>);

impl Complaint {
    /// Whether it is time to say it.
    fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= COMPLAINT_PAUSE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// One open connection, or what became of it.
#[derive(Debug)]
pub struct Slot {
    permit: Option<OwnedSemaphorePermit>,
    slots: Arc<Slots>,
}

impl Slots {
    /// `max` slots.
    pub fn new(max: usize) -> Self {
        let free = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        let [owed, open, listening] = [(); 3].map(|()| AtomicUsize::new(0));
        let [failing, full] = [(); 2].map(|()| Complaint::default());
        Self { free, owed, open, listening, failing, full }
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
                if self.full.is_due() {
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
    slots: Arc<Slots>,
    tasks: Mutex<JoinSet<()>>,
}

impl Connections {
    /// None yet; each will take one of the process's slots.
    pub fn new(slots: Arc<Slots>) -> Self {
        Self { slots, tasks: Mutex::default() }
    }

    fn add(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(connection);
    }

    /// Cuts those that are left. When this returns, what their requests held is on its way back.
    pub async fn cut(&self) {
        let mut left = std::mem::take(&mut *self.tasks());
        left.shutdown().await;
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the connections of one listener until `draining` says so, and then those that wait to be
/// accepted.
pub async fn listen(
    listener: TcpListener,
    proxy: Arc<Proxy>,
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
        take(accepted, &proxy, &connections, &told).await;
    }
    // What the kernel has completed by now was promised an answer.
    if let Ok(queue) = listener.into_std() {
        while let Ok((stream, peer)) = queue.accept() {
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            take(stream.map(|stream| (stream, peer)), &proxy, &connections, &told).await;
        }
    }
    slots.listening.fetch_sub(1, Ordering::Relaxed);
}

async fn take(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    proxy: &Arc<Proxy>,
    connections: &Connections,
    draining: &watch::Receiver<bool>,
) {
    match accepted {
        Ok((stream, peer)) => {
            let Some(slot) = connections.slots.take().await else { return };
            connections.add(serve(stream, peer, proxy.clone(), slot, draining.clone()));
        }
        Err(error) if is_serious(&error) => {
            if connections.slots.failing.is_due() {
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

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    proxy: Arc<Proxy>,
    slot: Slot,
    mut draining: watch::Receiver<bool>,
) {
    // Without it small answers wait for the client's acknowledgement; that it cannot be set means
    // that the client has gone.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let connection = Connection {
        peer: Peer::new(peer.ip()),
        phase: Arc::new(Phase::new(times(&proxy.active().plan.server))),
        socket: Socket::new(stream),
        _slot: slot,
    };
    let mut early = BytesMut::new();
    loop {
        // Boxed, because all that it holds is given back while the connection is parked.
        let serving = Box::pin(exchange(&proxy, &connection, early, &mut draining));
        early = match serving.await {
            Served::Ended => return,
            Served::Idle { early } => early,
            Served::Switched { stream, early, switched } => {
                return Box::pin(tunnel::join(stream, early.freeze(), *switched)).await;
            }
        };
        if early.is_empty() && !is_awaited(&connection, &mut draining).await {
            return;
        }
    }
}

/// Waits for a parked client to say something. False where it has had its time, or the process
/// drains.
async fn is_awaited(connection: &Connection, draining: &mut watch::Receiver<bool>) -> bool {
    let until = connection.phase.idle_until().unwrap_or_else(|| Instant::now() + FAR);
    tokio::select! {
        biased;
        () = connection.socket.readable() => true,
        () = sleep_until(until) => false,
        _ = draining.wait_for(|draining| *draining) => false,
    }
}

fn times(server: &ServerSpec) -> Times {
    Times { header: server.header_timeout, idle: server.idle_timeout, write: server.body_timeout }
}
