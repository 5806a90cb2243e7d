//! Signals to the process.

use std::io::{self, IsTerminal as _};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal tells the process to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    End,
    Reload,
    HandOver,
}

/// SIGTERM and SIGINT end the process. SIGHUP reads the configuration again. If the terminal was closed,
/// SIGHUP ends the process. SIGUSR2 starts a successor.
pub(super) struct Signals {
    /// Whether the log goes to a terminal. A terminal that is closed sends SIGHUP. Then the operator can no
    /// longer read the log or end the process.
    on_terminal: bool,
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
    hand_over: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            on_terminal: io::stdout().is_terminal(),
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reload: signal(SignalKind::hangup())?,
            hand_over: signal(SignalKind::user_defined2())?,
        })
    }

    pub(super) async fn next(&mut self) -> Instruction {
        tokio::select! {
            _ = self.terminate.recv() => Instruction::End,
            _ = self.interrupt.recv() => Instruction::End,
            _ = self.hand_over.recv() => Instruction::HandOver,
            _ = self.reload.recv() => {
                let closed = self.on_terminal && !io::stdout().is_terminal();
                if closed { Instruction::End } else { Instruction::Reload }
            }
        }
    }
}
