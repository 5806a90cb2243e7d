//! What a client's connection is doing, since when, and what is due next by its time-outs. Requests and the
//! socket report events here. `downstream::watch` asks [`Phase::due`].

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::idleness::Idleness;
use crate::upstream::times::ClientTimes;

/// How often, while a request is served, the socket is checked for a client that has left. The socket is
/// then read only as far as the request's body is wanted, so no read would show that the client has left.
const LOOK: Duration = Duration::from_secs(1);

/// After this time without a request an HTTP/1.1 connection is parked: it gives up its buffers, and only
/// its socket is watched.
const PARK: Duration = Duration::from_millis(50);

/// The most requests of an HTTP/2 connection that are answered in one poll of its task. With 4, the p50 of other
/// clients beside 20 connections of 100 requests each was 10 ms, and with 8 up to 90 ms (`docs/performance.md`).
const STREAMS_AT_ONCE: usize = 4;

/// What a connection is doing, and since when. The connection's socket, requests and timer share this state.
#[derive(Debug)]
pub(crate) struct Phase {
    /// The time-outs in force.
    pub(crate) times: Rc<Cell<ClientTimes>>,
    doing: Cell<Doing>,
    /// `None` stands for the time of the next call of [`Phase::due`], where the clock is read. For a head that comes
    /// whole, [`Phase::begin`] sets the time before that.
    since: Cell<Option<Instant>>,
    /// Since when a write waits until the client reads.
    write_waits_since: Cell<Option<Instant>>,
    /// Requests whose response has not ended: at most one over HTTP/1.1.
    requests: Cell<usize>,
    /// Whether the protocol carries many requests at once.
    multiplexed: Cell<bool>,
    /// Over HTTP/1.1: a request has begun since the connection's task was polled.
    begun_this_poll: Cell<bool>,
    /// Over HTTP/2: how many more requests may be answered in this poll of the connection's task.
    room: Semaphore,
    /// The connection will be closed with input unread.
    pub(crate) lingers: Cell<bool>,
    /// The process drains, so the connection ends with its next answer.
    pub(crate) ending: Cell<bool>,
    /// The connection carries another protocol than HTTP. In a tunnel, a side that has sent all its data may still
    /// read.
    switched: Cell<bool>,
    /// The rest of the request's body is read and thrown away.
    discards: Cell<bool>,
    /// A part of the last exchange may still be under way, so the connection must not be parked.
    pub(crate) unsettled: Cell<bool>,
    /// The connection is settled, and is to be parked before the next bytes are handed to hyper.
    pub(crate) parks: Cell<bool>,
    /// Whether the client has taken too long.
    pub(crate) overdue: Cell<bool>,
    /// Whether the connection is idle, as other threads see it.
    idleness: Arc<Idleness>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Nothing was read from the connection yet.
    Fresh,
    Idle,
    ReadingHead,
    Busy,
    /// The request is answered, and the rest of its body still comes.
    Discarding,
}

/// What is to be done with a connection at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DueAction {
    /// Close the connection: the client has used up its time.
    Close,
    /// Put the connection aside until the client sends something.
    Park,
    /// Check whether the client is still there.
    Look,
}

impl Phase {
    /// A connection that was just accepted: its first head is awaited.
    pub(crate) fn new(times: Rc<Cell<ClientTimes>>, idleness: Arc<Idleness>) -> Self {
        Self {
            times,
            doing: Cell::new(Doing::Fresh),
            since: Cell::new(Some(Instant::now())),
            write_waits_since: Cell::default(),
            requests: Cell::default(),
            multiplexed: Cell::default(),
            begun_this_poll: Cell::default(),
            room: Semaphore::new(STREAMS_AT_ONCE),
            lingers: Cell::default(),
            ending: Cell::default(),
            switched: Cell::default(),
            discards: Cell::default(),
            unsettled: Cell::new(true),
            parks: Cell::default(),
            overdue: Cell::default(),
            idleness,
        }
    }

