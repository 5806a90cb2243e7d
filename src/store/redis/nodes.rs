//! The servers that hold buckets, and which of them has which slot, for all workers of a process.
//!
//! Without a cluster one server has the one slot that there is. In a cluster `topology` asks for the slots'
//! owners and writes them here. Between two such answers a server's redirection corrects a single slot.
//! `router` asks here for the server of a key, and `outage` asks whether that server decides.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::health::{HealthSummary, RedisHealth};
use super::slot::{HashSlot, SLOTS, SlotRange};
use crate::observe::metrics::Histogram;
use crate::observe::seldom::Seldom;
use crate::plan::{Endpoint, LimitSpec, RedisLocation, RedisTopology};

/// The time between two log lines about slots that moved: a resharding moves slots for minutes.
const LINE_PAUSE: Duration = Duration::from_secs(10);

/// What all workers know about the servers.
pub(in crate::store) struct RedisNodes {
    location: RedisLocation,
    /// The one server's health. In a cluster: whether its slots have servers.
    health: Arc<RedisHealth>,
    map: watch::Sender<SlotMap>,
    is_cluster: bool,
    /// The map is not right any more.
    is_stale: AtomicBool,
    /// The slots that moved and were not logged, by the old and the new server.
    untold: Mutex<BTreeMap<(String, String), usize>>,
    lines: Seldom<()>,
}

/// One server.
pub(super) struct RedisNode {
    /// The place in [`SlotMap::nodes`], for as long as the process runs.
    pub(super) id: usize,
    pub(super) location: RedisLocation,
    pub(super) health: Arc<RedisHealth>,
}

/// A server of a cluster, for metrics.
#[derive(Debug)]
pub struct ClusterServer {
    /// Its address.
    pub name: String,
    /// Whether it decides.
    pub is_up: bool,
    /// How long calls took.
    pub(crate) seconds: Histogram,
    /// Failed calls since the start, by the error's kind.
    pub errors: Vec<(&'static str, u64)>,
}

/// Which server has which slot.
pub(super) struct SlotMap {
    /// Every server that ever had a slot.
    nodes: Vec<Arc<RedisNode>>,
    /// For each slot the place of its server. Empty until it is known.
    owner_ids: Vec<Option<usize>>,
    /// The servers could not be found, and the search goes on.
    is_missing: bool,
}

impl SlotMap {
    /// The server that has a slot. `None` where no server has it, or where that is not known yet.
    pub(super) fn owner(&self, slot: HashSlot) -> Option<&Arc<RedisNode>> {
        self.nodes.get((*self.owner_ids.get(usize::from(slot.0))?)?)
    }

    /// Whether the owners of the slots are not known yet, and no attempt to find them has failed.
    pub(super) fn is_sought(&self) -> bool {
        self.owner_ids.is_empty() && !self.is_missing
    }

    /// The slots that a server has.
    pub(super) fn slots_of(&self, node: &RedisNode) -> HashSet<HashSlot> {
        let owned = (0..).zip(&self.owner_ids).filter(|(_, owner)| **owner == Some(node.id));
        owned.map(|(slot, _)| HashSlot(slot)).collect()
    }

