//! Histograms of durations.

use std::time::Duration;

/// Upper bounds in microseconds, ascending: from a lock in memory to an API that answers after a minute. A
/// duration belongs to the first bound that it does not exceed.
const BOUNDS: [u64; 20] = [
    10, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// One count for each bound, and one for longer durations.
type BoundCounts = [u64; BOUNDS.len() + 1];

/// Durations, counted by how long they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    counts: BoundCounts,
    sum: Duration,
}

/// The index of the count to which a duration belongs.
fn index(duration: Duration) -> usize {
    let seconds = duration.as_secs().saturating_mul(1_000_000);
    let micros = seconds.saturating_add(duration.subsec_nanos().div_ceil(1000).into());
    BOUNDS.partition_point(|bound| *bound < micros)
}

impl Histogram {
    pub(crate) fn observe(&mut self, duration: Duration) {
        if let Some(count) = self.counts.get_mut(index(duration)) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(duration);
    }

    /// The durations that were counted since `earlier`, an earlier state of this histogram.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        since.sum = self.sum.saturating_sub(earlier.sum);
        since
    }

    /// The duration that this share of the counted durations does not exceed, in milliseconds. It is an
    /// estimate: durations between two bounds of the histogram count as evenly spread, and longer durations as
    /// the last bound. `None` if nothing was counted.
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count() as f64;
        let (mut below, mut from) = (0, 0);
        for (bound, count) in BOUNDS.iter().zip(&self.counts) {
            if *count > 0 && (below + count) as f64 >= wanted {
                let part = (wanted - below as f64) / *count as f64;
                return Some((from as f64 + part * (bound - from) as f64) / 1_000.0);
            }
            below += count;
            from = *bound;
        }
        (self.count() > 0).then(|| from as f64 / 1_000.0)
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Each bound in seconds, with the number of durations that do not exceed the bound. The number without
    /// a bound is [`Histogram::count`].
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        BOUNDS.iter().zip(&self.counts).scan(0, |below, (bound, count)| {
            *below += count;
            Some((Duration::from_micros(*bound).as_secs_f64(), *below))
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// In seconds.
    pub(crate) fn sum(&self) -> f64 {
        self.sum.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_belongs_to_it() {
        let mut histogram = Histogram::default();
        for nanos in [0, 10_000, 10_001, 50_000, 50_001, 90_000_000_000] {
            histogram.observe(Duration::from_nanos(nanos));
        }
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative[..3], [(0.00001, 2), (0.00005, 4), (0.0001, 5)]);
        assert_eq!(cumulative.last(), Some(&(60.0, 5)));
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.sum(), 90.000_120_002);
    }

    #[test]
    fn the_longest_durations_do_not_overflow() {
        let mut histogram = Histogram::default();
        histogram.observe(Duration::MAX);
        histogram.observe(Duration::MAX);
        assert_eq!(histogram.count(), 2);
        assert!(histogram.sum().is_finite());
    }

    #[test]
    fn a_quantile_lies_between_its_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_ms(0.5), None);
        for _ in 0..10 {
            histogram.observe(Duration::from_micros(300));
        }
        let before = histogram.clone();
        assert_eq!(histogram.quantile_ms(0.5), Some(0.375), "half way from 0.25 to 0.5 ms");
        assert_eq!(histogram.quantile_ms(1.0), Some(0.5));
        for _ in 0..10 {
            histogram.observe(Duration::from_millis(8));
        }
        assert_eq!(histogram.quantile_ms(0.5), Some(0.5));
        assert_eq!(histogram.quantile_ms(0.99), Some(9.9));
        let since = histogram.since(&before);
        assert_eq!((since.count(), since.quantile_ms(0.5)), (10, Some(7.5)));
        assert_eq!(since.sum(), 0.08);
        let mut long = Histogram::default();
        long.observe(Duration::from_secs(100));
        assert_eq!(long.quantile_ms(0.5), Some(60_000.0));
    }

    #[test]
    fn bounds_ascend() {
        assert!(BOUNDS.is_sorted());
    }
}
