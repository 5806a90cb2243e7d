//! Whether Redis can decide, as one state for all workers of a process.
//!
//! A few failures in a row and nobody waits for it any more. From then on one worker at a time tries
//! again, until a probe is decided: that too without any traffic. Each change is logged once, and so is
//! each further reason for which it stays away.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{StoreError, advice};
use crate::limit::Scope;
use crate::plan::{LimitSpec, OnStoreError};

/// So many failures in a row, of all workers together, and Redis counts as away.
const FAILURES: u32 = 3;

/// Between two probes, at least; jitter adds up to as much again.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// Between two lines about one outage that goes on for the same reasons.
const STILL_AWAY: Duration = Duration::from_secs(300);

/// Between two lines about requests that met no outage, and yet were decided without Redis.
const MISSED_PAUSE: Duration = Duration::from_secs(10);

/// Whether the server is up, with a number that grows at each change. An answer to a question from an
/// earlier phase says nothing about the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    up: bool,
    number: u64,
}

/// What all workers know about the server.
pub(in crate::store) struct Health {
    server: String,
    phase: watch::Sender<Phase>,
    /// It has decided something since the start.
    was_up: AtomicBool,
    /// Which limits do what without Redis.
    without_it: Mutex<String>,
    failures: AtomicU32,
    away: Mutex<Away>,
    without: Without,
}

/// Requests that Redis should have decided on and did not.
#[derive(Default)]
struct Without {
    decided: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Away {
    since: Option<Instant>,
    /// The reasons that were logged, and when the last line was.
    told: Vec<String>,
    last_line: Option<Instant>,
    probing: bool,
    next_probe: Option<Instant>,
    /// The requests without Redis that were told of: decided, refused.
    counted: (u64, u64),
    /// When they were last told of outside an outage.
    missed: Option<Instant>,
}

impl Health {
    /// Up until something else shows.
    pub(in crate::store) fn new(server: String) -> Self {
        Self {
            server,
            phase: watch::Sender::new(Phase { up: true, number: 0 }),
            was_up: AtomicBool::new(false),
            without_it: Mutex::default(),
            failures: AtomicU32::new(0),
            away: Mutex::default(),
            without: Without::default(),
        }
    }

    /// A request that Redis did not decide on was decided by its limits' `on_store_error`.
    pub(in crate::store) fn decided_without(&self) {
        self.without.decided.fetch_add(1, Ordering::Relaxed);
    }

