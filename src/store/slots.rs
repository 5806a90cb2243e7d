//! The slots of concurrency limits that a request holds, given back to the store they came from when
//! they are dropped.

use std::fmt;
use std::sync::Arc;

use super::memory::{self, Place};
use super::redis::Lease;
use super::{BucketAsk, Shared};
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::{Decided, PerAsk};
use crate::limit::decision::Outcome;

/// Slots, each given back when this is dropped. Equal where there are as many.
#[derive(Debug, Default)]
pub struct Slots(Vec<Slot>);

#[derive(Debug)]
enum Slot {
    /// Held for its drop alone.
    Here(#[allow(dead_code, reason = "it is given back when it is dropped")] Here),
    There(#[allow(dead_code, reason = "it is given back when it is dropped")] Lease),
}

impl Slots {
    /// What a decision took in this process.
    pub(super) fn here(
        shared: &Arc<Shared>,
        asks: &[&BucketAsk<'_>],
        (decided, places): (&Decided, &[Place]),
    ) -> Self {
        if !decided.verdict.passes() {
            return Self::default();
        }
        let taken =
            asks.iter().zip(&decided.decisions).enumerate().filter(|(_, (ask, decision))| {
                matches!(ask.ask.algorithm, Algorithm::Concurrency(_)) && decision.outcome.passes()
            });
        let slots = taken.map(|(place, (ask, _))| {
            let known = places.get(place).copied().unwrap_or(Place::Known);
            let slot = shared.memory.slot(ask, known);
            Slot::Here(Here { slot, shared: Arc::clone(shared) })
        });
        Self(slots.collect())
    }

    /// The same where there is one ask, whose bucket is its own.
    pub(super) fn of_one(shared: &Arc<Shared>, ask: &BucketAsk<'_>, outcome: Outcome) -> Self {
        let takes = matches!(ask.ask.algorithm, Algorithm::Concurrency(_)) && outcome.passes();
        let slot = |shared: &Arc<Shared>| {
            let slot = shared.memory.slot(ask, Place::Known);
            Slot::Here(Here { slot, shared: Arc::clone(shared) })
        };
        Self(takes.then(|| slot(shared)).into_iter().collect())
    }

    /// A slot that was taken in Redis, too.
    pub(super) fn and_lease(&mut self, mut lease: Lease) {
        lease.taken();
        self.0.push(Slot::There(lease));
    }

    /// Whether there is nothing to be given back.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq for Slots {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
    }
}

impl Eq for Slots {}

/// What an ask may take in Redis, by its place; empty where there is none.
pub(super) type Leases = PerAsk<Option<Lease>>;

/// A slot of this process.
struct Here {
    slot: memory::Slot,
    shared: Arc<Shared>,
}

impl Drop for Here {
    fn drop(&mut self) {
        self.shared.memory.release(&self.slot);
    }
}

impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Here")
    }
}
