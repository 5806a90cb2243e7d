//! One worker's idle connections to one server, the last used first: the others can grow old.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::client::conn::http1::SendRequest;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::balance::InFlight;
use super::body::{BodyEnd, RequestBody};

/// The most idle connections to one server that a worker keeps.
const MOST_IDLE: usize = 256;
/// After this time an idle connection is closed.
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// A connection that one request uses at a time. Dropped, it is closed, whatever is under way.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: SendRequest<RequestBody>,
    /// Whether it has been in the pool: the server may then have closed it meanwhile.
    pub(super) pooled: bool,
    /// Held to be dropped: nobody waits on a connection that has no owner.
    _driver: AbortOnDrop,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    pub(super) fn new(sender: SendRequest<RequestBody>, driver: AbortHandle) -> Self {
        Self { sender, pooled: false, _driver: AbortOnDrop(driver) }
    }
}

/// Idle connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pool {
    // Touched by one worker's thread alone, so the lock is never waited for.
    idle: Mutex<VecDeque<(Instant, Connection)>>,
}

impl Pool {
    /// The connection that was used last, of those that live and are ready.
    ///
    /// One that is not ready still has something of its last request to write: it is left alone,
    /// since nobody knows how long its server takes to read that.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = self.locked();
        let mut place = idle.len();
        while let Some(last) = place.checked_sub(1) {
            place = last;
            let sender = &idle[place].1.sender;
            if sender.is_closed() {
                idle.remove(place);
            } else if sender.is_ready() {
                let (_, mut connection) = idle.remove(place)?;
                connection.pooled = true;
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, connection: Connection) {
        let now = Instant::now();
        let mut idle = self.locked();
        if idle.len() >= MOST_IDLE {
            idle.pop_front();
        }
        idle.push_back((now, connection));
    }

    /// Closes what is closed already and what has been idle for too long.
    pub(super) fn prune(&self, now: Instant) {
        self.locked().retain(|(since, connection)| {
            !connection.sender.is_closed() && now.duration_since(*since) < LONGEST_IDLE
        });
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, VecDeque<(Instant, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection on which a response's body is coming. Dropped, it closes the connection, which
/// tells the server that nobody listens any more.
#[derive(Debug)]
pub struct Lease {
    pub(super) connection: Connection,
    pub(super) pool: Arc<Pool>,
    pub(super) body_end: BodyEnd,
    pub(super) _in_flight: InFlight,
}

impl Lease {
    /// The response's body has ended: the connection is free for the next request, unless the
    /// request's body is still on its way.
    pub fn release(self) {
        if self.body_end.is_reached() && !self.connection.sender.is_closed() {
            self.pool.put(self.connection);
        }
    }
}
