//! One shard of the bucket table: finds, keeps and evicts buckets. [`Memory`](super::Memory) locks it.
//!
//! The buckets are in a list without gaps, and a hash table has only their indices. So a bucket costs little more
//! than its state, even if the hash table is half empty.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use hashbrown::HashTable;

use super::blocks::Blocks;
use super::identity::Identity;
use super::packed::Packed;
use super::shares::{LimitMarks, Shares};
use crate::algorithm::sliding_log::Log;
use crate::algorithm::{Algorithm, BucketState, Usage};
use crate::time::Now;

/// When a bucket is full, and how much of it is used. A full bucket may be forgotten without effect. Any other bucket
/// may be evicted to make room, unless it owes tokens. One word holds both, to save memory in each bucket.
///
/// The time is by the clock of the bucket's algorithm. If a wall time were converted to the steady clock, a window that
/// still runs would look ended after a step back of the wall clock. Times are below 2^53. The bits above say how much
/// of the bucket is used: a share in 255 parts, or the time in which an empty bucket refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due(u64);

impl Due {
    const OWES: u64 = 1 << 63;
    const BY_WALL: u64 = 1 << 62;
    const REFILLS: u64 = 1 << 61;
    const TIME_BITS: u32 = 53;
    const TIME: u64 = (1 << Self::TIME_BITS) - 1;

    /// The due time of a bucket with this algorithm and state.
    pub(super) fn of(algorithm: &Algorithm, state: BucketState) -> Self {
        let by_wall = if algorithm.goes_by_wall() { Self::BY_WALL } else { 0 };
        let usage = match algorithm.usage(state) {
            Some(Usage::Share(share)) => u64::from(share) << Self::TIME_BITS,
            Some(Usage::RefillsIn(micros)) => {
                Self::REFILLS | quarter_octaves(micros) << Self::TIME_BITS
            }
            None => Self::OWES | 0xFF << Self::TIME_BITS,
        };
        Self((algorithm.fresh_at(state).as_micros() & Self::TIME) | by_wall | usage)
    }

    fn fresh_at(self) -> u64 {
        self.0 & Self::TIME
    }

    /// How much of the bucket is used at this time: 0 if it is full, else 1 to 255.
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

    /// The bucket's rank in the order of eviction at this time.
    fn rank(self, identity: Identity, now: Now) -> EvictionRank {
        (self.used(now) << Self::TIME_BITS | self.fresh_at(), identity)
    }

    pub(super) fn fresh(self, now: Now) -> bool {
        let now = if self.0 & Self::BY_WALL == 0 { now.steady } else { now.wall };
        self.fresh_at() <= now.as_micros()
    }

    fn owes(self) -> bool {
        self.0 & Self::OWES != 0
    }
}

#[derive(Clone, Copy)]
struct BucketEntry {
    identity: Identity,
    due: Due,
    state: Packed,
}

/// The order of eviction: first by the used share, the smallest first, then by the time at which the bucket is full.
/// The identity makes all ranks different. Times of both clocks are compared as if they were of one clock. If the wall
/// clock steps, only this order is wrong.
type EvictionRank = (u64, Identity);

/// Rounds a time down to one of about 200 values. Each is about a fifth larger than the one before. This is exact
/// enough for an order.
fn quarter_octaves(micros: u64) -> u64 {
    let octave = u64::from(micros.max(4).ilog2());
    octave * 4 + (micros.max(4) >> (octave - 2) & 3)
}

fn micros(quarter_octaves: u64) -> u64 {
    (4 + quarter_octaves % 4) << (quarter_octaves / 4).saturating_sub(2)
}