    /// What is due next and when, unless an event comes first. `None` if the clock cannot express the time.
    pub(crate) fn due(&self) -> Option<(Instant, DueAction)> {
        if self.is_given_up() {
            return Some((self.since(), DueAction::Close));
        }
        let response = (self.times.get().body, DueAction::Close);
        let writing = self.write_waits_since.get().map(|since| (since, response));
        let doing = match self.doing.get() {
            Doing::Idle if self.parks.get() => (Duration::ZERO, DueAction::Park),
            Doing::Idle if PARK < self.times.get().idle && self.is_settled() => {
                (PARK, DueAction::Park)
            }
            Doing::Idle if writing.is_some() => (LOOK, DueAction::Look),
            Doing::Idle => (self.times.get().idle, DueAction::Close),
            Doing::Busy => (LOOK, DueAction::Look),
            Doing::Discarding => (self.times.get().body, DueAction::Close),
            Doing::Fresh | Doing::ReadingHead => (self.times.get().header, DueAction::Close),
        };
        let at = |(since, (limit, due)): (Instant, _)| Some((since.checked_add(limit)?, due));
        at((self.since(), doing)).into_iter().chain(writing.and_then(at)).min()
    }

    /// Whether an HTTP/1.1 connection is between two requests, with nothing of the last one under way. hyper has
    /// then used up all bytes that it got, but for a part of the next head.
    pub(crate) fn is_settled(&self) -> bool {
        self.doing.get() == Doing::Idle
            && !self.is_write_waiting()
            && !self.unsettled.get()
            && !self.is_multiplexed()
    }

    /// When a connection without a request is closed. `None` if the clock cannot express the time.
    pub(crate) fn idle_until(&self) -> Option<Instant> {
        let idle = if self.is_given_up() { Duration::ZERO } else { self.times.get().idle };
        self.since().checked_add(idle)
    }

    /// Whether the connection is to be closed, because another one needs its place. An answer that the client still reads
    /// goes first.
    pub(crate) fn is_given_up(&self) -> bool {
        self.idleness.is_given_up() && !self.is_write_waiting()
    }

    /// The connection carries another protocol from now on, and is never idle.
    pub(crate) fn switch(&self) {
        self.switched.set(true);
        self.idleness.busy();
    }

    pub(crate) fn is_switched(&self) -> bool {
        self.switched.get()
    }

    /// A reload may have changed the time-outs. An idle connection may have been idle for longer than the new one
    /// allows. It then has this time once more, because its client may be about to send a request.
    pub(crate) fn renew_idle(&self) {
        let is_over = || self.idle_until().is_some_and(|until| until <= Instant::now());
        if self.doing.get() == Doing::Idle && is_over() {
            self.since.set(Some(Instant::now()));
        }
    }

    /// Whether a write waits until the client reads the connection.
    pub(crate) fn is_write_waiting(&self) -> bool {
        self.write_waits_since.get().is_some()
    }

    fn since(&self) -> Instant {
        let since = self.since.get().unwrap_or_else(Instant::now);
        self.since.set(Some(since));
        since
    }

    /// Whether a request's head has begun to come, or the connection's first head is still awaited.
    pub(crate) fn awaits_head(&self) -> bool {
        matches!(self.doing.get(), Doing::Fresh | Doing::ReadingHead)
    }

    /// Whether no request is served and no write waits for the client.
    pub(crate) fn is_quiet(&self) -> bool {
        self.doing.get() != Doing::Busy && !self.is_write_waiting()
    }

    /// The connection speaks HTTP/2 and carries many requests at once. Once the client has sent more than
    /// the preface, `idle_timeout` counts instead of `header_timeout`.
    pub(crate) fn multiplex(&self) {
        self.multiplexed.set(true);
    }

    fn idle(&self) {
        self.since.set(Some(Instant::now()));
        self.doing.set(Doing::Idle);
    }

