//! The end of a process, and the handing over to a successor. At its end a process takes traffic for a while, waits for
//! the requests under way, and stops the workers.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::occasions::Occasion;
use super::successor::{self, Successor};
use super::{Supervisor, service};
use crate::clock::every;
use crate::observe::events;

/// How often a draining process checks whether all connections have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// Why the process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    /// A signal said so.
    Stopped,
    /// A successor serves the sockets.
    HandedOver,
}

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

    /// Takes traffic for `shutdown_delay`, waits for the requests under way, for at most `drain_timeout`, and
    /// stops the workers.
    pub(super) async fn drain(&mut self, end: ProcessEnd) -> Result<(), String> {
        let successor = self.successor.take();
        let delay = match end {
            ProcessEnd::HandedOver => {
                let pid = successor.as_ref().and_then(Successor::pid);
                events::handed_over(pid);
                pid.into_iter().for_each(service::main_process);
                // The successor answers from now on.
                self.admin_listeners.abort_all();
                if let Some(admin) = &self.admin {
                    admin.end_soon();
                }
                self.sockets.leave();
                Duration::ZERO
            }
            ProcessEnd::Stopped => {
                if let Some(successor) = successor {
                    successor.end().await;
                }
                service::stopping();
                self.published.borrow().settings.server.shutdown_delay
            }
        };
        events::draining();
        self.process.draining.store(true, Ordering::Relaxed);
        // The configuration still changes within the delay, since the process takes all traffic.
        let waited = self.attend_until(sleep(delay)).await?;
        // This comes before the next await, so that it also happens if a second signal ends the delay.
        self.sockets.remove();
        if waited.is_some() {
            self.draining.send_replace(true);
            let time_limit = self.published.borrow().settings.server.drain_timeout;
            // Requests are held for three quarters of the time at most. The last quarter is for their
            // answers.
            self.process.waiting.end_at(Instant::now() + time_limit - time_limit / 4);
            let (connections, abandoned) =
                (self.process.connections.clone(), self.process.abandoned.clone());
            let finished = timeout(time_limit, async move {
                let mut look = every(DRAIN_LOOK);
                while connections.listening() > 0 || connections.open() > 0 || !abandoned.is_empty()
                {
                    look.tick().await;
                }
            });
            let waited = self.attend_until(finished).await?;
            let cut = self.process.connections.open() + self.process.abandoned.len();
            if waited.is_some() && cut > 0 {
                events::connections_cut(cut);
            }
        }
        self.stop.send_replace(true);
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        if let Some(admin) = &self.admin {
            admin.end_streams().await;
        }
        Ok(())
    }

    /// Waits for `end`. `None` if a signal says before that the process must end at once. Log summaries go on.
    async fn attend_until<T>(&mut self, end: impl Future<Output = T>) -> Result<Option<T>, String> {
        let mut end = pin!(end);
        loop {
            tokio::select! {
                end = &mut end => return Ok(Some(end)),
                occasion = self.occasions.next() => match occasion {
                    Occasion::End => return Ok(None),
                    // While the process waits for the requests under way, the configuration does not change.
                    Occasion::Look | Occasion::Reload
                        if *self.draining.borrow() => {}
                    occasion => self.attend(occasion)?,
                },
            }
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
