//! The types that all of `store` uses: a question about a bucket, the place of a key in Redis, and the source of what a
//! limit gave.

use super::name::BucketKey;
use crate::limit::algorithm::{Algorithm, Receipt};
use crate::limit::bucket::{BucketReceipt, Holder, KeyedAsk, LimitId};
use crate::limit::decide::Ask;
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

impl<'r> BucketAsk<'r> {
    /// The same question, as the table of this process's buckets takes it. A limit whose key sources change begins with
    /// new buckets. A limit whose figures change keeps its buckets.
    pub(super) fn keyed(&self) -> KeyedAsk<'r> {
        let spec = self.spec;
        let window = spec.window.as_ref().map_or(0, |window| window.fingerprint().rotate_left(17));
        let fingerprint = spec.key.sources.fingerprint() ^ window;
        let limit = LimitId { name: &spec.name, fingerprint };
        KeyedAsk { limit, key: self.key.shown(), ask: self.ask }
    }

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
