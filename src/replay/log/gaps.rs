//! Finds the lines that are missing in tidegate's own logs: each process counts its access lines.

use std::collections::BTreeMap;

/// The numbers of the lines that were read, by process.
#[derive(Debug, Default)]
pub(crate) struct LineGaps {
    read: BTreeMap<String, NumberRuns>,
    /// How many lines were read again.
    pub(crate) repeated: u64,
}

/// Runs of numbers without a gap: the first number of each, and its last.
type NumberRuns = BTreeMap<u64, u64>;

impl LineGaps {
    /// A line with this number was read.
    pub(crate) fn read(&mut self, process: &str, n: u64) {
        if !self.read.contains_key(process) {
            self.read.insert(process.to_owned(), NumberRuns::new());
        }
        let Some(runs) = self.read.get_mut(process) else { return };
        let before = runs.range(..=n).next_back().map(|(first, last)| (*first, *last));
        let first = match before {
            Some((_, last)) if last >= n => {
                self.repeated += 1;
                return;
            }
            Some((first, last)) if last + 1 == n => first,
            _ => n,
        };
        let last = n.checked_add(1).and_then(|next| runs.remove(&next)).unwrap_or(n);
        runs.insert(first, last);
    }

    /// The number of lines that are missing up to the last one that was read, for each process that lacks some.
    pub(crate) fn missing(&self) -> BTreeMap<String, u64> {
        let missing = self.read.iter().map(|(process, runs)| {
            let read: u64 = runs.iter().map(|(first, last)| last - first + 1).sum();
            let last = runs.last_key_value().map_or(0, |(_, last)| *last);
            (process.clone(), last.saturating_sub(read))
        });
        missing.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_number_up_to_the_last_that_was_not_read_is_missing(
            numbers in prop::collection::vec(1_u64..60, 1..80),
        ) {
            let mut gaps = LineGaps::default();
            numbers.iter().for_each(|n| gaps.read("a", *n));
            let last = *numbers.iter().max().unwrap();
            let lacks = (1..=last).filter(|n| !numbers.contains(n)).count() as u64;
            prop_assert_eq!(gaps.missing().get("a").copied().unwrap_or_default(), lacks);
        }
    }
}
