//! Sends a worker's calls to the server that has the key's hash slot. If that server names another server, the call
//! goes to the other server.
//!
//! All calls of a worker go through here. The redirections follow the Redis cluster specification, section "MOVED
//! Redirection" and the sections after it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{CallKind, RedisConnection, RedisServer};
use super::error::CallError;
use super::hash_slot::{HashSlot, read_address};
use super::nodes::{RedisNode, RedisNodes};
use super::program::Program;
use crate::settings::RedisTopology;

/// The most redirections of one call. If two servers disagree about a hash slot, each sends the call to the other.
const MOST_REDIRECTIONS: usize = 5;

/// The pause before a call follows a second redirection, or a later one: servers may disagree.
const DISAGREEMENT: Duration = Duration::from_millis(5);

/// One worker's connections.
pub(crate) struct Router {
    pub(crate) nodes: Arc<RedisNodes>,
    program: Arc<Program>,
    /// By [`RedisNode::id`].
    connections: Mutex<HashMap<usize, Arc<RedisConnection>>>,
    /// The number of connections that were made so far.
    made: Arc<watch::Sender<u64>>,
}

impl Router {
    /// Begins to connect. Must be called within the worker's runtime.
    pub(crate) fn new(nodes: Arc<RedisNodes>, program: Program) -> Arc<Self> {
        let (connections, made) = (Mutex::default(), Arc::new(watch::Sender::new(0)));
        let router = Arc::new(Self { nodes, program: Arc::new(program), connections, made });
        router.connect();
        router
    }

    /// Connects to the servers that have hash slots, and drops the connections to all others.
    fn connect(&self) {
        let owners = self.nodes.map().owners();
        for node in &owners {
            self.connection(node);
        }
        let owners: HashSet<_> = owners.iter().map(|node| node.id).collect();
        self.connections.lock().retain(|id, _| owners.contains(id));
    }

    /// Connects to the servers of a cluster as they come and go.
    pub(crate) fn keep_connected(self: &Arc<Self>) -> Option<AbortOnDropHandle<()>> {
        let router = Arc::downgrade(self);
        let mut map = self.nodes.watch();
        let keeping = async move {
            while map.changed().await.is_ok() {
                let Some(router) = router.upgrade() else { return };
                router.connect();
            }
        };
        self.nodes.is_cluster.then(|| AbortOnDropHandle::new(tokio::spawn(keeping)))
    }

    pub(crate) fn hash_slot(&self, key: &[u8]) -> HashSlot {
        if self.nodes.is_cluster { HashSlot::of(key) } else { HashSlot::default() }
    }

    /// Waits until each server that has hash slots counts as away.
    async fn gone(&self) {
        let mut map = self.nodes.watch();
        // An error means that the servers will never be known.
        let owners = map.wait_for(|map| !map.is_sought()).await.map(|map| map.owners());
        for node in owners.unwrap_or_default() {
            node.health.gone().await;
        }
    }

    /// Waits until there is a connection, or until it is known that the servers are away.
    pub(crate) async fn connected(&self) {
        let mut made = self.connects();
        tokio::select! {
            // An error means that no connection will be made any more.
            _ = made.wait_for(|made| *made > 0) => {}
            () = self.gone() => {}
        }
    }

    /// The number of the connection to the server that has this hash slot. `None` if that server is away.
    pub(crate) fn connection_number(&self, slot: HashSlot) -> Option<u64> {
        let map = self.nodes.map();
        let Some(node) = map.owner(slot) else { return map.is_sought().then_some(0) };
        let connections = self.connections.lock();
        let number = || connections.get(&node.id).map_or(0, |connection| connection.number());
        node.health.is_up().then(number)
    }

    /// Notified of each connection that is made from now on.
    pub(crate) fn connects(&self) -> watch::Receiver<u64> {
        self.made.subscribe()
    }