    /// Whether the connection carries many requests at once. What happens to one request then says
    /// nothing about the connection.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.multiplexed.get()
    }

    /// The connection's task is polled again.
    pub(crate) fn next_poll(&self) {
        self.begun_this_poll.set(false);
        let used = STREAMS_AT_ONCE.saturating_sub(self.room.available_permits());
        if used > 0 {
            self.room.add_permits(used);
        }
    }

    /// Whether requests may wait for the next poll.
    pub(crate) fn is_poll_used_up(&self) -> bool {
        self.room.available_permits() == 0
    }

    /// Waits until a request may be answered. `is_second` is what [`Phase::begin`] returned. A client that sends
    /// many requests at once would otherwise hold up the clients of all other connections. Requests go in the
    /// order in which they came.
    pub(crate) async fn wait_for_room(&self, is_second: bool) {
        if !self.is_multiplexed() {
            // hyper answers 16 such requests before other connections are served.
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
        // `next_poll` makes room again.
        permit.into_iter().for_each(SemaphorePermit::forget);
    }

    /// A request's head is complete at `now`. Returns whether another request has begun in the same poll of the
    /// connection's task: over HTTP/1.1 the client then did not wait for its answer.
    pub(crate) fn begin(&self, now: Instant) -> bool {
        let others = self.requests.get();
        self.requests.set(others + 1);
        // While other requests are under way, this one must not put off the next [`DueAction::Look`].
        if others == 0 {
            self.since.set(Some(now));
            self.idleness.busy();
        }
        self.doing.set(Doing::Busy);
        self.discards.set(false);
        self.unsettled.set(false);
        self.begun_this_poll.replace(true)
    }

    /// The client was still there at `now`.
    pub(crate) fn looked(&self, now: Instant) {
        self.since.set(Some(now));
    }

    /// A response's body has been handed over at `now`.
    pub(crate) fn end(&self, now: Instant) {
        let left = self.requests.get().saturating_sub(1);
        self.requests.set(left);
        if left == 0 {
            self.since.set(Some(now));
            self.idleness.idle(now);
            let discards = self.discards.get();
            self.doing.set(if discards { Doing::Discarding } else { Doing::Idle });
        }
    }

    /// The bytes that come until [`Phase::discarded`] are the rest of the request under way.
    pub(crate) fn discard(&self) {
        self.unsettled.set(true);
        self.discards.set(true);
    }

    /// The rest of an answered request has come to its end.
    pub(crate) fn discarded(&self) {
        if self.discards.replace(false) && self.doing.get() == Doing::Discarding {
            self.idle();
        }
    }

    /// Whether the client may still send data that will not be read. If the connection closed at once, a
    /// reset would answer such data and destroy the response on its way.
    pub(crate) fn must_linger(&self) -> bool {
        let discards = self.doing.get() == Doing::Discarding;
        self.lingers.get() || discards
    }

    /// Whether a head over HTTP/1.1 has begun to come and is not complete.
    pub(crate) fn is_in_head(&self) -> bool {
        self.doing.get() == Doing::ReadingHead && !self.is_multiplexed()
    }

    /// Bytes of a request have come. Unless [`Phase::begin`] follows at once, [`Phase::due`] must: it sets
    /// the time.
    pub(crate) fn bytes_came(&self) {
        match self.doing.get() {
            Doing::ReadingHead if self.is_multiplexed() => self.idle(),
            // For the first head, and for a TLS handshake before it, the time runs from the accept.
            Doing::Fresh => self.doing.set(Doing::ReadingHead),
            Doing::Idle if !self.is_multiplexed() => {
                self.doing.set(Doing::ReadingHead);
                self.since.set(None);
                self.parks.set(false);
            }
            Doing::Discarding => self.since.set(None),
            _ => {}
        }
    }

    /// A write has to wait until the client reads.
    pub(crate) fn write_waits(&self) {
        if !self.is_write_waiting() {
            self.write_waits_since.set(Some(Instant::now()));
        }
    }

    /// Something was written.
    pub(crate) fn write_moved(&self) {
        if self.is_write_waiting() {
            self.write_waits_since.set(None);
            // A client that slowly reads the rest of a response is not idle.
            if self.doing.get() == Doing::Idle {
                self.since.set(Some(Instant::now()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
