//! One worker: a thread with its own runtime, on which a request lives from accept to answer.
//!
//! | shared by the process | each worker's own |
//! | --- | --- |
//! | in-process buckets (sharded; locked for one decision); time of day | its listeners (`SO_REUSEPORT`; a Unix socket, or one from systemd, is shared) |
//! | whether Redis answers; the breaker | its Redis connection |
//! | throttle and upstream log lines; spans; the number of client connections (`max_connections`) | its upstream connections |
//! | the number of held requests of each limit (`max_waiting`) | the timers of its held requests |
//! | each server's health, addresses and requests in flight; the keys of tokens | its metrics, summed when they are read |
//! | the settings, as they are published | its reference to the settings in force |
//!
//! The right column exists once for each worker, and its types say so: `Rc`, `Cell` and `RefCell`, in a runtime that
//! is local to the thread. What is shared is in `Arc`s, with atomics and locks. A borrow of a `RefCell` ends in the
//! function in which it began: it is never held over an `await` or a callback.
//!
//! `server` starts the workers; `downstream` accepts the connections of a worker.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tokio::runtime::LocalOptions;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, every};
use crate::config::ConfigRecord;
use crate::decide::{DecisionService, Leases};
use crate::downstream::accept::{self, ConnectionLimit};
use crate::downstream::service::Service;
use crate::downstream::{AsyncListener, Listener, Port};
use crate::exchange::{Active, WorkerContext, WorkerTasks};
use crate::file::LastRead;
use crate::jwt::Tokens;
use crate::jwt::keys::SharedKeys;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::error_log::ErrorLog;
use crate::observe::metrics::{Metrics, WorkerMetrics};
use crate::observe::near_limit::NearLimit;
use crate::observe::throttled::Throttled;
use crate::observe::trace::SpanQueue;
use crate::proxy::Proxy;
use crate::settings::{KeyDisplay, Settings};
use crate::store::{self, Store};
use crate::throttle::kept::KeptRejections;
use crate::throttle::{Throttle, Waiting};
use crate::tls::server::{CertificateEnd, Certificates};
use crate::upstream::Upstream;
use crate::upstream::health::UpstreamState;

/// How often old idle upstream connections are closed. A connection that was not used for twice this time is not trusted
/// with a request that cannot be sent again.
const PRUNE: Duration = Duration::from_secs(2);

/// The state that all workers of the process share.
pub struct Process {
    pub(crate) clock: Clock,
    /// The metrics of all workers.
    pub(crate) metrics: Arc<Metrics>,
    /// The throttle lines.
    pub(crate) throttled: Arc<Throttled>,
    /// What goes wrong with clients and servers, for its lines.
    pub(crate) error_log: Arc<ErrorLog>,
    /// The spans of sampled requests that wait to be sent.
    pub(crate) spans: Arc<SpanQueue>,
    /// The buckets in this process, and the state of Redis.
    pub(crate) store: Arc<store::ProcessStore>,
    /// The requests that are held for a limit.
    pub(crate) waiting: Arc<Waiting>,
    /// The keys near their limits.
    pub(crate) near: Arc<NearLimit>,
    /// The last rejections.
    pub(crate) rejections: Arc<KeptRejections>,
    /// What requests hold that were allowed, and that another proxy forwards.
    pub(crate) leases: Arc<Leases>,
    /// The client connections that are open: at most `max_connections`.
    pub(crate) connections: Arc<ConnectionLimit>,
    /// The requests that go on after their clients have left.
    pub(crate) abandoned: TaskTracker,
    /// The workers that may still settle with the stores of others.
    serving: TaskTracker,
    /// How keys are shown. A reload does not change this.
    pub(crate) keys: KeyDisplay,
    /// When a configuration last came into force, in microseconds, for the metrics.
    pub(crate) adopted: AtomicU64,
    /// Whether the configuration that was read last was valid, for the metrics.
    pub(crate) is_config_valid: AtomicBool,
    /// The configuration in force, for the admin endpoint.
    pub(crate) config: ConfigRecord,
    /// Whether the process drains and wants no more traffic. `/readyz` then answers 503.
    pub(crate) draining: AtomicBool,
}

