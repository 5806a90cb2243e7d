//! One worker's connections to one server.
//!
//! HTTP/1.1 connections are kept while they are idle. The next request gets the connection that was used
//! last. Connections that are not needed then stay idle and are closed. HTTP/2 connections are shared by
//! many requests. A connection that was made for a special need serves only requests with this need.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Connection, ExclusiveConnection, SharedConnection};
use super::purpose::Purpose;

/// The most idle connections to one server that a worker keeps.
const MOST_IDLE: usize = 256;
/// After this time an idle connection is closed, whatever its protocol.
const LONGEST_IDLE: Duration = Duration::from_secs(60);
/// After this time a connection is used for no more requests: the server's name may have other addresses
/// now.
const LONGEST_LIFE: Duration = Duration::from_secs(300);

/// Connections that can take a request.
#[derive(Debug)]
pub(super) struct Pool {
    kept: RefCell<PooledConnections>,
    /// Held while a connection to an HTTP/2 server is made. Other requests wait and then share the
    /// connection.
    pub(super) connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct PooledConnections {
    /// Oldest first, each with the time of the last [`Pool::prune`] before it came. That is exact enough
    /// and needs no look at the clock.
    idle: VecDeque<(Instant, Box<ExclusiveConnection>)>,
    swept: Instant,
    /// The time of the [`Pool::prune`] before the last.
    before: Instant,
    shared: Vec<PooledShared>,
    has_shared: bool,
}

/// A connection of HTTP/2. The times are those of the last [`Pool::prune`] before.
#[derive(Debug)]
struct PooledShared {
    connection: SharedConnection,
    /// When it was made.
    born: Instant,
    /// When it last carried a request.
    used: Instant,
    /// When something last came from the server, and how often something had come by then.
    heard: (Instant, usize),
}

impl PooledShared {
    /// Whether something has come from the server since then.
    fn is_heard_since(&self, time: Instant) -> bool {
        self.heard.0 >= time || self.connection.reads() != self.heard.1
    }
}

impl Default for Pool {
    fn default() -> Self {
        let now = Instant::now();
        let kept = PooledConnections {
            idle: VecDeque::new(),
            swept: now,
            before: now,
            shared: Vec::new(),
            has_shared: false,
        };
        Self { kept: RefCell::new(kept), connecting: tokio::sync::Mutex::default() }
    }
}

impl Pool {
    /// Takes a shared connection that has room. If there is none, takes the idle connection that was used
    /// last, of those that are open and ready. If it must be `lively`, something has come on it in the last two
    /// intervals between calls of [`Pool::prune`]. A firewall may have forgotten any other, and nothing shows it.
    pub(super) fn take(&self, wanted: Purpose, lively: bool) -> Option<Connection> {
        let mut kept = self.kept.borrow_mut();
        let (swept, before) = (kept.swept, kept.before);
        if !kept.shared.is_empty() && wanted == Purpose::Any {
            kept.shared.retain(|shared| !shared.connection.is_closed());
            let found = kept.shared.iter_mut().find(|shared| {
                shared.connection.has_room() && (!lively || shared.is_heard_since(before))
            });
            if let Some(shared) = found {
                shared.used = swept;
                return Some(Connection::Http2(shared.connection.again()));
            }
        }
        let mut index = kept.idle.len();
        while let Some(last) = index.checked_sub(1) {
            index = last;
            let (since, connection) = &kept.idle[index];
            let fits = connection.is_ready()
                && connection.made_for.serves(wanted)
                && (!lively || *since >= before);
            if connection.is_unusable() {
                kept.idle.remove(index);
            } else if fits && let Some((_, connection)) = kept.idle.remove(index) {
                return Some(Connection::Http1(connection));
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(super) fn put(&self, mut connection: Box<ExclusiveConnection>) {
        let mut kept = self.kept.borrow_mut();
        let since = kept.swept;
        let born = *connection.pooled.get_or_insert(since);
        if since.duration_since(born) >= LONGEST_LIFE {
            return;
        }
        if kept.idle.len() >= MOST_IDLE {
            kept.idle.pop_front();
        }
        kept.idle.push_back((since, connection));
    }

    /// Lets other requests use a connection too.
    pub(super) fn share(&self, connection: SharedConnection) {
        let mut kept = self.kept.borrow_mut();
        kept.has_shared = true;
        let since = kept.swept;
        let (born, used, heard) = (since, since, (since, connection.reads()));
        kept.shared.push(PooledShared { connection, born, used, heard });
    }

    /// Whether ordinary requests have ever shared a connection.
    pub(super) fn has_shared(&self) -> bool {
        self.kept.borrow().has_shared
    }

    /// Drops connections that their server has closed, and those that were idle for too long or are too
    /// old.
    pub(super) fn prune(&self, now: Instant) {
        let mut kept = self.kept.borrow_mut();
        kept.before = mem::replace(&mut kept.swept, now);
        kept.idle.retain(|(since, connection)| {
            now.duration_since(*since) < LONGEST_IDLE && !connection.is_unusable()
        });
        kept.shared.retain_mut(|shared| {
            if !shared.connection.is_idle() {
                shared.used = now;
            }
            let reads = shared.connection.reads();
            if reads != shared.heard.1 {
                shared.heard = (now, reads);
            }
            now.duration_since(shared.born) < LONGEST_LIFE
                && now.duration_since(shared.used) < LONGEST_IDLE
                && !shared.connection.is_closed()
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;
    use tokio_util::either::Either::{Left, Right};

    use super::*;
    use crate::upstream::connect;
    use crate::upstream::stream::ServerTransport;

    /// How often the pool is looked through.
    const SWEEP: Duration = Duration::from_secs(5);

    /// A server's settings (RFC 9113, 6.5), without any value.
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    fn transport() -> (ServerTransport, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Left(Right(ours)), theirs)
    }

    /// A connection that waits for its first request, and its server's end.
    async fn http1() -> (Box<ExclusiveConnection>, UnixStream) {
        let (transport, server) = transport();
        let Connection::Http1(connection) = connect::http1(transport).await.unwrap() else {
            panic!("another protocol");
        };
        tokio::task::yield_now().await;
        (connection, server)
    }

    /// Lets time pass, with a sweep now and then.
    async fn pass(pool: &Pool, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            tokio::time::advance(SWEEP).await;
            pool.prune(Instant::now());
        }
    }

    /// A connection of HTTP/2 whose server has sent its settings, and its server's end.
    async fn http2() -> (SharedConnection, UnixStream) {
        let (transport, mut server) = transport();
        server.write_all(&SETTINGS).await.unwrap();
        let Connection::Http2(connection) = connect::http2(transport).await.unwrap() else {
            panic!("another protocol");
        };
        (connection, server)
    }

    /// Takes a connection, and gives it back after it was used.
    fn is_used(pool: &Pool) -> bool {
        is_taken(pool, false)
    }

    fn is_taken(pool: &Pool, lively: bool) -> bool {
        match pool.take(Purpose::Any, lively) {
            Some(Connection::Http1(connection)) => {
                pool.put(connection);
                true
            }
            Some(Connection::Http2(_)) => true,
            None => false,
        }
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_connection_that_is_busy_all_the_time_is_not_used_for_ever() {
        let pool = Pool::default();
        let (connection, _server) = http1().await;
        pool.put(connection);
        let began = Instant::now();
        while is_used(&pool) {
            assert!(began.elapsed() <= LONGEST_LIFE + SWEEP, "still used");
            pass(&pool, SWEEP).await;
        }
        assert!(began.elapsed() >= LONGEST_LIFE, "{:?}", began.elapsed());
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_shared_connection_is_not_used_for_ever() {
        let pool = Pool::default();
        let (connection, _server) = http2().await;
        pool.share(connection.clone());
        pass(&pool, LONGEST_LIFE - SWEEP).await;
        assert!(is_used(&pool));
        pass(&pool, SWEEP).await;
        assert!(!is_used(&pool));
        assert!(!connection.is_closed(), "a request that is under way is finished");
    }

    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_connection_that_nobody_needs_is_closed() {
        let pool = Pool::default();
        let (connection, _server) = http1().await;
        pool.put(connection);
        pass(&pool, LONGEST_IDLE - SWEEP).await;
        assert_eq!(pool.kept.borrow().idle.len(), 1);
        pass(&pool, SWEEP).await;
        assert_eq!(pool.kept.borrow().idle.len(), 0);
    }

    /// A regression: an idle connection of HTTP/2 was kept for five minutes. A firewall had forgotten it by then.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_shared_connection_that_nobody_needs_is_closed_as_soon() {
        let pool = Pool::default();
        let (connection, mut server) = http2().await;
        pool.share(connection.clone());
        // A request is under way.
        pass(&pool, LONGEST_IDLE * 2).await;
        assert_eq!(pool.kept.borrow().shared.len(), 1);
        drop(connection);
        for _ in 0..LONGEST_IDLE.as_secs() / SWEEP.as_secs() - 1 {
            // What the server says by itself is no use of the connection.
            server.write_all(&SETTINGS).await.unwrap();
            pass(&pool, SWEEP).await;
        }
        assert_eq!(pool.kept.borrow().shared.len(), 1);
        pass(&pool, SWEEP).await;
        assert_eq!(pool.kept.borrow().shared.len(), 0);
    }

    /// A regression: a request that could not be sent again was lost on a connection that had died unnoticed.
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_connection_that_was_quiet_for_seconds_is_not_lively() {
        let pool = Pool::default();
        let (connection, _server) = http1().await;
        pool.put(connection);
        pass(&pool, SWEEP).await;
        assert!(is_taken(&pool, true), "it was used since the last but one sweep");
        pass(&pool, SWEEP * 2).await;
        assert!(!is_taken(&pool, true));
        assert!(is_taken(&pool, false), "a request that can be sent again may take it");
        assert!(is_taken(&pool, true), "now it was used again");

        let pool = Pool::default();
        let (connection, mut server) = http2().await;
        pool.share(connection);
        pass(&pool, SWEEP).await;
        assert!(is_taken(&pool, true));
        pass(&pool, SWEEP * 2).await;
        assert!(is_taken(&pool, false), "which is no sign of life");
        assert!(!is_taken(&pool, true));
        server.write_all(&SETTINGS).await.unwrap();
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(is_taken(&pool, true), "something has come");
    }
}
