//! What all workers of a process share of the store. `worker::Process` makes it once. `server` calls it at a
//! reload and about once a second. `memory` and `script` keep here what all workers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::bucket::Source;
use super::fleet::FleetWords;
use super::queue::Queues;
use super::running::{ListedOverride, RunningOverride, RunningOverrides};
use super::warnings::LimitWarnings;
use crate::clock::Wall;
use crate::limit::Scope;
use crate::limit::memory::Memory;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::events;
use crate::observe::repeated::{Repeated, UnsettledCosts};
use crate::redis::{ClusterServer, RedisNodes};
use crate::settings::{LimitSpec, OnStoreError, StoreLocation, StoreSpec};

/// Redis counts a process that has died for this time. The other processes count it for the same time again.
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// What all workers of a process share: the process's buckets, and whether Redis answers.
pub struct ProcessStore {
    pub(super) memory: Memory,
    pub(super) wall: Wall,
    /// The servers that hold buckets. `None` if buckets live in the process.
    pub(super) redis: Option<Arc<RedisNodes>>,
    /// The id of this process as a Redisson client. Some limiters count for each client by itself.
    pub(super) client_id: String,
    pub(super) warnings: LimitWarnings,
    /// Settlements that may not have reached Redis.
    pub(crate) unsettled: UnsettledCosts,
    pub(super) running: RunningOverrides,
    /// Requests that were refused without Redis, because the refusal was known.
    pub(super) known_refusals: AtomicU64,
    /// The requests that wait, by bucket.
    pub(super) queues: Queues<Source>,
    /// Whether a worker announces this process in Redis.
    pub(super) is_announced: AtomicBool,
    /// The processes that share Redis, this one among them.
    pub(super) processes: AtomicU64,
    /// What this process and the others tell each other through Redis.
    pub(crate) fleet: FleetWords,
    /// When Redis last counted at least `processes` processes.
    highest_at: Mutex<Instant>,
    /// Whether the log has said that new keys share a bucket, and that buckets in use are forgotten.
    full: [AtomicBool; 2],
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Buckets in this process's memory.
    pub keys: usize,
    /// Decisions by a limit's shared bucket, because the table had no room for the key's own bucket.
    pub(crate) shared_uses: u64,
    /// Buckets that were forgotten to make room, although they were not full again.
    pub(crate) forgotten: u64,
    /// The processes that shared Redis when it last answered, this one among them.
    pub processes: u64,
    /// Requests that were refused without Redis, because the refusal was known.
    pub known_refusals: u64,
    /// Settlements that may not have reached Redis.
    pub unsettled: u64,
    /// Requests that passed their limits without Redis by `on_store_error`. The requests in `refused_without` are not
    /// counted here.
    pub decided_without: u64,
    /// Requests that were refused because a limit has `on_store_error = "reject"`.
    pub(crate) refused_without: u64,
    /// Whether Redis answers; `None` if buckets live in the process.
    pub redis_up: Option<bool>,
}

impl ProcessStore {
    /// The state of a new process without buckets. Its time of day never steps.
    pub fn new(spec: &StoreSpec) -> Arc<Self> {
        Self::by(Wall::default(), spec)
    }

    /// Like [`ProcessStore::new`], with this time of day.
    pub fn by(wall: Wall, spec: &StoreSpec) -> Arc<Self> {
        let redis = match &spec.location {
            StoreLocation::Memory => None,
            StoreLocation::Redis(location) => Some(Arc::new(RedisNodes::new(location))),
        };
        let shared = Self {
            memory: Memory::new(spec.max_keys),
            wall,
            redis,
            client_id: client_id(),
            warnings: LimitWarnings::default(),
            unsettled: Repeated::new(events::costs_not_settled),
            running: RunningOverrides::default(),
            known_refusals: AtomicU64::new(0),
            queues: Queues::default(),
            is_announced: AtomicBool::new(false),
            processes: AtomicU64::new(1),
            fleet: FleetWords::default(),
            highest_at: Mutex::new(Instant::now()),
            full: Default::default(),
        };
        shared.adjust(spec);
        Arc::new(shared)
    }

