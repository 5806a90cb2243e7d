//! What the process does from time to time or at a signal, and when.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Interval;

use crate::clock::every;
use crate::reload;

/// How often log summaries are written if they are due, and workers are checked.
const TICK: Duration = Duration::from_millis(250);

/// How often in-process buckets that are full again are forgotten, and the time of day and the certificates
/// are looked up.
const SWEEP: Duration = Duration::from_secs(1);

/// A reason for the process to do something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// It is time to write summaries and to check the workers.
    Tick,
    /// It is time to clean up.
    Sweep,
    /// It is time to look at the configuration's file.
    Look,
    /// SIGHUP: the configuration is to be read again.
    Reload,
    /// SIGUSR2: a successor is to be started.
    HandOver,
    /// SIGTERM, SIGINT, or the terminal was closed: the process is to end.
    End,
}

/// The timers of the process, and the signals to it.
pub(super) struct Occasions {
    tick: Interval,
    sweep: Interval,
    look: Interval,
    /// Whether the log goes to a terminal. A terminal that is closed sends SIGHUP. Then the operator can no
    /// longer read the log or end the process.
    on_terminal: bool,
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    hand_over: Signal,
    /// A signal that came while nothing else could be done.
    pending: Option<Occasion>,
}

impl Occasions {
    /// To be called before the process reports that it listens. From then on signals must work.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            tick: every(TICK),
            sweep: every(SWEEP),
            look: every(reload::LOOK),
            on_terminal: io::stdout().is_terminal(),
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            hand_over: signal(SignalKind::user_defined2())?,
            pending: None,
        })
    }

    /// The next occasion. Nothing is lost if this future is dropped.
    pub(super) async fn next(&mut self) -> Occasion {
        if let Some(pending) = self.pending.take() {
            return pending;
        }
        tokio::select! {
            _ = self.tick.tick() => Occasion::Tick,
            _ = self.sweep.tick() => Occasion::Sweep,
            _ = self.look.tick() => Occasion::Look,
            _ = self.terminate.recv() => Occasion::End,
            _ = self.interrupt.recv() => Occasion::End,
            _ = self.hand_over.recv() => Occasion::HandOver,
            _ = self.hang_up.recv() => {
                let closed = self.on_terminal && !io::stdout().is_terminal();
                if closed { Occasion::End } else { Occasion::Reload }
            }
        }
    }

    /// Waits for a signal. It is the next occasion.
    pub(super) async fn wait_for_signal(&mut self) {
        let is_timer =
            |it: &Occasion| matches!(it, Occasion::Tick | Occasion::Sweep | Occasion::Look);
        while self.pending.as_ref().is_none_or(is_timer) {
            self.pending = None;
            self.pending = Some(self.next().await);
        }
    }
}
