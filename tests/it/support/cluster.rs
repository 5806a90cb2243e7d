//! A Redis cluster: masters and replicas.

use std::time::Duration;

use tokio::time::Instant;

use super::PATIENCE;
use super::redis::RedisServer;

/// The number of hash slots of every cluster.
const SLOTS: usize = 16_384;

/// Three masters, each with a third of the slots. Behind each may stand a replica.
pub(crate) struct Cluster {
    /// First the masters, then their replicas in the same order.
    pub(crate) servers: Vec<RedisServer>,
}

impl Cluster {
    /// Three masters without replicas, each of which decides while others are away.
    pub(crate) fn of_masters() -> Self {
        Self::start(3, &["--cluster-require-full-coverage", "no"])
    }

    /// Three masters with a replica each. A replica takes the place of a master that is silent for half a
    /// second.
    pub(crate) fn with_replicas() -> Self {
        Self::start(6, &["--cluster-require-full-coverage", "no"])
    }

    fn start(servers: usize, more: &[&str]) -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "500"];
        let replication =
            ["--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0"];
        let options = [&options[..], &replication, more].concat();
        let servers: Vec<_> =
            (0..servers).map(|_| RedisServer::start_in_cluster(&options)).collect();
        let cluster = Self { servers };
        for place in 0..3 {
            let (first, last) = (place * SLOTS / 3, (place + 1) * SLOTS / 3 - 1);
            let () = cluster.servers[place].run(&[
                "CLUSTER",
                "ADDSLOTSRANGE",
                &first.to_string(),
                &last.to_string(),
            ]);
            let epoch = (place + 1).to_string();
            let () = cluster.servers[place].run(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for other in &cluster.servers[1..] {
            let (port, bus) = (other.port().to_string(), other.bus_port().to_string());
            let () = cluster.servers[0].run(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let all = cluster.servers.len();
        cluster.until("the servers know each other", || {
            let known = format!("cluster_known_nodes:{all}\r");
            cluster.servers.iter().all(|server| info(server).contains(&known))
        });
        for place in 3..all {
            let master: String = cluster.servers[place - 3].run(&["CLUSTER", "MYID"]);
            let () = cluster.servers[place].run(&["CLUSTER", "REPLICATE", &master]);
        }
        cluster.until("the cluster is whole", || {
            let whole = |server: &RedisServer| {
                let info = info(server);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_assigned:16384")
            };
            let has_synced = |server: &RedisServer| {
                let info: String = server.run(&["INFO", "replication"]);
                info.contains("master_link_status:up")
            };
            cluster.servers.iter().all(whole) && cluster.servers[3..].iter().all(has_synced)
        });
        cluster
    }

    /// The URL of the store, by the first two servers.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> =
            self.servers.iter().take(2).map(|it| format!("127.0.0.1:{}", it.port())).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// The URL for a user who has only the rights that the manual names.
    pub(crate) fn url_of_user(&self) -> String {
        self.servers.iter().for_each(RedisServer::add_user_of_cluster);
        self.url().replace("://", "://tidegate:secret@")
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        self.servers[0].run(&["CLUSTER", "KEYSLOT", key])
    }

    /// The place of the master that had the slot of this key at first.
    pub(crate) fn master_of(&self, key: &str) -> usize {
        let slot = usize::from(self.slot(key));
        (0..3).find(|place| slot < (place + 1) * SLOTS / 3).unwrap()
    }

    /// A key whose slot the master at this place had at first.
    pub(crate) fn key_of(&self, place: usize) -> String {
        let names = (0..).map(|number| format!("k{number}"));
        names.into_iter().find(|name| self.master_of(name) == place).unwrap()
    }

    /// A key of each of the three masters.
    pub(crate) fn keys(&self) -> Vec<String> {
        (0..3).map(|place| self.key_of(place)).collect()
    }

    /// Tells the servers that a slot is to move from one master to another one.
    pub(crate) fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let id = |place: usize| -> String { self.servers[place].run(&["CLUSTER", "MYID"]) };
        let () = self.servers[to].run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        let () = self.servers[from].run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves a key of a slot that is moving.
    pub(crate) fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.servers[to].port().to_string();
        let _: redis::Value =
            self.servers[from].run(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// The slot belongs to the other master from now on.
    pub(crate) fn end_move(&self, slot: u16, to: usize) {
        let slot = slot.to_string();
        let id: String = self.servers[to].run(&["CLUSTER", "MYID"]);
        for place in [to, (to + 1) % 3, (to + 2) % 3] {
            let () = self.servers[place].run(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    /// Waits until the first master's replica has its place.
    pub(crate) fn until_replica_is_master(&self) {
        self.until("the replica is a master", || {
            let role: Vec<redis::Value> = self.servers[3].run(&["ROLE"]);
            matches!(&role[0], redis::Value::BulkString(role) if role == b"master")
        });
    }

    pub(crate) fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let patience = Instant::now() + 2 * PATIENCE;
        while !is_so() {
            assert!(Instant::now() < patience, "never: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn info(server: &RedisServer) -> String {
    server.run(&["CLUSTER", "INFO"])
}
