//! Failed exchanges with upstreams: the first is logged at once, and a line ten seconds later says how
//! many more they were. An API that is away must not fill the log, and the counts add up.

use std::collections::HashMap;
use std::fmt::Display;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::events;

/// Between two lines for the same route and error.
const PAUSE: Duration = Duration::from_secs(10);

/// So many different ones are told apart; past it all are told and begin anew.
const MOST: usize = 1_000;

/// What was told of failed exchanges, for the whole process.
#[derive(Debug, Default)]
pub struct Failed {
    told: Mutex<HashMap<String, Told>>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    /// Since then.
    untold: u64,
}

impl Failed {
    /// An exchange failed at `now`: its client was told so, or got less than all of the answer.
    pub fn exchange(&self, error: &dyn Display, route: &str, now: Instant) {
        if self.is_news(format!("{route}\n{error}"), now) {
            events::upstream_failed(error, route, 1);
        }
    }

    /// Says how many there were besides, where ten seconds are over. To be called now and then.
    pub fn tick(&self, now: Instant) {
        self.tell(|told| now.saturating_duration_since(told.at) >= PAUSE, now);
    }

    /// Says all that is counted and not yet said, as at the end of the process.
    pub fn flush(&self, now: Instant) {
        self.tell(|_| true, now);
    }

    /// Whether nothing of this kind was told of late.
    fn is_news(&self, kind: String, now: Instant) -> bool {
        let mut all = self.all();
        if let Some(told) = all.get_mut(&kind) {
            told.untold += 1;
            return false;
        }
        let over = match all.len() < MOST {
            true => HashMap::new(),
            false => mem::take(&mut *all),
        };
        all.insert(kind, Told { at: now, untold: 0 });
        drop(all);
        over.iter().for_each(|(kind, told)| say(kind, told.untold));
        true
    }

    /// Writes what is due; what has not come again since its last line is forgotten.
    fn tell(&self, is_due: impl Fn(&Told) -> bool, now: Instant) {
        let mut lines = Vec::new();
        self.all().retain(|kind, told| {
            if !is_due(told) {
                return true;
            }
            let count = mem::take(&mut told.untold);
            told.at = now;
            if count > 0 {
                lines.push((kind.clone(), count));
            }
            count > 0
        });
        lines.iter().for_each(|(kind, count)| say(kind, *count));
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn say(kind: &str, count: u64) {
    if count > 0 {
        let (route, error) = kind.split_once('\n').unwrap_or(("", kind));
        events::upstream_failed(&error, route, count);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::testing;
    use super::*;

    /// Route, error and count of the lines, when exchanges fail after these seconds, each on its
    /// route, and the timer goes each second for half a minute.
    fn told(failures: &[(u64, &str, &str)]) -> Vec<(String, String, u64)> {
        let (failed, begin) = (Failed::default(), Instant::now());
        let lines = testing::lines(|| {
            for second in 0..30 {
                let now = begin + Duration::from_secs(second);
                for (_, route, error) in failures.iter().filter(|(after, ..)| *after == second) {
                    failed.exchange(error, route, now);
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
                failed.exchange(&"refused", "a", now);
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

    #[test]
    fn memory_is_bounded() {
        let (failed, now) = (Failed::default(), Instant::now());
        for kind in 0..3 * MOST {
            failed.is_news(kind.to_string(), now);
        }
        assert!(failed.told.lock().unwrap().len() <= MOST);
    }
}
