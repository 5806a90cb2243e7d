//! Histograms of durations.

use std::time::Duration;

/// Upper bounds in microseconds: an API's answers, from half a millisecond to a minute.
pub(super) const REQUEST_BOUNDS: [u64; 16] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Upper bounds in microseconds: from a lock in memory to a Redis that is far away or slow.
pub(super) const STORE_BOUNDS: [u64; 14] = [
    10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
];

/// Durations, counted by how long they are.
#[derive(Debug)]
pub(super) struct Histogram {
    /// Upper bounds in microseconds, ascending. A duration belongs to the first bound that it does not
    /// exceed.
    bounds: &'static [u64],
    /// One count for each bound, and one for longer durations.
    counts: Vec<u64>,
    sum: Duration,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: Duration::ZERO }
    }

    pub(super) fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs().saturating_mul(1_000_000);
        let micros = seconds.saturating_add(duration.subsec_nanos().div_ceil(1000).into());
        let bucket = self.bounds.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(duration);
    }

    /// Adds another histogram with the same bounds.
    pub(super) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Each bound in seconds, with the number of durations that do not exceed the bound. The number without
    /// a bound is [`Histogram::count`].
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.bounds.iter().zip(&self.counts).scan(0, |below, (bound, count)| {
            *below += count;
            Some((Duration::from_micros(*bound).as_secs_f64(), *below))
        })
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// In seconds.
    pub(super) fn sum(&self) -> f64 {
        self.sum.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_belongs_to_it() {
        let mut histogram = Histogram::new(&[10, 20]);
        for nanos in [0, 10_000, 10_001, 20_000, 20_001, u64::MAX] {
            histogram.observe(Duration::from_nanos(nanos));
        }
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative, [(0.00001, 2), (0.00002, 4)]);
        assert_eq!(histogram.count(), 6);
    }

    #[test]
    fn the_longest_durations_do_not_overflow() {
        let mut histogram = Histogram::new(&[10]);
        histogram.observe(Duration::MAX);
        histogram.observe(Duration::MAX);
        assert_eq!(histogram.count(), 2);
        assert!(histogram.sum().is_finite());
    }

    #[test]
    fn bounds_ascend() {
        assert!(REQUEST_BOUNDS.is_sorted() && STORE_BOUNDS.is_sorted());
    }
}
