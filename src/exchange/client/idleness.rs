//! Since when a connection is without a request, for other threads. If there is no place for a new connection,
//! `downstream::places` asks the connection that has been idle for longest to close.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The times in [`Idleness`] are counted from here.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time of [`BEGIN`] itself.
const MIDDLE: u64 = 1 << 62;

/// Stand in place of a time.
const BUSY: u64 = u64::MAX;
const GIVEN_UP: u64 = u64::MAX - 1;

/// Since when a connection is without a request. The connection's own thread writes this. Any thread reads it, and may
/// give the connection up. A connection that has got a request meanwhile goes on.
#[derive(Debug)]
pub(crate) struct Idleness {
    /// In microseconds.
    since: AtomicU64,
    /// Wakes the connection's task.
    waker: Mutex<Option<Waker>>,
}

impl Idleness {
    /// A connection that is idle from now on.
    pub(crate) fn new() -> Self {
        let new = Self { since: AtomicU64::new(BUSY), waker: Mutex::default() };
        new.idle(Instant::now());
        new
    }

    /// A request has begun.
    pub(crate) fn busy(&self) {
        self.since.store(BUSY, Ordering::Relaxed);
    }

    /// The last request has ended at this time.
    pub(crate) fn idle(&self, at: Instant) {
        self.since.store(micros(at), Ordering::Relaxed);
    }

    /// Since when the connection is idle. `None` if it is busy, or given up already, or is idle only since a time after
    /// `latest`.
    pub(crate) fn since(&self, latest: Instant) -> Option<u64> {
        let since = self.since.load(Ordering::Relaxed);
        (since < GIVEN_UP && since <= micros(latest)).then_some(since)
    }

    /// Gives the connection up if it is still idle since this time. Returns whether it was.
    pub(crate) fn give_up(&self, since: u64) -> bool {
        let (old, new) = (Ordering::Relaxed, Ordering::Relaxed);
        let given_up = self.since.compare_exchange(since, GIVEN_UP, old, new).is_ok();
        if let Some(waker) = self.waker.lock().as_ref().filter(|_| given_up) {
            waker.wake_by_ref();
        }
        given_up
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.since.load(Ordering::Relaxed) == GIVEN_UP
    }

    /// From now on this task is woken when the connection is given up.
    pub(crate) fn wake(&self, cx: &Context<'_>) {
        *self.waker.lock() = Some(cx.waker().clone());
    }
}

fn micros(at: Instant) -> u64 {
    let micros = |time: Duration| time.as_secs() * 1_000_000 + u64::from(time.subsec_micros());
    // The clock of a test may be behind that of the test which came first.
    match at.checked_duration_since(*BEGIN) {
        Some(later) => MIDDLE + micros(later),
        None => MIDDLE - micros(BEGIN.saturating_duration_since(at)),
    }
}
