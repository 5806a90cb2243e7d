//! Which failures of a call that is made again and again in the background are logged.

use std::time::Duration;

use tokio::time::Instant;

use crate::observe::log_interval::LogIntervals;

/// The time between two warnings.
const SILENCE: Duration = Duration::from_secs(600);

/// A failure is logged if it lasts this long. By then a server that cannot decide at all counts as away,
/// which has a log line of its own.
const PATIENCE: Duration = Duration::from_secs(3);

/// The failures of one such call.
pub(crate) struct LastingFailures {
    lines: LogIntervals<()>,
    since: Option<Instant>,
}

impl LastingFailures {
    pub(crate) fn new() -> Self {
        Self { lines: LogIntervals::new(SILENCE), since: None }
    }

    /// The call succeeded.
    pub(crate) fn end(&mut self) {
        self.since = None;
    }

    /// The call failed at `now`. `is_up` says whether its server decides for requests. Returns whether the
    /// failure is to be logged.
    pub(crate) fn is_news(&mut self, is_up: bool, now: Instant) -> bool {
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
    async fn only_what_lasts_while_the_server_decides_is_news() {
        let (mut failures, begin) = (LastingFailures::new(), Instant::now());
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
