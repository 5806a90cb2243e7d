//! All players at once.

use std::sync::Arc;

use tidegate::limit::algorithm::Algorithm;
use tidegate::limit::decide::Ask;
use tidegate::limit::decision::{Decision, Outcome};
use tidegate::limit::time::Timestamp;

use super::players::{Asked, Event, InStore, Pure, What};
use super::script::{self, Expiry};
use crate::support::bench::Bench;
use crate::support::limits::limit;
use crate::support::redis::RedisServer;

/// The pure functions, the store of the process, swept after each event, and the script, whose keys
/// expire.
pub(crate) struct AllPlayers {
    server: RedisServer,
    runtime: tokio::runtime::Runtime,
}

impl AllPlayers {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { server: RedisServer::start(), runtime }
    }

    /// What is said to each ask of each event, the same in all places.
    pub(crate) fn play(&self, events: &[Event]) -> Vec<Vec<Decision>> {
        let mut place = Pure::default();
        let said: Vec<_> = events.iter().map(|event| place.play(event)).collect();
        let answers =
            script::play(&mut self.server.connection(), events, &place, Expiry::ByTheClock);
        let in_script: Vec<_> =
            answers.into_iter().flat_map(|(_, answer)| answer.decisions).collect();
        assert_eq!(in_script, said.concat(), "the script and the pure functions");
        let in_process = self.runtime.block_on(async {
            let specs = (0..8).map(|number| Arc::new(limit(&format!("limit-{number}"))));
            let mut place = InStore::new(Bench::memory(), specs.collect());
            let mut said = Vec::new();
            for event in events {
                said.push(place.play(event).await);
                place.sweep(event.now);
            }
            said
        });
        assert_eq!(in_process, said, "the process and the pure functions");
        said
    }

    /// How many of these calls one such limit lets pass at once, at these microseconds since the begin.
    pub(crate) fn passed(
        &self,
        algorithm: Algorithm,
        calls: impl IntoIterator<Item = u64>,
    ) -> usize {
        let events: Vec<_> = calls.into_iter().map(|at| request(&[algorithm], at)).collect();
        let said = self.play(&events);
        said.iter().filter(|said| said[0].outcome == Outcome::Allow).count()
    }
}

/// A request of cost one, at so many microseconds since the begin, that asks of these limits and is not
/// held.
pub(crate) fn request(algorithms: &[Algorithm], at: u64) -> Event {
    let asked = algorithms
        .iter()
        .enumerate()
        .map(|(bucket, algorithm)| Asked { bucket, ask: Ask::for_one(*algorithm) });
    let now = Timestamp::from_micros(BEGIN + at).unwrap();
    Event { now, what: What::Request(asked.collect()) }
}

/// A whole hour.
const BEGIN: u64 = 1_704_067_200_000_000;
