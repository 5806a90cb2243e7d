//! The table of this process's buckets: its shards, and what they count together.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

use super::full::FullCounts;
use super::resets::Resets;
use super::shard::Shard;
use super::shares::Shares;

/// About the number of buckets in a shard. A pass over all of them must be short. A hash table with 1,024
/// entries doubles once 896 of them are in use.
const SHARD_SIZE: usize = 800;
const MOST_SHARDS: usize = 16_384;

/// The fewest shards of a table, as long as each has at least [`SMALLEST_SHARD`] buckets. A reload that raises
/// `max_keys` adds no shards. So a table must not begin with one shard: it would have a single lock when it is large.
const FEWEST_SHARDS: usize = 64;
/// The fewest buckets in a shard. An eviction compares the buckets of one shard only, and chooses badly among
/// few.
const SMALLEST_SHARD: usize = 128;

/// The buckets of a process.
pub struct Memory {
    pub(super) secret: (u64, u64),
    pub(super) shards: Box<[Mutex<Shard>]>,
    /// One bucket for each limit. New keys share it when nothing can be evicted.
    pub(super) shared: Mutex<Shard>,
    pub(super) keys: AtomicUsize,
    pub(super) shares: Arc<Shares>,
    /// What happened while the table was full.
    pub full: FullCounts,
    pub(super) resets: Resets,
    pub(super) swept: AtomicUsize,
    /// The next search in other shards for a bucket to evict begins at this shard.
    pub(super) looked_at: AtomicUsize,
}

impl Memory {
    /// An empty table of at most `max_keys` buckets, and at least one.
    pub fn new(max_keys: usize) -> Self {
        let at_least = (max_keys / SMALLEST_SHARD).clamp(1, FEWEST_SHARDS);
        let shards = max_keys.div_ceil(SHARD_SIZE).clamp(at_least, MOST_SHARDS);
        // Each `RandomState` takes its seed from the system.
        let secret = (RandomState::new().hash_one(0), RandomState::new().hash_one(1));
        let shares = Arc::new(Shares::new(max_keys));
        Self {
            secret,
            shards: (0..shards).map(|_| Mutex::new(Shard::new(shares.clone()))).collect(),
            shared: Mutex::new(Shard::new(Arc::new(Shares::new(max_keys)))),
            keys: AtomicUsize::new(0),
            shares,
            full: FullCounts::default(),
            resets: Resets::default(),
            swept: AtomicUsize::new(0),
            looked_at: AtomicUsize::new(0),
        }
    }
}
