//! Whether figures are lower than others of the same algorithm.

use super::Algorithm;
use super::fixed_window::windows::Windows;
use crate::rate::{Burst, Interval};

impl Algorithm {
    /// Whether one of the `new` figures is lower than the same one of these. `false` if the two cannot be
    /// compared: figures of different algorithms and of Redisson limiters, and windows of the calendar of different
    /// lengths or zones.
    pub fn is_lowered_by(self, new: Self) -> bool {
        match (self, new) {
            (Self::TokenBucket(old), Self::TokenBucket(new)) => {
                old.rate.is_above(new.rate) || old.burst > new.burst
            }
            (Self::LeakyBucket(old), Self::LeakyBucket(new)) => {
                old.rate.is_above(new.rate) || old.queue() > new.queue()
            }
            (Self::FixedWindow(old), Self::FixedWindow(new)) => match (old.windows, new.windows) {
                (
                    Windows::Rolling(old_length) | Windows::Clock(old_length),
                    Windows::Rolling(length) | Windows::Clock(length),
                ) => is_above((old.count, old_length), (new.count, length)),
                (old_windows, windows) => old_windows == windows && old.count > new.count,
            },
            (Self::SlidingWindow(old), Self::SlidingWindow(new)) => {
                is_above((old.count, old.interval), (new.count, new.interval))
            }
            (Self::SlidingLog(old), Self::SlidingLog(new)) => {
                is_above((old.count, old.interval), (new.count, new.interval))
            }
            (Self::Concurrency(old), Self::Concurrency(new)) => old.limit > new.limit,
            (old, Self::Closed) => old != Self::Closed,
            _ => false,
        }
    }
}

/// Whether a count is more than another one, for the same time.
fn is_above(old: (Burst, Interval), new: (Burst, Interval)) -> bool {
    let for_both = |(count, _): (Burst, Interval), (_, interval): (Burst, Interval)| {
        u128::from(count.get()) * u128::from(interval.as_micros())
    };
    for_both(old, new) > for_both(new, old)
}
