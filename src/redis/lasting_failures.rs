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
    /// The advice if the call's key has another type.
    other_type: &'static str,
    /// The advice if no better one is known.
    otherwise: &'static str,
}

impl LastingFailures {
    /// What an operator can do about the failures: if the call's key has another type, and otherwise.
    pub(crate) fn new(other_type: &'static str, otherwise: &'static str) -> Self {
        Self { lines: LogIntervals::new(SILENCE), since: None, other_type, otherwise }
    }

    /// Notes how the call has ended. `is_up` says whether its server decides for requests. Returns the error if it is
    /// to be logged, and what the operator can do about it. If the server has not answered, nothing is logged here:
    /// `health` logs that.
    pub(crate) fn news<'r, T>(
        &mut self,
        result: &'r Result<T, CallError>,
        is_up: bool,
    ) -> Option<(&'r CallError, &'static str)> {
        let (error, help) = match result {
            Ok(_) => {
                self.since = None;
                return None;
            }
            Err(error @ CallError::UnusableKey(_)) => (error, self.other_type),
            Err(error @ CallError::Redis(answer)) => match answer.code()? {
                "WRONGTYPE" => (error, self.other_type),
                _ => (error, refusal(answer).and_then(|(_, help)| help).unwrap_or(self.otherwise)),
            },
            Err(_) => return None,
        };
        if !is_up {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        (since.elapsed() >= PATIENCE && self.lines.next(())).then_some((error, help))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_failure_that_lasts_while_redis_decides_is_logged() {
        let (mut failures, begin) = (LastingFailures::new("", ""), Instant::now());
        for (seconds, is_up, is_news) in [
            (0, true, false),
            (2, true, false),
            (3, false, false),
            (4, true, false),
            (6, true, false),
            (7, true, true),
            (8, true, false),
        ] {
            tokio::time::advance(begin + Duration::from_secs(seconds) - Instant::now()).await;
            let news = failures.news(&Err::<(), _>(CallError::OTHER_TYPE), is_up);
            assert_eq!(news.is_some(), is_news, "{seconds}");
        }
    }
}