    /// The time by which a call that begins now must be answered.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.nodes.timeout()
    }

    /// Sends one call to the server that has this hash slot and reads its answer by the deadline, which also bounds
    /// the wait for a connection. An answer that `read` does not understand is a failure.
    pub(crate) async fn call<T>(
        &self,
        kind: CallKind,
        slot: HashSlot,
        call: &Cmd,
        mut read: impl FnMut(Value) -> Option<T>,
        deadline: Instant,
    ) -> Result<T, CallError> {
        let mut node = self.owner(slot, deadline).await?;
        let mut asking = false;
        for redirection in 1.. {
            let connection = self.connection(&node);
            let result = connection.call(kind, call, asking, &mut read, deadline).await;
            let Err(CallError::Redis(error)) = &result else { return result };
            let moved = match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => true,
                ErrorKind::Server(ServerErrorKind::Ask) => false,
                _ => return result,
            };
            let RedisTopology::Server(here) = &node.location.topology else { return result };
            let named = error.redirect_node().and_then(|(text, _)| read_address(text, here));
            let Some(named) = named.filter(|_| self.nodes.is_cluster) else { return result };
            if redirection > 1 {
                sleep(DISAGREEMENT).await;
            }
            if redirection > MOST_REDIRECTIONS || Instant::now() >= deadline {
                if kind == CallKind::Awaited {
                    node.health.counts.failed(&CallError::Redis(error.clone()));
                }
                return result;
            }
            asking = !moved;
            // The map is changed if the hash slot has moved, and not while it moves.
            if moved {
                self.nodes.moved(slot, &named);
            }
            node = self.nodes.named(&named).ok_or(CallError::NotConnected)?;
        }
        Err(CallError::NotConnected)
    }

    /// Counts an error of a key in this hash slot.
    pub(crate) fn count_error(&self, slot: HashSlot, error: &CallError) {
        self.nodes.health_of(slot).counts.failed(error);
    }

    /// Waits until the servers are known.
    async fn owner(&self, slot: HashSlot, deadline: Instant) -> Result<Arc<RedisNode>, CallError> {
        if let Some(node) = self.nodes.map().owner(slot) {
            return Ok(Arc::clone(node));
        }
        let mut map = self.nodes.watch();
        let known = timeout_at(deadline, map.wait_for(|map| !map.is_sought())).await;
        let map = known.map_err(|_| CallError::TimedOut)?.map_err(|_| CallError::NotConnected)?;
        map.owner(slot).cloned().ok_or(CallError::NotConnected)
    }

    fn connection(&self, node: &Arc<RedisNode>) -> Arc<RedisConnection> {
        let server = || RedisServer {
            connector: self.nodes.connector.to(&node.location),
            node: Arc::clone(node),
            nodes: Arc::clone(&self.nodes),
            program: Arc::clone(&self.program),
            made: Arc::clone(&self.made),
            number: AtomicU64::new(0),
        };
        let begin = || Arc::new(RedisConnection::begin(server()));
        Arc::clone(self.connections.lock().entry(node.id).or_insert_with(begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RedisUrl;

    /// A router to where nothing listens.
    fn away() -> Arc<Router> {
        let location = "redis://127.0.0.1:1".parse::<RedisUrl>().unwrap().location;
        let nodes = Arc::new(RedisNodes::new(&location));
        nodes.set_timeout(Duration::from_millis(50));
        let (probe_key, is_decision) = ("probe".into(), |_: &Value| true);
        Router::new(nodes, Program { scripts: Vec::new(), probe_key, probe: |_| None, is_decision })
    }

    /// A regression: only calls were counted, and nothing is called before there is a connection.
    #[tokio::test(start_paused = true)]
    async fn attempts_to_connect_that_fail_are_counted_by_their_reason() {
        let router = away();
        router.gone().await;
        let errors = router.nodes.health.counts.errors();
        assert!(matches!(errors[..], [("connection", 3..)]), "{errors:?}");
    }

    /// A regression: an operator's question about a bucket waited for a connection for two seconds.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_connection_to_a_redis_that_is_known_to_be_away() {
        let router = away();
        router.gone().await;
        let began = Instant::now();
        router.connected().await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