    /// Takes over the settings that may change while the process runs: `timeout` and `max_keys`.
    pub(crate) fn adjust(&self, spec: &StoreSpec) {
        self.memory.set_max_keys(spec.max_keys);
        if let Some(redis) = &self.redis {
            redis.set_timeout(spec.timeout);
        }
    }

    /// Takes over the limits of the start or of a reload. From now on settlements and overrides use their figures, and
    /// the log lines of an outage name their `on_store_error`.
    pub fn put_in_force(&self, limits: &[Arc<LimitSpec>]) {
        self.running.put_limits(limits);
        if let Some(redis) = &self.redis {
            redis.health.set_meanwhile(without_redis(limits));
        }
    }

    /// Forgets full buckets of one part of the table and frees their memory. To be called about once a
    /// second; [`super::SWEEP_STEPS`] calls visit the whole table. Also ends overrides whose time is over, and
    /// logs that the table is full, and requests that were decided without Redis.
    pub fn sweep(&self, now: Timestamp) {
        self.memory.sweep(self.wall.both(now));
        self.log_full();
        self.running.sweep(self.wall.both(now));
        self.running.end_expired();
        if let Some(redis) = &self.redis {
            redis.log_missed();
        }
    }

    /// Logs the first case of each thing that a full table does.
    fn log_full(&self) {
        let (full, keys, [shares, forgets]) = (&self.memory.full, self.memory.keys(), &self.full);
        let is_new = |logged: &AtomicBool| !logged.swap(true, Ordering::Relaxed);
        if let Some(limit) = full.first_shared.get()
            && is_new(shares)
        {
            let help = "raise store.max_keys; tidegate_shared_decisions_total counts the requests that it concerns";
            warn!(%limit, keys, help, "memory store full, new keys share a bucket");
        }
        if full.forgotten.load(Ordering::Relaxed) > 0 && is_new(forgets) {
            let help = "raise store.max_keys: a key whose bucket is forgotten begins with a full one; tidegate_forgotten_total counts these buckets";
            warn!(keys, help, "memory store full, buckets in use are forgotten");
        }
    }

    /// Sets an override in this process alone, until it is ended.
    pub(crate) fn set_override(&self, entry: RunningOverride) {
        self.running.set_here(entry, None);
    }

    /// Ends an override of this process alone.
    pub(crate) fn end_override(&self, limit: &str, key: &str) {
        self.running.end_here(limit, key);
    }

    /// The overrides that were set while the process runs, by limit and key.
    pub(crate) fn overrides(&self) -> Vec<ListedOverride> {
        self.running.list()
    }

    /// The override that was set for this key of the limit, or with the key `*` for all its keys.
    pub(crate) fn override_of(&self, limit: &str, key: &str) -> Option<ListedOverride> {
        self.running.set_for(limit, key)
    }

    /// The bans by this process since its start.
    pub(crate) fn bans(&self, limit: &Name) -> u64 {
        self.running.bans(limit)
    }

