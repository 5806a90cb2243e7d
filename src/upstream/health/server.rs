//! What the process knows about one server: its health, what operators see of it, and its numbers.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::record::{ClientId, Event, ExchangeBegin, Health, ServerRecord};
use crate::observe::metrics::UpstreamFailure;
use crate::upstream::error::{ServerFailure, UpstreamError};

/// What the process knows about one server.
#[derive(Debug)]
pub(crate) struct ServerState {
    url: Arc<str>,
    /// Requests that were sent to the server, and those of them that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Answers that came whole, and exchanges that broke. After the highest number comes 0.
    whole: AtomicU32,
    broken: AtomicU32,
    /// Whether there may be a server in the upstream that is not just up. Most requests read this alone.
    is_troubled: Arc<AtomicBool>,
    memory: Mutex<ServerMemory>,
}

/// What is remembered of a server.
#[derive(Debug)]
pub(super) struct ServerMemory {
    pub(super) record: ServerRecord,
    pub(super) notes: ServerNotes,
}

/// What operators see of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerNotes {
    /// When the server was set aside or came back.
    pub(crate) changed: Instant,
    /// Why it was set aside. Empty while it is up.
    pub(crate) reason: String,
    /// How often a request failed here, by kind.
    pub(crate) failures: BTreeMap<UpstreamFailure, u64>,
    /// Answers with a 5xx status.
    pub(crate) answers_5xx: u64,
    /// Requests that were sent again after this server had failed.
    pub(crate) retries: u64,
    /// When the last health check ended, and what was wrong.
    pub(crate) last_check: Option<(Instant, Option<String>)>,
}

impl ServerState {
    /// A server about which nothing is known yet. It counts as up. `is_troubled` is its upstream's.
    pub(crate) fn new(url: &str, is_troubled: &Arc<AtomicBool>) -> Self {
        let notes = ServerNotes {
            changed: Instant::now(),
            reason: String::new(),
            failures: BTreeMap::new(),
            answers_5xx: 0,
            retries: 0,
            last_check: None,
        };
        Self {
            url: url.into(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            whole: AtomicU32::new(0),
            broken: AtomicU32::new(0),
            is_troubled: is_troubled.clone(),
            memory: Mutex::new(ServerMemory { record: ServerRecord::default(), notes }),
        }
    }

    pub(crate) fn url(&self) -> &Arc<str> {
        &self.url
    }

    /// What operators are told of this failure.
    pub(in crate::upstream) fn error(&self, failure: ServerFailure) -> UpstreamError {
        UpstreamError::Server { server: self.url.clone(), failure }
    }

    /// Whether the server gets requests now. A pause that is over counts no more, even if no request has come since
    /// its end.
    pub(in crate::upstream) fn health(&self) -> Health {
        match self.is_troubled.load(Ordering::Relaxed) {
            true => self.memory.lock().record.health(Instant::now()),
            false => Health::Up,
        }
    }

    /// Whether requests are sent to the server.
    pub(crate) fn is_up(&self) -> bool {
        self.health().is_up()
    }

    /// Requests under way at the server, from all workers.
    pub(crate) fn in_flight(&self) -> u64 {
        let ended = self.ended.load(Ordering::Relaxed);
        self.requests().saturating_sub(ended)
    }

    /// Requests that were sent to the server since the start.
    pub(crate) fn requests(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn notes(&self) -> ServerNotes {
        self.memory.lock().notes.clone()
    }

    /// Changes what operators see.
    pub(in crate::upstream) fn annotate(&self, change: impl FnOnce(&mut ServerNotes)) {
        change(&mut self.memory.lock().notes);
    }

    /// Counts a request that failed here.
    pub(in crate::upstream) fn failed(&self, failure: UpstreamFailure) {
        self.annotate(|notes| *notes.failures.entry(failure).or_default() += 1);
    }

    pub(in crate::upstream) fn begin(&self, client: ClientId, is_trial: bool) -> ExchangeBegin {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let whole = self.whole.load(Ordering::Relaxed);
        let broken = self.broken.load(Ordering::Relaxed);
        ExchangeBegin { client, is_trial, whole, broken }
    }

    pub(in crate::upstream) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer came to its end.
    pub(in crate::upstream) fn finished(&self, exchange: ExchangeBegin) {
        self.whole.fetch_add(1, Ordering::Relaxed);
        self.memory.lock().record.answers(exchange.client);
    }

    /// An exchange broke. Returns whether this counts against the server. It does not if the server gave more whole
    /// answers meanwhile than it broke exchanges.
    pub(super) fn broke(&self, exchange: ExchangeBegin) -> bool {
        let before = self.broken.fetch_add(1, Ordering::Relaxed).wrapping_sub(exchange.broken);
        let whole = self.whole.load(Ordering::Relaxed).wrapping_sub(exchange.whole);
        before.saturating_add(1) >= whole
    }

    /// Notes what has happened. Returns whether the server is up, if this has changed. `reason` is why it went down.
    pub(in crate::upstream) fn note(&self, event: Event<'_>, reason: &dyn Display) -> Option<bool> {
        let (mut memory, now) = (self.memory.lock(), Instant::now());
        let was_up = memory.record.health.is_up();
        memory.record.after(event, now);
        if memory.record.health != Health::Up {
            self.is_troubled.store(true, Ordering::Relaxed);
        }
        let is_up = memory.record.health.is_up();
        if is_up == was_up {
            return None;
        }
        (memory.notes.changed, memory.notes.reason) = (now, reason.to_string());
        Some(is_up)
    }

    /// See [`ServerRecord::is_due`].
    pub(super) fn is_due(&self, time_limit: Duration) -> bool {
        self.memory.lock().record.is_due(time_limit, Instant::now())
    }

    /// See [`ServerRecord::is_due_for`].
    pub(super) fn is_due_for(&self, client: ClientId, overdue: Duration) -> bool {
        self.memory.lock().record.is_due_for(client, overdue, Instant::now())
    }
}
