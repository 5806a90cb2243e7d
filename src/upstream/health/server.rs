//! What the process knows about one server, and whether the server gets requests.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::observe::metrics::UpstreamFailure;

/// How long a server is set aside for the first time; doubled with each further time in a row.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest time for which a server is set aside.
pub(in crate::upstream) const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The number of broken exchanges in a row that sets a server aside. A single exchange may break because of its
/// request.
pub(super) const MOST_BREAKS: u32 = 3;
/// The broken exchanges of a single client set a server aside only if the server answers no other client for this time.
const LONE_CLIENT: Duration = Duration::from_secs(10);
/// The time in which the share of a server that came back grows to the full share.
const SLOW_START: Duration = Duration::from_secs(10);
/// The share of a server that has just come back, in percent.
const LEAST_SHARE: u32 = 10;
/// The share of a server that was not away, in percent.
const FULL_SHARE: u32 = 100;

/// No address has this identity.
const NOBODY: ClientId = ClientId(1 << 63);

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
    /// Answers that came whole, and exchanges that broke.
    whole: AtomicU64,
    broken: AtomicU64,
    /// The client that got the last whole answer.
    answered: AtomicU64,
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

/// What a server did lately.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::upstream) struct ServerRecord {
    /// It was set aside, and is tried again at this time.
    pub(in crate::upstream) aside_until: Option<Instant>,
    /// How often it was set aside since its last whole answer.
    pub(in crate::upstream) times_aside: u32,
    /// Broken exchanges since its last whole answer.
    pub(super) breaks: u32,
    /// The client of the first broken exchange, and when it broke.
    broken_first: Option<(ClientId, Instant)>,
    /// Whether the broken exchanges are of several clients.
    is_broken_for_several: bool,
    /// It asked for a pause until this time.
    pub(in crate::upstream) paused_until: Option<Instant>,
    /// It has failed its health checks.
    pub(super) is_ill: bool,
    /// A health check has ended.
    pub(super) was_checked: bool,
    /// How many checks in a row contradict `is_ill`.
    pub(super) contrary_checks: u32,
    /// When it came back. `None` after the slow start.
    returned: Option<Instant>,
}

/// Stands for a client in the record of a server's exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId(u64);

impl From<IpAddr> for ClientId {
    /// An IPv6 address counts by its network.
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => !(u64::try_from(address.to_bits() >> 64).unwrap_or_default()),
        })
    }
}

/// The client of an exchange, and what the server had counted when the exchange began.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct ExchangeBegin {
    client: ClientId,
    whole: u64,
    broken: u64,
}

/// Whether a server gets requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Standing {
    /// It gets this share of its requests, in percent.
    Open(u32),
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

impl ServerRecord {
    fn is_open(&self) -> bool {
        self.aside_until.is_none() && self.paused_until.is_none() && !self.is_ill
    }

    fn is_sound(&self) -> bool {
        let quiet = self.times_aside == 0 && self.breaks == 0;
        self.is_open() && quiet && self.returned.is_none()
    }

    /// Forgets a pause that is over.
    pub(super) fn end_pause(&mut self, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    /// An exchange broke. Returns whether this sets the server aside. If only one client's exchanges break, the client
    /// may be the reason. `answered` is the client that got the last whole answer.
    pub(super) fn breaks_off(
        &mut self,
        client: ClientId,
        answered: ClientId,
        now: Instant,
    ) -> bool {
        let (first, since) = *self.broken_first.get_or_insert((client, now));
        self.is_broken_for_several |= first != client;
        self.breaks = self.breaks.saturating_add(1);
        let is_lone = !self.is_broken_for_several && answered != client;
        self.breaks >= MOST_BREAKS
            && self.aside_until.is_none()
            && (!is_lone || now.saturating_duration_since(since) >= LONE_CLIENT)
    }

    /// An answer came whole, or its head did.
    pub(super) fn answers(&mut self) {
        (self.broken_first, self.is_broken_for_several) = (None, false);
    }

    pub(in crate::upstream) fn set_aside(&mut self, now: Instant) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.times_aside.min(16)).min(LONGEST_PAUSE);
        self.times_aside = self.times_aside.saturating_add(1);
        self.aside_until = Some(now + pause);
    }
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
            whole: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            answered: AtomicU64::new(NOBODY.0),
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
        self.answered.store(exchange.client.0, Ordering::Relaxed);
    }

    /// An exchange broke. Returns the client of this exchange, and the client that got the last whole answer. `None`
    /// if the server gave more whole answers meanwhile than it broke exchanges: then the break does not count
    /// against it.
    pub(super) fn broke(&self, exchange: ExchangeBegin) -> Option<(ClientId, ClientId)> {
        let broken = self.broken.fetch_add(1, Ordering::Relaxed) + 1 - exchange.broken;
        let whole = self.whole.load(Ordering::Relaxed) - exchange.whole;
        let answered = ClientId(self.answered.load(Ordering::Relaxed));
        let answered = if answered == NOBODY { exchange.client } else { answered };
        (broken >= whole).then_some((exchange.client, answered))
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
            return Standing::Open(FULL_SHARE);
        }
        let (record, now) = (self.record.lock(), Instant::now());
        match (record.paused_until, record.returned) {
            (Some(until), _) if now < until => Standing::Paused(until),
            _ if !record.is_open() => Standing::Aside,
            (_, Some(returned)) => {
                let grown = now.saturating_duration_since(returned).as_millis() * 100;
                let share = grown / SLOW_START.as_millis();
                let share = u32::try_from(share).unwrap_or(FULL_SHARE);
                Standing::Open(share.clamp(LEAST_SHARE, FULL_SHARE))
            }
            (_, None) => Standing::Open(FULL_SHARE),
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
        if is_open && !was_open {
            record.returned = Some(now);
        }
        if record.returned.is_some_and(|since| now.duration_since(since) >= SLOW_START) {
            record.returned = None;
        }
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
    /// tries a server that fails its health checks, or that asked for a pause.
    pub(super) fn due(&self, time_limit: Duration, overdue: Option<Duration>) -> Option<Trial> {
        let (mut record, now) = (self.record.lock(), Instant::now());
        let until = record.aside_until.filter(|until| *until <= now)?;
        if record.breaks >= MOST_BREAKS {
            let is_left_alone = record.is_ill || record.paused_until.is_some();
            if is_left_alone || overdue.is_none_or(|overdue| now < until + overdue) {
                return None;
            }
            record.set_aside(now);
            return Some(Trial::Request);
        }
        record.aside_until = Some(now + time_limit);
        Some(Trial::Connection)
    }
}
