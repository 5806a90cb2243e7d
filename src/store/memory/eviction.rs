//! Makes room for one more bucket: where the table is full, another bucket is evicted.

use std::sync::atomic::Ordering;

use super::Memory;
use super::shard::{Evicted, Identity, Shard};
use crate::limit::time::Now;

/// The number of other shards that are searched where a shard has no bucket to evict.
const SHARDS_LOOKED_AT: usize = 32;

impl Memory {
    /// Reserves room for one more bucket of this shard, by an eviction if necessary. `false` without room.
    pub(super) fn make_room(&self, shard: &mut Shard, spare: &[Identity], now: Now) -> bool {
        let max_keys = self.max_keys.load(Ordering::Relaxed);
        let reserved = self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |keys| {
            (keys < max_keys).then_some(keys + 1)
        });
        reserved.is_ok() || self.evict(shard, spare, now)
    }

    /// Evicts a bucket of this shard or another, but none of `spare`. `false` where none may go.
    pub(super) fn evict(&self, shard: &mut Shard, spare: &[Identity], now: Now) -> bool {
        if self.evict_from(shard, spare, now) {
            return true;
        }
        // After a reload has lowered the bound, there are more shards than buckets, and most new keys find
        // their own shard empty.
        let from = self.looked_at.fetch_add(SHARDS_LOOKED_AT, Ordering::Relaxed);
        let others = self.shards.iter().cycle().skip(from % self.shards.len());
        others.take(SHARDS_LOOKED_AT.min(self.shards.len())).any(|other| {
            // This shard may come before a shard that is locked already. To wait for its lock could be a deadlock.
            other.try_lock().is_some_and(|mut other| self.evict_from(&mut other, spare, now))
        })
    }

    fn evict_from(&self, shard: &mut Shard, spare: &[Identity], now: Now) -> bool {
        let evicted = shard.evict(spare, now);
        if evicted == Evicted::Used {
            self.full.forgotten(self.keys());
        }
        evicted != Evicted::Nothing
    }

    pub(super) fn removed(&self, keys: usize) {
        self.keys.fetch_sub(keys, Ordering::Relaxed);
    }
}
