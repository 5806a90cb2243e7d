//! What a connection is doing and since when, and what its time-outs make of that.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long a client may take over each part of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) header: Duration,
    pub(super) idle: Duration,
    pub(super) write: Duration,
}

/// How often somebody looks whether the client of a request is still there. While it is served
/// its socket is read only as far as its body is wanted, so that its end may go unnoticed.
const LOOK: Duration = Duration::from_secs(1);

/// After this time without a request a connection is served no longer, only watched: it then holds
/// no buffers.
const PARK: Duration = Duration::from_millis(50);

/// What a connection is doing and since when; shared by its socket, its requests and its timer.
#[derive(Debug)]
pub(super) struct Phase {
    epoch: Instant,
    times: Times,
    doing: AtomicU8,
    /// Microseconds after `epoch`, or [`NOW`].
    since: AtomicU64,
    /// Microseconds after `epoch` at which a write began to wait; 0 where none waits.
    write_waits_since: AtomicU64,
    lingers: AtomicBool,
    resets: AtomicBool,
    /// Something of the last exchange may still be under way.
    unsettled: AtomicBool,
}

/// Nothing was ever read from it.
const FRESH: u8 = 0;
const IDLE: u8 = 1;
const READING_HEAD: u8 = 2;
const BUSY: u8 = 3;

/// The time at which somebody asks for the first time. A head that came whole is read before that.
const NOW: u64 = u64::MAX;

/// What is to be done with a connection at a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Its client had its time.
    Close,
    /// Put it aside until its client says something.
    Park,
    /// See whether its client is still there.
    Look,
}

impl Phase {
    /// A connection that was just accepted: its first head is awaited.
    pub(super) fn new(times: Times) -> Self {
        Self {
            epoch: Instant::now(),
            times,
            doing: AtomicU8::new(FRESH),
            since: AtomicU64::new(0),
            write_waits_since: AtomicU64::new(0),
            lingers: AtomicBool::new(false),
            resets: AtomicBool::new(false),
            unsettled: AtomicBool::new(true),
        }
    }

    /// What is to be done next unless something happens before.
    pub(super) fn due(&self) -> Option<(Instant, Due)> {
        let writing = match self.write_waits_since.load(Ordering::Relaxed) {
            0 => None,
            since => Some((since, self.times.write, Due::Close)),
        };
        let settled = writing.is_none() && !self.unsettled.load(Ordering::Relaxed);
        let (limit, due) = match self.doing.load(Ordering::Relaxed) {
            IDLE if settled && PARK < self.times.idle => (PARK, Due::Park),
            IDLE => (self.times.idle, Due::Close),
            BUSY => (LOOK, Due::Look),
            _ => (self.times.header, Due::Close),
        };
        let doing = (self.since(), limit, due);
        let at = |(since, limit, due)| Some((self.at(since, limit)?, due));
        at(doing).into_iter().chain(writing.and_then(at)).min()
    }

    /// When a connection without a request is closed.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        self.at(self.since(), self.times.idle)
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

    /// Whether a head has begun to come, or the first one is still to begin.
    pub(super) fn awaits_head(&self) -> bool {
        matches!(self.doing.load(Ordering::Relaxed), FRESH | READING_HEAD)
    }

    /// A request's head is complete at `now`.
    pub(super) fn begin(&self, now: Instant) {
        self.since.store(self.micros(now), Ordering::Relaxed);
        self.doing.store(BUSY, Ordering::Relaxed);
        self.unsettled.store(false, Ordering::Relaxed);
    }

    /// Of the exchange something is left when its response has ended: the rest of its request, or
    /// the connection's end.
    pub(super) fn unsettle(&self) {
        self.unsettled.store(true, Ordering::Relaxed);
    }

    /// The client was still there at `now`.
    pub(super) fn looked(&self, now: Instant) {
        self.since.store(self.micros(now), Ordering::Relaxed);
    }

    /// A response's body has been handed over at `now`.
    pub(super) fn end(&self, now: Instant) {
        self.since.store(self.micros(now), Ordering::Relaxed);
        self.doing.store(IDLE, Ordering::Relaxed);
    }

    /// What came since the last response was the rest of its request.
    pub(super) fn discarded(&self) {
        if self.doing.load(Ordering::Relaxed) == READING_HEAD {
            self.end(Instant::now());
        }
    }

    /// The connection will be closed with input unread.
    pub(super) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// Whether the client may still be sending what nobody will read: a reset for it would
    /// destroy the answer on its way.
    pub(super) fn must_linger(&self) -> bool {
        self.lingers.load(Ordering::Relaxed) || self.doing.load(Ordering::Relaxed) == READING_HEAD
    }

    /// The connection's end must not look like the end of the message.
    pub(super) fn reset(&self) {
        self.resets.store(true, Ordering::Relaxed);
    }

    /// Whether [`Phase::reset`] was called.
    pub(super) fn resets(&self) -> bool {
        self.resets.load(Ordering::Relaxed)
    }

    /// Something of a request is there. To be followed by [`Phase::due`] at once, unless the request
    /// begins.
    pub(super) fn bytes_came(&self) {
        if self.doing.load(Ordering::Relaxed) <= IDLE {
            // A first head's time runs from the accept.
            if self.doing.swap(READING_HEAD, Ordering::Relaxed) == IDLE {
                self.since.store(NOW, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn write_waits(&self) {
        if self.write_waits_since.load(Ordering::Relaxed) == 0 {
            self.write_waits_since.store(self.now().max(1), Ordering::Relaxed);
        }
    }

    pub(super) fn write_moved(&self) {
        if self.write_waits_since.load(Ordering::Relaxed) != 0 {
            self.write_waits_since.store(0, Ordering::Relaxed);
            // A client that reads slowly what is left of a response is not idle.
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
mod tests {
    use super::*;

    const TIMES: Times = Times {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        write: Duration::from_secs(30),
    };

    /// A connection whose first request has been answered, a second after it was accepted.
    async fn answered() -> (Instant, Phase) {
        let phase = Phase::new(TIMES);
        tokio::time::advance(Duration::from_secs(1)).await;
        phase.begin(Instant::now());
        phase.end(Instant::now());
        (Instant::now(), phase)
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_parked_and_later_closed() {
        let (ended, phase) = answered().await;
        assert_eq!(phase.due(), Some((ended + PARK, Due::Park)));
        assert_eq!(phase.idle_until(), Some(ended + TIMES.idle));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_still_under_way_keeps_a_connection_from_being_parked() {
        let (ended, phase) = answered().await;
        phase.unsettle();
        assert_eq!(phase.due(), Some((ended + TIMES.idle, Due::Close)), "a rest of its request");
        phase.begin(ended);
        phase.end(Instant::now());
        assert_eq!(phase.due(), Some((ended + PARK, Due::Park)), "gone with the next request");
        phase.write_waits();
        assert_eq!(phase.due(), Some((ended + TIMES.write, Due::Close)), "a write that waits");
        phase.write_moved();
        assert_eq!(phase.due(), Some((ended + PARK, Due::Park)));
        phase.bytes_came();
        assert_eq!(phase.due(), Some((ended + TIMES.header, Due::Close)), "a head has begun");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_not_asked_yet_is_not_parked() {
        let phase = Phase::new(TIMES);
        assert_eq!(phase.due(), Some((Instant::now() + TIMES.header, Due::Close)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_time_is_short_is_closed_instead() {
        let phase = Phase::new(Times { idle: PARK, ..TIMES });
        phase.begin(Instant::now());
        phase.end(Instant::now());
        assert_eq!(phase.due(), Some((Instant::now() + PARK, Due::Close)));
    }
}
