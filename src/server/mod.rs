//! Runs the process for `cli`: opens sockets, starts workers, handles signals and reloads, and drains at
//! the end. `worker` serves the requests.

mod adopt;
mod drain;
mod inherited;
mod listen;
mod occasions;
mod open_files;
mod plans;
mod service;
mod sockets;
mod successor;
mod token_keys;

use std::error::Error;
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::LocalOptions;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::drain::{ProcessEnd, readiness};
pub(crate) use self::inherited::InheritedSockets;
use self::inherited::Predecessor;
use self::occasions::{Occasion, Occasions};
use self::sockets::KeptSockets;
use self::successor::{StartCommand, Successor};
use self::token_keys::first_keys;
use crate::admin::{self, Admin};
use crate::clock::Clock;
use crate::config::Loaded;
use crate::downstream::AsyncListener;
use crate::file::STILL_WRONG;
use crate::observe::events;
use crate::observe::log::LogGuard;
use crate::observe::log_interval::{LogInterval, LogIntervals};
use crate::observe::trace::SpanExport;
use crate::reload::Reload;
use crate::settings::{ListenerTls, Settings, StoreLocation};
use crate::tls::server::{CertificateEnd, Certificates};
use crate::upstream::health::check::HealthChecks;
use crate::worker::{self, ListenerCertificates, Orders, Process, Published};

/// The time between two log lines that say that every limit is in shadow.
const SHADOW_PAUSE: Duration = Duration::from_secs(3600);

/// The time between two log lines about a certificate that ends.
const DAY: Duration = Duration::from_secs(86_400);

/// The parts that a process is started with.
pub(crate) struct Start {
    pub(crate) loaded: Loaded,
    /// The name of the settings' file, for the log and the admin endpoint.
    pub(crate) file: String,
    pub(crate) inherited: InheritedSockets,
    pub(crate) reload: Reload,
    /// Whether the command line has every limit in shadow.
    pub(crate) shadow: bool,
    pub(crate) log: LogGuard,
    /// A task that runs beside the proxy, on the thread that supervises the workers.
    pub(crate) beside: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Why the process ended without a signal.
pub(crate) enum RunError {
    /// It could not start.
    Start(Box<dyn Error>),
    /// It failed later. The log says why.
    Failed,
}

/// Runs the process until a signal ends it.
///
/// # Errors
/// If the process cannot start, or a worker fails.
pub(crate) fn run(start: Start) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default())
        .map_err(|error| RunError::Start(format!("cannot start a runtime: {error}").into()))?;
    let result = runtime.block_on(async {
        let mut supervisor = Supervisor::start(start).await.map_err(RunError::Start)?;
        supervisor.supervise().await.map_err(|error| {
            events::process_failed(&error);
            RunError::Failed
        })
    });
    runtime.shutdown_background();
    result
}

/// The process, as its first thread sees it: it starts the workers and keeps them going.
struct Supervisor {
    process: Arc<Process>,
    /// The settings at the start. What needs a restart is compared with them.
    first: Arc<Settings>,
    published: watch::Sender<Arc<Published>>,
    /// Old settings that workers may still use. The last user of settings frees their memory. With ten thousand
    /// routes, this takes time: the last user must be this thread, and not a worker.
    retired: Vec<Arc<Settings>>,
    draining: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    workers: Vec<JoinHandle<io::Result<()>>>,
    sockets: KeptSockets,
    /// What accepts the connections of the admin endpoint, and answers other processes.
    admin_listeners: JoinSet<()>,
    command: StartCommand,
    /// The process that is to take over, until it is ready.
    successor: Option<Successor>,
    predecessor: Option<Predecessor>,
    reload: Reload,
    log: LogGuard,
    occasions: Occasions,
    /// The lines about certificates that end.
    expiry_lines: LogIntervals<(PathBuf, bool)>,
    checks: HealthChecks,
    export: SpanExport,
    /// When to read a file again that is wrong, and to log its errors again. `None` if the file is valid.
    rejected: Option<LogInterval>,
    /// When to say again that every limit is in shadow. `None` if the command line does not say so.
    shadow: Option<LogInterval>,
    admin: Option<Arc<Admin>>,
}