    /// The present numbers.
    pub fn counters(&self) -> Counters {
        let redis = self.redis.as_ref();
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            decided_without: redis.map_or(0, |redis| load(&redis.decided_without)),
            refused_without: redis.map_or(0, |redis| load(&redis.refused_without)),
            keys: self.memory.keys(),
            shared_uses: load(&self.memory.full.shared),
            forgotten: load(&self.memory.full.forgotten),
            processes: load(&self.processes),
            known_refusals: load(&self.known_refusals),
            unsettled: self.unsettled.total(),
            redis_up: redis.map(|redis| redis.are_up()),
        }
    }

    /// How long Redis has been up, or away. `None` if buckets live in the process.
    pub(crate) fn redis_phase_age(&self) -> Option<Duration> {
        self.redis.as_ref().map(|redis| redis.phase_age())
    }

    /// What limits do while Redis is away.
    pub(crate) fn without_redis(&self) -> String {
        self.redis.as_ref().map_or_else(String::new, |redis| redis.health.meanwhile())
    }

    /// The servers of a Redis cluster that have hash slots. Empty without a cluster.
    pub fn cluster_servers(&self) -> Vec<ClusterServer> {
        self.redis.as_ref().map_or_else(Vec::new, |redis| redis.cluster_servers())
    }

    /// Failed calls of the one Redis server since the start, by the error's kind.
    pub(crate) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.redis.as_ref().map_or_else(Vec::new, |redis| redis.health.counts.errors())
    }

    /// This process takes over from one that knew `known` processes, and Redis may be away.
    pub(crate) fn begin_with_processes(&self, known: u64) {
        self.processes.store(known.max(1), Ordering::Relaxed);
    }

    /// Redis has counted `held` processes.
    pub(super) fn count_processes(&self, held: u64, now: Instant) {
        let mut highest_at = self.highest_at.lock();
        // If Redis has lost its data, it counts few processes until each has announced itself again.
        let known = self.processes.load(Ordering::Relaxed);
        if held >= known || now.duration_since(*highest_at) >= LEASE {
            self.processes.store(held.max(1), Ordering::Relaxed);
            *highest_at = now;
        }
    }
}

/// What limits do without Redis, such as `limits a, b count in this process alone; limit c answers 503`.
fn without_redis(limits: &[Arc<LimitSpec>]) -> String {
    let all = [
        (OnStoreError::Local, ["counts in this process alone", "count in this process alone"]),
        (OnStoreError::Allow, ["lets all requests pass", "let all requests pass"]),
        (OnStoreError::Reject, ["answers 503", "answer 503"]),
    ];
    let groups = all.iter().filter_map(|(way, [one, several])| {
        let these =
            limits.iter().filter(|it| it.scope == Scope::Cluster && it.on_store_error == *way);
        let names: Vec<_> = these.map(|limit| limit.name.as_str()).collect();
        match names.as_slice() {
            [] => None,
            [name] => Some(format!("limit {name} {one}")),
            names => Some(format!("limits {} {several}", names.join(", "))),
        }
    });
    let groups: Vec<_> = groups.collect();
    if groups.is_empty() { "no limit needs Redis".to_owned() } else { groups.join("; ") }
}

/// A client's id, as Redisson makes one: a random UUID (RFC 9562, version 4).
pub(super) fn client_id() -> String {
    uuid::Builder::from_random_bytes(fastrand::u128(..).to_be_bytes()).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_is_a_client_of_its_own() {
        let (one, two) = (client_id(), client_id());
        assert_ne!(one, two);
        assert_eq!(one.len(), 36);
        assert!(one.chars().all(|c| c == '-' || c.is_ascii_hexdigit()), "{one}");
        assert_eq!(one.as_bytes()[14], b'4', "{one}");
        assert!(b"89ab".contains(&one.as_bytes()[19]), "{one}");
    }

    #[test]
    fn a_sentence_says_what_limits_do_without_redis() {
        let limit = |name: &str, on_store_error| {
            let name = crate::limit::name::Name::new(name).unwrap();
            Arc::new(LimitSpec { on_store_error, ..LimitSpec::new(name) })
        };
        use OnStoreError::{Allow, Local, Reject};
        let own = LimitSpec { scope: Scope::Node, ..LimitSpec::clone(&limit("own", Local)) };
        let all = [
            limit("per-client", Local),
            limit("open", Allow),
            limit("login", Local),
            limit("strict", Reject),
            limit("paid", Reject),
            Arc::new(own),
        ];
        assert_eq!(
            without_redis(&all),
            "limits per-client, login count in this process alone; limit open lets all requests pass; \
             limits strict, paid answer 503"
        );
        assert_eq!(without_redis(&all[5..]), "no limit needs Redis");
    }
}
