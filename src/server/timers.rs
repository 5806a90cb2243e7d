//! What the process does from time to time, and when.

use std::time::Duration;

use tokio::time::Interval;

use super::signals::{Instruction, Signals};
use crate::clock::every;
use crate::reload;

/// How often log summaries are written if they are due, and workers are checked.
const TICK: Duration = Duration::from_millis(250);
/// How often in-process buckets that are full again are forgotten, and the time of day and the certificates
/// are looked up.
const SWEEP: Duration = Duration::from_secs(1);
/// The timers of the process, while it serves and while it drains.
pub(super) struct Timers {
    tick: Interval,
    sweep: Interval,
    look: Interval,
}

/// A reason for the process to do something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// It is time to write summaries and to check the workers.
    Tick,
    /// It is time to clean up.
    Sweep,
    /// It is time to look at the configuration's file.
    Look,
    /// A signal has come.
    Signal(Instruction),
}

impl Timers {
    pub(super) fn new() -> Self {
        Self { tick: every(TICK), sweep: every(SWEEP), look: every(reload::LOOK) }
    }

    /// The next occasion. Nothing is lost if this future is dropped.
    pub(super) async fn next(&mut self, signals: &mut Signals) -> Occasion {
        tokio::select! {
            _ = self.tick.tick() => Occasion::Tick,
            _ = self.sweep.tick() => Occasion::Sweep,
            _ = self.look.tick() => Occasion::Look,
            signal = signals.next() => Occasion::Signal(signal),
        }
    }
}