impl Supervisor {
    /// Opens the sockets and starts the workers.
    async fn start(start: Start) -> Result<Self, Box<dyn Error>> {
        let settings = Arc::new(start.loaded.settings);
        let occasions =
            Occasions::new().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let command = StartCommand::of_this_process()
            .map_err(|error| format!("cannot find the program's own path: {error}"))?;
        let workers = settings.server.workers.unwrap_or_else(cores);
        let most = settings.server.max_connections;
        let process = Arc::new(Process::new(&settings, Clock::new(), workers, most));
        if let Some(processes) = start.inherited.processes() {
            process.store.begin_with_processes(processes);
        }
        process.clock.anchor();
        process.config.started(start.file.clone(), start.loaded.text, process.wall());
        process.tell_file();
        let certificates = certificates(&settings)?;
        let sockets = sockets::open(&settings, &certificates, workers, start.inherited)?;
        let first = adopt::published(settings.clone(), certificates, None);
        let (published, published_orders) = watch::channel(first.clone());
        let (draining, draining_orders) = watch::channel(false);
        let (stop, stop_orders) = watch::channel(false);
        let mut supervisor = Self {
            first: settings.clone(),
            published,
            retired: Vec::new(),
            draining,
            stop,
            workers: Vec::new(),
            sockets: sockets.kept,
            admin_listeners: JoinSet::new(),
            command,
            successor: None,
            predecessor: sockets.predecessor,
            reload: start.reload,
            log: start.log,
            occasions,
            expiry_lines: LogIntervals::new(DAY),
            checks: HealthChecks::default(),
            export: SpanExport::start(process.spans.clone(), process.clock.clone()),
            rejected: None,
            shadow: start.shadow.then(LogInterval::default),
            admin: None,
            process: process.clone(),
        };
        supervisor.apply(&first, None);
        tokio::select! {
            () = first_keys(&first.keys) => {}
            () = supervisor.occasions.wait_for_signal() => {}
        }
        let orders = Orders {
            published: published_orders.clone(),
            draining: draining_orders,
            stop: stop_orders,
        };
        let workers = sockets.of_workers.into_iter().enumerate();
        supervisor.workers = workers
            .map(|(index, sockets)| worker::start(index, sockets, process.clone(), orders.clone()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| format!("cannot start a worker: {error}"))?;
        events::config_loaded(&start.file, &settings);
        start.loaded.warnings.lines().for_each(|warning| events::config_warning(&warning));
        for (address, setting) in &sockets.addresses {
            events::listening(address, setting);
        }
        let is_asked = matches!(settings.store.location, StoreLocation::Redis(_));
        let admin = (is_asked || sockets.admin.is_some()).then(|| {
            let dropped = supervisor.log.dropped_lines();
            Arc::new(Admin::new(process, published_orders, dropped))
        });
        let accepting = &mut supervisor.admin_listeners;
        if let Some(admin) = &admin {
            accepting.spawn(admin.clone().keep_pulse());
            // Other processes ask this one, even if it has no admin endpoint.
            accepting.spawn(admin.clone().attend_fleet());
        }
        if let (Some((address, listeners)), Some(admin)) = (sockets.admin, &admin) {
            for listener in listeners {
                let listener = AsyncListener::new(listener)
                    .map_err(|error| format!("cannot watch the socket of admin.listen: {error}"))?;
                accepting.spawn(admin::listen(listener, admin.clone()));
            }
            events::admin_listening(&address);
        }
        supervisor.admin = admin;
        tokio::spawn(start.beside);
        Ok(supervisor)
    }

    /// Keeps the process going until a signal ends it.
    async fn supervise(&mut self) -> Result<(), String> {
        self.tell_ready();
        let end = loop {
            tokio::select! {
                occasion = self.occasions.next() => match occasion {
                    Occasion::End => break ProcessEnd::Stopped,
                    Occasion::HandOver => self.start_successor(),
                    occasion => self.attend(occasion)?,
                },
                ready = readiness(&mut self.successor) => match ready {
                    Ok(()) => break ProcessEnd::HandedOver,
                    Err(error) => self.give_up_successor(&error).await,
                },
            }
        };
        self.drain(end).await?;
        self.export.finish().await;
        self.write_summaries(true);
        events::stopped();
        Ok(())
    }

    /// Does the regular work, or takes a changed configuration.
    fn attend(&mut self, occasion: Occasion) -> Result<(), String> {
        match occasion {
            Occasion::Tick => {
                self.write_summaries(false);
                if let Some(line) = &mut self.shadow
                    && line.next(SHADOW_PAUSE, Instant::now())
                {
                    let refused = self.process.metrics.reading().shadow_refused;
                    let refused = refused.iter().map(|(why, count)| match count {
                        1 => format!("1 request would get {why}"),
                        count => format!("{count} requests would get {why}"),
                    });
                    let refused = refused.collect::<Vec<_>>().join("; ");
                    events::all_in_shadow(Some(&*refused).filter(|it| !it.is_empty()));
                }
                self.retired.retain(|settings| Arc::strong_count(settings) > 1);
                if let Some(index) = self.workers.iter().position(JoinHandle::is_finished) {
                    return Err(match self.workers.swap_remove(index).join() {
                        Ok(Ok(())) => "a worker ended".to_owned(),
                        Ok(Err(error)) => format!("a worker ended: {error}"),
                        Err(_) => "a worker ended by a panic, which has its own line".to_owned(),
                    });
                }
            }
            Occasion::Sweep => self.sweep(),
            Occasion::Look => {
                if let Some(read) = self.reload.look() {
                    self.adopt(read, false);
                }
            }
            Occasion::Reload => {
                let read = self.reload.now();
                self.adopt(read, true);
            }
            Occasion::End | Occasion::HandOver => {}
        }
        Ok(())
    }

    /// Writes the log's summaries that are due. At the end of the process all are.
    fn write_summaries(&self, is_end: bool) {
        let settings = &self.published.borrow().settings;
        let interval = Some(settings.log.summary_interval).filter(|_| !is_end);
        self.process.write_summaries(interval);
    }

    fn sweep(&mut self) {
        self.process.clock.anchor();
        let published = self.published.borrow().clone();
        let now = Duration::from_micros(self.process.wall().as_micros());
        for certificates in published.certificates.iter().flatten() {
            match certificates.look() {
                None => {}
                Some(Ok(names)) => {
                    events::certificates_loaded(&names);
                    certificates.expired(now).iter().for_each(|it| events::config_warning(it));
                    self.expiry_lines = LogIntervals::new(DAY);
                    // The broken certificates may be why the file was rejected.
                    if self.rejected.is_some() {
                        self.reload.forget();
                    }
                }
                Some(Err(error)) => events::certificates_rejected(&error, error.advice),
            }
        }
        plans::look(&published.settings);
        for end in published.certificate_ends() {
            let days = end.days(now);
            if days < CertificateEnd::NEAR && self.expiry_lines.next((end.file.clone(), days < 0)) {
                events::certificate_expires(&end.file.display(), &end.names, days);
            }
        }
        let now = self.process.clock.now();
        self.process.store.sweep(now);
        self.process.leases.sweep(Some(now));
        let interval = published.settings.log.summary_interval;
        for upstream in &published.upstreams {
            upstream.end_pauses();
            upstream.queue().report(interval);
        }
        self.checks.try_again();
        // The file is read again, because a file that it names may be correct now.
        let plans = published.settings.plans_file().and_then(|file| file.last_read.age());
        if let Some(line) = &mut self.rejected
            && (plans.is_some_and(|age| line.is_over(age, Instant::now()))
                || line.next(STILL_WRONG, Instant::now()))
        {
            self.reload.forget();
        }
    }
}

fn certificates(settings: &Settings) -> Result<ListenerCertificates, String> {
    let [server, decide] = settings.listener_tls().map(|(name, tls)| {
        let new = |tls: &ListenerTls| Certificates::new(tls.files.clone(), (*tls.material).clone());
        let certificates = tls.map(new).transpose();
        certificates.map_err(|error| format!("cannot use the certificates of {name}: {error}"))
    });
    Ok([server?.map(Arc::new), decide?.map(Arc::new)])
}

/// The cores that the process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
