//! What the process knows about one server, and whether the server gets requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::record::{ClientId, LONGEST_PAUSE, MOST_ANSWERED, MOST_BREAKS, NOBODY, ServerRecord};
use crate::observe::metrics::UpstreamFailure;

/// What the process knows about one server.
#[derive(Debug)]
pub(crate) struct ServerState {
    url: Arc<str>,
    /// Requests that were sent to the server, and those of them that have ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Answers with a 5xx status.
    answers_5xx: AtomicU64,
    /// Requests that were sent again after this server had failed.
    retries: AtomicU64,
    /// Answers that came whole, and exchanges that broke. After the highest number comes 0.
    whole: AtomicU32,
    broken: AtomicU32,
    /// The clients that got the last whole answers. Each client has one place, which it shares with others.
    answered: [AtomicU64; MOST_ANSWERED],
    /// Whether there is nothing to remember in `record`. Most requests read this alone.
    is_sound: AtomicBool,
    /// How many servers of the upstream are not sound.
    unsound: Arc<AtomicUsize>,
    record: Mutex<ServerRecord>,
    notes: Mutex<ServerNotes>,
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
    /// When the last health check ended, and what was wrong.
    pub(crate) last_check: Option<(Instant, Option<String>)>,
}

/// The client of an exchange, and what the server had counted when the exchange began.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct ExchangeBegin {
    pub(super) client: ClientId,
    whole: u32,
    broken: u32,
}

/// Whether a server gets requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Standing {
    /// It gets requests.
    Open,
    /// It gets requests only if no server is open.
    Aside,
    /// It has asked for a pause until this time, and gets no requests.
    Paused(Instant),
}

/// How a server that was set aside is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Trial {
    /// By a connection: it refused connections.
    Connection,
    /// By one request of a client: it took connections, but did not answer.
    Request,
}

/// A change that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum HealthChange {
    Down,
    Up,
}

