//! What a client's connection is doing, since when, and what is due next by its time-outs. Requests and the
//! socket report events here. `downstream::watch` asks [`Phase::due`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::upstream::times::ClientTimes;

/// How often, while a request is served, the socket is checked for a client that has left. The socket is
/// then read only as far as the request's body is wanted, so no read would show that the client has left.
const LOOK: Duration = Duration::from_secs(1);

/// After this time without a request an HTTP/1.1 connection is parked: it gives up its buffers, and only
/// its socket is watched.
const PARK: Duration = Duration::from_millis(50);

/// The most requests of an HTTP/2 connection that are answered in one turn of its task. With 4, the p50 of other
/// clients beside 20 connections of 100 requests each was 10 ms, and with 8 up to 90 ms (`docs/performance.md`).
const STREAMS_AT_ONCE: usize = 4;

/// What a connection is doing, and since when. The connection's socket, requests and timer share this
/// state. They all run on one thread.
#[derive(Debug)]
pub(crate) struct Phase {
    epoch: Instant,
    times: Arc<ClientTimes>,
    doing: AtomicU8,
    /// Microseconds after `epoch`, or [`NOW`].
    since: AtomicU64,
    /// Microseconds after `epoch` at which a write began to wait; 0 if no write waits.
    write_waits_since: AtomicU64,
    /// Requests whose response has not ended: at most one over HTTP/1.1.
    requests: AtomicU32,
    /// Whether the protocol carries many requests at once.
    multiplexed: AtomicBool,
    /// Over HTTP/1.1: a request has begun since the connection's task was polled.
    begun_this_turn: AtomicBool,
    /// Over HTTP/2: how many more requests may be answered in this turn of the connection's task.
    room: Semaphore,
    lingers: AtomicBool,
    /// The process drains, so the connection ends with its next answer.
    ending: AtomicBool,
    /// The connection carries another protocol than HTTP.
    switched: AtomicBool,
    /// The rest of the request's body is read and thrown away.
    discards: AtomicBool,
    /// A part of the last exchange may still be under way, so the connection must not be parked.
    unsettled: AtomicBool,
    /// The connection is to be parked at once.
    parks: AtomicBool,
    /// The last thing for which the client took too long.
    overdue: Mutex<Option<Overdue>>,
}

/// For what a client took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Overdue {
    /// A request's head, or a handshake before it.
    Head,
    /// The next piece of a request's body.
    Body,
    /// To read the next piece of a response.
    Response,
    /// To send or read anything on a connection that has changed to another protocol.
    Tunnel,
}

impl Overdue {
    /// The words of the log.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Head => "no request's head in time (header_timeout)",
            Self::Body => "no more of a request's body in time (body_timeout)",
            Self::Response => "a response was not read in time (body_timeout)",
            Self::Tunnel => "nothing moved on an upgraded connection (tunnel_timeout)",
        }
    }
}

/// Nothing was read from the connection yet.
const FRESH: u8 = 0;
const IDLE: u8 = 1;
const READING_HEAD: u8 = 2;
const BUSY: u8 = 3;
/// The request is answered, and the rest of its body still comes.
const DISCARDING: u8 = 4;

/// Stands for the time of the next call of [`Phase::due`], where the clock is read. For a head that comes
/// whole, [`Phase::begin`] sets the time before that.
const NOW: u64 = u64::MAX;

/// What is to be done with a connection at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DueAction {
    /// Close the connection: the client has used up its time. `None` where it was only idle.
    Close(Option<Overdue>),
    /// Put the connection aside until the client sends something.
    Park,
    /// Check whether the client is still there.
    Look,
}

impl Phase {
    /// A connection that was just accepted: its first head is awaited.
    pub(crate) fn new(times: Arc<ClientTimes>) -> Self {
        Self {
            epoch: Instant::now(),
            times,
            doing: AtomicU8::new(FRESH),
            since: AtomicU64::new(0),
            write_waits_since: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            multiplexed: AtomicBool::new(false),
            begun_this_turn: AtomicBool::new(false),
            room: Semaphore::new(STREAMS_AT_ONCE),
            lingers: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            switched: AtomicBool::new(false),
            discards: AtomicBool::new(false),
            unsettled: AtomicBool::new(true),
            parks: AtomicBool::new(false),
            overdue: Mutex::default(),
        }
    }

    /// The time-outs in force.
    pub(crate) fn times(&self) -> &Arc<ClientTimes> {
        &self.times
    }

