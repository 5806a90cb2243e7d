//! Counts exchanges with upstreams that failed, and logs them in summaries: an API that is down must not
//! fill the log.

use tokio::time::Instant;

use super::events::{self, FailedExchange};
use super::repeated::Repeated;

/// What was told of failed exchanges, for the whole process.
#[derive(Debug)]
pub struct Failed(Repeated<FailedExchange, ()>);

impl Default for Failed {
    fn default() -> Self {
        Self(Repeated::new(|failed, (), count| events::upstream_failed(failed, count)))
    }
}

impl Failed {
    /// An exchange failed at `now`: its client was told so, or got less than all of the answer.
    pub fn exchange(&self, failed: FailedExchange, now: Instant) {
        self.0.count(failed, (), now);
    }

    /// Says how many there were besides, where ten seconds are over. To be called now and then.
    pub fn tick(&self, now: Instant) {
        self.0.tick(now);
    }

    /// Says all that is counted and not yet said, as at the end of the process.
    pub fn flush(&self, now: Instant) {
        self.0.flush(now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::super::testing;
    use super::*;

    fn exchange(route: &str, error: &str) -> FailedExchange {
        let (route, error) = (route.to_owned(), error.to_owned());
        FailedExchange { upstream: "api".into(), server: "http://a".into(), route, error }
    }

    /// Route, error and count of the lines, when exchanges fail after these seconds, each on its
    /// route, and the timer goes each second for half a minute.
    fn told(failures: &[(u64, &str, &str)]) -> Vec<(String, String, u64)> {
        let (failed, begin) = (Failed::default(), Instant::now());
        let lines = testing::lines(|| {
            for second in 0..30 {
                let now = begin + Duration::from_secs(second);
                for (_, route, error) in failures.iter().filter(|(after, ..)| *after == second) {
                    failed.exchange(exchange(route, error), now);
                }
                failed.tick(now);
            }
        });
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let line = |line: Value| {
            (text(&line["route"]), text(&line["error"]), line["count"].as_u64().unwrap())
        };
        lines.into_iter().map(line).collect()
    }

    fn counts(failures: &[(u64, &str, &str)]) -> Vec<u64> {
        told(failures).into_iter().map(|(.., count)| count).collect()
    }

    #[test]
    fn an_api_that_is_away_is_a_line_in_ten_seconds() {
        let away: Vec<_> = (0..25).map(|second| (second, "all", "refused")).collect();
        assert_eq!(counts(&away), [1, 10, 10]);
    }

    #[test]
    fn those_behind_the_first_are_told_though_nothing_fails_any_more() {
        let crowd: Vec<_> = (0..500).map(|_| (3, "all", "no answer: timed out")).collect();
        let line = |count| ("all".to_owned(), "no answer: timed out".to_owned(), count);
        assert_eq!(told(&crowd), [line(1), line(499)]);
    }

    #[test]
    fn what_is_over_is_news_when_it_comes_again() {
        assert_eq!(counts(&[(0, "a", "refused"), (20, "a", "refused")]), [1, 1]);
    }

    #[test]
    fn the_end_of_the_process_tells_what_is_left() {
        let (failed, now) = (Failed::default(), Instant::now());
        let lines = testing::lines(|| {
            for _ in 0..3 {
                failed.exchange(exchange("a", "refused"), now);
            }
            failed.flush(now);
            failed.flush(now);
        });
        assert_eq!(lines.iter().map(|line| &line["count"]).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn another_route_and_another_error_have_lines_of_their_own() {
        let failures =
            [(0, "a", "refused"), (1, "b", "refused"), (2, "a", "no answer"), (3, "a", "refused")];
        assert_eq!(counts(&failures), [1, 1, 1, 1]);
    }
}
