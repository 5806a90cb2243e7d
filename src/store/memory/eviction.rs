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
        match shard.evict(spare, now) {
            Evicted::Nothing => return self.evict_elsewhere(spare, now),
            Evicted::Full => {}
            Evicted::Used => self.full.forgotten(self.keys()),
        }
        true
    }

    /// Evicts a bucket of some other shard whose lock is free. After a reload has lowered the bound, there
    /// are more shards than buckets, and most new keys find their own shard empty.
    fn evict_elsewhere(&self, spare: &[Identity], now: Now) -> bool {
        let from = self.looked_at.fetch_add(SHARDS_LOOKED_AT, Ordering::Relaxed);
        let others = self.shards.iter().cycle().skip(from % self.shards.len());
        for shard in others.take(SHARDS_LOOKED_AT.min(self.shards.len())) {
            // This lock may be out of the ascending order of locks. To wait for it could end in a deadlock.
            let Some(mut shard) = shard.try_lock() else { continue };
            match shard.evict(spare, now) {
                Evicted::Nothing => {}
                Evicted::Full => return true,
                Evicted::Used => {
                    self.full.forgotten(self.keys());
                    return true;
                }
            }
        }
        false
    }

    pub(super) fn release_room(&self) {
        self.removed(1);
    }

    pub(super) fn removed(&self, keys: usize) {
        self.keys.fetch_sub(keys, Ordering::Relaxed);
    }
}
