//! Algorithms in few words.

use std::time::Duration;

use tidegate::limit::algorithm::fixed_window::windows::Windows;
use tidegate::limit::algorithm::{
    Algorithm, concurrency, fixed_window, leaky_bucket, sliding_log, sliding_window,
};
use tidegate::limit::rate::{Burst, count_and_interval};

pub(crate) fn leaky(rate: &str, queue: u64) -> Algorithm {
    Algorithm::LeakyBucket(leaky_bucket::Params::new(rate.parse().unwrap(), queue).unwrap())
}

/// A window that opens at a key's first request.
pub(crate) fn rolling(rate: &str) -> Algorithm {
    let (count, interval) = count_and_interval(rate).unwrap();
    window(count, Windows::Rolling(interval))
}

pub(crate) fn on_the_clock(rate: &str) -> Algorithm {
    let (count, interval) = count_and_interval(rate).unwrap();
    window(count, Windows::Clock(interval))
}

pub(crate) fn window(count: u64, windows: Windows) -> Algorithm {
    Algorithm::FixedWindow(fixed_window::Params { count: Burst::new(count).unwrap(), windows })
}

pub(crate) fn sliding(rate: &str) -> Algorithm {
    let (count, interval) = count_and_interval(rate).unwrap();
    let count = Burst::new(count).unwrap();
    Algorithm::SlidingWindow(sliding_window::Params::new(count, interval))
}

pub(crate) fn log(rate: &str) -> Algorithm {
    Algorithm::SlidingLog(sliding_log::Params::new(rate.parse().unwrap()).unwrap())
}

pub(crate) fn slots(limit: u64, lease: Duration) -> Algorithm {
    Algorithm::Concurrency(concurrency::Params::new(Burst::new(limit).unwrap(), lease))
}