impl Process {
    /// A process with its first settings and the number of its workers. It has at most `connections` of clients at once.
    pub fn new(settings: &Settings, clock: Clock, workers: usize, connections: usize) -> Self {
        let serving = TaskTracker::new();
        // It is waited for only once it is closed. A closed one still counts.
        serving.close();
        Self {
            metrics: Metrics::new(workers),
            throttled: Arc::new(Throttled::new(
                settings.log.throttle,
                settings.log.summary_interval,
            )),
            error_log: Arc::default(),
            spans: Arc::default(),
            adopted: clock.now().as_micros().into(),
            is_config_valid: true.into(),
            config: ConfigRecord::default(),
            draining: false.into(),
            store: store::ProcessStore::by(clock.wall().clone(), &settings.store),
            waiting: Arc::default(),
            near: Arc::default(),
            rejections: Arc::new(KeptRejections::new(workers, clock.wall().at(clock.now()))),
            leases: Arc::default(),
            connections: Arc::new(ConnectionLimit::new(connections)),
            abandoned: TaskTracker::new(),
            serving,
            keys: settings.log.keys,
            clock,
        }
    }

    /// Says to the other processes that share Redis which configuration file is in force.
    pub(crate) fn tell_file(&self) {
        *self.store.fleet.file.lock() = self.config.news().text.version();
    }

    /// The time of day.
    pub(crate) fn wall(&self) -> Timestamp {
        self.clock.wall().at(self.clock.now())
    }

    /// Writes the log's summaries whose last line is at least `interval` old. At the end of the process `interval` is
    /// `None`, and all are written.
    pub(crate) fn write_summaries(&self, interval: Option<Duration>) {
        match interval {
            Some(_) => self.throttled.tick(self.clock.now()),
            None => self.throttled.flush(self.clock.now()),
        }
        let (interval, now) = (interval.unwrap_or_default(), Instant::now());
        self.error_log.write(interval, now);
        self.near.write(interval, now);
        self.connections.refused().write(interval, now);
        self.spans.dropped.write(interval, now);
        self.store.unsettled.write(interval, now);
    }
}

/// Settings, as the process hands them to its workers.
#[derive(Debug)]
pub struct Published {
    /// The settings.
    pub settings: Arc<Settings>,
    /// The state of each upstream, in the settings' order.
    pub upstreams: Vec<Arc<UpstreamState>>,
    /// The keys of each `[jwt.NAME]`, in the settings' order.
    pub keys: Vec<Arc<SharedKeys>>,
    /// The certificates of the listeners that speak TLS.
    pub certificates: ListenerCertificates,
}

/// In the order of [`Settings::listener_tls`].
pub(crate) type ListenerCertificates = [Option<Arc<Certificates>>; 2];

impl Published {
    /// What is read again and again, by the setting that names it: how its last reading went, and whether anything is in
    /// force.
    pub(crate) fn last_reads(&self) -> impl Iterator<Item = (String, &LastRead, bool)> {
        let listeners = self.settings.listener_tls().into_iter().zip(&self.certificates);
        let certificates = listeners
            .filter_map(|((name, _), it)| Some((name.to_owned(), &it.as_ref()?.last_read, true)));
        let keys = self.keys.iter().map(|keys| {
            let name = format!("jwt.{}.keys", keys.spec.name);
            (name, &keys.last_read, keys.count() > 0)
        });
        let plans =
            self.settings.plans_file().map(|file| ("plans.file".to_owned(), &file.last_read, true));
        certificates.chain(keys).chain(plans)
    }

    /// The ends of all certificates: of the listeners, and towards servers. Each file stands once.
    pub(crate) fn certificate_ends(&self) -> impl Iterator<Item = CertificateEnd> + use<> {
        let of_listeners = self.certificates.iter().flatten().flat_map(|it| it.ends());
        let towards = self.settings.client_tls();
        let towards = towards.filter_map(|tls| CertificateEnd::of(tls.identity.as_ref()?));
        let all = of_listeners.chain(towards).map(|end| (end.file.clone(), end));
        all.collect::<BTreeMap<_, _>>().into_values()
    }
}

/// The orders of the process to a running worker.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The settings to put in force.
    pub published: watch::Receiver<Arc<Published>>,
    /// Whether to accept no more connections.
    pub draining: watch::Receiver<bool>,
    /// Whether to end now.
    pub stop: watch::Receiver<bool>,
}

