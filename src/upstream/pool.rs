//! One worker's idle connections to one server, the last used first: the others can grow old.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::Connection;

/// The most idle connections to one server that a worker keeps.
const MOST_IDLE: usize = 256;
/// After this time an idle connection is closed.
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// Idle connections.
#[derive(Debug)]
pub(super) struct Pool {
    // Touched by one worker's thread alone, so the lock is never waited for.
    idle: Mutex<Idle>,
}

#[derive(Debug)]
struct Idle {
    /// Oldest first, with the last sweep before each came: exact enough, and no look at the clock.
    connections: VecDeque<(Instant, Box<Connection>)>,
    swept: Instant,
}

impl Default for Pool {
    /// None yet.
    fn default() -> Self {
        let idle = Idle { connections: VecDeque::new(), swept: Instant::now() };
        Self { idle: Mutex::new(idle) }
    }
}

impl Pool {
    /// The connection that was used last, of those that live.
    pub(super) fn take(&self) -> Option<Box<Connection>> {
        let mut idle = self.locked();
        while let Some((_, connection)) = idle.connections.pop_back() {
            if !connection.is_spoilt() {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(super) fn put(&self, mut connection: Box<Connection>) {
        connection.rest();
        let mut idle = self.locked();
        if idle.connections.len() >= MOST_IDLE {
            idle.connections.pop_front();
        }
        let since = idle.swept;
        idle.connections.push_back((since, connection));
    }

    /// Closes what its server has closed or spoken on, and what has been idle for too long.
    pub(super) fn prune(&self, now: Instant) {
        let mut idle = self.locked();
        idle.swept = now;
        idle.connections.retain(|(since, connection)| {
            now.duration_since(*since) < LONGEST_IDLE && !connection.is_spoilt()
        });
    }

    fn locked(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
