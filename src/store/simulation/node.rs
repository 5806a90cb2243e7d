//! One process with one worker: what `store` decides without Redis.

use std::sync::Arc;
use std::time::Duration;

use super::{Limit, Strategy};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::time::Timestamp;
use crate::plan::StoreSpec;
use crate::store::bucket::RedisAnswer;
use crate::store::known::{KnownRefusals, LookedUp};
use crate::store::process::ProcessStore;

pub(super) struct SimulatedNode {
    mode: Strategy,
    shared: Arc<ProcessStore>,
    known: KnownRefusals,
}

impl SimulatedNode {
    pub(super) fn start(mode: Strategy) -> Self {
        let shared = ProcessStore::new(&StoreSpec { max_keys: 1, ..StoreSpec::default() });
        Self { mode, shared, known: KnownRefusals::default() }
    }

    /// Refuses a request if the refusal is known, and says when the client may come again. Otherwise the server is
    /// to be asked.
    pub(super) fn refuse(&self, limit: &Limit, key: usize, now: Timestamp) -> Option<Duration> {
        if self.mode == Strategy::Exact {
            return None;
        }
        let limits = [LookedUp::InRedis(limit.question(key))].into_iter();
        match self.known.look_up(&self.shared.memory, limits, now) {
            Ok(decisions) => match decisions[0].map(|it| it.outcome) {
                Some(Outcome::Reject { retry_after }) => retry_after,
                said => panic!("a known refusal is {said:?}"),
            },
            // Messages may be lost here. So the leader in the error is dropped at once, and nobody waits for its
            // answer.
            Err(_) => None,
        }
    }

    /// The server's answer to a request that was sent at `asked`.
    pub(super) fn hear(&self, limit: &Limit, key: usize, decision: Decision, asked: Timestamp) {
        if self.mode == Strategy::Known {
            let answer = RedisAnswer { asked: limit.question(key), decision };
            self.known.note(&self.shared.memory, &[answer], asked, None);
        }
    }

    /// The server did not answer in time.
    pub(super) fn hear_nothing(&self, limit: &Limit, key: usize) {
        self.known.forget(&self.shared.memory, &limit.question(key).ask);
    }
}
