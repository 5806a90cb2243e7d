//! Where buckets live, and who decides on a request's claims.
//!
//! A claim goes through these files in this order:
//! 1. `claim`: `throttle` makes one [`Claim`] for each limit that applies to a request.
//! 2. `order`: [`Store::take`] decides who is asked, in which order, and what goes back.
//! 3. `known`: if the refusal is known, nobody is asked.
//! 4. `limit::memory` (the buckets of this process), `script` (the buckets in Redis, by
//!    `limit::call`) and `script::redisson` (limiters that Java services share) are asked. They know questions
//!    (`bucket`), but no claims.
//! 5. `grant`: what a limit gave is kept, settled or given back.
//! 6. `queue`: the requests that wait for a bucket. When one of them leaves, those after it move up.
//!
//! A look asks what one bucket would decide by itself. A peek asks several buckets together and takes nothing: its
//! `ask.takes` is false. The Lua code uses each of the two words in the same sense (`crates/limit/src/call/shell.lua`).
//!
//! `level` reads what a bucket holds. `fleet` asks the other processes that share Redis.
//!
//! `access` is one worker's [`Store`]: a Redis connection belongs to the runtime that made it. All workers of a process
//! share one [`ProcessStore`]. It has the figures that are in force: the figures of the last reload, and the overrides
//! that were set since the start (`running`).
//!
//! `name` has the names of the keys in Redis. `warnings` warns the operator of odd things in Redis. The connections are
//! those of [`crate::redis`].
//!
//! Imports point one way: `order` → `claim` → `grant` → `access` → `known`, `script` → `process` → `bucket`.

mod access;
mod bucket;
mod claim;
mod fleet;
mod grant;
mod known;
mod level;
mod name;
mod order;
mod process;
mod queue;
mod report;
mod running;
mod script;
mod warnings;

pub use self::access::Store;
pub use self::bucket::BucketAsk;
pub use self::claim::{Claim, verdict};
pub(crate) use self::fleet::{FleetMember, FleetWord};
pub use self::grant::{ClockReading, Grant};
pub(crate) use self::level::BucketLevel;
pub use self::name::BucketKey;
pub(crate) use self::name::{bounded, name_in_redis, stored_key, stored_text};
pub use self::order::Unavailable;
pub use self::process::{Counters, ProcessStore};
pub(crate) use self::running::{ListedOverride, MOST_RUNNING, RunningOverride};
pub(crate) use self::script::{LimiterConfig, LimiterError, Limiters, limiter_keys, limiter_name};
pub use crate::limit::bucket::{Decider, LimiterFigures};

/// The number of calls of [`ProcessStore::sweep`] that together visit every bucket of a process.
pub const SWEEP_STEPS: usize = crate::limit::memory::SWEEP_STEPS;
