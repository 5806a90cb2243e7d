//! Slots that are held, each to be given back where it was taken.

use super::locked::unpoisoned;
use super::shard::{Due, Identity};
use super::{Memory, Place};
use crate::limit::algorithm::{Difference, State, concurrency};
use crate::store::BucketAsk;

/// Where a slot was taken that is held.
pub(in crate::store) struct Slot {
    id: Identity,
    place: Place,
}

impl Memory {
    /// A slot that this ask took, in such a place.
    pub(in crate::store) fn slot(&self, ask: &BucketAsk<'_>, place: Place) -> Slot {
        let id = match place {
            Place::Known | Place::New => self.identity(ask),
            Place::Shared => self.shared_identity(ask),
        };
        Slot { id, place }
    }

    /// Gives a slot back where it was taken. Its bucket is still there: one with slots held never goes.
    pub(in crate::store) fn release(&self, slot: &Slot) {
        let Slot { id, place } = *slot;
        let one_less = |state| match state {
            State::Concurrency(state) => concurrency::settle(Some(state), Difference::Less(1)),
            _ => None,
        };
        if place == Place::Shared {
            let mut shared = unpoisoned(self.shared.lock());
            let left = shared.get(&id).and_then(|bucket| one_less(bucket.state));
            match (left, shared.get_mut(&id)) {
                (Some(left), Some(bucket)) => bucket.state = State::Concurrency(left),
                _ => drop(shared.remove(&id)),
            }
            return;
        }
        let mut shards = self.lock(&[id]);
        let shard = shards.of(id);
        match shard.state(id).and_then(one_less) {
            Some(left) => {
                shard.put(id, State::Concurrency(left), Due::never());
            }
            None => self.removed(usize::from(shard.remove(id))),
        }
    }
}