    /// The servers that have slots.
    pub(super) fn owners(&self) -> Vec<Arc<RedisNode>> {
        let mut has_slots = vec![false; self.nodes.len()];
        self.owner_ids.iter().flatten().for_each(|id| has_slots[*id] = true);
        let nodes = self.nodes.iter().zip(has_slots);
        nodes.filter(|(_, has_slots)| *has_slots).map(|(node, _)| Arc::clone(node)).collect()
    }
}

impl RedisNodes {
    /// The servers of this location. Each counts as up until calls fail.
    pub(in crate::store) fn new(location: &RedisLocation) -> Self {
        let health = Arc::new(RedisHealth::new(location.to_string()));
        let is_cluster = matches!(location.topology, RedisTopology::Cluster(_));
        let mut map = SlotMap { nodes: Vec::new(), owner_ids: Vec::new(), is_missing: false };
        if !is_cluster {
            let (location, health) = (location.clone(), Arc::clone(&health));
            map.nodes.push(Arc::new(RedisNode { id: 0, location, health }));
            map.owner_ids.push(Some(0));
        }
        Self {
            location: location.clone(),
            health,
            map: watch::Sender::new(map),
            is_cluster,
            is_stale: AtomicBool::new(false),
            untold: Mutex::default(),
            lines: Seldom::new(LINE_PAUSE),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    pub(super) fn location(&self) -> &RedisLocation {
        &self.location
    }

    /// The health of the one server. In a cluster: whether its slots have servers.
    pub(super) fn health(&self) -> &RedisHealth {
        &self.health
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
    pub(in crate::store) fn health_of(&self, slot: HashSlot) -> Arc<RedisHealth> {
        Arc::clone(self.map().owner(slot).map_or(&self.health, |node| &node.health))
    }

    /// Whether a server that has slots is away.
    pub(super) fn is_any_away(&self) -> bool {
        self.map().owners().iter().any(|node| !node.health.is_up())
    }

    /// A server has other slots than the map says.
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
            let Some(owner) = map.owner_ids.get_mut(usize::from(slot.0)) else { return false };
            let from = owner.replace(to.id);
            let is_new = from != Some(to.id);
            if is_new {
                self.note_move(from.and_then(|id| map.nodes.get(id)), &to, 1);
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
        let (mut uncovered, mut replaced) = (0, Vec::new());
        self.map.send_modify(|map| {
            let before = map.owners();
            let mut owners = vec![None; usize::from(SLOTS)];
            for (first, last, endpoint) in ranges {
                let node = self.node(map, endpoint);
                for slot in *first..=*last {
                    let (place, was) = (usize::from(slot), map.owner(HashSlot(slot)));
                    if was.is_some_and(|was| was.id != node.id) {
                        self.note_move(was, &node, 1);
                    }
                    owners[place] = Some(node.id);
                }
            }
            uncovered = owners.iter().filter(|owner| owner.is_none()).count();
            map.owner_ids = owners;
            let now = map.owners();
            let is_gone = |node: &&Arc<RedisNode>| now.iter().all(|other| other.id != node.id);
            replaced = before.iter().filter(is_gone).cloned().collect();
        });
        // Other servers have what these servers had: their outage ends.
        replaced.iter().for_each(|node| node.health.replaced());
        self.tell_moves(!replaced.is_empty());
        uncovered
    }

    fn node(&self, map: &mut SlotMap, endpoint: &Endpoint) -> Arc<RedisNode> {
        let is_it = |node: &&Arc<RedisNode>| {
            node.location.topology == RedisTopology::Server(endpoint.clone())
        };
        if let Some(node) = map.nodes.iter().find(is_it) {
            return Arc::clone(node);
        }
        let location = self.location.of_server(endpoint.clone());
        let health = Arc::new(RedisHealth::like(&self.health, location.to_string()));
        let node = Arc::new(RedisNode { id: map.nodes.len(), location, health });
        map.nodes.push(Arc::clone(&node));
        node
    }

    fn note_move(&self, from: Option<&Arc<RedisNode>>, to: &RedisNode, slots: usize) {
        let name = |node: &RedisNode| node.location.to_string();
        let from = from.map_or_else(|| "no server".to_owned(), |node| name(node));
        *self.untold.lock().entry((from, name(to))).or_default() += slots;
    }

    /// Logs the slots that moved since the last such line. A resharding is told from time to time.
    fn tell_moves(&self, is_failover: bool) {
        let mut moved = self.untold.lock();
        if moved.is_empty() || !self.lines.is_due(()) && !is_failover {
            return;
        }
        let mut moves = String::new();
        for ((from, to), slots) in std::mem::take(&mut *moved) {
            let comma = if moves.is_empty() { "" } else { ", " };
            // Writing into a string never fails.
            let _ = write!(moves, "{comma}{slots} from {from} to {to}");
        }
        drop(moved);
        tracing::info!(server = %self.location, slots = moves, "store slots moved");
    }

    /// Notes what limits do without Redis, for the log lines of an outage.
    pub(in crate::store) fn adjust(&self, limits: &[Arc<LimitSpec>]) {
        self.health.adjust(limits);
    }

    /// Logs requests that were decided without Redis outside an outage.
    pub(in crate::store) fn tell_missed(&self) {
        self.all().iter().for_each(|health| health.tell_missed());
    }

    /// What the servers' health adds up to.
    pub(in crate::store) fn summary(&self) -> HealthSummary {
        let mut sum = HealthSummary { is_up: true, decided: 0, refused: 0 };
        for health in self.all() {
            let (decided, refused) = health.without();
            sum.decided += decided;
            sum.refused += refused;
        }
        sum.is_up = self.health.is_up() && !self.is_any_away();
        sum
    }

    /// The servers of a cluster that have slots. Empty without a cluster.
    pub(in crate::store) fn cluster_servers(&self) -> Vec<ClusterServer> {
        let owners = if self.is_cluster { self.map().owners() } else { Vec::new() };
        let server = |location: &RedisLocation, health: &RedisHealth| ClusterServer {
            name: location.to_string(),
            is_up: health.is_up(),
            seconds: health.counts.seconds(),
            errors: health.counts.errors(),
        };
        let of_owners = owners.iter().map(|node| server(&node.location, &node.health));
        // Slots without a server are nobody's.
        let is_whole = !self.is_cluster || self.health.is_up();
        let whole = (!is_whole).then(|| server(&self.location, &self.health));
        of_owners.chain(whole).collect()
    }

    /// Failed calls of the one server, by the error's kind.
    pub(in crate::store) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.health.counts.errors()
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
