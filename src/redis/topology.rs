//! Asks a cluster's servers which of them has which hash slot. One worker of the process does this, and writes
//! the answers into `nodes`.
//!
//! Each question goes over its own connection, which ends with the answer. The cluster client of
//! redis-rs is not used: docs/decisions.md says why.

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};
use tokio::time::{Instant, sleep, timeout};

use super::connect::RedisConnector;
use super::error::CallError;
use super::hash_slot::{HashSlot, HashSlotRange, read_hash_slots};
use super::nodes::RedisNodes;
use crate::settings::{Endpoint, RedisLocation};

/// The time between two questions while all is well.
const REGULAR: Duration = Duration::from_secs(10);

/// The time between two questions while a server is away, or after one has redirected a call.
const SOON: Duration = Duration::from_millis(500);

/// The time between the first attempts to find the servers.
const FIRST: Duration = Duration::from_millis(50);

/// The time that one server has to connect and to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Keeps the map of the hash slots right for as long as the worker runs.
pub(crate) async fn follow_map(nodes: Arc<RedisNodes>) {
    loop {
        let permit = nodes.health.permit_to_try().await;
        let is_known = !nodes.map().owners().is_empty();
        match ask_any(&nodes).await {
            Ok(ranges) => match nodes.replace(&ranges) {
                0 => permit.succeeded(),
                slots => permit.failed(&CallError::NoServer(slots)),
            },
            // The last map stays in force. `health` logs what is wrong with the servers.
            Err(_) if is_known => drop(permit),
            Err(error) => {
                nodes.missing();
                nodes.health.counts.failed(&error);
                permit.failed(&error);
            }
        }
        let due = Instant::now() + if nodes.map().owners().is_empty() { FIRST } else { REGULAR };
        sleep(FIRST).await;
        while Instant::now() < due {
            sleep(SOON).await;
            if nodes.is_any_away() || nodes.was_stale() || !nodes.health.is_up() {
                break;
            }
        }
    }
}

/// Asks one server after the other: first those that have hash slots and decide, then the other servers that have
/// hash slots, then those that `proxy.toml` names. If a server says that its cluster does not work, its answer does not
/// count: the server may be cut off from the others.
async fn ask_any(nodes: &RedisNodes) -> Result<Vec<HashSlotRange>, CallError> {
    let mut owners = nodes.map().owners();
    fastrand::shuffle(&mut owners);
    owners.sort_by_key(|node| !node.health.is_up());
    let named = named(&nodes.location);
    let owners = owners.iter().map(|node| node.location.clone());
    ask_first(&nodes.connector, owners.chain(named)).await
}

/// The answer of the first server that answers.
async fn ask_first(
    connector: &RedisConnector,
    servers: impl Iterator<Item = RedisLocation>,
) -> Result<Vec<HashSlotRange>, CallError> {
    let mut failure = CallError::NotConnected;
    for location in servers {
        match ask(&connector.to(&location)).await {
            Ok(ranges) => return Ok(ranges),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn ask(connector: &RedisConnector) -> Result<Vec<HashSlotRange>, CallError> {
    let asking = async {
        let endpoint = connector.find().await?;
        let mut connection = connector.connect(&endpoint).await?.connection;
        let info: String = cmd("CLUSTER").arg("INFO").query_async(&mut connection).await?;
        if !info.contains("cluster_state:ok") {
            return Err(CallError::ClusterDown(endpoint));
        }
        let slots: Value = cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
        read_hash_slots(&slots, &endpoint)
    };
    timeout(PATIENCE, asking).await.map_err(|_| CallError::TimedOut)?
}

/// The server that has this key's hash slot now. For an operator's command, which has no map.
pub(crate) async fn server_of(servers: &RedisLocation, key: &[u8]) -> Result<Endpoint, CallError> {
    let HashSlot(slot) = HashSlot::of(key);
    let ranges = ask_first(&RedisConnector::new(servers), named(servers)).await?;
    let mut ranges = ranges.into_iter();
    let its = ranges.find(|(first, last, _)| (*first..=*last).contains(&slot));
    its.map(|(_, _, server)| server).ok_or(CallError::NoServer(1))
}

/// The servers that `proxy.toml` names.
fn named(servers: &RedisLocation) -> impl Iterator<Item = RedisLocation> {
    servers.topology.servers().iter().map(|server| servers.of_server(server.clone()))
}
