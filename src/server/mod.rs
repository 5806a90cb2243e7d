//! Runs the process for `cli`: opens sockets, starts workers, handles signals and reloads, and drains at
//! the end. `worker` serves the requests.

mod listen;
mod open_files;
mod signals;

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout};

use self::open_files::OpenFiles;
use self::signals::{Instruction, Signals};
use crate::admin::{self, Admin};
use crate::clock::Clock;
use crate::config;
use crate::downstream::Port;
use crate::downstream::accept::ConnectionSlots;
use crate::limit::name::Name;
use crate::observe::events;
use crate::observe::log::LogGuard;
use crate::observe::metrics::Metrics;
use crate::observe::throttled::Throttled;
use crate::observe::trace::SpanExport;
use crate::plan::Plan;
use crate::reload::{self, Reload};
use crate::store;
use crate::tls::server::{Certificates, Look};
use crate::upstream::health::UpstreamState;
use crate::upstream::health::check::HealthChecks;
use crate::worker::{self, Orders, Process, Published};

/// The time between two log lines about a file that stays wrong.
const STILL_WRONG: Duration = Duration::from_secs(300);

/// How often log summaries are written if they are due, and workers are checked.
const TICK: Duration = Duration::from_millis(250);
/// How often in-process buckets that are full again are forgotten, and the time of day and the certificates
/// are looked up.
const SWEEP: Duration = Duration::from_secs(1);
/// The settings of the addresses that the proxy and its admin endpoint listen on, for messages.
const LISTEN: &str = "server.listen or --listen";
const TLS_LISTEN: &str = "server.tls.listen";
const ADMIN_LISTEN: &str = "admin.listen";

/// How often a draining process checks whether all connections have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// The parts that a process is started with.
pub struct Start {
    /// The first plan.
    pub plan: Plan,
    /// The name of the plan's file, for the log.
    pub file: String,
    /// Reads the file again.
    pub reload: Reload,
    /// The log.
    pub log: LogGuard,
    /// A task that runs beside the proxy, on the thread that supervises the workers.
    pub beside: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Runs the process until a signal ends it.
///
/// # Errors
/// If the process cannot start, or a worker fails.
pub fn run(start: Start) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start a runtime: {error}"))?;
    let ended = runtime.block_on(async { Server::start(start)?.supervise().await });
    runtime.shutdown_background();
    ended
}

struct Server {
    process: Arc<Process>,
    /// The plan at the start. Settings that need a restart are compared with this plan.
    first: Arc<Plan>,
    published: watch::Sender<Arc<Published>>,
    /// Old plans that workers may still use. The last user of a plan frees its memory. With ten thousand
    /// routes, this takes time: the last user must be this thread, and not a worker.
    retired: Vec<Arc<Plan>>,
    draining: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    reload: Reload,
    log: LogGuard,
    signals: Signals,
    open_files: OpenFiles,
    /// The certificates of the TLS listeners. `None` without TLS listeners.
    certificates: Option<Arc<Certificates>>,
    /// The health checks of the upstreams' servers.
    checks: HealthChecks,
    /// The task that sends spans to the collector.
    export: SpanExport,
    /// The errors of the file as it was read last, and the time when they were logged. `None` if the file
    /// is valid.
    rejected: Option<(Vec<String>, Instant)>,
}

