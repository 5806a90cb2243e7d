//! The servers that hold buckets, and which of them has which `slot`, for all workers of a process.
//!
//! Without a cluster one server has the one slot that there is. In a cluster `topology` asks for the slots'
//! owners and writes them here. Between two such answers a server's redirection corrects a single slot.
//! `redis::router` asks here for the server of a key, and `order` asks whether that server decides. `health`
//! has the state of each server, and `counts` its calls for metrics. `connect` finds a server and logs in.

mod connect;
mod counts;
mod health;
mod slot;
mod topology;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

pub(super) use self::connect::{OpenConnection, RedisConnector};
pub(super) use self::health::{RedisHealth, jitter};
pub(super) use self::slot::{HashSlot, read_address};
use self::slot::{SLOTS, SlotRange};
pub(super) use self::topology::{keep_map, server_of};
use crate::observe::metrics::Histogram;
use crate::observe::seldom::Seldom;
use crate::plan::{Endpoint, RedisLocation, RedisTopology};

/// The time between two log lines about slots that moved: a resharding moves slots for minutes.
const LINE_PAUSE: Duration = Duration::from_secs(10);

/// What all workers know about the servers.
pub(super) struct RedisNodes {
    pub(super) location: RedisLocation,
    /// What the connectors of all servers are made of.
    pub(super) connector: RedisConnector,
    /// The one server's health. In a cluster: whether its slots have servers.
    pub(super) health: Arc<RedisHealth>,
    map: watch::Sender<SlotMap>,
    pub(super) is_cluster: bool,
    /// Whether the map is known to be out of date.
    is_stale: AtomicBool,
    /// How many slots moved and were not logged yet, by the old and the new server.
    untold: Mutex<BTreeMap<(String, String), usize>>,
    lines: Seldom<()>,
}

/// One server.
pub(super) struct RedisNode {
    /// No other server ever gets the same number.
    pub(super) id: usize,
    pub(super) location: RedisLocation,
    pub(super) health: Arc<RedisHealth>,
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

/// Which server has which slot.
#[derive(Default)]
pub(super) struct SlotMap {
    /// The servers that have slots, and those that were named since all slots were read.
    nodes: Vec<Arc<RedisNode>>,
    /// How many servers there have been.
    count: usize,
    /// For each slot its server. Empty until it is known.
    owners: Vec<Option<Arc<RedisNode>>>,
    /// The servers could not be found, and the search goes on.
    is_missing: bool,
}

impl SlotMap {
    /// The server that has a slot. `None` where no server has it, or where that is not known yet.
    pub(super) fn owner(&self, slot: HashSlot) -> Option<&Arc<RedisNode>> {
        self.owners.get(usize::from(slot.0))?.as_ref()
    }

    /// Whether the owners of the slots are not known yet, and no attempt to find them has failed.
    pub(super) fn is_sought(&self) -> bool {
        self.owners.is_empty() && !self.is_missing
    }

    /// The servers that have slots.
    pub(super) fn owners(&self) -> Vec<Arc<RedisNode>> {
        let mut owners: Vec<Arc<RedisNode>> = Vec::new();
        for node in self.owners.iter().flatten() {
            // Neighbouring slots mostly have the same server, which is then the last one.
            if !owners.iter().rev().any(|owner| Arc::ptr_eq(owner, node)) {
                owners.push(Arc::clone(node));
            }
        }
        owners
    }
}

impl RedisNodes {
    /// The servers of this location. Each counts as up until calls fail.
    pub(super) fn new(location: &RedisLocation) -> Self {
        let health = Arc::new(RedisHealth::new(location.to_string()));
        let is_cluster = matches!(location.topology, RedisTopology::Cluster(_));
        let mut map = SlotMap::default();
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
            is_stale: AtomicBool::new(false),
            untold: Mutex::default(),
            lines: Seldom::new(LINE_PAUSE),
        }
    }

