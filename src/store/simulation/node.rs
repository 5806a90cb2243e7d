//! One process with one worker: what `store` decides without Redis.

use std::sync::Arc;
use std::time::Duration;

use super::{Limit, Strategy};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::time::Timestamp;
use crate::plan::StoreSpec;
use crate::store::ProcessStore;
use crate::store::known::KnownRefusals;

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
        let mut claim = limit.claim(key);
        // An asker that is dropped at once lets all others ask too. Messages are lost here, and nobody waits.
        if self.mode == Strategy::Exact
            || self.known.refuse(&self.shared, &mut [&mut claim], now).is_some()
        {
            return None;
        }
        match claim.decision.map(|decision| decision.outcome) {
            Some(Outcome::Reject { retry_after: Some(retry_after) }) => Some(retry_after),
            said => panic!("a known refusal is {said:?}"),
        }
    }

    /// The server's answer to a request that was sent at `asked`.
    pub(super) fn hear(&self, limit: &Limit, key: usize, decision: Decision, asked: Timestamp) {
        let mut claim = limit.claim(key);
        claim.decision = Some(decision);
        if self.mode == Strategy::Known {
            self.known.note(&self.shared.memory, &[&mut claim], asked, None);
        }
    }

    /// The server did not answer in time.
    pub(super) fn hear_nothing(&self, limit: &Limit, key: usize) {
        self.known.forget(&self.shared.memory, &limit.claim(key));
    }
}