impl Server {
    /// Opens the sockets and starts the workers.
    fn start(start: Start) -> Result<Self, Box<dyn Error>> {
        let plan = Arc::new(start.plan);
        // Before the process reports that it listens: from then on, a signal must have its effect.
        let signals =
            Signals::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let open_files = OpenFiles::raise(plan.server.max_connections);
        let workers = plan.server.workers.unwrap_or_else(cores);
        let clock = Clock::new();
        let process = Arc::new(Process {
            metrics: Metrics::new(workers),
            throttled: Arc::new(Throttled::new(plan.log.throttle, plan.log.summary_interval)),
            failed: Arc::default(),
            malformed: Arc::default(),
            spans: Arc::default(),
            adopted: clock.now().as_micros().into(),
            is_config_valid: true.into(),
            draining: AtomicBool::new(false),
            store: store::Shared::by(clock.wall().clone(), &plan.store),
            waiting: Arc::default(),
            slots: Arc::new(ConnectionSlots::new(open_files.connections(&plan))),
            keys: plan.log.keys,
            clock,
        });
        process.store.tell_limits(&plan.limits);
        let published = Published { upstreams: upstreams(&plan, None), plan: plan.clone() };
        let mut checks = HealthChecks::default();
        checks.check(published.plan.upstreams.iter().zip(&published.upstreams));
        let (published, plan_orders) = watch::channel(Arc::new(published));
        let (draining, draining_orders) = watch::channel(false);
        let (stop, stop_orders) = watch::channel(false);
        let mut addresses = Vec::new();
        let mut sockets: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
        let certificates = certificates(&plan)?;
        let plain = plan.server.listen.iter().map(|address| (*address, Port::Plain, LISTEN));
        let secure = plan.server.tls.iter().flat_map(|tls| &tls.listen);
        let secure = certificates.iter().flat_map(|certificates| {
            let port = Port::Tls(certificates.clone());
            secure.clone().map(move |address| (*address, port.clone(), TLS_LISTEN))
        });
        for (address, port, setting) in plain.chain(secure) {
            let (bound, shared) = listen::sockets(address, workers)
                .map_err(|error| not_listening(address, setting, &error))?;
            addresses.push(bound);
            for (worker, socket) in sockets.iter_mut().zip(shared) {
                worker.push((socket, port.clone()));
            }
        }
        let admin = plan.admin.listen.map(|address| {
            listen::sockets(address, 1)
                .map_err(|error| not_listening(address, ADMIN_LISTEN, &error))
        });
        let admin = admin.transpose()?;
        let orders =
            Orders { plan: plan_orders.clone(), draining: draining_orders, stop: stop_orders };
        let workers = sockets
            .into_iter()
            .enumerate()
            .map(|(index, sockets)| worker::start(index, sockets, process.clone(), orders.clone()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| format!("cannot start a worker: {error}"))?;
        events::config_loaded(&start.file, &store::location(&plan.store), &plan);
        for address in addresses {
            events::listening(address);
        }
        if let Some((address, sockets)) = admin {
            let dropped = start.log.dropped_lines();
            let admin = Arc::new(Admin::new(process.clone(), plan_orders, dropped));
            for socket in sockets {
                let listener = TcpListener::from_std(socket)
                    .map_err(|error| not_listening(address, ADMIN_LISTEN, &error))?;
                tokio::spawn(admin::listen(listener, admin.clone()));
            }
            events::admin_listening(address);
        }
        tokio::spawn(start.beside);
        let (spans, clock) = (process.spans.clone(), process.clock.clone());
        let export = SpanExport::start(spans, clock, plan.trace.otlp.clone());
        Ok(Self {
            process,
            first: plan,
            published,
            retired: Vec::new(),
            draining,
            stop,
            workers,
            reload: start.reload,
            log: start.log,
            signals,
            open_files,
            certificates,
            checks,
            export,
            rejected: None,
        })
    }

    /// Keeps the process going until a signal ends it.
    async fn supervise(mut self) -> Result<(), Box<dyn Error>> {
        let mut tick = every(TICK);
        let mut sweep = every(SWEEP);
        let mut look = every(reload::LOOK);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    self.process.throttled.tick(self.process.clock.now());
                    self.process.failed.tick(Instant::now());
                    self.process.malformed.tick(Instant::now());
                    self.retired.retain(|plan| Arc::strong_count(plan) > 1);
                    if self.workers.iter().any(JoinHandle::is_finished) {
                        return Err("a worker ended unexpectedly; its panic stands above".into());
                    }
                }
                _ = sweep.tick() => {
                    self.process.clock.anchor();
                    if let Some(certificates) = &self.certificates {
                        match certificates.look() {
                            Look::Unchanged => {}
                            Look::Loaded(names) => events::certificates_loaded(&names),
                            Look::Rejected(error) => {
                                events::certificates_rejected(&error, error.advice());
                            }
                        }
                    }
                    self.process.store.sweep(self.process.clock.now());
                    if let Some((errors, last)) = &mut self.rejected
                        && last.elapsed() >= STILL_WRONG
                    {
                        events::config_rejected(errors);
                        *last = Instant::now();
                    }
                }
                _ = look.tick() => {
                    if let Some(read) = self.reload.look() {
                        self.adopt(read);
                    }
                }
                signal = self.signals.next() => if signal == Instruction::End { break } else {
                    let read = self.reload.now();
                    self.adopt(read);
                }
            }
        }
        self.drain().await;
        self.export.finish().await;
        self.process.throttled.flush(self.process.clock.now());
        self.process.failed.flush(Instant::now());
        self.process.malformed.flush(Instant::now());
        events::stopped();
        Ok(())
    }

    /// Puts a configuration in force that was read again, or logs its errors.
    fn adopt(&mut self, read: Result<config::Loaded, config::Problems>) {
        let loaded = match read {
            Ok(loaded) => loaded,
            Err(problems) => {
                self.process.is_config_valid.store(false, Ordering::Relaxed);
                let errors: Vec<_> = problems.lines().collect();
                events::config_rejected(&errors);
                self.rejected = Some((errors, Instant::now()));
                return;
            }
        };
        self.rejected = None;
        let old = self.published.borrow().clone();
        let new = Arc::new(loaded.plan);
        let changed = config::diff(&old.plan, &new).changed;
        // Settings that need a restart have the values of the first plan until the end.
        let restart = config::diff(&self.first, &new).restart;
        let before = self.open_files.connections(&old.plan);
        if old.plan.server.max_connections != new.server.max_connections {
            self.open_files = OpenFiles::raise(new.server.max_connections);
        }
        self.process.slots.resize(before, self.open_files.connections(&new));
        let now = self.process.clock.now();
        self.process.throttled.configure(new.log.throttle, new.log.summary_interval, now);
        if let (Some(certificates), Some(tls)) = (&self.certificates, &new.server.tls)
            && let Err(error) = certificates.replace(tls.files.clone(), (*tls.material).clone())
        {
            events::certificates_rejected(&error, error.advice());
        }
        self.process.store.adjust(&new.store);
        self.process.store.put_in_force(&new.limits);
        self.log.set_level(&new.log.level);
        self.export.send_to(new.trace.otlp.as_ref());
        let upstreams = upstreams(&new, Some(&old));
        self.checks.check(new.upstreams.iter().zip(&upstreams));
        self.published.send_replace(Arc::new(Published { plan: new, upstreams }));
        self.retired.push(old.plan.clone());
        self.process.adopted.store(now.as_micros(), Ordering::Relaxed);
        self.process.is_config_valid.store(true, Ordering::Relaxed);
        events::config_reloaded(&changed);
        for warning in loaded.warnings.lines() {
            events::config_warning(&warning);
        }
        if !restart.is_empty() {
            events::restart_needed(&restart);
        }
    }

    /// Waits for the requests under way, for at most `drain_timeout`, and stops the workers.
    async fn drain(&mut self) {
        let plan = self.published.borrow().plan.clone();
        let (delay, patience) = (plan.server.shutdown_delay, plan.server.drain_timeout);
        events::draining();
        self.process.draining.store(true, Ordering::Relaxed);
        let finishing = async {
            sleep(delay).await;
            self.draining.send_replace(true);
            // Requests are held for three quarters of the time at most. The last quarter is for their
            // answers.
            self.process.waiting.end_at(Instant::now() + patience - patience / 4);
            let finished = async {
                let mut look = every(DRAIN_LOOK);
                while self.process.slots.listening() > 0 || self.process.slots.open() > 0 {
                    look.tick().await;
                }
            };
            // Connections that are left after the timeout are cut.
            let _ = timeout(patience, finished).await;
        };
        tokio::select! {
            () = finishing => {}
            () = self.signals.end() => {}
        }
        self.stop.send_replace(true);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// The certificates of the TLS listeners. `None` without TLS listeners.
fn certificates(plan: &Plan) -> Result<Option<Arc<Certificates>>, Box<dyn Error>> {
    let Some(tls) = &plan.server.tls else { return Ok(None) };
    let certificates = Certificates::new(tls.files.clone(), (*tls.material).clone())
        .map_err(|error| format!("cannot use the certificates of server.tls: {error}"))?;
    Ok(Some(Arc::new(certificates)))
}

fn not_listening(address: SocketAddr, setting: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: another process listens there; stop it, or set another \
             address with {setting}"
        ),
        _ => format!("cannot listen on {address} (set with {setting}): {error}"),
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// The state of each upstream. An upstream that stays in the plan keeps what is known of its servers.
fn upstreams(plan: &Plan, before: Option<&Published>) -> Vec<Arc<UpstreamState>> {
    let known = |name: &Name| before?.upstreams.iter().find(|state| state.name() == name);
    plan.upstreams
        .iter()
        .map(|spec| Arc::new(UpstreamState::new(spec, known(&spec.name).map(|state| &**state))))
        .collect()
}

/// The cores that the process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
