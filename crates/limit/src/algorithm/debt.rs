//! What a bucket's answer says about tokens that are missing below zero.

use super::Algorithm;
use super::fixed_window::windows::Windows;
use crate::decision::{Decision, Outcome};
use crate::time::Timestamp;

impl Algorithm {
    /// The tokens that are missing from a bucket, rounded up: more than [`Algorithm::capacity`] below zero. `all` is the
    /// decision at `now` on a request for the whole capacity, or for what one request may take. A sliding window and a
    /// sliding log do not tell their debts. If nothing is left, they count as below zero.
    pub fn missing(&self, all: &Decision, now: Timestamp) -> u64 {
        let capacity = self.capacity();
        let taken = capacity.saturating_sub(all.remaining);
        let Outcome::Reject { retry_after: Some(wait) } = all.outcome else { return taken };
        let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        match self {
            Self::FixedWindow(params) => {
                let windows = match params.windows {
                    Windows::Rolling(length) => micros.saturating_sub(1) / length.as_micros(),
                    windows => {
                        let passed = windows.passed(windows.start_of(now), now.plus_micros(micros));
                        passed.saturating_sub(1)
                    }
                };
                taken.saturating_add(windows.saturating_mul(capacity))
            }
            Self::SlidingWindow(_) | Self::SlidingLog(_) => taken + u64::from(all.remaining == 0),
            _ => self.bucket().map_or(taken, |bucket| bucket.gain_of(micros)),
        }
    }
}
