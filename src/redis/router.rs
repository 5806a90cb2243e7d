//! One worker's way to the server that has a key's slot: its connections, and what happens where a server
//! says that another one has the slot.
//!
//! `queue`, `redisson`, `overrides` and `processes` send their calls here. The redirections
//! follow the Redis cluster specification, section "MOVED Redirection" and the sections after it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::connection::{RedisConnection, RedisServer};
use crate::plan::RedisTopology;
use crate::store::nodes::{HashSlot, RedisNode, RedisNodes, read_address};
use crate::store::{ProcessStore, StoreError};

/// The most redirections of one call. Servers that disagree about a slot send a call to and fro.
const MOST_REDIRECTIONS: usize = 5;

/// The pause before a call follows one more redirection than usual.
const DISAGREEMENT: Duration = Duration::from_millis(5);

/// Who waits for a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// Requests, or an operator.
    Awaited,
    /// Nobody.
    Tried,
}

/// One worker's connections.
pub(super) struct Router {
    pub(super) nodes: Arc<RedisNodes>,
    prefix: String,
    shared: Arc<ProcessStore>,
    /// By [`RedisNode::id`].
    connections: Mutex<HashMap<usize, Arc<RedisConnection>>>,
    /// The number of connections that were made so far.
    made: Arc<watch::Sender<u64>>,
}

impl Router {
    /// Begins to connect. Must be called within the worker's runtime.
    pub(super) fn new(
        nodes: Arc<RedisNodes>,
        prefix: &str,
        shared: Arc<ProcessStore>,
    ) -> Arc<Self> {
        let (connections, made) = (Mutex::default(), Arc::new(watch::Sender::new(0)));
        let router = Arc::new(Self { nodes, prefix: prefix.to_owned(), shared, connections, made });
        router.connect();
        router
    }

    /// Connects to the servers that have slots, and drops the connections to all others.
    fn connect(&self) {
        let owners = self.nodes.map().owners();
        for node in &owners {
            self.connection(node);
        }
        let owners: HashSet<_> = owners.iter().map(|node| node.id).collect();
        self.connections.lock().retain(|id, _| owners.contains(id));
    }

