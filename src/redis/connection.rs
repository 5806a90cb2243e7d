//! One worker's connection to a Redis server. It is made in the background, and made again if it breaks.
//!
//! `router` sends calls here, and `health` learns how each call ended. All requests of a worker that go to one
//! server share one connection. Their calls follow each other without waiting for answers. The reconnection
//! of redis-rs is not used, because the pauses, the single probe and the rule for a broken connection are
//! decided here.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::connect::{OpenConnection, RedisConnector};
use super::error::CallError;
use super::hash_slot::HashSlot;
use super::health::jitter;
use super::nodes::{RedisNode, RedisNodes};
use super::program::Program;
use crate::settings::Endpoint;

/// The time to connect and to log in. It may be long: few requests wait for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause before the second attempt to connect. Each further pause is longer, up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// If a connection has had no answer for this time, a probe tries it.
const IDLE: Duration = Duration::from_secs(1);

/// A connection is replaced after this number of failures in a row, even if other connections work.
const FAILURES: u32 = 3;

/// How often the sentinels are asked whether the master is still the same server.
const MASTER_CHECK: Duration = Duration::from_secs(1);

/// If a sentinel names another master, a second sentinel is asked after this time. What requests take from the old
/// master meanwhile is lost.
const SECOND_SENTINEL: Duration = Duration::from_millis(100);

/// A probe tries this number of keys, until it finds a key in one of the server's hash slots. A server with more than a
/// few hash slots has such a key.
const MOST_KEYS: u32 = 10_000;

/// Who waits for a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Requests, or an operator.
    Awaited,
    /// Nobody. A failure of the call does not show whether Redis can decide.
    Background,
}

/// The server to connect to.
pub(super) struct RedisServer {
    pub(super) connector: RedisConnector,
    pub(super) node: Arc<RedisNode>,
    pub(super) nodes: Arc<RedisNodes>,
    pub(super) program: Arc<Program>,
    /// The connections that the worker has made to any server.
    pub(super) made: Arc<watch::Sender<u64>>,
    /// The number of the present connection among all connections of the worker. 0 before the first one.
    pub(super) number: AtomicU64,
}

/// The present connection, or the attempt to make one.
pub(super) struct RedisConnection {
    link: watch::Receiver<Link>,
    server: Arc<RedisServer>,
    _keeper: AbortOnDropHandle<()>,
}

#[derive(Clone)]
enum Link {
    /// The first attempt to connect is under way, at the start or after a loss. Requests wait for it.
    Connecting,
    /// The last attempt failed.
    Broken,
    Ready(Live),
}

/// A connection that has not failed so far.
#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    failures: Arc<ConnectionFailures>,
}

/// The failures of one connection's calls.
#[derive(Default)]
struct ConnectionFailures {
    in_a_row: AtomicU32,
    answers: AtomicU32,
    closed: AtomicBool,
    /// Redis has refused a key since the last probe. The next probe tells whether Redis refuses all our keys.
    refused_key: AtomicBool,
    broken: Notify,
}

impl RedisConnection {
    /// Begins to connect. Makes the connection again if it breaks, until this is dropped.
    pub(super) fn begin(server: RedisServer) -> Self {
        let (sender, link) = watch::channel(Link::Connecting);
        let server = Arc::new(server);
        let its = Arc::clone(&server);
        let keeper = tokio::spawn(async move { its.stay_connected(&sender).await });
        Self { link, server, _keeper: AbortOnDropHandle::new(keeper) }
    }

    pub(super) fn number(&self) -> u64 {
        self.server.number.load(Relaxed)
    }

