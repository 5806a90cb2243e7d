//! Makes room for one more bucket: if the table is full, another bucket is evicted.
//!
//! Full buckets go first, then buckets of limits that have more than their share, those closest to full before the
//! others. A bucket below zero or with held slots never goes: it would begin again with all its tokens. If none may go,
//! the table grows for a limit with less than its share, to twice its size at most. New keys of other limits share one
//! bucket for each limit.

use std::sync::atomic::Ordering;

use super::identity::Identity;
use super::shard::{Evicted, Shard, Wanted};
use super::table::Memory;
use crate::time::Now;

/// The number of other shards that are searched if a shard has no bucket to evict.
const SHARDS_LOOKED_AT: usize = 32;

impl Memory {
    /// Reserves room for the new bucket `id` of this shard, by an eviction if necessary. `false` if there is no
    /// room.
    ///
    /// A limit always has room for its share. If no bucket of another limit may go, the table grows beyond its bound.
    /// It never grows beyond twice its bound: all shares together are as large as the bound.
    pub(super) fn make_room(
        &self,
        shard: &mut Shard,
        id: Identity,
        spare: &[Identity],
        now: Now,
    ) -> bool {
        let max_keys = self.shares.max_keys();
        let reserved = self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |keys| {
            (keys < max_keys).then_some(keys + 1)
        });
        if reserved.is_ok() {
            return true;
        }
        let from = &self.shares.exceeded(Some(id), spare);
        let room = Wanted { from, spare, now };
        if from.contains(&id.limit()) {
            return self.evict(shard, room);
        }
        if !self.evict_from(shard, room) {
            self.keys.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Evicts one bucket, of this shard or of another one. Returns `false` if no bucket may be evicted.
    pub(super) fn evict(&self, shard: &mut Shard, room: Wanted<'_>) -> bool {
        if self.evict_from(shard, room) {
            return true;
        }
        // After a reload has lowered the bound, there may be more shards than buckets. Then the shard of a new key is
        // mostly empty, and other shards must be searched.
        let first = self.looked_at.fetch_add(SHARDS_LOOKED_AT, Ordering::Relaxed);
        let others = self.shards.iter().cycle().skip(first % self.shards.len());
        others.take(SHARDS_LOOKED_AT.min(self.shards.len())).any(|other| {
            // Locks are taken in ascending order, and a later shard may be locked already. Waiting here could be a
            // deadlock.
            other.try_lock().is_some_and(|mut other| self.evict_from(&mut other, room))
        })
    }

    fn evict_from(&self, shard: &mut Shard, room: Wanted<'_>) -> bool {
        let evicted = shard.evict(room);
        if evicted == Evicted::Used {
            self.full.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        evicted != Evicted::Nothing
    }

    pub(super) fn removed(&self, keys: usize) {
        self.keys.fetch_sub(keys, Ordering::Relaxed);
    }
}
