//! One part of the bucket table: finding, keeping and evicting.
//!
//! The buckets lie side by side in a list, and a hash table holds only their places in it: a
//! bucket costs little more than what it holds, whatever the table's load.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use hashbrown::HashTable;

use super::blocks::Blocks;
use super::packed::Packed;
use crate::limit::algorithm::sliding_log::Log;
use crate::limit::algorithm::{Algorithm, State, Usage};
use crate::limit::time::Now;

/// Which bucket: 128 bits of a keyed hash, so that nobody outside can make two buckets meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Identity {
    /// Chooses the shard.
    pub(super) shard: u64,
    /// Chooses the place within it.
    pub(super) place: u64,
}

/// When a bucket may be forgotten: from then on by anybody, and before then for want of room
/// unless it owes tokens. Kept in one word, since there is one for each bucket.
///
/// It is a time by the bucket's own clock: were one by the wall converted, a step back would have a
/// window forgotten that is still running. Times are below 2^53. The bits above them hold how much of the
/// bucket is used: a share in 255 parts, or the time in which all of it refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due(u64);

impl Due {
    const OWES: u64 = 1 << 63;
    const BY_WALL: u64 = 1 << 62;
    const REFILLS: u64 = 1 << 61;
    const TIME_BITS: u32 = 53;
    const TIME: u64 = (1 << Self::TIME_BITS) - 1;

    /// Of a bucket of this algorithm.
    pub(super) fn of(algorithm: &Algorithm, state: State) -> Self {
        let owes = if algorithm.in_debt(state) { Self::OWES } else { 0 };
        let by_wall = if algorithm.goes_by_wall() { Self::BY_WALL } else { 0 };
        let usage = match algorithm.usage(state) {
            Usage::Share(share) => u64::from(share) << Self::TIME_BITS,
            Usage::RefillsIn(micros) => Self::REFILLS | quarter_octaves(micros) << Self::TIME_BITS,
        };
        Self((algorithm.fresh_at(state).as_micros() & Self::TIME) | owes | by_wall | usage)
    }

    fn fresh_at(self) -> u64 {
        self.0 & Self::TIME
    }

    /// How much of the bucket is used at this time: 0 where it is full, and else 1 to 255.
    fn used(self, now: Now) -> u64 {
        let now = if self.0 & Self::BY_WALL == 0 { now.steady } else { now.wall };
        let left = self.fresh_at().saturating_sub(now.as_micros());
        let value = self.0 >> Self::TIME_BITS & 0xFF;
        let used = match self.0 & Self::REFILLS == 0 {
            true => value,
            false => left.saturating_mul(255) / micros(value).max(1),
        };
        if left == 0 { 0 } else { used.clamp(1, 255) }
    }

    /// The order in which buckets go: by how much of them is used, and then by time.
    fn rank(self, identity: Identity, now: Now) -> EvictionRank {
        (self.used(now) << Self::TIME_BITS | self.fresh_at(), identity)
    }

    pub(super) fn fresh(self, now: Now) -> bool {
        let now = if self.0 & Self::BY_WALL == 0 { now.steady } else { now.wall };
        self.fresh_at() <= now.as_micros()
    }

    fn evictable(self, now: Now) -> bool {
        self.0 & Self::OWES == 0 || self.fresh(now)
    }
}

#[derive(Clone, Copy)]
struct BucketEntry {
    identity: Identity,
    due: Due,
    state: Packed,
}

/// The order in which buckets go: the closest to full first, and of those the ones that are full sooner. The
/// identity makes it total. Times by two clocks are taken as of one: it is the order alone that a step of the
/// wall may disturb.
type EvictionRank = (u64, Identity);

/// A time as one of about 200 values, each a fifth longer than the one before: what the order needs.
fn quarter_octaves(micros: u64) -> u64 {
    let octave = u64::from(micros.max(4).ilog2());
    octave * 4 + (micros.max(4) >> (octave - 2) & 3)
}

