//! Counts requests over the time of a log, in a bounded number of slices.

use serde::Serialize;

use crate::limit::time::Timestamp;

/// The most slices. Beyond them, several slices become one.
pub(crate) const MOST_SLICES: usize = 240;

/// The lengths of slices, in seconds. People know these lengths. Each is a multiple of the one before. After the last
/// one, each step doubles the length.
const LENGTHS: [u64; 13] =
    [1, 2, 10, 30, 60, 120, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400];

const SECOND: u64 = 1_000_000;

/// What happened in one slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Slice {
    pub(crate) requests: u64,
    /// Requests that are held.
    pub(crate) delayed: u64,
    /// Requests that are rejected.
    pub(crate) rejected: u64,
}

/// Slices of equal length, from the time of the first request on. A log of any length has at most
/// [`MOST_SLICES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// When the first slice begins. `None` if nothing was counted.
    pub(crate) start: Option<Timestamp>,
    /// The length of a slice in microseconds.
    pub(crate) width: u64,
    pub(crate) slices: Vec<Slice>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { start: None, width: SECOND, slices: Vec::new() }
    }
}

impl Slice {
    /// Adds what happened in another slice.
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.delayed += other.delayed;
        self.rejected += other.rejected;
    }

    /// What happened in all of these slices.
    pub(crate) fn sum(slices: &[Self]) -> Self {
        slices.iter().fold(Self::default(), |mut sum, slice| {
            sum.add(slice);
            sum
        })
    }
}

impl Timeline {
    /// Adds to the slice of the time `at`. Times before the first one count as the first one.
    pub(crate) fn add(&mut self, at: Timestamp, counted: &Slice) {
        let since = at.micros_since(*self.start.get_or_insert(at));
        while since / self.width >= MOST_SLICES as u64 {
            self.widen();
        }
        let index = usize::try_from(since / self.width).unwrap_or(MOST_SLICES);
        if self.slices.len() <= index {
            self.slices.resize(index + 1, Slice::default());
        }
        self.slices[index].add(counted);
    }

    /// The same counts in slices that are as long as those of `other`, and as many. Both begin at one time,
    /// and the slices of `other` are not shorter.
    #[must_use]
    pub(crate) fn sliced_like(mut self, other: &Self) -> Self {
        while self.width < other.width {
            self.widen();
        }
        self.slices.resize(other.slices.len(), Slice::default());
        self
    }

    /// Makes the slices longer by one step.
    fn widen(&mut self) {
        let longer = LENGTHS.iter().map(|seconds| seconds * SECOND).find(|it| *it > self.width);
        let longer = longer.unwrap_or(self.width * 2);
        let together = usize::try_from(longer / self.width).unwrap_or(1).max(1);
        self.slices = self.slices.chunks(together).map(Slice::sum).collect();
        self.width = longer;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_lost_and_there_are_few_slices(
            gaps in proptest::collection::vec(0_u64..100_000_000_000, 1..500),
        ) {
            let (mut timeline, mut now) = (Timeline::default(), 1 << 50);
            for gap in &gaps {
                now += gap;
                let counted = Slice { requests: 1, delayed: 0, rejected: gap % 2 };
                timeline.add(Timestamp::from_micros(now).unwrap(), &counted);
            }
            let all = Slice::sum(&timeline.slices);
            prop_assert_eq!(all.requests, gaps.len() as u64);
            prop_assert_eq!(all.rejected, gaps.iter().filter(|gap| *gap % 2 == 1).count() as u64);
            prop_assert!(timeline.slices.len() <= MOST_SLICES);
            let length = timeline.width * timeline.slices.len() as u64;
            prop_assert!(length > now - timeline.start.unwrap().as_micros());
            let mut other = Timeline { start: timeline.start, ..Timeline::default() };
            other.add(Timestamp::from_micros(now).unwrap(), &Slice { rejected: 1, ..Slice::default() });
            let other = other.sliced_like(&timeline);
            prop_assert_eq!((other.width, other.slices.len()), (timeline.width, timeline.slices.len()));
            prop_assert_eq!(other.slices.last().unwrap().rejected, 1);
        }
    }
}
