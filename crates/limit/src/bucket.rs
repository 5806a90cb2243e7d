//! What the places where buckets live have in common: a question about one bucket, and the bucket's answer.

use std::time::Duration;

use super::algorithm::Receipt;
use super::decide::Ask;
use super::decision::Decision;
use super::key::Key;
use super::name::Name;

/// What a bucket belongs to, beside its key and its algorithm. A limit with another id has other buckets.
#[derive(Clone, Copy, Debug)]
pub struct LimitId<'r> {
    /// The limit's name.
    pub name: &'r Name,
    /// Of what else tells the limit's buckets apart, such as the sources of its keys.
    pub fingerprint: u64,
}

/// A question about one bucket.
#[derive(Clone, Copy, Debug)]
pub struct KeyedAsk<'r> {
    /// The bucket's limit.
    pub limit: LimitId<'r>,
    /// The bucket's key.
    pub key: &'r Key,
    /// What is asked.
    pub ask: Ask,
}

/// What a bucket says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketReply {
    /// What the bucket has decided.
    pub decision: Decision,
    /// Who has decided.
    pub by: Decider,
    /// Whether the request has taken from this bucket.
    pub took: bool,
    /// `Some` if the request has taken, and receipts are needed.
    pub receipt: Option<BucketReceipt>,
    /// The time that the bucket's window has left. `None` if no request has begun one.
    pub window_left: Option<Duration>,
}

/// Who has decided on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    /// A bucket of this process.
    Process,
    /// The limit's shared bucket of a full table: what it says is not about the key.
    Shared,
    /// A bucket in Redis.
    Redis,
    /// A Redisson limiter with these figures.
    Limiter(LimiterFigures),
    /// Nobody had to be asked: the limit is closed, or the answer of Redis is known.
    Known,
}

/// The figures of a Redisson limiter, which only Redis knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterFigures {
    /// The most tokens that a request can ever take.
    pub capacity: u64,
    /// The limiter's interval in milliseconds.
    pub interval_ms: u64,
}

impl LimiterFigures {
    /// The limiter's interval in whole seconds, rounded up.
    pub fn window_seconds(self) -> u64 {
        self.interval_ms.div_ceil(1_000)
    }
}

/// A bucket's receipt for what a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketReceipt {
    /// The note of the algorithm.
    pub receipt: Receipt,
    /// The tokens came from the shared bucket, which several keys use while the table is full.
    pub from_shared: bool,
    /// The number of resets in this process before the request took.
    pub resets: u64,
}

impl BucketReceipt {
    /// A receipt of a key's own bucket. The bucket counts as not reset since the request took.
    pub fn of(receipt: Receipt) -> Self {
        Self { receipt, from_shared: false, resets: u64::MAX }
    }
}

/// Who holds a slot in Redis: two numbers below 2^53, together unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Identifies a worker of a process.
    pub worker: u64,
    /// Identifies a request of that worker.
    pub request: u64,
}

/// Whether receipts are needed. They are if something that a request takes may go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptUse {
    /// Something may go back.
    Needed,
    /// Nothing goes back.
    Unneeded,
}
