//! Notices an API that answers much more slowly than in its own last hour, and still in time.
//!
//! The answers of an upstream are measured in turns. A turn is a second or longer, until enough answers have come. Its
//! measure is the time that 95 % of them did not exceed. The API is slow if the measures of the last turns are all far
//! above the median of the measures before. A few requests that take long are no turn, and one slow turn is no alarm.

use std::collections::{BTreeMap, VecDeque};

use super::history::MOST;
use super::metrics::{Histogram, Reading};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;

/// The fewest answers of a turn.
const ANSWERS: u64 = 20;

/// The turns at the end that must all be slow, and the fewest turns before them.
const LAST: usize = 3;
const KNOWN: usize = 5;

/// A slow measure is at least this many times the median, and exceeds it by at least these milliseconds.
const TIMES: f64 = 3.0;
const MORE_MS: f64 = 100.0;

/// For so many microseconds measures are known.
const HOUR: u64 = 3_600_000_000;

/// After so many microseconds without a turn nothing is said of an API.
const RECENT: u64 = 300_000_000;

/// How fast each upstream answers. Of very many the first [`MOST`] are measured.
#[derive(Default)]
pub(crate) struct Paces(BTreeMap<Name, Pace>);

#[derive(Default)]
struct Pace {
    /// What was counted before this turn.
    before: Histogram,
    /// The end of each turn, and its measure in milliseconds.
    turns: VecDeque<(Timestamp, f64)>,
}

impl Paces {
    /// Adds what was counted until now. To be called once a second.
    pub(crate) fn add(&mut self, reading: &Reading, now: Timestamp) {
        for (name, counts) in &reading.upstreams {
            if self.0.len() >= MOST && !self.0.contains_key(name) {
                continue;
            }
            let Pace { before, turns } = self.0.entry(name.clone()).or_default();
            let since = counts.seconds.since(before);
            if since.count() >= ANSWERS {
                turns.extend(since.quantile_ms(0.95).map(|measure| (now, measure)));
                *before = counts.seconds.clone();
            }
            while turns.front().is_some_and(|(end, _)| now.micros_since(*end) > HOUR) {
                turns.pop_front();
            }
        }
    }

    /// The upstreams that are slow: how many milliseconds each takes, and how many are usual.
    pub(crate) fn slow(&self, now: Timestamp) -> Vec<(Name, f64, f64)> {
        let slow = self.0.iter().filter_map(|(name, Pace { turns, .. })| {
            let known = turns.len().checked_sub(LAST).filter(|known| *known >= KNOWN)?;
            let now_ms = turns.range(known..).map(|it| it.1).fold(f64::INFINITY, f64::min);
            if now_ms < MORE_MS || now.micros_since(turns.back()?.0) > RECENT {
                return None;
            }
            let mut before: Vec<_> = turns.range(..known).map(|(_, measure)| *measure).collect();
            let usual_ms = *before.select_nth_unstable_by(known / 2, f64::total_cmp).1;
            let is_slow = now_ms >= TIMES * usual_ms && now_ms >= usual_ms + MORE_MS;
            is_slow.then(|| (name.clone(), now_ms, usual_ms))
        });
        slow.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What an API of these answers is found to be. Each has its number of answers in a second, and their milliseconds.
    fn found(seconds: &[(u64, u64)]) -> Option<(f64, f64)> {
        let (mut paces, mut reading) = (Paces::default(), Reading::default());
        let mut now = Timestamp::from_micros(1_800_000_000_000_000).unwrap();
        let name = Name::new("api").unwrap();
        for (answers, millis) in seconds {
            let counts = reading.upstreams.entry(name.clone()).or_default();
            (0..*answers).for_each(|_| counts.seconds.observe(Duration::from_millis(*millis)));
            now = now.plus(Duration::from_secs(1));
            paces.add(&reading, now);
            assert!(paces.0[&name].turns.len() <= 3_601);
        }
        paces.slow(now).pop().map(|(_, now_ms, usual_ms)| (now_ms, usual_ms))
    }

    #[test]
    fn an_api_is_slow_beside_its_own_last_hour() {
        let run = |parts: &[(usize, (u64, u64))]| {
            let seconds = parts.iter().flat_map(|(count, second)| vec![*second; *count]);
            found(&seconds.collect::<Vec<_>>())
        };
        let fast = (60, (50, 1));
        assert_eq!(run(&[fast]), None);
        assert_eq!(run(&[fast, (2, (50, 1_500))]), None, "not yet");
        let (now, usual) = run(&[fast, (3, (50, 1_500))]).unwrap();
        assert!((1_000.0..=2_500.0).contains(&now) && usual <= 1.0, "{now} {usual}");
        assert!(run(&[fast, (30, (50, 1_500))]).is_some(), "and it stays so");
        assert_eq!(run(&[fast, (30, (50, 1_500)), (1, (50, 1))]), None, "it is fast again");
        assert_eq!(run(&[fast, (2, (1, 1_500))]), None, "two requests");
        assert!(run(&[fast, (60, (1, 1_500))]).is_some(), "one a second, for a minute");
        assert_eq!(run(&[fast, (30, (50, 40))]), None, "some milliseconds more");
        assert_eq!(run(&[(60, (50, 1_000)), (30, (50, 2_000))]), None, "twice as long");
        assert_eq!(run(&[(60, (50, 1_500))]), None, "it was never faster");
        assert_eq!(run(&[(3_700, (50, 1)), (3_700, (50, 1_500))]), None, "an hour ago");
        assert_eq!(run(&[fast, (3, (50, 1_500)), (301, (0, 0))]), None, "nobody asks any more");
    }
}
