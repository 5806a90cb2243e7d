//! Which shard holds a bucket, and the locks of all shards that one decision needs.

use parking_lot::MutexGuard;

use super::identity::Identity;
use super::shard::Shard;
use super::table::Memory;
use crate::decide::PerAsk;

impl Memory {
    /// Takes the locks of these buckets' shards, in ascending order.
    pub(super) fn lock(&self, ids: &[Identity]) -> Locked<'_> {
        let mut numbers: PerAsk<usize> =
            ids.iter().map(|id| shard_number(*id, self.shards.len())).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let guards = numbers
            .into_iter()
            .filter_map(|number| Some((number, self.shards.get(number)?.lock())))
            .collect();
        Locked { guards, shards: self.shards.len() }
    }
}

/// The locked shards of one decision, in ascending order.
pub(super) struct Locked<'m> {
    guards: PerAsk<(usize, MutexGuard<'m, Shard>)>,
    shards: usize,
}

impl Locked<'_> {
    /// The shard of a bucket. Its identity must be among those that were given to [`Memory::lock`].
    pub(super) fn of(&mut self, id: Identity) -> &mut Shard {
        let number = shard_number(id, self.shards);
        let index = self.guards.iter().position(|(n, _)| *n == number).unwrap_or_default();
        &mut self.guards[index].1
    }
}

pub(super) fn shard_number(id: Identity, shards: usize) -> usize {
    usize::try_from(id.shard).unwrap_or_default().checked_rem(shards).unwrap_or_default()
}