fn micros(quarter_octaves: u64) -> u64 {
    (4 + quarter_octaves % 4) << (quarter_octaves / 4).saturating_sub(2)
}

#[derive(Default)]
pub(super) struct Shard {
    places: HashTable<u32>,
    entries: Blocks<BucketEntry>,
    /// What does not fit into an entry: beside it, so that the others need no room for it.
    logs: HashMap<Identity, Log>,
    /// The next to go. A rank that is no longer its bucket's is passed over.
    candidates: BinaryHeap<Reverse<EvictionRank>>,
    /// Every evictable bucket of a lower rank is among the candidates; `None` before the first
    /// eviction.
    horizon: Option<EvictionRank>,
    /// So many searches for a candidate are spared, because the last one found none.
    spared: usize,
}

/// What was forgotten to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// No bucket may go.
    Nothing,
    /// One that was full again: nobody will notice.
    Full,
    /// One that was not: its key begins anew.
    Used,
}

const LAST: EvictionRank = (u64::MAX, Identity { shard: u64::MAX, place: u64::MAX });

impl Shard {
    pub(super) fn state(&self, identity: Identity) -> Option<State> {
        Some(self.entries.get(self.find(identity)?)?.state.state())
    }

    /// Keeps a state in place of the bucket's former one.
    pub(super) fn put(&mut self, identity: Identity, state: State, due: Due, now: Now) {
        let entry = BucketEntry { identity, due, state: Packed::of(state) };
        match self.find(identity).and_then(|place| self.entries.get_mut(place)) {
            Some(known) => *known = entry,
            None => self.insert(entry),
        }
        let rank = due.rank(identity, now);
        if self.horizon.is_some_and(|horizon| rank < horizon) {
            self.candidates.push(Reverse(rank));
            if self.candidates.len() > self.entries.len() / 4 + 4 * BATCH {
                self.forget_candidates();
            }
        }
    }

    /// The list of a bucket whose state is that of one.
    pub(super) fn log(&mut self, identity: Identity) -> &mut Log {
        self.logs.entry(identity).or_default()
    }

    /// The same, taken out: it is to be put back unless the bucket goes.
    pub(super) fn take_log(&mut self, identity: Identity) -> Log {
        self.logs.remove(&identity).unwrap_or_default()
    }

    /// Whether the bucket was there.
    pub(super) fn remove(&mut self, identity: Identity) -> bool {
        let Self { places, entries, logs, .. } = self;
        let found = places.find_entry(identity.place, |place| is(entries, *place, identity));
        let Ok(found) = found else { return false };
        let (place, _) = found.remove();
        if entries.get(index(place)).is_some_and(|entry| entry.state.is_log()) {
            logs.remove(&identity);
        }
        let last = entries.len() - 1;
        entries.swap_remove(index(place));
        if let Some(moved) = entries.get(index(place))
            && let Some(its) = places.find_mut(moved.identity.place, |p| index(*p) == last)
        {
            *its = place;
        }
        true
    }

    /// Forgets the evictable bucket that is closest to full, but none of `spare`.
    pub(super) fn evict(&mut self, spare: &[Identity], now: Now) -> Evicted {
        let mut set_aside = Vec::new();
        let mut evicted = self.evict_candidate(spare, now, &mut set_aside);
        if evicted == Evicted::Nothing && self.spared > 0 {
            self.spared -= 1;
        } else if evicted == Evicted::Nothing {
            self.find_candidates(now);
            set_aside.clear();
            evicted = self.evict_candidate(spare, now, &mut set_aside);
            if evicted == Evicted::Nothing {
                self.spared = self.entries.len() / SPARED_SHARE;
            }
        }
        self.candidates.extend(set_aside);
        evicted
    }