    pub(super) fn map(&self) -> watch::Ref<'_, SlotMap> {
        self.map.borrow()
    }

    pub(super) fn watch(&self) -> watch::Receiver<SlotMap> {
        self.map.subscribe()
    }

    /// Whether the server that has this slot decides.
    pub(super) fn is_up(&self, slot: HashSlot) -> bool {
        let map = self.map();
        match map.owner(slot) {
            Some(node) => node.health.is_up(),
            None => map.is_sought(),
        }
    }

    /// The health of the server that has this slot.
    pub(super) fn health_of(&self, slot: HashSlot) -> Arc<RedisHealth> {
        Arc::clone(self.map().owner(slot).map_or(&self.health, |node| &node.health))
    }

    /// Whether a server that has slots is away.
    pub(super) fn is_any_away(&self) -> bool {
        self.map().owners().iter().any(|node| !node.health.is_up())
    }

    /// Notes that a server has other slots than the map says.
    pub(super) fn has_changed(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Whether a server has said since the last question that the map is not right.
    pub(super) fn was_stale(&self) -> bool {
        self.is_stale.swap(false, Ordering::Relaxed)
    }

    /// The servers could not be found.
    pub(super) fn missing(&self) {
        self.map.send_modify(|map| map.is_missing = true);
    }

    /// A server says that another one has this slot.
    pub(super) fn moved(&self, slot: HashSlot, to: &Endpoint) {
        self.has_changed();
        self.map.send_if_modified(|map| {
            let to = self.node(map, to);
            let Some(owner) = map.owners.get_mut(usize::from(slot.0)) else { return false };
            let from = owner.replace(Arc::clone(&to));
            let is_new = from.as_ref().is_none_or(|from| from.id != to.id);
            if is_new {
                self.note_move(from.as_deref(), &to);
            }
            is_new
        });
    }

    /// A server that was named by another one, perhaps for the first time.
    pub(super) fn named(&self, endpoint: &Endpoint) -> Option<Arc<RedisNode>> {
        let mut found = None;
        self.map.send_if_modified(|map| {
            found = Some(self.node(map, endpoint));
            false
        });
        found
    }

    /// Writes what a server says about all slots. Returns how many slots have no server.
    pub(super) fn replace(&self, ranges: &[SlotRange]) -> usize {
        let mut owners: Vec<Option<Arc<RedisNode>>> = vec![None; usize::from(SLOTS)];
        for (first, last, endpoint) in ranges {
            let node = self.named(endpoint);
            for slot in *first..=*last {
                owners[usize::from(slot)] = node.clone();
            }
        }
        let uncovered = owners.iter().filter(|owner| owner.is_none()).count();
        let (mut is_failover, mut gone) = (false, Vec::new());
        self.map.send_modify(|map| {
            let before = map.owners();
            // The old map is dropped only after this lock is released, because requests wait for the lock.
            mem::swap(&mut map.owners, &mut owners);
            for (was, node) in owners.iter().zip(&map.owners) {
                if let (Some(was), Some(node)) = (was, node)
                    && was.id != node.id
                {
                    self.note_move(Some(was), node);
                }
            }
            let now = map.owners();
            let is_gone = |node: &&Arc<RedisNode>| now.iter().all(|other| other.id != node.id);
            is_failover = before.iter().any(|node| is_gone(&node));
            gone = map.nodes.iter().filter(is_gone).cloned().collect();
        });
        // Other servers have what these servers had: their outage ends.
        gone.iter().for_each(|node| node.health.replaced());
        self.forget_others();
        self.tell_moves(is_failover);
        uncovered
    }

    /// Forgets servers that have no slots. Their counts of requests without Redis go to the cluster.
    fn forget_others(&self) {
        self.map.send_if_modified(|map| {
            let owners = map.owners();
            map.nodes.retain(|node| {
                let stays = owners.iter().any(|owner| Arc::ptr_eq(owner, node));
                if !stays {
                    self.health.inherit(&node.health);
                }
                stays
            });
            false
        });
    }

    fn node(&self, map: &mut SlotMap, endpoint: &Endpoint) -> Arc<RedisNode> {
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

    fn note_move(&self, from: Option<&RedisNode>, to: &RedisNode) {
        let from = from.map_or("no server", |node| node.health.server()).to_owned();
        *self.untold.lock().entry((from, to.health.server().to_owned())).or_default() += 1;
    }

    /// Logs the slots that moved since the last such line. During a resharding a line comes from time to time.
    fn tell_moves(&self, is_failover: bool) {
        let mut moved = self.untold.lock();
        if moved.is_empty() || !self.lines.is_due(()) && !is_failover {
            return;
        }
        let mut moves = String::new();
        for ((from, to), slots) in mem::take(&mut *moved) {
            let comma = if moves.is_empty() { "" } else { ", " };
            // Writing into a string never fails.
            let _ = write!(moves, "{comma}{slots} from {from} to {to}");
        }
        drop(moved);
        tracing::info!(server = %self.location, slots = moves, "store slots moved");
    }

    /// Logs requests that were decided without Redis outside an outage.
    pub(super) fn tell_missed(&self) {
        self.all().iter().for_each(|health| health.tell_missed());
    }

    /// Whether all servers answer.
    pub(super) fn are_up(&self) -> bool {
        self.health.is_up() && !self.is_any_away()
    }

    /// The requests of all servers on which `on_store_error` decided, and those that it refused.
    pub(super) fn without(&self) -> (u64, u64) {
        let each = self.all().into_iter().map(|health| health.without());
        each.fold((0, 0), |sum, (decided, refused)| (sum.0 + decided, sum.1 + refused))
    }

    /// How long all servers have been up, or one of them has been away.
    pub(super) fn phase_age(&self) -> Duration {
        let (all, is_up) = (self.all(), self.are_up());
        let of = |up| all.iter().filter(move |it| it.is_up() == up).map(|it| it.phase_age());
        let age = if is_up { of(true).min() } else { of(false).max() };
        age.unwrap_or_default()
    }

    /// The servers of a cluster that have slots. Empty without a cluster.
    pub(super) fn cluster_servers(&self) -> Vec<ClusterServer> {
        let owners = if self.is_cluster { self.map().owners() } else { Vec::new() };
        let server = |health: &RedisHealth| ClusterServer {
            name: health.server().to_owned(),
            is_up: health.is_up(),
            phase_age: health.phase_age(),
            seconds: health.counts.seconds.total(),
            errors: health.counts.errors(),
        };
        let of_owners = owners.iter().map(|node| server(&node.health));
        // If some slots have no server, the list has one more entry: the whole cluster, as a server that is away.
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
    use crate::plan::RedisUrl;

    fn at(port: u16) -> Endpoint {
        Endpoint::Tcp { host: "10.0.0.1".into(), port }
    }

    #[test]
    fn servers_that_left_are_forgotten_and_what_was_counted_stays() {
        let url: RedisUrl = "redis-cluster://10.0.0.1:1".parse().unwrap();
        let nodes = RedisNodes::new(&url.location);
        let half = SLOTS / 2;
        for port in 1..10 {
            nodes.replace(&[(0, half - 1, at(port)), (half, SLOTS - 1, at(100))]);
            nodes.health_of(HashSlot(0)).decided_without();
            nodes.health_of(HashSlot(half)).refused_without();
            nodes.named(&at(200));
            assert_eq!(nodes.without(), (u64::from(port), u64::from(port)));
        }
        nodes.replace(&[(0, SLOTS - 1, at(100))]);
        assert_eq!(nodes.without(), (9, 9));
        assert_eq!(nodes.all().len(), 2, "one server, and the cluster as a whole");
        assert_eq!(nodes.map().owner(HashSlot(0)).unwrap().id, nodes.map().owners()[0].id);
    }
}
