//! What an algorithm, and a route's algorithms together, say to a request.

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
    /// It may go now.
    Allow,
    /// It may go after this time, and its place is reserved: the request is to be held until then, and
    /// need not ask again.
    Delay(Duration),
    /// It may not.
    Reject {
        /// The same request, alone, is allowed after this time and not a microsecond before;
        /// `None` where it never will be (it costs more than the bucket can hold, or the rate is
        /// zero).
        retry_after: Option<Duration>,
    },
}

impl Decision {
    /// A request that nothing will ever let pass.
    pub const NEVER: Self = Self { outcome: Outcome::Reject { retry_after: None }, remaining: 0 };
}

impl Outcome {
    /// Whether the request passes, be it after a wait.
    pub fn passes(self) -> bool {
        !matches!(self, Self::Reject { .. })
    }
}

/// What a route's enforcing limits mean together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of them let it pass, after the longest of their waits; zero is at once.
    Pass {
        /// How long the request is to be held.
        wait: Duration,
    },
    /// At least one refuses.
    Refuse {
        /// The place, among the limits asked, of the one that takes longest to clear.
        by: usize,
        /// After this time all of them allow; `None` where that is never.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// All of them allow it now.
    pub const PASS: Self = Self::Pass { wait: Duration::ZERO };

    /// The verdict over the limits that enforce, each with its place.
    pub fn over(outcomes: impl IntoIterator<Item = (usize, Outcome)>) -> Self {
        outcomes.into_iter().fold(Self::PASS, |verdict, (place, outcome)| match outcome {
            Outcome::Allow => verdict,
            Outcome::Delay(delay) => verdict.and_delayed(delay),
            Outcome::Reject { retry_after } => verdict.and_refused(place, retry_after),
        })
    }

    /// Whether the request may go, be it after a wait.
    pub fn passes(self) -> bool {
        matches!(self, Self::Pass { .. })
    }

    fn and_delayed(self, delay: Duration) -> Self {
        match self {
            Self::Pass { wait } => Self::Pass { wait: wait.max(delay) },
            Self::Refuse { .. } => self,
        }
    }

    fn and_refused(self, place: usize, wait: Option<Duration>) -> Self {
        match self {
            Self::Refuse { retry_after: None, .. } => self,
            Self::Refuse { retry_after: Some(longest), .. }
                if wait.is_some_and(|wait| wait <= longest) =>
            {
                self
            }
            _ => Self::Refuse { by: place, retry_after: wait },
        }
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
