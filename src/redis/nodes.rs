//! The servers, and which of them has which hash slot, for all workers of a process.
//!
//! Without a cluster one server has the one hash slot that there is. In a cluster `topology` asks for the hash slots'
//! owners and writes them here. Between two such answers a server's redirection corrects a single hash slot. `router`
//! asks here for the server of a key. `health` has the state of each server.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::connect::RedisConnector;
use super::hash_slot::{HASH_SLOTS, HashSlot, HashSlotRange};
use super::health::RedisHealth;
use crate::observe::metrics::Histogram;
use crate::settings::{Endpoint, RedisLocation, RedisTopology};

/// What all workers know about the servers.
pub(crate) struct RedisNodes {
    pub(crate) location: RedisLocation,
    /// The connectors of all servers are made from this one.
    pub(crate) connector: RedisConnector,
    /// Without a cluster: the health of the one server. In a cluster: whether all hash slots have servers.
    pub(crate) health: Arc<RedisHealth>,
    map: watch::Sender<HashSlotMap>,
    pub(crate) is_cluster: bool,
    /// The most microseconds for one call.
    timeout: AtomicU64,
    /// Whether the map is known to be out of date.
    is_stale: AtomicBool,
    /// The requests that went on without Redis.
    pub(crate) decided_without: AtomicU64,
    /// The requests that were refused because Redis did not decide.
    pub(crate) refused_without: AtomicU64,
}

/// One server.
pub(crate) struct RedisNode {
    /// No other server ever gets the same number.
    pub(crate) id: usize,
    pub(crate) location: RedisLocation,
    pub(crate) health: Arc<RedisHealth>,
}

/// A server of a cluster, for metrics.
#[derive(Debug)]
pub struct ClusterServer {
    /// Its address.
    pub(crate) name: String,
    /// Whether it decides.
    pub is_up: bool,
    /// How long the server has been up, or away.
    pub(crate) phase_age: Duration,
    /// How long calls took.
    pub(crate) seconds: Histogram,
    /// Failed calls since the start, by the error's kind.
    pub(crate) errors: Vec<(&'static str, u64)>,
}

/// Which server has which hash slot.
#[derive(Default)]
pub(crate) struct HashSlotMap {
    /// The servers that have hash slots, and the servers that redirections have named since the hash slots were read.
    nodes: Vec<Arc<RedisNode>>,
    /// How many servers there have been: the next server's number.
    count: usize,
    /// For each hash slot its server. Empty until it is known.
    owners: Vec<Option<Arc<RedisNode>>>,
    /// The servers could not be found, and the search goes on.
    is_missing: bool,
}

impl HashSlotMap {
    /// The server that has a hash slot. `None` if no server has it, or if that is not known yet.
    pub(crate) fn owner(&self, slot: HashSlot) -> Option<&Arc<RedisNode>> {
        self.owners.get(usize::from(slot.0))?.as_ref()
    }

    /// Whether the owners of the hash slots are not known yet, and no attempt to find them has failed.
    pub(crate) fn is_sought(&self) -> bool {
        self.owners.is_empty() && !self.is_missing
    }

    /// The servers that have hash slots.
    pub(crate) fn owners(&self) -> Vec<Arc<RedisNode>> {
        let mut owners: Vec<Arc<RedisNode>> = Vec::new();
        for node in self.owners.iter().flatten() {
            // Neighbouring hash slots mostly have the same server. So the search begins with the last one.
            if !owners.iter().rev().any(|owner| Arc::ptr_eq(owner, node)) {
                owners.push(Arc::clone(node));
            }
        }
        owners
    }
}

impl RedisNodes {
    /// The servers of this location. Each counts as up until calls fail.
    pub(crate) fn new(location: &RedisLocation) -> Self {
        let health = Arc::new(RedisHealth::new(location.to_string()));
        let is_cluster = matches!(location.topology, RedisTopology::Cluster(_));
        let mut map = HashSlotMap::default();
        if !is_cluster {
            let (location, health) = (location.clone(), Arc::clone(&health));
            let node = Arc::new(RedisNode { id: 0, location, health });
            map.nodes.push(Arc::clone(&node));
            map.owners.push(Some(node));
        }
        Self {
            location: location.clone(),
            connector: RedisConnector::new(location),
            health,
            map: watch::Sender::new(map),
            is_cluster,
            timeout: AtomicU64::new(0),
            is_stale: AtomicBool::new(false),
            decided_without: AtomicU64::default(),
            refused_without: AtomicU64::default(),
        }
    }

