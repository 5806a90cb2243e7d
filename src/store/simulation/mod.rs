//! Many nodes that share limits, in one process and on a clock that only the simulation moves. Nothing
//! sleeps, and a seed gives the same figures each time. `docs/simulation.md` has the results.
//!
//! The parts that decide are those of the program: `known` refuses, and the algorithms decide for the shared
//! buckets. The rest is simulated: `server` stands for Redis, `node` calls the parts of the program, `world` delays and
//! loses messages and lets nodes die, `traffic` makes the requests. `bound` checks what passes, by its own arithmetic.

mod bound;
mod node;
mod random;
mod report;
mod server;
mod tests;
mod traffic;
mod world;

use std::sync::Arc;
use std::time::Duration;

use super::bucket::{BucketAsk, KeyLocation, RedisAsk};
use super::name::BucketKey;
use crate::limit::Scope;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::token_bucket::Params;
use crate::limit::decide::Ask;
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::rate::Burst;
use crate::limit::time::Timestamp;
use crate::plan::LimitSpec;

/// The time at which a simulation begins, in microseconds.
const BEGIN: u64 = 1_700_000_000_000_000;

/// What a node decides without a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Nothing.
    Exact,
    /// Known refusals.
    Known,
}

/// One simulation.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    nodes: usize,
    mode: Strategy,
    /// Requests a second, to all nodes together.
    load: u32,
    /// The limit's figures.
    rate: &'static str,
    burst: u64,
    keys: u32,
    /// The time that is simulated.
    length: Duration,
    /// The mean time for which a node runs without a failure.
    lifetime: Duration,
    /// The mean time for which a node is away after a failure, beyond a second.
    outage: Duration,
    /// The share of messages that are lost.
    loss: f64,
    seed: u64,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    requests: u64,
    admitted: u64,
    known_refusals: u64,
    /// Known refusals of requests that the server would have let pass.
    wrong_refusals: u64,
    /// Known refusals with a longer wait than the server would have said.
    late_refusals: u64,
    /// The most microseconds by which a known refusal ends before the server's.
    earliest: u64,
    /// Questions to the server.
    calls: u64,
    /// The most tokens by which any key was over its limit in any interval.
    excess: u64,
}

/// The limit that all nodes share, and its keys.
struct Limit {
    spec: Arc<LimitSpec>,
    ask: Ask,
    keys: Vec<BucketKey>,
}

impl Limit {
    fn of(setting: &Scenario) -> Self {
        let name = Name::new("per-client").unwrap();
        let spec = LimitSpec { scope: Scope::Cluster, ..LimitSpec::new(name) };
        let (rate, burst) = (setting.rate.parse().unwrap(), Burst::new(setting.burst).unwrap());
        let algorithm = Algorithm::TokenBucket(Params { rate, burst });
        let ask = Ask::for_one(algorithm);
        let keys = (0..setting.keys).map(|key| Key::of([Some(key.to_string().as_bytes())]).into());
        Self { spec: Arc::new(spec), ask, keys: keys.collect() }
    }

    /// The question of a request to Redis.
    fn question(&self, key: usize) -> RedisAsk<'_> {
        let ask = BucketAsk { spec: &self.spec, key: &self.keys[key], ask: self.ask };
        RedisAsk { ask, location: KeyLocation { connection: Some(1), ..KeyLocation::default() } }
    }
}

/// The time `now` microseconds after the beginning.
fn time(now: u64) -> Timestamp {
    Timestamp::from_micros(BEGIN + now).unwrap()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}
