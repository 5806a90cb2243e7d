//! Reads the metrics each second: for the rates of the status, for the history, and for the streams.
//!
//! The readings are taken even if nobody looks. A page that is opened later can then show the last hour. The
//! status is made only while a stream is open, and once for all streams.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::status::ProcessReading;
use super::{Admin, stream};
use crate::clock::every;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::history::{self, History, STEP};
use crate::observe::pace::Paces;
use crate::worker::Process;

/// The time between two readings.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the process waits at its end for the end of the streams.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The readings of a process.
pub(super) struct Pulse {
    readings: Mutex<Readings>,
    /// The last event of the streams. A reader that is too slow for an event gets the next one. `None` ends the
    /// streams and the connections.
    pub(super) event: watch::Sender<Option<Bytes>>,
    /// A permit for each further stream.
    pub(super) streams: Arc<Semaphore>,
}

struct Readings {
    /// The readings of the last [`STEP`], at least two. The oldest comes first.
    recent: VecDeque<Arc<ProcessReading>>,
    /// The reading at the last point of the history.
    point: Arc<ProcessReading>,
    history: History,
    paces: Paces,
}

impl Pulse {
    pub(super) fn new(process: &Process) -> Self {
        let first = Arc::new(ProcessReading::now(process));
        let recent = VecDeque::from([first.clone(), first.clone()]);
        let (history, paces) = Default::default();
        Self {
            readings: Mutex::new(Readings { recent, point: first, history, paces }),
            event: watch::Sender::new(Some(Bytes::new())),
            streams: Arc::new(Semaphore::new(stream::MOST)),
        }
    }

    /// The oldest reading of the last seconds, and the last two readings.
    pub(super) fn readings(&self) -> [Arc<ProcessReading>; 3] {
        let recent = &self.readings.lock().recent;
        [0, recent.len() - 2, recent.len() - 1].map(|index| recent[index].clone())
    }

    pub(super) fn with_history<T>(&self, read: impl FnOnce(&History) -> T) -> T {
        read(&self.readings.lock().history)
    }

    /// The upstreams that are slow now.
    pub(super) fn slow(&self, now: Timestamp) -> Vec<(Name, f64, f64)> {
        self.readings.lock().paces.slow(now)
    }

    fn read(&self, now: ProcessReading) {
        let Readings { recent, point, history, paces } = &mut *self.readings.lock();
        let now = Arc::new(now);
        paces.add(&now.reading, now.at);
        // After a late reading, the next one may come a little early. It still ends a whole step.
        let is_step = |then: &ProcessReading| {
            Duration::from_micros(now.at.micros_since(then.at)) + PERIOD / 2 >= STEP
        };
        recent.push_back(now.clone());
        while recent.len() > 2 && is_step(&recent[1]) {
            recent.pop_front();
        }
        if is_step(point) {
            history::add(history, &point.reading, &now.reading, now.at);
            *point = now;
        }
    }
}

impl Admin {
    /// Reads the metrics each second, for as long as the process runs.
    pub(crate) async fn keep_pulse(self: Arc<Self>) {
        let mut tick = every(PERIOD);
        // The first tick comes at once. It needs no reading: `Pulse::new` has taken one.
        tick.tick().await;
        loop {
            tick.tick().await;
            self.pulse.read(ProcessReading::now(&self.process));
            self.mark(self.process.clock.now());
            if self.pulse.streams.available_permits() < stream::MOST {
                let event = stream::event(&self);
                self.pulse
                    .event
                    .send_if_modified(|last| last.as_mut().map(|it| *it = event).is_some());
            }
        }
    }

    /// Ends the streams, and closes connections that are idle. Their clients connect again, and reach the process
    /// that listens then.
    pub(crate) fn end_soon(&self) {
        self.pulse.event.send_replace(None);
    }

    /// Ends the streams, at the end of the process, and waits a moment until they have ended.
    pub(crate) async fn end_streams(&self) {
        self.end_soon();
        let all = u32::try_from(stream::MOST).unwrap_or_default();
        let _ = timeout(LAST_WORDS, self.pulse.streams.acquire_many(all)).await;
    }
}
