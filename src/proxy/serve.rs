//! Accepts connections, and closes those whose client takes too long.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::io::{ClientStream, Phase, Times};
use super::{Connection, Proxy};
use crate::observe::events;
use crate::plan::ServerSpec;

/// A pause after a failed accept: the process is out of descriptors or memory, and the next try
/// would fail the same way.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a listener that is about to close waits for one more connection.
const LAST_CALL: Duration = Duration::from_millis(20);

/// How far away a timer is set that is not meant to fire.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// The client connections of the process: no more than `max_connections` at once.
#[derive(Debug)]
pub struct Slots {
    free: Arc<Semaphore>,
    /// Slots to be withdrawn when their connections end, after the maximum was lowered.
    owed: AtomicUsize,
    open: AtomicUsize,
    listening: AtomicUsize,
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
        Self { free, owed, open, listening }
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
        let permit = self.free.clone().acquire_owned().await.ok()?;
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

/// Serves the connections of one listener until `draining` says so, and then those that wait to be
/// accepted.
pub async fn listen(
    listener: TcpListener,
    proxy: Arc<Proxy>,
    slots: Arc<Slots>,
    mut draining: watch::Receiver<bool>,
) {
    slots.listening.fetch_add(1, Ordering::Relaxed);
    let told = draining.clone();
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        take(accepted, &proxy, &slots, &told).await;
    }
    // What the kernel has completed by now was promised an answer.
    while let Ok(accepted) = timeout(LAST_CALL, listener.accept()).await {
        take(accepted, &proxy, &slots, &told).await;
    }
    slots.listening.fetch_sub(1, Ordering::Relaxed);
}

async fn take(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    proxy: &Arc<Proxy>,
    slots: &Arc<Slots>,
    draining: &watch::Receiver<bool>,
) {
    match accepted {
        Ok((stream, peer)) => {
            let Some(slot) = slots.take().await else { return };
            tokio::spawn(serve(stream, peer, proxy.clone(), slot, draining.clone()));
        }
        Err(error) if is_serious(&error) => {
            events::accept_failed(&error);
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
    let active = proxy.active();
    let server = &active.plan.server;
    let phase = Arc::new(Phase::new(times(server)));
    let connection = Arc::new(Connection { peer, phase: phase.clone(), slot: Arc::new(slot) });
    let io = TokioIo::new(ClientStream::new(stream, phase.clone()));
    let service = service_fn(move |request| {
        let (proxy, connection) = (proxy.clone(), connection.clone());
        async move { Ok::<_, Infallible>(proxy.handle(request, &connection).await) }
    });
    let mut exchange = pin!(builder(server).serve_connection(io, service).with_upgrades());
    drop(active);
    let mut deadline = phase.deadline();
    let mut timer = pin!(sleep_until(deadline.unwrap_or_else(|| Instant::now() + FAR)));
    let mut drain = pin!(draining.wait_for(|draining| *draining));
    let mut drained = false;
    loop {
        tokio::select! {
            biased;
            // How it ended is the client's affair.
            _ = exchange.as_mut() => return,
            () = std::future::poll_fn(|_| {
                // Only ever sooner than it is set: a later deadline is looked at when it fires.
                let due = phase.deadline();
                if due.is_some_and(|due| deadline.is_none_or(|set| due < set)) {
                    deadline = due;
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            }) => timer.as_mut().reset(deadline.unwrap_or_else(|| Instant::now() + FAR)),
            () = timer.as_mut() => {
                let due = phase.deadline();
                if due.is_some_and(|due| due <= Instant::now()) {
                    return;
                }
                deadline = due;
                timer.as_mut().reset(due.unwrap_or_else(|| Instant::now() + FAR));
            }
            _ = drain.as_mut(), if !drained => {
                drained = true;
                exchange.as_mut().graceful_shutdown();
            }
        }
    }
}

fn times(server: &ServerSpec) -> Times {
    Times { header: server.header_timeout, idle: server.idle_timeout, write: server.body_timeout }
}

fn builder(server: &ServerSpec) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .max_header_size(server.max_header_size)
        .max_buf_size(server.max_header_size.max(64 * 1024));
    builder
}