/// Starts a worker in a new thread.
///
/// # Errors
/// If the thread cannot be created.
pub(crate) fn start(
    index: usize,
    listeners: Vec<(Listener, Port)>,
    process: Arc<Process>,
    orders: Orders,
) -> io::Result<JoinHandle<io::Result<()>>> {
    Builder::new().name(format!("worker-{index}")).spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(LocalOptions::default())?;
        let ended = runtime.block_on(run(index, listeners, process, orders));
        // Tasks that still run have had their time. They are not waited for.
        runtime.shutdown_background();
        ended
    })
}

/// Runs a worker in the current runtime, which must be a local one, until an order ends it. [`start`]
/// calls this in a new thread.
///
/// # Errors
/// If a listener cannot be used.
pub async fn run(
    index: usize,
    listeners: Vec<(Listener, Port)>,
    process: Arc<Process>,
    mut orders: Orders,
) -> io::Result<()> {
    let serving = process.serving.token();
    let published = orders.published.borrow_and_update().clone();
    let metrics = process.metrics.worker(index);
    let store = Store::new(process.store.clone(), &published.settings.store, process.keys);
    let throttle = Throttle {
        store,
        waiting: process.waiting.clone(),
        log: process.throttled.clone(),
        metrics: metrics.clone(),
        near: process.near.clone(),
        kept: process.rejections.clone(),
        worker: index,
    };
    let first = Rc::new(activate(&published, None, &process, &metrics));
    let tasks = WorkerTasks::new(process.abandoned.clone());
    let context = Rc::new(WorkerContext::new(first, throttle, process.clock.clone(), tasks));
    let proxy = Rc::new(Proxy::new(context.clone()));
    let decider = Rc::new(DecisionService::new(context.clone(), process.leases.clone()));
    let mut listening = JoinSet::new();
    let (tell, news) = watch::channel(*orders.draining.borrow_and_update());
    for (listener, port) in listeners {
        let listener = AsyncListener::new(listener)?;
        let (limit, news) = (process.connections.clone(), news.clone());
        let service = match port {
            Port::Plain | Port::Tls(_) => Service::Proxy(proxy.clone()),
            Port::Decide(_) => Service::Decide(decider.clone()),
        };
        listening.spawn_local(accept::listen(listener, port, service, limit, news));
    }
    let mut prune = every(PRUNE);
    loop {
        tokio::select! {
            changed = orders.published.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let published = orders.published.borrow_and_update().clone();
                let before = context.active();
                let active = activate(&published, Some(&before), &process, &metrics);
                context.activate(Rc::new(active));
                // The connections look at their time-outs.
                tell.send_modify(|_| {});
            }
            Ok(()) = orders.draining.changed() => {
                tell.send_replace(*orders.draining.borrow_and_update());
            }
            _ = prune.tick() => {
                for upstream in &context.active().upstreams {
                    upstream.prune(Instant::now());
                }
            }
            () = async { let _ = orders.stop.wait_for(|stop| *stop).await; } => {
                listening.abort_all();
                context.tasks.cut().await;
                process.leases.sweep(None);
                // What was allowed here may be settled by another worker.
                drop(serving);
                process.serving.wait().await;
                // Waits until the costs of the last responses, and the slots of cut requests, are settled
                // in the store.
                context.throttle.store.leave().await;
                return Ok(());
            }
        }
    }
}

/// The settings with this worker's upstream connections. An upstream that did not change keeps its connections.
fn activate(
    published: &Published,
    before: Option<&Active>,
    process: &Process,
    metrics: &Arc<WorkerMetrics>,
) -> Active {
    let before = before.iter().flat_map(|before| before.upstreams.iter());
    let mut kept: HashMap<Name, Rc<Upstream>> =
        before.map(|upstream| (upstream.spec().name.clone(), upstream.clone())).collect();
    let all = published.settings.upstreams.iter().zip(&published.upstreams);
    let upstreams = all.map(|(spec, state)| {
        let kept = kept.remove(&spec.name).filter(|upstream| upstream.spec() == spec);
        kept.unwrap_or_else(|| Rc::new(Upstream::new(spec.clone(), state.clone())))
    });
    let upstreams = upstreams.collect();
    // Requests count references in the `Rc` of this `Active`, and not in the `Arc` of the shared plan.
    let (error_log, spans) = (process.error_log.clone(), process.spans.clone());
    let tokens = Tokens::new(&published.keys);
    Active::new(published.settings.clone(), upstreams, tokens, error_log, spans, metrics.clone())
}