pub(super) struct Shard {
    /// The buckets of each limit, of all shards.
    shares: Arc<Shares>,
    indices: HashTable<u32>,
    entries: Blocks<BucketEntry>,
    /// The lists of sliding logs, which do not fit into an entry.
    logs: HashMap<Identity, Log>,
    /// The next buckets to evict. At its eviction, a bucket is skipped if its rank has changed, or if its limit may
    /// keep it.
    candidates: BinaryHeap<Reverse<EvictionRank>>,
    /// `candidates` has all buckets of a lower rank that were evictable at the last search. `None` before the first
    /// eviction.
    horizon: Option<EvictionRank>,
    /// The last search found no bucket of these limits. This number of searches for the same limits is skipped.
    spared: (usize, LimitMarks),
}

/// Which bucket to evict: any bucket of the limits `from`, or a full bucket of any other limit. No bucket of `spare` is
/// evicted.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'w> {
    pub(super) from: &'w LimitMarks,
    pub(super) spare: &'w [Identity],
    pub(super) now: Now,
}

/// The bucket that was forgotten to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// None: no bucket may go.
    Nothing,
    /// A full bucket: forgetting it has no effect.
    Full,
    /// A bucket in use: its key begins with a full bucket again.
    Used,
}

const LAST: EvictionRank = (u64::MAX, Identity { shard: u64::MAX, hash: u64::MAX });

impl Shard {
    pub(super) fn new(shares: Arc<Shares>) -> Self {
        Self {
            shares,
            indices: HashTable::new(),
            entries: Blocks::default(),
            logs: HashMap::new(),
            candidates: BinaryHeap::new(),
            horizon: None,
            spared: (0, LimitMarks::new()),
        }
    }

    /// Whether the table has the bucket, be it full or not.
    pub(super) fn has(&self, identity: Identity) -> bool {
        self.find(identity).is_some()
    }

    /// The bucket's state. `None` if the bucket is full: it counts as new, even before a sweep has removed it.
    /// Otherwise the slower figures of a reload would make it a used bucket again.
    pub(super) fn state(&self, identity: Identity, now: Now) -> Option<BucketState> {
        let entry = self.entries.get(self.find(identity)?)?;
        (!entry.due.fresh(now)).then(|| entry.state.state())
    }

    pub(super) fn due(&self, identity: Identity) -> Option<Due> {
        Some(self.entries.get(self.find(identity)?)?.due)
    }