/// A server that a reload has removed.
impl Drop for ServerState {
    fn drop(&mut self) {
        if !self.is_sound() {
            self.unsound.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl ServerState {
    /// A server about which nothing is known yet. It counts as up. `unsound` counts the servers of its upstream that
    /// are not sound.
    pub(crate) fn new(url: &str, unsound: &Arc<AtomicUsize>) -> Self {
        Self {
            url: url.into(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            answers_5xx: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            whole: AtomicU32::new(0),
            broken: AtomicU32::new(0),
            answered: [const { AtomicU64::new(NOBODY.0) }; MOST_ANSWERED],
            is_sound: AtomicBool::new(true),
            unsound: unsound.clone(),
            record: Mutex::default(),
            notes: Mutex::new(ServerNotes {
                changed: Instant::now(),
                reason: String::new(),
                failures: BTreeMap::new(),
                last_check: None,
            }),
        }
    }

    pub(crate) fn url(&self) -> &Arc<str> {
        &self.url
    }

    /// Whether requests are sent to the server. A pause that is over counts no more, even if no request has come
    /// since its end.
    pub(crate) fn is_up(&self) -> bool {
        if self.is_sound() {
            return true;
        }
        let (mut record, now) = (*self.record.lock(), Instant::now());
        record.end_pause(now);
        record.is_open()
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

    pub(crate) fn answers_5xx(&self) -> u64 {
        self.answers_5xx.load(Ordering::Relaxed)
    }

    pub(crate) fn notes(&self) -> ServerNotes {
        self.notes.lock().clone()
    }

    /// Changes what operators see.
    pub(in crate::upstream) fn annotate(&self, change: impl FnOnce(&mut ServerNotes)) {
        change(&mut self.notes.lock());
    }

    /// Counts a request that failed here.
    pub(in crate::upstream) fn failed(&self, failure: UpstreamFailure) {
        self.annotate(|notes| *notes.failures.entry(failure).or_default() += 1);
    }

    pub(in crate::upstream) fn answered_5xx(&self) {
        self.answers_5xx.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// A request is sent again.
    pub(in crate::upstream) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::upstream) fn begin(&self, client: ClientId) -> ExchangeBegin {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let whole = self.whole.load(Ordering::Relaxed);
        let broken = self.broken.load(Ordering::Relaxed);
        ExchangeBegin { client, whole, broken }
    }

    /// An answer came whole.
    pub(super) fn finished(&self, exchange: ExchangeBegin) {
        self.whole.fetch_add(1, Ordering::Relaxed);
        self.answered[exchange.client.place()].store(exchange.client.0, Ordering::Relaxed);
    }

    /// An exchange broke. Returns whether this counts against the server. It does not if the server gave more whole
    /// answers meanwhile than it broke exchanges.
    pub(super) fn broke(&self, exchange: ExchangeBegin) -> bool {
        let before = self.broken.fetch_add(1, Ordering::Relaxed).wrapping_sub(exchange.broken);
        let whole = self.whole.load(Ordering::Relaxed).wrapping_sub(exchange.whole);
        before.saturating_add(1) >= whole
    }

    /// The clients that got the last whole answers, and [`NOBODY`].
    pub(super) fn answered(&self) -> [ClientId; MOST_ANSWERED] {
        self.answered.each_ref().map(|client| ClientId(client.load(Ordering::Relaxed)))
    }

    pub(in crate::upstream) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::upstream) fn is_sound(&self) -> bool {
        self.is_sound.load(Ordering::Relaxed)
    }

    /// Whether the server gets requests now.
    pub(in crate::upstream) fn standing(&self) -> Standing {
        if self.is_sound() {
            return Standing::Open;
        }
        let (record, now) = (self.record.lock(), Instant::now());
        match record.paused_until {
            Some(until) if now < until => Standing::Paused(until),
            _ if record.is_open() => Standing::Open,
            _ => Standing::Aside,
        }
    }

    /// Changes the record. Returns whether the server thereby went down or came up.
    pub(in crate::upstream) fn note(
        &self,
        change: impl FnOnce(&mut ServerRecord, Instant),
    ) -> Option<HealthChange> {
        let (mut record, now) = (self.record.lock(), Instant::now());
        let was_open = record.is_open();
        change(&mut record, now);
        let is_open = record.is_open();
        let is_sound = record.is_sound();
        match (self.is_sound.swap(is_sound, Ordering::Relaxed), is_sound) {
            (true, false) => self.unsound.fetch_add(1, Ordering::Relaxed),
            (false, true) => self.unsound.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        match (was_open, is_open) {
            (true, false) => Some(HealthChange::Down),
            (false, true) => Some(HealthChange::Up),
            _ => None,
        }
    }

    /// How to try the server, if it was set aside and may be tried now. Only one caller gets an answer. The next
    /// connection is tried after `time_limit`, the next request after a longer pause. A request tries the server only
    /// if the pause has been over for as long as `overdue`. If `overdue` is `None`, no request tries it. No request
    /// tries a server that fails its health checks, or that asked for a pause. If a trial broke, its client may be
    /// the reason. For some time the next trial is then left to requests of other clients.
    pub(super) fn due(
        &self,
        time_limit: Duration,
        overdue: Option<(Duration, ClientId)>,
    ) -> Option<Trial> {
        let (mut record, now) = (self.record.lock(), Instant::now());
        let until = record.aside_until.filter(|until| *until <= now)?;
        if record.breaks >= MOST_BREAKS {
            let is_left_alone = record.is_ill || record.paused_until.is_some();
            let (overdue, client) = overdue.filter(|_| !is_left_alone)?;
            let is_doubted = record.doubts(client, &self.answered(), now);
            let overdue = if is_doubted { LONGEST_PAUSE } else { overdue };
            if now < until + overdue {
                return None;
            }
            record.set_aside(now);
            return Some(Trial::Request);
        }
        record.aside_until = Some(now + time_limit);
        Some(Trial::Connection)
    }
}