    /// The most time for one call.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_micros(self.timeout.load(Ordering::Relaxed))
    }

    pub(crate) fn set_timeout(&self, timeout: Duration) {
        let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        self.timeout.store(micros, Ordering::Relaxed);
    }

    pub(crate) fn map(&self) -> watch::Ref<'_, HashSlotMap> {
        self.map.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<HashSlotMap> {
        self.map.subscribe()
    }

    /// Whether the server that has this hash slot decides.
    pub(crate) fn is_up(&self, slot: HashSlot) -> bool {
        let map = self.map();
        match map.owner(slot) {
            Some(node) => node.health.is_up(),
            None => map.is_sought(),
        }
    }

    /// The health of the server that has this hash slot.
    pub(crate) fn health_of(&self, slot: HashSlot) -> Arc<RedisHealth> {
        Arc::clone(self.map().owner(slot).map_or(&self.health, |node| &node.health))
    }

    /// Whether a server that has hash slots is away.
    pub(crate) fn is_any_away(&self) -> bool {
        self.map().owners().iter().any(|node| !node.health.is_up())
    }

    /// Notes that a server has other hash slots than the map says.
    pub(crate) fn has_changed(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Whether a server has said that the map is wrong, since the last call of this function.
    pub(crate) fn was_stale(&self) -> bool {
        self.is_stale.swap(false, Ordering::Relaxed)
    }

    /// The servers could not be found.
    pub(crate) fn missing(&self) {
        self.map.send_modify(|map| map.is_missing = true);
    }

    /// A server says that another one has this hash slot.
    pub(crate) fn moved(&self, slot: HashSlot, to: &Endpoint) {
        self.has_changed();
        self.map.send_if_modified(|map| {
            let to = self.node(map, to);
            let Some(owner) = map.owners.get_mut(usize::from(slot.0)) else { return false };
            let id = to.id;
            owner.replace(to).is_none_or(|from| from.id != id)
        });
    }

    /// The server at this address, which another server has named. It may be new.
    pub(crate) fn named(&self, endpoint: &Endpoint) -> Option<Arc<RedisNode>> {
        let mut found = None;
        self.map.send_if_modified(|map| {
            found = Some(self.node(map, endpoint));
            false
        });
        found
    }

    /// Writes what a server says about all hash slots. Returns how many hash slots have no server.
    pub(crate) fn replace(&self, ranges: &[HashSlotRange]) -> usize {
        let mut owners: Vec<Option<Arc<RedisNode>>> = vec![None; usize::from(HASH_SLOTS)];
        for (first, last, endpoint) in ranges {
            let node = self.named(endpoint);
            for slot in *first..=*last {
                owners[usize::from(slot)] = node.clone();
            }
        }
        let uncovered = owners.iter().filter(|owner| owner.is_none()).count();
        let mut gone: Vec<Arc<RedisNode>> = Vec::new();
        self.map.send_modify(|map| {
            // Requests wait for this lock. So the old map is dropped after the lock is released.
            mem::swap(&mut map.owners, &mut owners);
            let now = map.owners();
            let is_gone = |node: &mut Arc<RedisNode>| now.iter().all(|other| other.id != node.id);
            gone = map.nodes.extract_if(.., is_gone).collect();
        });
        // Other servers have taken over the hash slots of these servers. So the outage of these servers ends.
        gone.iter().for_each(|node| node.health.replaced());
        uncovered
    }

    fn node(&self, map: &mut HashSlotMap, endpoint: &Endpoint) -> Arc<RedisNode> {
        let is_it = |node: &&Arc<RedisNode>| {
            node.location.topology == RedisTopology::Server(endpoint.clone())
        };
        if let Some(node) = map.nodes.iter().find(is_it) {
            return Arc::clone(node);
        }
        let location = self.location.of_server(endpoint.clone());
        let health = Arc::new(RedisHealth::like(&self.health, endpoint.to_string()));
        let node = Arc::new(RedisNode { id: map.count, location, health });
        map.count += 1;
        map.nodes.push(Arc::clone(&node));
        node
    }

    /// Logs requests that were decided without Redis outside an outage.
    pub(crate) fn log_missed(&self) {
        self.all().iter().for_each(|health| health.log_missed());
    }

    /// Whether all servers answer.
    pub(crate) fn are_up(&self) -> bool {
        self.health.is_up() && !self.is_any_away()
    }

    /// Counts a request on which the server that has this hash slot did not decide: it went on, or it was refused.
    pub(crate) fn count_without(&self, slot: HashSlot, is_refused: bool) {
        let count = if is_refused { &self.refused_without } else { &self.decided_without };
        count.fetch_add(1, Ordering::Relaxed);
        self.health_of(slot).count_without(is_refused);
    }

    /// How long all servers have been up. If one is away: for how long.
    pub(crate) fn phase_age(&self) -> Duration {
        let (all, is_up) = (self.all(), self.are_up());
        let of = |up| all.iter().filter(move |it| it.is_up() == up).map(|it| it.phase_age());
        let age = if is_up { of(true).min() } else { of(false).max() };
        age.unwrap_or_default()
    }

    /// The servers of a cluster that have hash slots. Empty without a cluster.
    pub(crate) fn cluster_servers(&self) -> Vec<ClusterServer> {
        let owners = if self.is_cluster { self.map().owners() } else { Vec::new() };
        let server = |health: &RedisHealth| ClusterServer {
            name: health.server().to_owned(),
            is_up: health.is_up(),
            phase_age: health.phase_age(),
            seconds: health.counts.seconds.lock().clone(),
            errors: health.counts.errors(),
        };
        let of_owners = owners.iter().map(|node| server(&node.health));
        // If some hash slots have no server, the list has one more entry: the whole cluster, as a server that is away.
        let is_whole = !self.is_cluster || self.health.is_up();
        let whole = (!is_whole).then(|| server(&self.health));
        of_owners.chain(whole).collect()
    }

    fn all(&self) -> Vec<Arc<RedisHealth>> {
        let map = self.map();
        let of_nodes = map.nodes.iter().map(|node| Arc::clone(&node.health));
        match self.is_cluster {
            true => of_nodes.chain([Arc::clone(&self.health)]).collect(),
            false => of_nodes.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RedisUrl;

    fn at(port: u16) -> Endpoint {
        Endpoint::Tcp { host: "10.0.0.1".into(), port }
    }

    #[test]
    fn servers_that_left_are_forgotten_and_their_counts_stay() {
        let url: RedisUrl = "redis-cluster://10.0.0.1:1".parse().unwrap();
        let nodes = RedisNodes::new(&url.location);
        let half = HASH_SLOTS / 2;
        for port in 1..10 {
            nodes.replace(&[(0, half - 1, at(port)), (half, HASH_SLOTS - 1, at(100))]);
            nodes.count_without(HashSlot(0), false);
            nodes.count_without(HashSlot(half), true);
            nodes.named(&at(200));
        }
        nodes.replace(&[(0, HASH_SLOTS - 1, at(100))]);
        let counts = [&nodes.decided_without, &nodes.refused_without];
        assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [9, 9]);
        assert_eq!(nodes.all().len(), 2, "one server, and the cluster as a whole");
        assert_eq!(nodes.map().owner(HashSlot(0)).unwrap().id, nodes.map().owners()[0].id);
    }
}