    /// Connects to the servers of a cluster as they come and go.
    pub(super) fn keep_connected(self: &Arc<Self>) -> Option<AbortOnDropHandle<()>> {
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

    pub(super) fn slot(&self, key: &[u8]) -> HashSlot {
        if self.nodes.is_cluster { HashSlot::of(key) } else { HashSlot::default() }
    }

    /// Waits until each server that has slots counts as away.
    pub(super) async fn gone(&self) {
        let mut map = self.nodes.watch();
        // An error means that the servers will never be known.
        let owners = map.wait_for(|map| !map.is_sought()).await.map(|map| map.owners());
        for node in owners.unwrap_or_default() {
            node.health.gone().await;
        }
    }

    /// The number of the connection to the server that has this slot. `None` where that server is away.
    pub(super) fn connection_number(&self, slot: HashSlot) -> Option<u64> {
        let map = self.nodes.map();
        let Some(node) = map.owner(slot) else { return map.is_sought().then_some(0) };
        let connections = self.connections.lock();
        let number = || connections.get(&node.id).map_or(0, |connection| connection.number());
        node.health.is_up().then(number)
    }

    /// Tells of each connection that is made from now on.
    pub(super) fn connects(&self) -> watch::Receiver<u64> {
        self.made.subscribe()
    }

    /// Sends one call to the server that has this slot and reads its answer by the deadline, which also bounds
    /// the wait for a connection. An answer that `read` does not understand is a failure.
    pub(super) async fn call<T>(
        &self,
        slot: HashSlot,
        call: &Cmd,
        read: impl FnMut(Value) -> Option<T>,
        deadline: Instant,
    ) -> Result<T, StoreError> {
        self.send(CallKind::Awaited, slot, call, read, deadline).await
    }

    /// Like [`Router::call`], for a call that no request waits for: its failure says nothing about whether
    /// Redis can decide.
    pub(super) async fn try_call<T>(
        &self,
        slot: HashSlot,
        call: &Cmd,
        read: impl FnMut(Value) -> Option<T>,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.shared.timeout();
        self.send(CallKind::Tried, slot, call, read, deadline).await
    }

    async fn send<T>(
        &self,
        kind: CallKind,
        slot: HashSlot,
        call: &Cmd,
        mut read: impl FnMut(Value) -> Option<T>,
        deadline: Instant,
    ) -> Result<T, StoreError> {
        let mut node = self.owner(slot, deadline).await?;
        let mut asking = false;
        for redirection in 1.. {
            let connection = self.connection(&node);
            let result = match kind {
                CallKind::Awaited => connection.call(call, asking, &mut read, deadline).await,
                CallKind::Tried => connection.try_call(call, asking, &mut read, deadline).await,
            };
            let Err(StoreError::Redis(error)) = &result else { return result };
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
                    node.health.counts.failed(&StoreError::Redis(error.clone()));
                }
                return result;
            }
            asking = !moved;
            // A slot that has moved is noted, one that is about to move is not.
            if moved {
                self.nodes.moved(slot, &named);
            }
            node = self.nodes.named(&named).ok_or(StoreError::NotConnected)?;
        }
        Err(StoreError::NotConnected)
    }

    /// Counts an error of a key in this slot.
    pub(super) fn count_error(&self, slot: HashSlot, error: &StoreError) {
        self.nodes.health_of(slot).counts.failed(error);
    }

    /// Waits until the servers are known.
    async fn owner(&self, slot: HashSlot, deadline: Instant) -> Result<Arc<RedisNode>, StoreError> {
        if let Some(node) = self.nodes.map().owner(slot) {
            return Ok(Arc::clone(node));
        }
        let mut map = self.nodes.watch();
        let known = timeout_at(deadline, map.wait_for(|map| !map.is_sought())).await;
        let map = known.map_err(|_| StoreError::TimedOut)?.map_err(|_| StoreError::NotConnected)?;
        map.owner(slot).cloned().ok_or(StoreError::NotConnected)
    }

    fn connection(&self, node: &Arc<RedisNode>) -> Arc<RedisConnection> {
        let mut connections = self.connections.lock();
        Arc::clone(connections.entry(node.id).or_insert_with(|| self.begin(node)))
    }

    fn begin(&self, node: &Arc<RedisNode>) -> Arc<RedisConnection> {
        Arc::new(RedisConnection::keep(RedisServer {
            connector: self.nodes.connector.to(&node.location),
            node: Arc::clone(node),
            nodes: Arc::clone(&self.nodes),
            prefix: self.prefix.clone(),
            shared: Arc::clone(&self.shared),
            made: Arc::clone(&self.made),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{KeyDisplay, RedisUrl, StoreLocation, StoreSpec};
    use crate::store::Store;

    /// A regression: only calls were counted, and nothing is called before there is a connection.
    #[tokio::test(start_paused = true)]
    async fn attempts_to_connect_that_fail_are_counted_by_their_reason() {
        let location = "redis://127.0.0.1:1".parse::<RedisUrl>().unwrap().location;
        let location = StoreLocation::Redis(Box::new(location));
        let spec = StoreSpec { location, ..StoreSpec::default() };
        let shared = ProcessStore::new(&spec);
        let _store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        while shared.counters().redis_up == Some(true) {
            sleep(Duration::from_millis(10)).await;
        }
        let errors = shared.errors();
        assert!(matches!(errors[..], [("connection", 3..)]), "{errors:?}");
    }

    /// A regression: an operator's question about a bucket waited for a connection for two seconds.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_connection_to_a_redis_that_is_known_to_be_away() {
        // Nothing listens there.
        let location = "redis://127.0.0.1:1".parse::<RedisUrl>().unwrap().location;
        let location = StoreLocation::Redis(Box::new(location));
        let timeout = Duration::from_millis(50);
        let spec = StoreSpec { location, timeout, max_keys: 10, ..StoreSpec::default() };
        let shared = ProcessStore::new(&spec);
        let store = Store::new(Arc::clone(&shared), &spec, KeyDisplay::Plain);
        while shared.counters().redis_up == Some(true) {
            sleep(Duration::from_millis(10)).await;
        }
        let began = Instant::now();
        store.connected(Duration::from_secs(86_400)).await;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