    /// One was refused, because a limit's `on_store_error` is to reject.
    pub(in crate::store) fn refused_without(&self) {
        self.without.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests there were of both since the start: decided, refused.
    pub(in crate::store) fn without(&self) -> (u64, u64) {
        let Without { decided, refused } = &self.without;
        (decided.load(Ordering::Relaxed), refused.load(Ordering::Relaxed))
    }

    pub(in crate::store) fn is_up(&self) -> bool {
        self.phase.borrow().up
    }

    /// The state in which something begins, `None` where it should not begin at all.
    pub(super) fn begin(&self) -> Option<Phase> {
        Some(*self.phase.borrow()).filter(|phase| phase.up)
    }

    /// Takes over what limits do without Redis, to be told in an outage.
    pub(in crate::store) fn adjust(&self, limits: &[Arc<LimitSpec>]) {
        *self.without_it.lock().unwrap_or_else(PoisonError::into_inner) = without_redis(limits);
    }

    fn meanwhile(&self) -> String {
        self.without_it.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What began in this phase was decided.
    pub(super) fn succeeded(&self, phase: Phase) {
        if !self.was_up.load(Ordering::Relaxed) {
            self.was_up.store(true, Ordering::Relaxed);
        }
        if self.failures.load(Ordering::Relaxed) > 0 && *self.phase.borrow() == phase {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// What began in this phase was not decided.
    pub(super) fn failed(&self, phase: Phase, error: &StoreError) {
        if *self.phase.borrow() != phase || error.is_of_one_key() {
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures < FAILURES && !error.is_refusal() {
            return;
        }
        // Held over the change, so that the first probe comes after the first pause.
        let mut away = self.away();
        let changed = self.change(phase);
        if changed {
            away.since = Some(Instant::now());
            away.told = vec![reason(error)];
            away.last_line = Some(Instant::now());
            away.next_probe = Some(next_probe());
        }
        drop(away);
        if changed {
            let (server, help) = (&self.server, advice::help(error));
            let meanwhile = self.meanwhile();
            tracing::warn!(server, %error, help, meanwhile, "store unavailable");
        }
    }

    /// A probe was not decided. A server that was restarted with another password is first gone, and
    /// then there and of no use: that is to be read in the log.
    fn still_away(&self, error: &StoreError) {
        let reason = reason(error);
        let mut away = self.away();
        let is_new = !away.told.contains(&reason);
        let is_due = away.last_line.is_some_and(|last| last.elapsed() >= STILL_AWAY);
        let is_news = away.since.is_some() && (is_new || is_due);
        if is_news {
            away.last_line = Some(Instant::now());
            away.told.extend(is_new.then_some(reason));
        }
        drop(away);
        if is_news {
            let (server, help) = (&self.server, advice::help(error));
            let meanwhile = self.meanwhile();
            tracing::warn!(server, %error, help, meanwhile, "store still unavailable");
        }
    }

    /// Waits until Redis is up, or until it is this caller's turn to look whether it is.
    pub(super) async fn turn(&self) -> TryPermit<'_> {
        let mut phase = self.phase.subscribe();
        loop {
            let now = *phase.borrow_and_update();
            if now.up {
                return TryPermit { health: self, phase: now, probe: false };
            }
            let next = {
                let mut away = self.away();
                let next = away.next_probe.unwrap_or_else(Instant::now);
                if !away.probing && next <= Instant::now() {
                    away.probing = true;
                    return TryPermit { health: self, phase: now, probe: true };
                }
                if away.probing { Instant::now() + PROBE_PAUSE } else { next }
            };
            // An error of `changed` would mean that the sender is gone, and it is in `self`.
            let _ = tokio::time::timeout_at(next, phase.changed()).await;
        }
    }

    /// Waits until Redis counts as away.
    pub(super) async fn gone(&self) {
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| !phase.up).await;
    }

    fn recovered(&self, phase: Phase) {
        if !self.change(phase) {
            return;
        }
        let mut away = self.away();
        let since = away.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let (decided, refused) = self.untold(&mut away);
        drop(away);
        let away_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let server = &self.server;
        // The first phase that ended was one in which nothing had been decided.
        match self.was_up.swap(true, Ordering::Relaxed) {
            true => tracing::info!(server, away_ms, decided, refused, "store recovered"),
            false => tracing::info!(server, away_ms, decided, refused, "store connected"),
        }
    }

    /// Says how many requests were decided without Redis while it was thought to be there: it was too
    /// slow now and then, or gone for less than it takes to notice. To be called about once a second.
    pub(in crate::store) fn tell_missed(&self) {
        let mut away = self.away();
        let told_lately = away.missed.is_some_and(|last| last.elapsed() < MISSED_PAUSE);
        if away.since.is_some() || told_lately || self.without() == away.counted {
            return;
        }
        away.missed = Some(Instant::now());
        let (decided, refused) = self.untold(&mut away);
        drop(away);
        let help = "it was too slow, or its connections broke; more of it: tidegate_store_duration_seconds";
        tracing::warn!(server = self.server, decided, refused, help, "store missed");
    }

    /// What was not told of so far: decided, refused.
    fn untold(&self, away: &mut Away) -> (u64, u64) {
        let (decided, refused) = self.without();
        let before = std::mem::replace(&mut away.counted, (decided, refused));
        (decided - before.0, refused - before.1)
    }

    /// Ends a phase; `false` where somebody else already did.
    fn change(&self, ended: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let current = *phase == ended;
            if current {
                *phase = Phase { up: !ended.up, number: ended.number + 1 };
                self.failures.store(0, Ordering::Relaxed);
            }
            current
        })
    }

    fn away(&self) -> std::sync::MutexGuard<'_, Away> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to try: with others while Redis is up, alone while it is away. Dropped, it makes way
/// for the next one.
pub(super) struct TryPermit<'h> {
    health: &'h Health,
    phase: Phase,
    probe: bool,
}

impl TryPermit<'_> {
    /// When it was given.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether Redis counts as away, so that the next turn comes after a pause by itself.
    pub(super) fn is_probe(&self) -> bool {
        self.probe
    }

    /// Redis decided.
    pub(super) fn succeeded(self) {
        if self.probe {
            self.health.recovered(self.phase);
        } else {
            self.health.succeeded(self.phase);
        }
    }

    /// It did not.
    pub(super) fn failed(self, error: &StoreError) {
        if self.probe {
            self.health.still_away(error);
        } else {
            self.health.failed(self.phase, error);
        }
    }
}

impl Drop for TryPermit<'_> {
    fn drop(&mut self) {
        if self.probe {
            let mut away = self.health.away();
            away.probing = false;
            away.next_probe = Some(next_probe());
        }
    }
}

/// What limits do without Redis: `local: a, b; reject: c`.
fn without_redis(limits: &[Arc<LimitSpec>]) -> String {
    let all = [
        ("local", OnStoreError::Local),
        ("allow", OnStoreError::Allow),
        ("reject", OnStoreError::Reject),
    ];
    let groups = all.iter().filter_map(|(word, way)| {
        let these =
            limits.iter().filter(|it| it.scope == Scope::Cluster && it.on_store_error == *way);
        let names: Vec<_> = these.map(|limit| limit.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("{word}: {}", names.join(", ")))
    });
    groups.collect::<Vec<_>>().join("; ")
}

/// What makes one error another one: its kind, not its words.
fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Redis(error) => {
            error.code().map_or_else(|| format!("{:?}", error.kind()), str::to_owned)
        }
        error => error.to_string(),
    }
}

fn next_probe() -> Instant {
    Instant::now() + PROBE_PAUSE + jitter(PROBE_PAUSE)
}

/// Up to this long, at random: so that the workers of many processes do not knock all at once.
pub(super) fn jitter(most: Duration) -> Duration {
    let thousandth = u32::try_from(RandomState::new().hash_one(()) % 1_000).unwrap_or_default();
    most * thousandth / 1_000
}

#[cfg(test)]
mod tests;
