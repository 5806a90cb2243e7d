//! The client of Redis: finds the servers, connects, and sends calls. It does not know what the calls are about.
//!
//! All workers of a process share [`RedisNodes`]: the servers, which of them has which hash slot (`hash_slot`), and the
//! health of each server (`health`). `topology` reads which server of a cluster has which hash slots. Each worker has a
//! [`Router`], which sends a call to the server of its key, over one `connection` for each server. `connect` asks
//! sentinels for the master, encrypts, and logs in. The caller hands in its [`Program`]: scripts, and a probe. `error`
//! says why a call failed, `words` has what Redis itself says, and `counts` counts the calls for metrics.
//! `lasting_failures` decides which failures of calls in the background are logged.

mod connect;
mod connection;
mod counts;
mod error;
mod hash_slot;
mod health;
mod lasting_failures;
mod nodes;
mod program;
mod router;
mod topology;
mod words;

pub(crate) use self::connect::RedisConnector;
pub(crate) use self::connection::CallKind;
pub use self::error::CallError;
pub(crate) use self::hash_slot::HashSlot;
pub(crate) use self::lasting_failures::LastingFailures;
pub use self::nodes::ClusterServer;
pub(crate) use self::nodes::RedisNodes;
pub(crate) use self::program::Program;
pub(crate) use self::router::Router;
pub(crate) use self::topology::{follow_map, server_of};
