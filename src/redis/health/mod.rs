//! Whether a server can decide, as one state for all workers of a process. `connection` reports here, and the store
//! asks here before it makes a call.
//!
//! After a few failures in a row Redis counts as away, and no request waits for Redis. From then on one worker at a
//! time sends a probe, also without traffic, until Redis answers a probe with a decision. Each change has one log line.
//! Each new reason why Redis stays away also has a line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::counts::CallCounts;
use super::error::CallError;
use crate::observe::log_interval::LogInterval;
use crate::settings::Endpoint;

/// Redis counts as away after this number of failures in a row. The failures of all workers count together. If Redis
/// says that it cannot decide, it counts as away at once.
const FAILURES: u32 = 3;

/// The shortest time between two probes. A random time of at most the same length is added.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// An outage that lasts is logged again after this time.
const STILL_AWAY: Duration = Duration::from_secs(300);

/// The shortest time between two log lines about requests that were decided without the server outside an outage.
const MISSED_PAUSE: Duration = Duration::from_secs(10);

/// The advice if no better one is known.
const MISSED: &str =
    "tidegate_store_errors_total and tidegate_store_duration_seconds tell how often";

/// Whether the server is up, and a number that grows at each change. If a call began in an earlier phase, its answer
/// says nothing about the present phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HealthPhase {
    up: bool,
    number: u64,
    since: Instant,
}

/// What all workers know about the server.
pub(crate) struct RedisHealth {
    server: String,
    pub(crate) counts: CallCounts,
    phase: watch::Sender<HealthPhase>,
    /// Redis has decided something since the start.
    was_up: AtomicBool,
    /// What limits do without the server, as log lines say it.
    meanwhile: Arc<Mutex<String>>,
    failures: AtomicU32,
    away: Mutex<Away>,
    /// With sentinels: the server to which the last connection was made.
    master: Mutex<Option<Endpoint>>,
}

#[derive(Default)]
struct Away {
    /// The reasons that were logged.
    reasons: Vec<(Option<&'static str>, bool)>,
    line: LogInterval,
    probing: bool,
    next_probe: Option<Instant>,
    /// The requests on which the server did not decide. The first number counts the requests that went on, the second
    /// the requests that were refused.
    without: (u64, u64),
    /// How many of the requests in `without` log lines have reported.
    counted: (u64, u64),
    /// `without` as it was a second ago.
    seen: (u64, u64),
    /// The log lines outside an outage.
    missed: LogInterval,
}

impl Away {
    /// The counts of `without` that no log line has reported yet.
    fn not_logged(&mut self) -> (u64, u64) {
        let before = std::mem::replace(&mut self.counted, self.without);
        (self.without.0 - before.0, self.without.1 - before.1)
    }
}

impl RedisHealth {
    /// A server that counts as up until calls fail.
    pub(crate) fn new(server: String) -> Self {
        Self {
            server,
            counts: CallCounts::default(),
            phase: watch::Sender::new(HealthPhase { up: true, number: 0, since: Instant::now() }),
            was_up: AtomicBool::new(false),
            meanwhile: Arc::default(),
            failures: AtomicU32::new(0),
            away: Mutex::default(),
            master: Mutex::default(),
        }
    }

    /// Another server of the same cluster.
    pub(crate) fn like(other: &Self, server: String) -> Self {
        Self { meanwhile: Arc::clone(&other.meanwhile), ..Self::new(server) }
    }

    /// Counts a request on which the server did not decide: it went on, or it was refused.
    pub(super) fn count_without(&self, is_refused: bool) {
        let without = &mut self.away.lock().without;
        *if is_refused { &mut without.1 } else { &mut without.0 } += 1;
    }

    pub(crate) fn is_up(&self) -> bool {
        self.phase.borrow().up
    }

    /// The URL of the store, or the address of a cluster's server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// How long the server has been up, or away.
    pub(crate) fn phase_age(&self) -> Duration {
        self.phase.borrow().since.elapsed()
    }