    /// Forgets what is full and gives memory back. Returns how many buckets went.
    pub(super) fn sweep(&mut self, now: Now) -> usize {
        let before = self.entries.len();
        let mut place = 0;
        while let Some(entry) = self.entries.get(place) {
            if entry.due.fresh(now) {
                self.remove(entry.identity);
            } else {
                place += 1;
            }
        }
        self.forget_candidates();
        self.shrink();
        before - self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.places.allocation_size()
            + self.entries.capacity() * size_of::<BucketEntry>()
            + self.logs.capacity() * size_of::<(Identity, Log)>()
            + self.logs.values().map(Log::bytes).sum::<usize>()
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> usize {
        self.logs.len()
    }

    fn find(&self, identity: Identity) -> Option<usize> {
        let entries = &self.entries;
        self.places
            .find(identity.place, |place| is(entries, *place, identity))
            .map(|place| index(*place))
    }

    fn insert(&mut self, entry: BucketEntry) {
        // A shard that has four billion buckets is beyond any memory; it would keep no more.
        let Ok(place) = u32::try_from(self.entries.len()) else { return };
        self.entries.push(entry);
        let Self { places, entries, .. } = self;
        places.insert_unique(entry.identity.place, place, |place| hash(entries, *place));
    }

    fn evict_candidate(
        &mut self,
        spare: &[Identity],
        now: Now,
        set_aside: &mut Vec<Reverse<EvictionRank>>,
    ) -> Evicted {
        while let Some(Reverse((order, identity))) = self.candidates.pop() {
            let due = self.find(identity).and_then(|place| self.entries.get(place)).map(|e| e.due);
            let is_current = |due: &Due| due.fresh_at() == order & Due::TIME && due.evictable(now);
            let Some(due) = due.filter(is_current) else { continue };
            if spare.contains(&identity) {
                set_aside.push(Reverse((order, identity)));
                continue;
            }
            self.remove(identity);
            return if due.fresh(now) { Evicted::Full } else { Evicted::Used };
        }
        Evicted::Nothing
    }

    /// One pass over all buckets, paid for by the many evictions that follow without one.
    fn find_candidates(&mut self, now: Now) {
        let mut ranks: Vec<EvictionRank> = self
            .entries
            .iter()
            .filter(|entry| entry.due.evictable(now))
            .map(|entry| entry.due.rank(entry.identity, now))
            .collect();
        let wanted = (self.entries.len() / BATCH_SHARE).max(BATCH);
        let mut horizon = LAST;
        if wanted < ranks.len() {
            horizon = *ranks.select_nth_unstable(wanted).1;
            ranks.truncate(wanted);
        }
        self.candidates = ranks.into_iter().map(Reverse).collect();
        self.candidates.shrink_to_fit();
        self.horizon = Some(horizon);
    }

    fn forget_candidates(&mut self) {
        self.candidates = BinaryHeap::new();
        self.horizon = None;
        self.spared = 0;
    }

    fn shrink(&mut self) {
        self.entries.shrink();
        // The table only has sizes that are powers of two: with a third of room there is a
        // smaller one to gain.
        if self.places.capacity() / 3 > self.places.len() {
            let Self { places, entries, .. } = self;
            places.shrink_to(entries.len(), |place| hash(entries, *place));
        }
        if self.logs.capacity() / 3 > self.logs.len() {
            self.logs.shrink_to_fit();
        }
    }
}

/// As many evictions, or `BATCH`, are prepared by one pass over the buckets.
const BATCH_SHARE: usize = 16;
const BATCH: usize = 16;

/// After a search that found nothing to evict as many are spared.
const SPARED_SHARE: usize = 16;

fn is(entries: &Blocks<BucketEntry>, place: u32, identity: Identity) -> bool {
    entries.get(index(place)).is_some_and(|entry| entry.identity == identity)
}

fn hash(entries: &Blocks<BucketEntry>, place: u32) -> u64 {
    entries.get(index(place)).map_or(0, |entry| entry.identity.place)
}

fn index(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}
