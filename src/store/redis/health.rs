//! Whether Redis can decide, as one state for all workers of a process.
//!
//! A few failures in a row and nobody waits for it any more. From then on one worker at a time tries
//! again, until a probe is decided: that too without any traffic. Each change is logged once, and so is
//! each further reason for which it stays away.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{StoreError, advice};

/// So many failures in a row, of all workers together, and Redis counts as away.
const FAILURES: u32 = 3;

/// Between two probes, at least; jitter adds up to as much again.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// Between two lines about requests that met no outage, and yet were decided without Redis.
const MISSED_PAUSE: Duration = Duration::from_secs(10);

/// A state, and the how-manieth. What began in an earlier one says nothing about the present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    up: bool,
    number: u64,
}

/// What all workers know about the server.
pub(in crate::store) struct Health {
    server: String,
    phase: watch::Sender<Phase>,
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
    /// The reasons that were logged.
    told: Vec<String>,
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

    /// What began in this phase was decided.
    pub(super) fn succeeded(&self, phase: Phase) {
        if self.failures.load(Ordering::Relaxed) > 0 && *self.phase.borrow() == phase {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// What began in this phase was not decided.
    pub(super) fn failed(&self, phase: Phase, error: &StoreError) {
        if *self.phase.borrow() != phase
            || self.failures.fetch_add(1, Ordering::Relaxed) + 1 < FAILURES
        {
            return;
        }
        // Held over the change, so that the first probe comes after the first pause.
        let mut away = self.away();
        let changed = self.change(phase);
        if changed {
            away.since = Some(Instant::now());
            away.told = vec![reason(error)];
            away.next_probe = Some(next_probe());
        }
        drop(away);
        if changed {
            let (server, help) = (&self.server, advice::help(error));
            let meanwhile = "each limit's on_store_error decides";
            tracing::warn!(server, %error, help, meanwhile, "store unavailable");
        }
    }

    /// A probe was not decided. A server that was restarted with another password is first gone, and
    /// then there and of no use: that is to be read in the log.
    fn still_away(&self, error: &StoreError) {
        let reason = reason(error);
        let mut away = self.away();
        let is_news = away.since.is_some() && !away.told.contains(&reason);
        if is_news {
            away.told.push(reason);
        }
        drop(away);
        if is_news {
            let (server, help) = (&self.server, advice::help(error));
            tracing::warn!(server, %error, help, "store still unavailable");
        }
    }

    /// Waits until Redis is up, or until it is this caller's turn to look whether it is.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let mut phase = self.phase.subscribe();
        loop {
            let now = *phase.borrow_and_update();
            if now.up {
                return Turn { health: self, phase: now, probe: false };
            }
            let next = {
                let mut away = self.away();
                let next = away.next_probe.unwrap_or_else(Instant::now);
                if !away.probing && next <= Instant::now() {
                    away.probing = true;
                    return Turn { health: self, phase: now, probe: true };
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
        tracing::info!(server = self.server, away_ms, decided, refused, "store recovered");
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
pub(super) struct Turn<'h> {
    health: &'h Health,
    phase: Phase,
    probe: bool,
}

impl Turn<'_> {
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

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.probe {
            let mut away = self.health.away();
            away.probing = false;
            away.next_probe = Some(next_probe());
        }
    }
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
mod tests {
    use super::*;

    fn fail(health: &Health, times: u32) {
        for _ in 0..times {
            if let Some(phase) = health.begin() {
                health.failed(phase, &StoreError::TimedOut);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_failures_in_a_row_count() {
        let health = Health::new("here".into());
        for _ in 0..10 {
            fail(&health, FAILURES - 1);
            health.succeeded(health.begin().unwrap());
        }
        assert!(health.is_up());
        fail(&health, FAILURES);
        assert!(!health.is_up());
        assert!(health.begin().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_looks_whether_it_is_back() {
        let health = Health::new("here".into());
        fail(&health, FAILURES);
        let first = health.turn().await;
        let second = tokio::time::timeout(Duration::from_secs(60), health.turn()).await;
        assert!(second.is_err(), "two probes at once");
        first.failed(&StoreError::TimedOut);
        assert!(!health.is_up());
        let third = tokio::time::timeout(Duration::from_secs(2), health.turn()).await;
        third.expect("no further probe").succeeded();
        assert!(health.is_up());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_is_given_up_makes_way() {
        let health = Health::new("here".into());
        fail(&health, FAILURES);
        drop(health.turn().await);
        assert!(tokio::time::timeout(Duration::from_secs(2), health.turn()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_began_before_an_outage_says_nothing_after_it() {
        let health = Health::new("here".into());
        let before = health.begin().unwrap();
        fail(&health, FAILURES);
        health.turn().await.succeeded();
        for _ in 0..10 {
            health.failed(before, &StoreError::TimedOut);
        }
        assert!(health.is_up());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_redis_missed_are_told_of_once() {
        let health = Health::new("here".into());
        let told = |tell: &dyn Fn()| -> Vec<_> {
            let line = |line: serde_json::Value| {
                let number = |field: &str| line[field].as_u64().unwrap();
                (line["message"].as_str().unwrap().to_owned(), number("decided"), number("refused"))
            };
            crate::observe::testing::lines(tell).into_iter().map(line).collect()
        };
        let missed = |decided, refused| vec![("store missed".to_owned(), decided, refused)];
        assert_eq!(told(&|| health.tell_missed()), []);
        health.decided_without();
        assert_eq!(told(&|| health.tell_missed()), missed(1, 0));
        health.decided_without();
        health.refused_without();
        assert_eq!(told(&|| health.tell_missed()), [], "too early");
        tokio::time::advance(MISSED_PAUSE).await;
        assert_eq!(told(&|| health.tell_missed()), missed(1, 1));
        fail(&health, FAILURES);
        health.refused_without();
        tokio::time::advance(MISSED_PAUSE).await;
        assert_eq!(told(&|| health.tell_missed()), [], "its end will tell");
        let turn = health.turn().await;
        let back = told(&|| health.recovered(turn.phase()));
        assert_eq!(back, [("store recovered".to_owned(), 0, 1)]);
        assert_eq!(told(&|| health.tell_missed()), []);
    }

    #[tokio::test(start_paused = true)]
    async fn each_reason_of_an_outage_is_told_once() {
        let health = Health::new("here".into());
        let told = |error: &StoreError| {
            let lines = crate::observe::testing::lines(|| health.still_away(error));
            lines.into_iter().map(|line| line["error"].as_str().unwrap().to_owned()).next()
        };
        for _ in 0..2 {
            fail(&health, FAILURES);
            assert_eq!(told(&StoreError::TimedOut), None, "told when it went");
            let other = StoreError::Nonsense;
            assert_eq!(told(&other), Some(other.to_string()));
            assert_eq!([told(&other), told(&StoreError::TimedOut)], [None, None]);
            health.turn().await.succeeded();
            assert_eq!(told(&other), None, "it is back");
        }
    }
}