    /// Sends one call and reads its answer by the deadline, which also bounds the wait for a connection. An
    /// answer that `read` does not understand is a failure. `asking` is for a hash slot that moves to this server.
    pub(super) async fn call<T>(
        &self,
        kind: CallKind,
        call: &Cmd,
        asking: bool,
        read: impl FnOnce(Value) -> Option<T>,
        deadline: Instant,
    ) -> Result<T, CallError> {
        let RedisServer { node, nodes, program, .. } = &*self.server;
        let health = &node.health;
        let is_awaited = kind == CallKind::Awaited;
        let phase = if is_awaited { Some(health.begin().ok_or(CallError::Away)?) } else { None };
        let began = Instant::now();
        if began >= deadline {
            // The time ran out before this call. The server is not to blame.
            return Err(CallError::TimedOut);
        }
        let result = timeout_at(deadline, async {
            let mut live = self.live().await?;
            if !is_awaited {
                // An answer does not put off the probe, which tells whether Redis can decide.
                live.failures = Arc::default();
            }
            live.call(program, call, asking, read).await
        })
        .await;
        let Some(phase) = phase else { return result.map_err(|_| CallError::TimedOut)? };
        let result = result.unwrap_or_else(|_| {
            if let Link::Ready(live) = &*self.link.borrow() {
                live.failures.failed();
            }
            Err(CallError::TimedOut)
        });
        if nodes.is_cluster && !matches!(result, Err(CallError::NotConnected)) {
            health.counts.seconds.lock().observe(began.elapsed());
        }
        match &result {
            // A server that redirects a call to another server of its cluster works.
            Err(error) if !(nodes.is_cluster && error.is_redirection()) => {
                health.counts.failed(error);
                // The failed attempt to connect was counted when it failed.
                if !matches!(error, CallError::NotConnected) {
                    health.failed(phase, error);
                }
            }
            _ => health.succeeded(phase),
        }
        result
    }

    async fn live(&self) -> Result<Live, CallError> {
        let known = |link: &Link| match link {
            Link::Ready(live) => Some(Ok(live.clone())),
            Link::Broken => Some(Err(CallError::NotConnected)),
            Link::Connecting => None,
        };
        if let Some(link) = known(&self.link.borrow()) {
            return link;
        }
        let mut link = self.link.clone();
        let link = link.wait_for(|link| known(link).is_some()).await;
        link.ok().and_then(|link| known(&link)).unwrap_or(Err(CallError::NotConnected))
    }
}

impl Live {
    async fn call<T>(
        mut self,
        program: &Program,
        call: &Cmd,
        asking: bool,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<T, CallError> {
        match program.run(&mut self.connection, call, asking).await {
            Ok(value) => match read(value) {
                Some(answer) => {
                    self.failures.healed();
                    Ok(answer)
                }
                None => Err(CallError::Nonsense),
            },
            Err(error) => {
                if error.is_unrecoverable_error() && self.failures.closed.swap(true, Relaxed) {
                    // All calls under way fail with the connection. Together they count as one failure.
                    return Err(CallError::NotConnected);
                }
                // A server that refuses writes was demoted: its name or its sentinels may lead to another server now.
                if self.failures.closed.load(Relaxed) || error.code() == Some("READONLY") {
                    self.failures.broken.notify_one();
                }
                let error = CallError::Redis(error);
                if error.is_of_one_key() {
                    self.failures.refused_key.store(true, Relaxed);
                }
                Err(error)
            }
        }
    }
}

impl ConnectionFailures {
    fn healed(&self) {
        self.answers.fetch_add(1, Relaxed);
        if self.in_a_row.load(Relaxed) > 0 {
            self.in_a_row.store(0, Relaxed);
        }
    }

    fn failed(&self) {
        if self.in_a_row.fetch_add(1, Relaxed) + 1 >= FAILURES {
            self.broken.notify_one();
        }
    }
}

impl RedisServer {
    async fn stay_connected(&self, link: &watch::Sender<Link>) {
        let health = &self.node.health;
        let mut pause = FIRST_PAUSE;
        let mut phase = None;
        loop {
            let permit = health.permit_to_try().await;
            if phase.replace(permit.phase) != Some(permit.phase) {
                link.send_replace(Link::Connecting);
                pause = FIRST_PAUSE;
            }
            match self.connect().await {
                Ok((live, driver, server)) => {
                    let began = Instant::now();
                    permit.succeeded();
                    if self.connector.may_move() {
                        health.connected_to(&server);
                    }
                    let made = *self.made.borrow() + 1;
                    self.number.store(made, Relaxed);
                    link.send_replace(Link::Ready(live.clone()));
                    self.made.send_replace(made);
                    self.watch(live, driver, &server).await;
                    if began.elapsed() > LAST_PAUSE {
                        link.send_replace(Link::Connecting);
                        pause = FIRST_PAUSE;
                        continue;
                    }
                    link.send_replace(Link::Broken);
                }
                Err(error) => {
                    link.send_replace(Link::Broken);
                    health.counts.failed(&error);
                    let is_probe = permit.is_probe;
                    permit.failed(&error);
                    if is_probe {
                        continue;
                    }
                }
            }
            sleep(pause + jitter(pause)).await;
            pause = (2 * pause).min(LAST_PAUSE);
        }
    }

