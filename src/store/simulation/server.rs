//! What stands for Redis: the shared buckets, decided on by the algorithms.

use super::time;
use crate::limit::algorithm::BucketState;
use crate::limit::decide::{Ask, decide_one};
use crate::limit::decision::Decision;

/// The shared buckets, by the numbers of their keys.
pub(super) struct SimulatedServer {
    ask: Ask,
    buckets: Vec<Option<BucketState>>,
}

impl SimulatedServer {
    pub(super) fn new(ask: Ask, keys: usize) -> Self {
        Self { ask, buckets: vec![None; keys] }
    }

    /// Takes a token, if the bucket has one.
    pub(super) fn take(&mut self, key: usize, now: u64) -> Decision {
        let (decision, change, _) = decide_one(&self.ask, self.buckets[key], time(now).into());
        self.buckets[key] = change.state().or(self.buckets[key]);
        decision
    }

    /// The decision that a request would get. Nothing is taken.
    pub(super) fn look(&self, key: usize, now: u64) -> Decision {
        decide_one(&self.ask, self.buckets[key], time(now).into()).0
    }
}
