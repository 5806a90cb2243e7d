//! Counts different keys in fixed memory.
//!
//! Each key has a hash of 64 bits, which is as good as a random number. Only the smallest hashes are kept. While there
//! is room for all hashes, the count is exact. After that the count is an estimate. All kept hashes lie between 0 and
//! the largest of them. If this range is a tenth of all possible hashes, for example, then the kept hashes are about a
//! tenth of all hashes.
//!
//! The method is from Z. Bar-Yossef and others, "Counting Distinct Elements in a Data Stream", RANDOM 2002.
//! The estimate `(k − 1) / share` and its error are from K. Beyer and others, "On Synopses for Distinct-Value
//! Estimation Under Multiset Operations", SIGMOD 2007.

/// The most hashes that are kept: 16 KiB. Fewer keys are counted exactly. The standard error of an estimate
/// is `1 / √(k − 2)`, which is 2.2 % here.
pub(super) const KEPT: usize = 2_048;

/// A set of keys, as their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DistinctKeys {
    /// The smallest hashes so far, in ascending order.
    smallest: Vec<u64>,
}

impl DistinctKeys {
    /// Counts the key with this hash. Allocates memory only while fewer than [`KEPT`] hashes are kept.
    pub(super) fn insert(&mut self, hash: u64) {
        if self.smallest.len() == KEPT && self.smallest.last().is_some_and(|last| hash > *last) {
            return;
        }
        let Err(index) = self.smallest.binary_search(&hash) else { return };
        self.smallest.truncate(KEPT - 1);
        self.smallest.insert(index, hash);
    }

    /// The number of different keys so far.
    pub(super) fn count(&self) -> u64 {
        let kept = self.smallest.len() as u64;
        match self.smallest.last() {
            Some(largest) if self.smallest.len() == KEPT => {
                // The share is `(largest + 1) / 2^64`.
                let estimate = (u128::from(kept - 1) << 64) / (u128::from(*largest) + 1);
                u64::try_from(estimate).unwrap_or(u64::MAX).max(kept)
            }
            _ => kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hasher as _;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;

    use super::*;

    /// The keys with these numbers. Another seed has other hashes.
    fn keys(numbers: impl IntoIterator<Item = u64>, seed: u64) -> DistinctKeys {
        let mut keys = DistinctKeys::default();
        for number in numbers {
            let mut hasher = SipHasher13::new_with_keys(seed, 0);
            hasher.write_u64(number);
            keys.insert(hasher.finish());
        }
        keys
    }

    #[test]
    fn fewer_keys_than_are_kept_are_counted_exactly() {
        assert_eq!(DistinctKeys::default().count(), 0);
        for count in [1, 2, 1_753, KEPT as u64 - 1, KEPT as u64] {
            let twice = (0..count).chain(0..count);
            let counted = keys(twice, 7).count();
            match count < KEPT as u64 {
                true => assert_eq!(counted, count),
                false => assert!(counted >= count, "{counted} of {count}"),
            }
        }
    }

    /// The standard error of 100 estimates is near the stated one, and they are right on average.
    #[test]
    fn the_error_of_an_estimate_is_the_stated_one() {
        let stated = 1.0 / (KEPT as f64 - 2.0).sqrt();
        for count in [5_000_u64, 50_000] {
            let errors =
                (0..100).map(|seed| keys(0..count, seed).count() as f64 / count as f64 - 1.0);
            let errors: Vec<_> = errors.collect();
            let mean = errors.iter().sum::<f64>() / 100.0;
            let deviation = (errors.iter().map(|it| it * it).sum::<f64>() / 100.0).sqrt();
            assert!(mean.abs() < stated / 2.0, "{count} keys: {mean} on average");
            assert!(deviation < 1.2 * stated, "{count} keys: {deviation}, stated {stated}");
        }
    }

    #[test]
    fn the_memory_is_fixed_whatever_comes() {
        for seed in 0..4 {
            let keys = keys(0..100_000, seed);
            assert_eq!((keys.smallest.len(), keys.smallest.capacity()), (KEPT, KEPT));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_smallest_are_kept_in_whatever_order_they_come(
            parts in prop::collection::vec(prop::collection::vec(0..6_000_u64, 0..3_000), 0..4),
        ) {
            let whole = keys(parts.iter().flatten().copied(), 1);
            let backwards = parts.iter().flatten().rev().copied();
            prop_assert_eq!(&keys(backwards, 1), &whole);
            let truth: BTreeSet<_> = parts.iter().flatten().collect();
            if truth.len() < KEPT {
                prop_assert_eq!(whole.count(), truth.len() as u64);
            }
            // Some of these keys are never more than all of them.
            if let Some(part) = parts.first() {
                prop_assert!(keys(part.iter().copied(), 1).count() <= whole.count());
            }
        }
    }
}
