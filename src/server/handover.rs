//! Taking over from a predecessor, and handing over to a successor.

use std::future::pending;

use super::successor::{self, Successor};
use super::{Supervisor, service};
use crate::observe::events;

impl Supervisor {
    /// Tells the predecessor that the process takes connections, or else the service manager. The service
    /// manager hears of a successor from the predecessor.
    pub(super) fn tell_ready(&mut self) {
        match self.predecessor.take() {
            Some(predecessor) => predecessor.replace(),
            None => service::ready(),
        }
    }

    /// Starts the process that is to take over. There is one at a time.
    pub(super) fn start_successor(&mut self) {
        if let Some(successor) = &self.successor {
            return events::handover_under_way(successor.pid());
        }
        let (command, sockets) = (&self.command, self.sockets.sockets());
        let processes = self.process.store.counters().processes;
        match Successor::start(command, sockets, processes, successor::TIME_LIMIT) {
            Ok(successor) => {
                events::successor_started(successor.pid());
                self.successor = Some(successor);
            }
            Err(error) => events::handover_failed(
                &format!("cannot start {command}: {error}"),
                "put the new program there, and send SIGUSR2 again",
            ),
        }
    }

    /// Goes on without the process that was to take over.
    pub(super) async fn give_up_successor(&mut self, error: &str) {
        events::handover_failed(
            &error,
            "see what the new program says (its lines stand in this log)",
        );
        if let Some(successor) = self.successor.take() {
            successor.end().await;
        }
    }
}

/// Waits until the successor is ready, or does not take over. Without a successor it waits for ever.
pub(super) async fn readiness(successor: &mut Option<Successor>) -> Result<(), String> {
    match successor {
        Some(successor) => successor.ready().await,
        None => pending().await,
    }
}
