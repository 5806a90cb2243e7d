//! The identity of a bucket in the table.

/// Identifies a bucket by 96 bits of a keyed hash and by the mark of its limit. The hash is keyed so that no
/// client can make two buckets collide. Only the mark shows which limit a bucket of the table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Chooses the shard. The upper half is the mark of the limit.
    pub(super) shard: u64,
    /// The hash by which the shard's table finds the bucket.
    pub(super) hash: u64,
}

impl Identity {
    /// Uses only 32 bits of the first half of the hash.
    pub(super) fn new(limit: LimitMark, first_half: u64, second_half: u64) -> Self {
        let shard = u64::from(limit.0) << 32 | first_half & u64::from(u32::MAX);
        Self { shard, hash: second_half }
    }

    /// All bits in one number.
    pub fn number(self) -> u128 {
        u128::from(self.shard) << 64 | u128::from(self.hash)
    }

    pub(super) fn limit(self) -> LimitMark {
        LimitMark(u32::try_from(self.shard >> 32).unwrap_or_default())
    }
}

/// Marks the buckets of one limit with one algorithm and one key. Among a thousand limits, the probability
/// that two have the same mark is 1 in 8,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct LimitMark(u32);

impl LimitMark {
    /// The mark for the fingerprints of a limit, and for the algorithm's number.
    pub(super) fn of(name: u64, other: u64, algorithm: u64) -> Self {
        // The golden ratio in 64 bits (Knuth, The Art of Computer Programming, volume 3, section 6.4).
        let mixed = (name ^ other.rotate_left(29) ^ algorithm).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self(u32::try_from(mixed >> 32).unwrap_or_default())
    }
}
