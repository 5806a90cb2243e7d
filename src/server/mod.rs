//! The process: sockets, workers, signals, reloads, the end.

mod error;
mod listen;
mod open_files;
mod signals;

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

pub use self::error::RunError;
use self::open_files::OpenFiles;
use self::signals::{Instruction, Signals};
use crate::admin::{self, Admin};
use crate::clock::Clock;
use crate::config;
use crate::downstream::Port;
use crate::downstream::accept::ConnectionSlots;
use crate::limit::name::Name;
use crate::observe::events::{self, ConfigSummary};
use crate::observe::log::LogGuard;
use crate::observe::metrics::Metrics;
use crate::observe::throttled::Throttled;
use crate::plan::Plan;
use crate::reload::{self, Reload};
use crate::store;
use crate::tls::server::{Certificates, Look};
use crate::upstream::balance::ServerState;
use crate::worker::{self, ConfigState, Orders, Process, Published};

/// Between two lines about a file that stays wrong.
const STILL_WRONG: Duration = Duration::from_secs(300);

/// How often throttle summaries are looked through.
const TICK: Duration = Duration::from_millis(250);
/// How often in-process buckets that are full again are forgotten, and the time of day is looked up.
const SWEEP: Duration = Duration::from_secs(1);
/// What sets the addresses that the proxy and its admin endpoint listen on.
const LISTEN: &str = "server.listen or --listen";
const TLS_LISTEN: &str = "server.tls.listen";
const ADMIN_LISTEN: &str = "admin.listen";

/// How often a draining process looks whether it has finished.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// What a process is started with.
pub struct Start {
    /// The first plan.
    pub plan: Plan,
    /// Where it was read from, for the log.
    pub file: String,
    /// How it is read again.
    pub reload: Reload,
    /// The log.
    pub log: LogGuard,
    /// What runs beside the proxy, on the thread that watches over the workers.
    pub beside: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Runs until it is told to stop.
///
/// # Errors
/// Where it cannot start or a worker fails.
pub fn run(start: Start) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| RunError::System { what: "start a runtime", source })?;
    let ended = runtime.block_on(async { Server::start(start)?.supervise().await });
    runtime.shutdown_background();
    ended
}

struct Server {
    process: Arc<Process>,
    /// What the process was started with.
    first: Arc<Plan>,
    published: watch::Sender<Arc<Published>>,
    /// Plans that workers may still use. The last to leave one gives its memory back, which takes its
    /// time where there are ten thousand routes: that is not to be a worker.
    retired: Vec<Arc<Plan>>,
    draining: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    reload: Reload,
    log: LogGuard,
    signals: Signals,
    open_files: OpenFiles,
    /// What TLS listeners show.
    certificates: Option<Arc<Certificates>>,
    /// What is wrong with the file as it was read last, and when that was told.
    rejected: Option<(Vec<String>, Instant)>,
}

