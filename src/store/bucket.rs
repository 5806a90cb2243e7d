//! The types that all of `store` uses: a question about a bucket, the place of a key in Redis, and a bucket's receipt
//! for what a request took.

use std::time::Duration;

use super::name::BucketKey;
use crate::limit::algorithm::{Algorithm, Receipt};
use crate::limit::decide::Ask;
use crate::limit::decision::Decision;
use crate::redis::HashSlot;
use crate::settings::LimitSpec;

/// A question about one bucket.
#[derive(Clone, Copy, Debug)]
pub struct BucketAsk<'r> {
    /// The limit that the bucket belongs to.
    pub spec: &'r LimitSpec,
    /// The request's key.
    pub key: &'r BucketKey,
    /// The figures that apply to this key, what the request takes, and whether a refusal counts.
    pub ask: Ask,
}

impl BucketAsk<'_> {
    /// Whether the question is about a Redisson limiter, which has its own script.
    pub(super) fn is_limiter(&self) -> bool {
        matches!(self.ask.algorithm, Algorithm::Redisson(_))
    }
}

/// Where a key is in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyLocation {
    pub(super) hash_slot: HashSlot,
    /// The number of this worker's connection to the server. `None` if the server is away.
    pub(super) connection: Option<u64>,
    /// Grows when a known refusal may be wrong: after a reload, a reset of a bucket, or a change of an override that is
    /// no ban.
    pub(super) generation: u64,
}

/// What a bucket says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketReply {
    pub(super) decision: Decision,
    pub(super) by: Decider,
    /// Whether the request has taken from this bucket.
    pub(super) took: bool,
    /// `Some` if the request has taken, and receipts are needed.
    pub(super) receipt: Option<BucketReceipt>,
    /// The time that the bucket's window has left. `None` if no request has begun one.
    pub(super) window_left: Option<Duration>,
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
    pub(crate) fn window_seconds(self) -> u64 {
        self.interval_ms.div_ceil(1_000)
    }
}

/// A bucket's receipt for what a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BucketReceipt {
    pub(super) receipt: Receipt,
    /// The tokens came from the shared bucket, which several keys use while the table is full.
    pub(super) from_shared: bool,
    /// The number of resets in this process before the request took.
    pub(super) resets: u64,
}

impl BucketReceipt {
    /// A receipt of a key's own bucket. The bucket counts as not reset since the request took.
    pub(super) fn of(receipt: Receipt) -> Self {
        Self { receipt, from_shared: false, resets: u64::MAX }
    }
}

/// Who holds a slot in Redis: two numbers below 2^53, together unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// Identifies a worker of a process.
    pub(super) worker: u64,
    /// Identifies a request of that worker.
    pub(super) request: u64,
}

/// Whether receipts are needed. They are if something that a request takes may go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiptUse {
    Needed,
    Unneeded,
}

/// What a limit gave, and to whom it goes back.
pub(super) enum Source {
    /// A bucket of this process.
    Process(BucketReceipt),
    /// A bucket in Redis.
    Redis(Receipt),
    /// A slot in Redis, with its holder.
    Slot(Holder),
    /// Permits of a Redisson limiter, with the id by which the limiter knows them.
    Limiter([u8; 16]),
    /// Nothing: the grant has ended.
    Ended,
}