    /// The phase in which a call begins. `None` if Redis counts as away: then the call must not begin.
    pub(crate) fn begin(&self) -> Option<HealthPhase> {
        Some(*self.phase.borrow()).filter(|phase| phase.up)
    }

    /// Notes what limits do without the server, for the log lines of an outage.
    pub(crate) fn set_meanwhile(&self, meanwhile: String) {
        *self.meanwhile.lock() = meanwhile;
    }

    pub(crate) fn meanwhile(&self) -> String {
        self.meanwhile.lock().clone()
    }

    /// Redis decided on a call that began in this phase.
    pub(crate) fn succeeded(&self, phase: HealthPhase) {
        if !self.was_up.load(Ordering::Relaxed) {
            self.was_up.store(true, Ordering::Relaxed);
        }
        if self.failures.load(Ordering::Relaxed) > 0 && *self.phase.borrow() == phase {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Redis did not decide on a call that began in this phase.
    pub(crate) fn failed(&self, phase: HealthPhase, error: &CallError) {
        if !error.is_of_one_key() {
            self.count_failure(phase, error, error.is_refusal());
        }
    }

    /// Redis did not decide on a probe that began in this phase. The probe's key stands for all keys of the caller: a
    /// user who has no right to it has no right to any of them.
    pub(crate) fn probe_failed(&self, phase: HealthPhase, error: &CallError) {
        // If the probe's hash slot has no server or moves, the probe says nothing about other hash slots.
        if !error.is_of_one_hash_slot() {
            self.count_failure(phase, error, error.is_refusal() || error.is_of_one_key());
        }
    }

    /// Counts a failure. A refusal ends the phase at once.
    fn count_failure(&self, phase: HealthPhase, error: &CallError, is_refusal: bool) {
        if *self.phase.borrow() != phase {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures < FAILURES && !is_refusal {
            return;
        }
        // The lock is held during the change, so that the first probe comes after the first pause.
        let mut away = self.away.lock();
        if !self.change(phase) {
            return;
        }
        away.reasons = vec![error.reason()];
        away.line = LogInterval::from(Instant::now());
        away.next_probe = Some(next_probe());
        drop(away);
        let (server, help) = (&self.server, error.help());
        let meanwhile = self.meanwhile();
        tracing::warn!(server, %error, help, meanwhile, "store unavailable");
    }

    /// A probe failed. A new reason is logged. For example, a server that restarts with another password is
    /// first out of reach, and then refuses the old password.
    fn still_away(&self, error: &CallError) {
        let mut away = self.away.lock();
        let is_new = !away.reasons.contains(&error.reason());
        let is_due = away.line.is_over(STILL_AWAY, Instant::now());
        if self.is_up() || !is_new && !is_due {
            return;
        }
        away.line = LogInterval::from(Instant::now());
        away.reasons.extend(is_new.then(|| error.reason()));
        drop(away);
        let (server, help) = (&self.server, error.help());
        let meanwhile = self.meanwhile();
        tracing::warn!(server, %error, help, meanwhile, "store still unavailable");
    }

    /// Waits until Redis is up, or until this caller may send a probe.
    pub(crate) async fn permit_to_try(&self) -> TryPermit<'_> {
        let mut phase = self.phase.subscribe();
        loop {
            let now = *phase.borrow_and_update();
            if now.up {
                return TryPermit { health: self, phase: now, is_probe: false };
            }
            let next = {
                let mut away = self.away.lock();
                let next = away.next_probe.unwrap_or_else(Instant::now);
                if !away.probing && next <= Instant::now() {
                    away.probing = true;
                    return TryPermit { health: self, phase: now, is_probe: true };
                }
                if away.probing { Instant::now() + PROBE_PAUSE } else { next }
            };
            // `changed` cannot fail, because `self` keeps the sender.
            let _ = tokio::time::timeout_at(next, phase.changed()).await;
        }
    }

    /// Waits until Redis counts as away.
    pub(crate) async fn gone(&self) {
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| !phase.up).await;
    }

    /// Other servers have taken over the hash slots of this server. If this server was away, its outage is over.
    pub(crate) fn replaced(&self) {
        let phase = *self.phase.borrow();
        if !phase.up {
            self.recovered(phase);
        }
    }

    /// With sentinels: notes that a connection was made to this server. A change of the server is logged once for all
    /// workers, because a planned failover may have no other line.
    pub(crate) fn connected_to(&self, master: &Endpoint) {
        let before = self.master.lock().replace(master.clone());
        if let Some(before) = before.filter(|before| before != master) {
            let (from, to) = (before.to_string(), master.to_string());
            tracing::info!(server = self.server, from, to, "store master moved");
        }
    }

    fn recovered(&self, phase: HealthPhase) {
        let mut away = self.away.lock();
        if !self.change(phase) {
            return;
        }
        let (decided, refused) = away.not_logged();
        drop(away);
        // A later line about missed requests must not name an error of this outage.
        drop(self.counts.take_last());
        let away_ms = u64::try_from(phase.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let server = &self.server;
        // `was_up` is still false if Redis was away from the start.
        match self.was_up.swap(true, Ordering::Relaxed) {
            true => tracing::info!(server, away_ms, decided, refused, "store recovered"),
            false => tracing::info!(server, away_ms, decided, refused, "store connected"),
        }
    }

    /// Logs how many requests were decided without the server outside an outage: it was too slow at times, or
    /// away too shortly to be noticed. To be called about once a second. The line comes a second late: if an outage
    /// begins in this second, the lines of the outage report these requests.
    pub(crate) fn log_missed(&self) {
        let mut away = self.away.lock();
        let seen = away.seen;
        away.seen = away.without;
        let is_news = seen.0 > away.counted.0 || seen.1 > away.counted.1;
        if !self.is_up() || !is_news || !away.missed.next(MISSED_PAUSE, Instant::now()) {
            return;
        }
        let (decided, refused) = away.not_logged();
        drop(away);
        let last = self.counts.take_last();
        let help = last.as_ref().and_then(CallError::help).unwrap_or(MISSED);
        let error = last.as_ref().map(tracing::field::display);
        tracing::warn!(server = self.server, decided, refused, error, help, "store missed");
    }

    /// Ends a phase. `false` if another caller has already ended it.
    fn change(&self, ended: HealthPhase) -> bool {
        self.phase.send_if_modified(|phase| {
            let current = *phase == ended;
            if current {
                let (up, number) = (!ended.up, ended.number + 1);
                *phase = HealthPhase { up, number, since: Instant::now() };
                self.failures.store(0, Ordering::Relaxed);
            }
            current
        })
    }
}

/// The right to try Redis. While Redis is up, many callers have it. While Redis is away, only one has it,
/// and the right passes to the next caller when this is dropped.
pub(crate) struct TryPermit<'h> {
    health: &'h RedisHealth,
    /// The phase in which the right was given.
    pub(crate) phase: HealthPhase,
    /// Whether Redis counts as away. Then [`RedisHealth::permit_to_try`] waits before the next probe, and the caller
    /// need not.
    pub(crate) is_probe: bool,
}

impl TryPermit<'_> {
    /// Redis decided.
    pub(crate) fn succeeded(self) {
        if self.is_probe {
            self.health.recovered(self.phase);
        } else {
            self.health.succeeded(self.phase);
        }
    }

    /// Redis could not be reached, or did not decide on a probe.
    pub(crate) fn failed(self, error: &CallError) {
        if self.is_probe {
            self.health.still_away(error);
        } else {
            self.health.probe_failed(self.phase, error);
        }
    }
}

impl Drop for TryPermit<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            let mut away = self.health.away.lock();
            away.probing = false;
            away.next_probe = Some(next_probe());
        }
    }
}

fn next_probe() -> Instant {
    Instant::now() + PROBE_PAUSE + jitter(PROBE_PAUSE)
}

/// A random time below `most`, so that the workers of many processes do not send their probes at once.
pub(crate) fn jitter(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests;