impl Server {
    /// Opens the sockets and starts the workers.
    fn start(start: Start) -> Result<Self, RunError> {
        let plan = Arc::new(start.plan);
        // Before anybody is told that it listens: from then on a signal means what it says.
        let signals = Signals::new()
            .map_err(|source| RunError::System { what: "listen for signals", source })?;
        let open_files = OpenFiles::raise(plan.server.max_connections);
        let workers = plan.server.workers.unwrap_or_else(cores);
        let clock = Clock::new();
        let process = Arc::new(Process {
            metrics: Metrics::new(workers),
            throttled: Arc::new(Throttled::new(plan.log.throttle, plan.log.summary_interval)),
            failed: Arc::default(),
            malformed: Arc::default(),
            config: ConfigState::new(clock.now()),
            draining: AtomicBool::new(false),
            store: store::Shared::by(clock.wall().clone(), &plan.store),
            waiting: Arc::default(),
            slots: Arc::new(ConnectionSlots::new(open_files.connections(&plan))),
            keys: plan.log.keys,
            clock,
        });
        process.store.tell_limits(&plan.limits);
        let published = Published { servers: servers(&plan, None), plan: plan.clone() };
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
                .map_err(|source| not_listening(address, setting, source))?;
            addresses.push(bound);
            for (worker, socket) in sockets.iter_mut().zip(shared) {
                worker.push((socket, port.clone()));
            }
        }
        let admin = plan.admin.listen.map(|address| {
            listen::sockets(address, 1)
                .map_err(|source| not_listening(address, ADMIN_LISTEN, source))
        });
        let admin = admin.transpose()?;
        let orders =
            Orders { plan: plan_orders.clone(), draining: draining_orders, stop: stop_orders };
        let workers = sockets
            .into_iter()
            .enumerate()
            .map(|(index, sockets)| worker::start(index, sockets, process.clone(), orders.clone()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|source| RunError::System { what: "start a worker", source })?;
        events::config_loaded(&ConfigSummary {
            file: &start.file,
            store: &store::location(&plan.store),
            routes: plan.routes.len(),
            limits: plan.limits.len(),
            upstreams: plan.upstreams.len(),
        });
        for address in addresses {
            events::listening(address);
        }
        if let Some((address, sockets)) = admin {
            let admin = Admin {
                process: process.clone(),
                plan: plan_orders,
                dropped: start.log.dropped_lines(),
            };
            for socket in sockets {
                let listener = TcpListener::from_std(socket)
                    .map_err(|source| not_listening(address, ADMIN_LISTEN, source))?;
                tokio::spawn(admin::listen(listener, Arc::new(admin.clone())));
            }
            events::admin_listening(address);
        }
        tokio::spawn(start.beside);
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
            rejected: None,
        })
    }

    /// Keeps the process going until a signal ends it.
    async fn supervise(mut self) -> Result<(), RunError> {
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
                        return Err(RunError::Worker);
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
        self.process.throttled.flush(self.process.clock.now());
        self.process.failed.flush(Instant::now());
        self.process.malformed.flush(Instant::now());
        events::stopped();
        Ok(())
    }

    /// Puts a configuration in force that was read again, or says what is wrong with it.
    fn adopt(&mut self, read: Result<config::Loaded, config::Problems>) {
        let loaded = match read {
            Ok(loaded) => loaded,
            Err(problems) => {
                self.process.config.rejected();
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
        // What only a restart can change is as the first plan has it, whatever came since.
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
        let servers = servers(&new, Some(&old));
        self.published.send_replace(Arc::new(Published { plan: new, servers }));
        self.retired.push(old.plan.clone());
        self.process.config.adopted(now);
        events::config_reloaded(&changed);
        for warning in loaded.warnings.lines() {
            events::config_warning(&warning);
        }
        if !restart.is_empty() {
            events::restart_needed(&restart);
        }
    }

    /// Finishes what is under way, as far as it finishes in time.
    async fn drain(&mut self) {
        let plan = self.published.borrow().plan.clone();
        let (delay, patience) = (plan.server.shutdown_delay, plan.server.drain_timeout);
        events::draining();
        self.process.draining.store(true, Ordering::Relaxed);
        let finishing = async {
            sleep(delay).await;
            self.draining.send_replace(true);
            // The last quarter is for the answers of those who were held until then.
            self.process.waiting.end_at(Instant::now() + patience - patience / 4);
            let finished = async {
                let mut look = every(DRAIN_LOOK);
                while self.process.slots.listening() > 0 || self.process.slots.open() > 0 {
                    look.tick().await;
                }
            };
            // What is left then is cut.
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

/// What TLS listeners show, where there are any.
fn certificates(plan: &Plan) -> Result<Option<Arc<Certificates>>, RunError> {
    let Some(tls) = &plan.server.tls else { return Ok(None) };
    let certificates = Certificates::new(tls.files.clone(), (*tls.material).clone());
    Ok(Some(Arc::new(certificates.map_err(RunError::Tls)?)))
}

fn not_listening(address: SocketAddr, setting: &'static str, source: io::Error) -> RunError {
    match source.kind() {
        io::ErrorKind::AddrInUse => RunError::InUse { address, setting },
        _ => RunError::Listen { address, setting, source },
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// What is known of each server: kept for those that stay.
fn servers(plan: &Plan, before: Option<&Published>) -> Vec<Vec<Arc<ServerState>>> {
    let known = |upstream: &Name, url: &str| {
        let before = before?;
        let place = before.plan.upstreams.iter().position(|old| old.name == *upstream)?;
        before.servers.get(place)?.iter().find(|state| **state.url() == *url).cloned()
    };
    plan.upstreams
        .iter()
        .map(|upstream| {
            upstream
                .servers
                .iter()
                .map(|server| {
                    known(&upstream.name, &server.url)
                        .unwrap_or_else(|| Arc::new(ServerState::new(&server.url)))
                })
                .collect()
        })
        .collect()
}

/// The cores that the process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