    /// What is due next and when, unless an event comes first. `None` if the clock cannot express the time.
    pub(crate) fn due(&self) -> Option<(Instant, DueAction)> {
        let writing = match self.write_waits_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some((since, self.times.body(), DueAction::Close(Some(Overdue::Response)))),
        };
        let (limit, due) = match self.doing.load(Ordering::Relaxed) {
            IDLE if self.parks.load(Ordering::Relaxed) => (Duration::ZERO, DueAction::Park),
            IDLE if PARK < self.times.idle() && self.is_settled() => (PARK, DueAction::Park),
            IDLE if writing.is_some() => (LOOK, DueAction::Look),
            IDLE => (self.times.idle(), DueAction::Close(None)),
            BUSY => (LOOK, DueAction::Look),
            DISCARDING => (self.times.body(), DueAction::Close(Some(Overdue::Body))),
            _ => (self.times.header(), DueAction::Close(Some(Overdue::Head))),
        };
        let doing = (self.since(), limit, due);
        let at = |(since, limit, due)| Some((self.at(since, limit)?, due));
        at(doing).into_iter().chain(writing.and_then(at)).min()
    }

    /// Whether an HTTP/1.1 connection is between two requests, with nothing of the last one under way. hyper has
    /// then used up all bytes that it got, but for a part of the next head.
    pub(crate) fn is_settled(&self) -> bool {
        self.doing.load(Ordering::Relaxed) == IDLE
            && self.write_waits_since.load(Ordering::Relaxed) == 0
            && !self.unsettled.load(Ordering::Relaxed)
            && !self.is_multiplexed()
    }

    /// The connection is settled, and is to be parked before the next bytes are handed to hyper.
    pub(crate) fn park_now(&self) {
        self.parks.store(true, Ordering::Relaxed);
    }

    /// Notes that the client took too long.
    pub(crate) fn note_overdue(&self, overdue: Overdue) {
        *self.overdue.lock() = Some(overdue);
    }

    /// The last thing for which the client took too long.
    pub(crate) fn overdue(&self) -> Option<Overdue> {
        *self.overdue.lock()
    }

    /// When a connection without a request is closed. `None` if the clock cannot express the time.
    pub(crate) fn idle_until(&self) -> Option<Instant> {
        self.at(self.since(), self.times.idle())
    }

    /// A reload may have changed the time-outs. An idle connection that is over by a shorter one has this time once
    /// more: its client may be about to send a request.
    pub(crate) fn renew_idle(&self) {
        let is_over = || self.idle_until().is_some_and(|until| until <= Instant::now());
        if self.doing.load(Ordering::Relaxed) == IDLE && is_over() {
            self.since.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Whether a write waits until the client reads the connection.
    pub(crate) fn is_write_waiting(&self) -> bool {
        self.write_waits_since.load(Ordering::Relaxed) != 0
    }

    fn since(&self) -> u64 {
        match self.since.load(Ordering::Relaxed) {
            NOW => {
                let now = self.now();
                self.since.store(now, Ordering::Relaxed);
                now
            }
            since => since,
        }
    }

    fn at(&self, since: u64, limit: Duration) -> Option<Instant> {
        self.epoch.checked_add(Duration::from_micros(since))?.checked_add(limit)
    }

    /// Whether a request's head has begun to come, or the connection's first head is still awaited.
    pub(crate) fn awaits_head(&self) -> bool {
        matches!(self.doing.load(Ordering::Relaxed), FRESH | READING_HEAD)
    }

    /// The process drains.
    pub(crate) fn end_soon(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Whether the connection ends with its next answer.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Whether a request is being served.
    fn is_busy(&self) -> bool {
        self.doing.load(Ordering::Relaxed) == BUSY
    }

    /// Whether no request is served and no write waits for the client.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_busy() && !self.is_write_waiting()
    }

    /// The connection speaks HTTP/2 and carries many requests at once. Once the client has sent more than
    /// the preface, `idle_timeout` counts instead of `header_timeout`.
    pub(crate) fn multiplex(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    fn idle(&self) {
        self.since.store(self.now(), Ordering::Relaxed);
        self.doing.store(IDLE, Ordering::Relaxed);
    }

    /// Whether the connection carries many requests at once. What happens to one request then says
    /// nothing about the connection.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// The connection's task is polled again.
    pub(crate) fn next_turn(&self) {
        self.begun_this_turn.store(false, Ordering::Relaxed);
        let used = STREAMS_AT_ONCE.saturating_sub(self.room.available_permits());
        if used > 0 {
            self.room.add_permits(used);
        }
    }

    /// Whether requests may wait for the next turn.
    pub(crate) fn is_turn_used_up(&self) -> bool {
        self.room.available_permits() == 0
    }

    /// Waits until a request may be answered. `is_second` is what [`Phase::begin`] returned. A client that sends
    /// many requests at once would otherwise hold up the clients of all other connections. Requests go in the
    /// order in which they came.
    pub(crate) async fn turn(&self, is_second: bool) {
        if !self.is_multiplexed() {
            // hyper answers 16 such requests before other connections have their turn.
            if is_second {
                yield_now().await;
            }
            return;
        }
        let permit = match self.room.try_acquire() {
            Ok(permit) => Ok(permit),
            // Boxed: few requests wait.
            Err(_) => Box::pin(self.room.acquire()).await,
        };
        // `next_turn` makes the room anew.
        permit.into_iter().for_each(SemaphorePermit::forget);
    }

    /// A request's head is complete at `now`. Returns whether another request has begun in the same turn of the
    /// connection's task: over HTTP/1.1 the client then did not wait for its answer.
    pub(crate) fn begin(&self, now: Instant) -> bool {
        let others = self.requests.load(Ordering::Relaxed);
        self.requests.store(others + 1, Ordering::Relaxed);
        // While other requests are under way, this one must not put off the next [`DueAction::Look`].
        if others == 0 {
            self.since.store(self.micros(now), Ordering::Relaxed);
        }
        self.doing.store(BUSY, Ordering::Relaxed);
        self.discards.store(false, Ordering::Relaxed);
        self.unsettled.store(false, Ordering::Relaxed);
        let is_second = self.begun_this_turn.load(Ordering::Relaxed);
        self.begun_this_turn.store(true, Ordering::Relaxed);
        is_second
    }

    /// When the response ends, a part of the exchange will be left: the rest of the request, or the
    /// connection's end.
    pub(crate) fn unsettle(&self) {
        self.unsettled.store(true, Ordering::Relaxed);
    }

    /// The client was still there at `now`.
    pub(crate) fn looked(&self, now: Instant) {
        self.since.store(self.micros(now), Ordering::Relaxed);
    }

    /// A response's body has been handed over at `now`.
    pub(crate) fn end(&self, now: Instant) {
        let left = self.requests.load(Ordering::Relaxed).saturating_sub(1);
        self.requests.store(left, Ordering::Relaxed);
        if left == 0 {
            self.since.store(self.micros(now), Ordering::Relaxed);
            let discards = self.discards.load(Ordering::Relaxed);
            self.doing.store(if discards { DISCARDING } else { IDLE }, Ordering::Relaxed);
        }
    }

    /// The bytes that come until [`Phase::discarded`] are the rest of the request under way.
    pub(crate) fn discard(&self) {
        self.unsettle();
        self.discards.store(true, Ordering::Relaxed);
    }

    /// The rest of an answered request has come to its end.
    pub(crate) fn discarded(&self) {
        if self.discards.swap(false, Ordering::Relaxed)
            && self.doing.load(Ordering::Relaxed) == DISCARDING
        {
            self.idle();
        }
    }

    /// The connection will be closed with input unread.
    pub(crate) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// Whether the client may still send data that will not be read. If the connection closed at once, a
    /// reset would answer such data and destroy the response on its way.
    pub(crate) fn must_linger(&self) -> bool {
        let discards = self.doing.load(Ordering::Relaxed) == DISCARDING;
        self.lingers.load(Ordering::Relaxed) || discards
    }

    /// Whether a head over HTTP/1.1 has begun to come and is not complete.
    pub(crate) fn is_in_head(&self) -> bool {
        self.doing.load(Ordering::Relaxed) == READING_HEAD && !self.is_multiplexed()
    }

    /// The connection has changed to another protocol.
    pub(crate) fn switch(&self) {
        self.switched.store(true, Ordering::Relaxed);
    }

    /// Whether [`Phase::switch`] was called. In a tunnel, a side that has sent all its data may still read.
    pub(crate) fn has_switched(&self) -> bool {
        self.switched.load(Ordering::Relaxed)
    }

    /// Bytes of a request have come. Unless [`Phase::begin`] follows at once, [`Phase::due`] must: it sets
    /// the time.
    pub(crate) fn bytes_came(&self) {
        match self.doing.load(Ordering::Relaxed) {
            READING_HEAD if self.is_multiplexed() => self.idle(),
            // For the first head, and for a TLS handshake before it, the time runs from the accept.
            FRESH => self.doing.store(READING_HEAD, Ordering::Relaxed),
            IDLE if !self.is_multiplexed() => {
                self.doing.store(READING_HEAD, Ordering::Relaxed);
                self.since.store(NOW, Ordering::Relaxed);
                self.parks.store(false, Ordering::Relaxed);
            }
            DISCARDING => self.since.store(NOW, Ordering::Relaxed),
            _ => {}
        }
    }

    /// A write has to wait until the client reads.
    pub(crate) fn write_waits(&self) {
        if !self.is_write_waiting() {
            self.write_waits_since.store(self.now().max(1), Ordering::Relaxed);
        }
    }

    /// Something was written.
    pub(crate) fn write_moved(&self) {
        if self.is_write_waiting() {
            self.write_waits_since.store(0, Ordering::Relaxed);
            // A client that slowly reads the rest of a response is not idle.
            if self.doing.load(Ordering::Relaxed) == IDLE {
                self.since.store(self.now(), Ordering::Relaxed);
            }
        }
    }

    fn now(&self) -> u64 {
        self.micros(Instant::now())
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