    /// Makes a connection and tries it with a probe.
    async fn connect(&self) -> Result<(Live, JoinHandle<()>, Endpoint), CallError> {
        let server = self.connector.find().await?;
        let connecting = timeout(CONNECT_TIMEOUT, self.connector.connect(&server)).await;
        let OpenConnection { connection, driver } =
            connecting.map_err(|_| CallError::TimedOut)??;
        let live = Live { connection, failures: Arc::default() };
        match self.probe(&live).await {
            Ok(()) => Ok((live, driver, server)),
            Err(error @ CallError::Redis(_)) => {
                let version = timeout(CONNECT_TIMEOUT, too_old(live.connection)).await;
                Err(version.ok().flatten().map_or(error, CallError::TooOld))
            }
            Err(error) => Err(error),
        }
    }

    async fn probe(&self, live: &Live) -> Result<(), CallError> {
        let program = &self.program;
        let Some(probe) = (program.probe)(&self.probe_key()) else { return Ok(()) };
        let read = |answer| (program.is_decision)(&answer).then_some(());
        // A server that answers later than a request would wait cannot serve requests yet.
        let call = live.clone().call(program, &probe, false, read);
        match timeout(self.nodes.timeout(), call).await {
            // The server works, and has other hash slots than before.
            Ok(Err(error)) if self.nodes.is_cluster && error.is_redirection() => {
                self.nodes.has_changed();
                Ok(())
            }
            Ok(result) => result,
            Err(_) => Err(CallError::TimedOut),
        }
    }

    /// The key of a probe, which lies in one of this server's hash slots.
    fn probe_key(&self) -> String {
        let plain = self.program.probe_key.clone();
        if !self.nodes.is_cluster {
            return plain;
        }
        let map = self.nodes.map();
        let is_here = |key: &String| {
            let owner = map.owner(HashSlot::of(key.as_bytes()));
            owner.is_some_and(|owner| owner.id == self.node.id)
        };
        let mut keys = (0..MOST_KEYS).map(|number| format!("{plain}:{number}"));
        // A server without hash slots answers that another one has them.
        keys.find(is_here).unwrap_or(plain)
    }

    /// Returns when the connection is no longer to be used.
    async fn watch(&self, live: Live, driver: JoinHandle<()>, server: &Endpoint) {
        let health = &self.node.health;
        let idle = async {
            loop {
                let answers = live.failures.answers.load(Relaxed);
                sleep(IDLE).await;
                let Some(phase) = health.begin() else { continue };
                let is_idle = live.failures.answers.load(Relaxed) == answers;
                if (is_idle || live.failures.refused_key.swap(false, Relaxed))
                    && let Err(error) = self.probe(&live).await
                {
                    health.probe_failed(phase, &error);
                    live.failures.failed();
                }
            }
        };
        // Two sentinels in a row must name the same other server: one may be cut off from the others.
        let demoted = async {
            let mut named = None;
            while self.connector.may_move() {
                sleep(if named.is_none() { MASTER_CHECK } else { SECOND_SENTINEL }).await;
                let master = self.connector.find().await.ok();
                let other = master.filter(|master| master != server);
                if other.is_some() && other == named {
                    return;
                }
                named = other;
            }
            std::future::pending().await
        };
        tokio::select! {
            () = live.failures.broken.notified() => {}
            // The server closed the connection. It is replaced before a call fails.
            _ = driver => {}
            () = health.gone() => {}
            () = idle => {}
            () = demoted => {}
        }
    }
}

/// The server's version, if it is too old for the scripts: before 6.2, in which `SET` got `PXAT`.
async fn too_old(mut connection: MultiplexedConnection) -> Option<String> {
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await.ok()?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"))?;
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    ((numbers.next()?, numbers.next()?) < (6, 2)).then(|| version.to_owned())
}
