//! The answers to a request: [`Decision`] of one limit, [`Verdict`] of all enforcing limits of a route.

use std::time::Duration;

/// One limit's answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the limit lets the request pass.
    pub outcome: Outcome,
    /// Whole tokens that are left after this request, rounded down.
    pub remaining: u64,
}

/// Whether a limit lets a request pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request may go now.
    Allow,
    /// The request may go after this time, and its place is reserved. The caller holds the request until
    /// then and need not ask again.
    Delay(Duration),
    /// The request may not go.
    Reject {
        /// The same request passes after this time and not a microsecond earlier, if no other request
        /// comes. A concurrency limit can only guess this time. `None` if the request never passes: it
        /// costs more than the bucket can hold, or the rate is zero.
        retry_after: Option<Duration>,
    },
}

/// A wait as `retry-after` says it: in whole seconds, rounded up, at least 1.
pub fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// A wait in whole milliseconds, rounded up, at least 1.
pub fn whole_milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

impl Decision {
    /// The answer to a request that can never pass.
    pub const NEVER: Self = Self { outcome: Outcome::Reject { retry_after: None }, remaining: 0 };
}

impl Outcome {
    /// Whether the request passes, at once or after a wait.
    pub fn passes(self) -> bool {
        !matches!(self, Self::Reject { .. })
    }
}

/// The answer of all enforcing limits of a route together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All limits let the request pass.
    Pass {
        /// How long the request is to be held: the longest wait of all limits, or zero.
        wait: Duration,
    },
    /// At least one limit refuses.
    Refuse {
        /// The index, among the asked limits, of the limit with the longest `retry_after`.
        by: usize,
        /// The longest `retry_after` of all limits; `None` if the request can never pass.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// All limits let the request pass at once.
    pub const PASS: Self = Self::Pass { wait: Duration::ZERO };

    /// The verdict over the outcomes of the enforcing limits, each given with its index.
    pub fn over(outcomes: impl IntoIterator<Item = (usize, Outcome)>) -> Self {
        outcomes.into_iter().fold(Self::PASS, |verdict, (by, outcome)| match (verdict, outcome) {
            (Self::Pass { wait }, Outcome::Delay(delay)) => Self::Pass { wait: wait.max(delay) },
            (Self::Pass { .. }, Outcome::Reject { retry_after }) => {
                Self::Refuse { by, retry_after }
            }
            (Self::Refuse { retry_after: Some(longest), .. }, Outcome::Reject { retry_after })
                if retry_after.is_none_or(|wait| wait > longest) =>
            {
                Self::Refuse { by, retry_after }
            }
            _ => verdict,
        })
    }

    /// Whether the request passes, at once or after a wait.
    pub fn passes(self) -> bool {
        matches!(self, Self::Pass { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reject(seconds: Option<u64>) -> Outcome {
        Outcome::Reject { retry_after: seconds.map(Duration::from_secs) }
    }

    #[test]
    fn the_limit_that_takes_longest_decides() {
        let over = |outcomes: &[Outcome]| Verdict::over(outcomes.iter().copied().enumerate());
        assert_eq!(over(&[]), Verdict::PASS);
        assert_eq!(over(&[Outcome::Allow, Outcome::Allow]), Verdict::PASS);
        let delay = |seconds| Outcome::Delay(Duration::from_secs(seconds));
        let wait = Duration::from_secs(3);
        assert_eq!(over(&[delay(1), Outcome::Allow, delay(3), delay(2)]), Verdict::Pass { wait });
        assert_eq!(
            over(&[delay(9), reject(Some(1)), delay(7)]),
            Verdict::Refuse { by: 1, retry_after: Some(Duration::from_secs(1)) }
        );
        assert_eq!(
            over(&[reject(Some(1)), Outcome::Allow, reject(Some(3)), reject(Some(2))]),
            Verdict::Refuse { by: 2, retry_after: Some(Duration::from_secs(3)) }
        );
        assert_eq!(
            over(&[reject(Some(1)), reject(None), reject(Some(2))]),
            Verdict::Refuse { by: 1, retry_after: None }
        );
    }
}
