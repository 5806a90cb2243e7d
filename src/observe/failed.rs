//! Failed exchanges with upstreams: the first is logged at once, and while they go on a line now and
//! then says how many they were. An API that is away must not fill the log.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::events;

/// Between two lines for the same route and error.
const PAUSE: Duration = Duration::from_secs(10);

/// So many different ones are told apart; past it those that are over are forgotten, or all.
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
    /// An exchange failed at `now`, and its client was told so.
    pub fn exchange(&self, error: &dyn Display, route: &str, now: Instant) {
        if let Some(count) = self.count(format!("{route}\n{error}"), now) {
            events::upstream_failed(error, route, count);
        }
    }

    /// How many there were since the last line; `None` while it is too early for another one.
    fn count(&self, kind: String, now: Instant) -> Option<u64> {
        let is_over = |told: &Told| now.saturating_duration_since(told.at) >= PAUSE;
        let mut all = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = all.get_mut(&kind) {
            told.untold += 1;
            if !is_over(told) {
                return None;
            }
            let count = told.untold;
            *told = Told { at: now, untold: 0 };
            return Some(count);
        }
        if all.len() >= MOST {
            all.retain(|_, told| !is_over(told));
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(kind, Told { at: now, untold: 0 });
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::testing;
    use super::*;

    /// The counts that are told when exchanges fail after these seconds, each on its route.
    fn told(failures: &[(u64, &str, &str)]) -> Vec<Value> {
        let (failed, begin) = (Failed::default(), Instant::now());
        let lines = testing::lines(|| {
            for (after, route, error) in failures {
                failed.exchange(error, route, begin + Duration::from_secs(*after));
            }
        });
        lines.into_iter().map(|line| line["count"].clone()).collect()
    }

    #[test]
    fn an_api_that_is_away_is_a_line_in_ten_seconds() {
        let away: Vec<_> = (0..25).map(|second| (second, "all", "refused")).collect();
        assert_eq!(told(&away), [1, 10, 10]);
    }

    #[test]
    fn another_route_and_another_error_have_lines_of_their_own() {
        let failures =
            [(0, "a", "refused"), (1, "b", "refused"), (2, "a", "no answer"), (3, "a", "refused")];
        assert_eq!(told(&failures), [1, 1, 1]);
    }

    #[test]
    fn memory_is_bounded() {
        let (failed, now) = (Failed::default(), Instant::now());
        for kind in 0..3 * MOST {
            failed.count(kind.to_string(), now);
        }
        assert!(failed.told.lock().unwrap().len() <= MOST);
    }
}
