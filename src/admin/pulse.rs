//! Reads the metrics each second: for the rates of the status, for the history, and for the streams.
//!
//! The readings are taken whether somebody looks or not, so that a page that is opened has the last hour. The
//! status is made only while somebody listens to a stream, once for all who listen.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::status::ProcessReading;
use super::{Admin, stream};
use crate::clock::every;
use crate::observe::history::{History, STEP};
use crate::worker::Process;

/// The time between two readings.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the process waits at its end until the streams have ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The readings of a process.
pub(super) struct Pulse {
    readings: Mutex<Readings>,
    /// The last event of the streams. A reader that is too slow for an event gets the next one.
    pub(super) event: watch::Sender<Bytes>,
    /// A permit for each further stream.
    pub(super) streams: Arc<Semaphore>,
    /// Whether the streams and the connections end.
    pub(super) ending: watch::Sender<bool>,
}

struct Readings {
    /// The last reading and the one before.
    last: Arc<ProcessReading>,
    before: Arc<ProcessReading>,
    /// The reading at the last point of the history.
    point: Arc<ProcessReading>,
    history: History,
}

impl Pulse {
    pub(super) fn new(process: &Process) -> Self {
        let first = Arc::new(ProcessReading::now(process));
        let (before, point) = (first.clone(), first.clone());
        let readings = Readings { last: first, before, point, history: History::default() };
        Self {
            readings: Mutex::new(readings),
            event: watch::Sender::new(Bytes::new()),
            streams: Arc::new(Semaphore::new(stream::MOST)),
            ending: watch::Sender::new(false),
        }
    }

    /// The last two readings, the earlier one first.
    pub(super) fn readings(&self) -> [Arc<ProcessReading>; 2] {
        let readings = self.readings.lock();
        [readings.before.clone(), readings.last.clone()]
    }

    pub(super) fn with_history<T>(&self, read: impl FnOnce(&History) -> T) -> T {
        read(&self.readings.lock().history)
    }

    fn read(&self, now: ProcessReading) {
        let mut readings = self.readings.lock();
        let now = Arc::new(now);
        readings.before = std::mem::replace(&mut readings.last, now.clone());
        let since = now.at.micros_since(readings.point.at);
        // A reading may come a little early after a late one. It counts as the end of a whole step.
        if Duration::from_micros(since) + PERIOD / 2 >= STEP {
            let point = std::mem::replace(&mut readings.point, now.clone());
            readings.history.add(&point.reading, &now.reading, now.at);
        }
    }
}

impl Admin {
    /// Reads the metrics each second, for as long as the process runs.
    pub(crate) async fn keep_pulse(self: Arc<Self>) {
        let mut tick = every(PERIOD);
        // The first tick comes at once. The reading of the start is from then.
        tick.tick().await;
        loop {
            tick.tick().await;
            self.pulse.read(ProcessReading::now(&self.process));
            self.mark(self.process.clock.now());
            if self.pulse.streams.available_permits() < stream::MOST {
                let [_, last] = self.pulse.readings();
                self.pulse.event.send_replace(stream::event(&self, &last));
            }
        }
    }

    /// Ends the streams, and closes connections that are idle. Their clients come again, and meet the process
    /// that listens then.
    pub(crate) fn end_soon(&self) {
        self.pulse.ending.send_replace(true);
    }

    /// Ends the streams, at the end of the process, and waits a moment until they have ended.
    pub(crate) async fn end_streams(&self) {
        self.end_soon();
        let all = u32::try_from(stream::MOST).unwrap_or_default();
        let _ = timeout(LAST_WORDS, self.pulse.streams.acquire_many(all)).await;
    }
}