    /// Writes a bucket's state, instead of its former state if it had one.
    pub(super) fn put(&mut self, identity: Identity, state: BucketState, due: Due, now: Now) {
        let entry = BucketEntry { identity, due, state: Packed::of(state) };
        match self.find(identity).and_then(|at| self.entries.get_mut(at)) {
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

    /// The list of a bucket that is a sliding log.
    pub(super) fn log(&mut self, identity: Identity) -> &mut Log {
        self.logs.entry(identity).or_default()
    }

    /// Takes the list of a sliding log out. It must be put back unless the bucket is removed.
    pub(super) fn take_log(&mut self, identity: Identity) -> Log {
        self.logs.remove(&identity).unwrap_or_default()
    }

    /// Removes a bucket. Returns whether it was there.
    pub(super) fn remove(&mut self, identity: Identity) -> bool {
        let Self { indices, entries, logs, .. } = self;
        let found = indices.find_entry(identity.hash, |at| is(entries, *at, identity));
        let Ok(found) = found else { return false };
        self.shares.removed(identity.limit());
        let (at, _) = found.remove();
        if entries.get(index(at)).is_some_and(|entry| entry.state.is_log()) {
            logs.remove(&identity);
        }
        let last = entries.len() - 1;
        entries.swap_remove(index(at));
        if let Some(moved) = entries.get(index(at))
            && let Some(its) = indices.find_mut(moved.identity.hash, |p| index(*p) == last)
        {
            *its = at;
        }
        true
    }

    /// Forgets the evictable bucket of the lowest rank.
    pub(super) fn evict(&mut self, wanted: Wanted<'_>) -> Evicted {
        let Wanted { from, now, .. } = wanted;
        let mut set_aside = Vec::new();
        let mut evicted = self.evict_candidate(wanted, &mut set_aside);
        if evicted == Evicted::Nothing && self.spared.0 > 0 && self.spared.1 == *from {
            self.spared.0 -= 1;
        } else if evicted == Evicted::Nothing {
            self.find_candidates(from, now);
            set_aside.clear();
            evicted = self.evict_candidate(wanted, &mut set_aside);
            if evicted == Evicted::Nothing {
                self.spared = (self.entries.len() / SPARED_SHARE, from.clone());
            }
        }
        self.candidates.extend(set_aside);
        evicted
    }

    /// Forgets full buckets and gives memory back. Returns how many buckets went.
    pub(super) fn sweep(&mut self, now: Now) -> usize {
        let before = self.entries.len();
        let mut at = 0;
        while let Some(entry) = self.entries.get(at) {
            if entry.due.fresh(now) {
                self.remove(entry.identity);
            } else {
                at += 1;
            }
        }
        self.forget_candidates();
        self.shrink();
        before - self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.indices.allocation_size()
            + self.entries.capacity() * size_of::<BucketEntry>()
            + self.logs.capacity() * size_of::<(Identity, Log)>()
            + self.logs.values().map(Log::bytes).sum::<usize>()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> usize {
        self.logs.len()
    }

    fn find(&self, identity: Identity) -> Option<usize> {
        let entries = &self.entries;
        self.indices.find(identity.hash, |at| is(entries, *at, identity)).map(|at| index(*at))
    }

    fn insert(&mut self, entry: BucketEntry) {
        // No memory holds four billion buckets in one shard. Further buckets would not be kept.
        let Ok(at) = u32::try_from(self.entries.len()) else { return };
        self.entries.push(entry);
        self.shares.added(entry.identity.limit());
        let Self { indices, entries, .. } = self;
        indices.insert_unique(entry.identity.hash, at, |at| hash(entries, *at));
    }

    fn evict_candidate(
        &mut self,
        Wanted { from, spare, now }: Wanted<'_>,
        set_aside: &mut Vec<Reverse<EvictionRank>>,
    ) -> Evicted {
        while let Some(Reverse((order, identity))) = self.candidates.pop() {
            let due = self.find(identity).and_then(|at| self.entries.get(at)).map(|e| e.due);
            let is_current = |due: &Due| {
                due.fresh_at() == order & Due::TIME && may_go(*due, identity, from, now)
            };
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

    /// Prepares candidates by one pass over all buckets, so that many evictions need no pass.
    fn find_candidates(&mut self, from: &LimitMarks, now: Now) {
        let mut ranks: Vec<EvictionRank> = self
            .entries
            .iter()
            .filter(|entry| may_go(entry.due, entry.identity, from, now))
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
        self.spared.0 = 0;
    }

    fn shrink(&mut self) {
        self.entries.shrink();
        // The table's sizes are powers of two. At a third of its capacity a smaller size fits.
        if self.indices.capacity() / 3 > self.indices.len() {
            let Self { indices, entries, .. } = self;
            indices.shrink_to(entries.len(), |at| hash(entries, *at));
        }
        if self.logs.capacity() / 3 > self.logs.len() {
            self.logs.shrink_to_fit();
        }
    }
}

/// One pass finds candidates: a sixteenth of all buckets, and at least [`BATCH`].
const BATCH_SHARE: usize = 16;
const BATCH: usize = 16;

/// After a search that found nothing, some searches are skipped: the number of buckets, divided by this.
const SPARED_SHARE: usize = 16;

/// Whether a bucket may be evicted. A bucket that owes tokens or whose slots are held may not.
fn may_go(due: Due, identity: Identity, from: &LimitMarks, now: Now) -> bool {
    due.fresh(now) || !due.owes() && from.contains(&identity.limit())
}

fn is(entries: &Blocks<BucketEntry>, at: u32, identity: Identity) -> bool {
    entries.get(index(at)).is_some_and(|entry| entry.identity == identity)
}

fn hash(entries: &Blocks<BucketEntry>, at: u32) -> u64 {
    entries.get(index(at)).map_or(0, |entry| entry.identity.hash)
}

fn index(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}
