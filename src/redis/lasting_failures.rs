//! Some calls are made again and again in the background. This file says which of their failures are logged.

use std::time::Duration;

use tokio::time::Instant;

use super::error::CallError;
use super::words::refusal;
use crate::observe::log_interval::LogIntervals;

/// The time between two warnings.
const SILENCE: Duration = Duration::from_secs(600);

/// The time that a failure must last to be logged. By then a server that cannot decide at all counts as away,
/// which has its own log line.
const PATIENCE: Duration = Duration::from_secs(3);

/// The failures of one call that is made again and again.
pub(crate) struct LastingFailures {
    lines: LogIntervals<()>,
    since: Option<Instant>,
    advice: CallAdvice,
}

/// What an operator can do about the failures.
pub(crate) struct CallAdvice {
    /// The advice if the call's key has another type.
    pub(crate) other_type: &'static str,
    /// The advice if no better one is known.
    pub(crate) otherwise: &'static str,
}

impl LastingFailures {
    pub(crate) fn new(advice: CallAdvice) -> Self {
        Self { lines: LogIntervals::new(SILENCE), since: None, advice }
    }

    /// Notes how the call has ended. `is_up` says whether its server decides for requests. Returns the error if it is
    /// to be logged, and what the operator can do about it. If the server has not answered, nothing is logged here:
    /// `health` logs that.
    pub(crate) fn news<'r, T>(
        &mut self,
        result: &'r Result<T, CallError>,
        is_up: bool,
    ) -> Option<(&'r CallError, &'static str)> {
        let CallAdvice { other_type, otherwise } = self.advice;
        let (error, help) = match result {
            Ok(_) => {
                self.since = None;
                return None;
            }
            Err(error @ CallError::UnusableKey(_)) => (error, other_type),
            Err(error @ CallError::Redis(answer)) => match answer.code()? {
                "WRONGTYPE" => (error, other_type),
                _ => (error, refusal(answer).and_then(|(_, help)| help).unwrap_or(otherwise)),
            },
            Err(_) => return None,
        };
        self.is_news(is_up, Instant::now()).then_some((error, help))
    }

    fn is_news(&mut self, is_up: bool, now: Instant) -> bool {
        if !is_up {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        now.duration_since(since) >= PATIENCE && self.lines.next(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_failure_that_lasts_while_redis_decides_is_logged() {
        let advice = CallAdvice { other_type: "", otherwise: "" };
        let (mut failures, begin) = (LastingFailures::new(advice), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        for (seconds, is_up, is_news) in [
            (0, true, false),
            (2, true, false),
            (3, false, false),
            (4, true, false),
            (6, true, false),
            (7, true, true),
            (8, true, false),
        ] {
            assert_eq!(failures.is_news(is_up, after(seconds)), is_news, "{seconds}");
        }
    }
}
