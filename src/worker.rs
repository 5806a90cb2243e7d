//! One worker: a thread with a runtime of its own, on which a request lives from accept to answer.
//!
//! | shared by the process | each worker's own |
//! | --- | --- |
//! | in-process buckets (sharded; a lock is held for one decision); the time of day | its listeners (`SO_REUSEPORT`) |
//! | whether Redis answers; the breaker | its Redis connection |
//! | throttle lines, those about upstreams, connection slots (`max_connections`) | its upstream connections |
//! | who waits for which limit (`max_waiting`) | the timers of those that wait on it |
//! | each server's health and requests in flight | its metrics, summed when they are read |
//! | the plan, as it is published | its reference to the plan in force |
//!
//! What stands on the right is multiplied by the number of workers.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::clock::Clock;
use crate::downstream::accept::{self, ConnectionSlots, Connections};
use crate::downstream::{self, Port};
use crate::limit::time::Timestamp;
use crate::observe::metrics::{Metrics, WorkerMetrics};
use crate::observe::repeated::{FailedExchanges, MalformedRequests};
use crate::observe::throttled::Throttled;
use crate::plan::{KeyDisplay, Plan};
use crate::proxy::{Active, Proxy};
use crate::store::{self, Store};
use crate::throttle::{Throttle, Waiting};
use crate::upstream::Upstream;
use crate::upstream::balance::ServerState;

/// How often idle upstream connections are looked through.
const PRUNE: Duration = Duration::from_secs(5);

/// What all workers of the process share.
pub struct Process {
    /// The clock.
    pub clock: Clock,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The throttle lines.
    pub throttled: Arc<Throttled>,
    /// The lines about failed exchanges.
    pub failed: Arc<FailedExchanges>,
    /// The lines about what is no request.
    pub malformed: Arc<MalformedRequests>,
    /// The buckets in this process, and what is known of Redis.
    pub store: Arc<store::Shared>,
    /// The requests that are held for a limit.
    pub waiting: Arc<Waiting>,
    /// Client connections.
    pub slots: Arc<ConnectionSlots>,
    /// How keys are shown; for the process's life.
    pub keys: KeyDisplay,
    /// How the last readings of the configuration went.
    pub config: ConfigState,
    /// Whether the process takes no more traffic.
    pub draining: AtomicBool,
}

/// How the readings of the configuration went.
#[derive(Debug)]
pub struct ConfigState {
    /// When a configuration last came in force.
    adopted: AtomicU64,
    valid: AtomicBool,
}

impl ConfigState {
    /// The first one comes in force now.
    pub fn new(now: Timestamp) -> Self {
        Self { adopted: AtomicU64::new(now.as_micros()), valid: AtomicBool::new(true) }
    }

    /// A changed configuration comes in force now.
    pub fn adopted(&self, now: Timestamp) {
        self.adopted.store(now.as_micros(), Ordering::Relaxed);
        self.valid.store(true, Ordering::Relaxed);
    }

    /// One was wrong.
    pub fn rejected(&self) {
        self.valid.store(false, Ordering::Relaxed);
    }

    /// When a configuration last came in force.
    pub fn last_adopted(&self) -> Timestamp {
        Timestamp::from_micros(self.adopted.load(Ordering::Relaxed)).unwrap_or(Timestamp::MIN)
    }

    /// Whether the last one was right.
    pub fn is_valid(&self) -> bool {
        self.valid.load(Ordering::Relaxed)
    }
}

/// A plan, as the process hands it to its workers.
#[derive(Debug)]
pub struct Published {
    /// The plan.
    pub plan: Arc<Plan>,
    /// What is known of each upstream's servers, in the plan's order.
    pub servers: Vec<Vec<Arc<ServerState>>>,
}

/// What a worker is told while it runs.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The plan to put in force.
    pub plan: watch::Receiver<Arc<Published>>,
    /// Accept no more.
    pub draining: watch::Receiver<bool>,
    /// End now.
    pub stop: watch::Receiver<bool>,
}

/// Starts a worker.
///
/// # Errors
/// Where the thread or its runtime cannot be made.
pub fn start(
    index: usize,
    listeners: Vec<(TcpListener, Port)>,
    process: Arc<Process>,
    orders: Orders,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Builder::new().name(format!("worker-{index}")).spawn(move || {
        let ended = runtime.block_on(run(index, listeners, process, orders));
        // Whatever else is under way had its time.
        runtime.shutdown_background();
        ended
    })
}

/// A worker's life, in the runtime that this is called in: [`start`] gives it a thread of its own.
///
/// # Errors
/// Where a listener cannot be used.
pub async fn run(
    index: usize,
    listeners: Vec<(TcpListener, Port)>,
    process: Arc<Process>,
    mut orders: Orders,
) -> io::Result<()> {
    let published = orders.plan.borrow_and_update().clone();
    let metrics = process.metrics.worker(index);
    let store = Store::new(process.store.clone(), &published.plan.store, process.keys);
    let throttle = Throttle {
        store,
        waiting: process.waiting.clone(),
        log: process.throttled.clone(),
        metrics: metrics.clone(),
        keys: process.keys,
    };
    let counts = (process.failed.clone(), metrics);
    let first = Arc::new(activate(&published, None, counts.clone()));
    let proxy = Arc::new(Proxy::new(first, throttle, process.clock.clone()));
    let serving =
        Arc::new(downstream::Worker { proxy: proxy.clone(), malformed: process.malformed.clone() });
    let connections = Arc::new(Connections::new(process.slots.clone()));
    let mut listening = JoinSet::new();
    for (listener, port) in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (connections, draining) = (connections.clone(), orders.draining.clone());
        listening.spawn(accept::listen((listener, port), serving.clone(), connections, draining));
    }
    let mut prune = interval(PRUNE);
    prune.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = orders.plan.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let published = orders.plan.borrow_and_update().clone();
                let before = proxy.active();
                let active = activate(&published, Some(&before), counts.clone());
                proxy.activate(Arc::new(active));
            }
            _ = prune.tick() => {
                for upstream in &proxy.active().upstreams {
                    upstream.prune(Instant::now());
                }
            }
            () = async { let _ = orders.stop.wait_for(|stop| *stop).await; } => {
                listening.abort_all();
                connections.cut().await;
                // What the last responses used, and what those that were cut held.
                proxy.throttle().store.settled().await;
                return Ok(());
            }
        }
    }
}

/// The plan with this worker's connections: those to an upstream that did not change are kept.
fn activate(
    published: &Published,
    before: Option<&Active>,
    counts: (Arc<FailedExchanges>, Arc<WorkerMetrics>),
) -> Active {
    let kept = |place: usize| {
        let spec = &published.plan.upstreams[place];
        before?.upstreams.iter().find(|upstream| upstream.spec() == spec).cloned()
    };
    let upstreams = published
        .servers
        .iter()
        .enumerate()
        .map(|(place, states)| {
            kept(place).unwrap_or_else(|| {
                Arc::new(Upstream::new(published.plan.upstreams[place].clone(), states))
            })
        })
        .collect();
    // A worker's own `Arc` around the shared plan: its count is touched by this core alone.
    Active::new(published.plan.clone(), upstreams, counts)
}
