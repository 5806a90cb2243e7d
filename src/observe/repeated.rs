//! Log lines for events that may happen thousands of times a second. The first event of a kind is logged at
//! once. Later events are counted, and a summary each `log.summary_interval` says how many they were. The counts of
//! all lines add up to the number of events.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::events::FailedExchange;
use super::millis;

/// Exchanges with upstreams that failed: an API that is down must not fill the log.
pub(crate) type FailedExchanges = Repeated<FailedExchange, ()>;

/// Malformed requests by their fault, with the last client of each fault: a hostile client must not fill
/// the log.
pub(crate) type MalformedRequests = Repeated<String, IpAddr>;

/// Connections that were refused because their client had too many, with the last client. They are all one kind:
/// many different clients must not fill the log.
pub(crate) type RefusedConnections = Repeated<(), IpAddr>;

/// Spans that no collector got, by what to do about it, with the last collector and the last error.
pub(crate) type DroppedSpans = Repeated<Option<&'static str>, (String, String)>;

/// Settlements of costs that may not have reached Redis, with the last error: an outage must not fill the log.
pub(crate) type UnsettledCosts = Repeated<(), String>;

/// The most kinds that are counted separately. When one more kind comes, all counts are logged, and start again from
/// zero.
const MOST: usize = 1_000;

/// Counts events by kind. For each kind, the details of its last event are kept.
#[derive(Debug)]
pub(crate) struct Repeated<K, S> {
    kinds: Mutex<HashMap<K, EventKind<S>>>,
    total: AtomicU64,
    write_line: WriteLine<K, S>,
}

/// Writes a line with the kind, the details of the last event and the count. A summary also has the milliseconds since
/// the last line of its kind.
type WriteLine<K, S> = fn(&K, &S, u64, Option<u64>);

#[derive(Debug)]
struct EventKind<S> {
    /// When the last line was written.
    last: Instant,
    /// Events since the last line.
    unlogged: u64,
    /// The details of the last event.
    details: S,
}

impl<K: Clone + Eq + Hash, S: Clone> Repeated<K, S> {
    /// Starts without counts.
    pub(crate) fn new(write_line: WriteLine<K, S>) -> Self {
        Self { kinds: Mutex::default(), total: AtomicU64::new(0), write_line }
    }

    /// Counts an event of this kind at `now`.
    pub(crate) fn count(&self, kind: K, details: S, now: Instant) {
        self.count_many(kind, details, 1, now);
    }

    /// Counts `count` events of this kind at `now`.
    pub(crate) fn count_many(&self, kind: K, details: S, count: u64, now: Instant) {
        self.total.fetch_add(count, Ordering::Relaxed);
        let mut kinds = self.kinds.lock();
        if let Some(known) = kinds.get_mut(&kind) {
            known.unlogged += count;
            known.details = details;
            return;
        }
        let before = match kinds.len() < MOST {
            true => HashMap::new(),
            false => mem::take(&mut *kinds),
        };
        let new = EventKind { last: now, unlogged: 0, details: details.clone() };
        kinds.insert(kind.clone(), new);
        drop(kinds);
        before.iter().for_each(|(kind, events)| self.summarise(kind, events, now));
        (self.write_line)(&kind, &details, count, None);
    }

    /// All events since the start.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Writes the summaries of the kinds whose last line is at least `interval` old. A kind without events since its
    /// last line is forgotten. To be called about every second.
    pub(crate) fn write(&self, interval: Duration, now: Instant) {
        let mut due = Vec::new();
        self.kinds.lock().retain(|kind, events| {
            if now.saturating_duration_since(events.last) < interval {
                return true;
            }
            let (last, unlogged) = (events.last, mem::take(&mut events.unlogged));
            events.last = now;
            let details = events.details.clone();
            due.push((kind.clone(), EventKind { last, unlogged, details }));
            unlogged > 0
        });
        due.iter().for_each(|(kind, events)| self.summarise(kind, events, now));
    }

    /// Writes the summary of a kind, if it has events since its last line.
    fn summarise(&self, kind: &K, events: &EventKind<S>, now: Instant) {
        let EventKind { last, unlogged, details } = events;
        if *unlogged > 0 {
            let interval_ms = millis(now.saturating_duration_since(*last));
            (self.write_line)(kind, details, *unlogged, Some(interval_ms));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::observe::{events, testing};

    fn exchange(route: &str, error: &str) -> FailedExchange {
        let (route, error) = (route.to_owned(), error.to_owned());
        FailedExchange { upstream: "api".into(), server: "http://a".into(), route, error }
    }

    /// The route, error and count of each line. A failure has its second, its route and its error. The
    /// timer ticks each second for half a minute.
    fn logged(failures: &[(u64, &str, &str)]) -> Vec<(String, String, u64)> {
        logged_each(10, failures)
    }

    fn logged_each(interval: u64, failures: &[(u64, &str, &str)]) -> Vec<(String, String, u64)> {
        let (failed, begin) = (Repeated::new(events::upstream_failed), Instant::now());
        let lines = testing::lines(|| {
            for second in 0..30 {
                let now = begin + Duration::from_secs(second);
                for (_, route, error) in failures.iter().filter(|(after, ..)| *after == second) {
                    failed.count(exchange(route, error), (), now);
                }
                failed.write(Duration::from_secs(interval), now);
            }
        });
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let line = |line: Value| {
            (text(&line["route"]), text(&line["error"]), line["count"].as_u64().unwrap())
        };
        lines.into_iter().map(line).collect()
    }

    fn counts(failures: &[(u64, &str, &str)]) -> Vec<u64> {
        logged(failures).into_iter().map(|(.., count)| count).collect()
    }

    #[test]
    fn an_api_that_is_away_is_a_line_in_ten_seconds() {
        let away: Vec<_> = (0..25).map(|second| (second, "all", "refused")).collect();
        assert_eq!(counts(&away), [1, 10, 10]);
        let each = |interval| logged_each(interval, &away).into_iter().map(|(.., count)| count);
        assert!(each(5).eq([1, 5, 5, 5, 5, 4]), "the file says how long an interval is");
    }

    #[test]
    fn later_failures_are_logged_even_if_no_further_one_comes() {
        let crowd: Vec<_> = (0..500).map(|_| (3, "all", "no answer: timed out")).collect();
        let line = |count| ("all".to_owned(), "no answer: timed out".to_owned(), count);
        assert_eq!(logged(&crowd), [line(1), line(499)]);
    }

    #[test]
    fn a_failure_that_returns_after_its_end_is_logged_anew() {
        assert_eq!(counts(&[(0, "a", "refused"), (20, "a", "refused")]), [1, 1]);
    }

    #[test]
    fn the_end_of_the_process_logs_what_is_left() {
        let (failed, now) = (Repeated::new(events::upstream_failed), Instant::now());
        let lines = testing::lines(|| {
            for _ in 0..3 {
                failed.count(exchange("a", "refused"), (), now);
            }
            failed.write(Duration::ZERO, now);
            failed.write(Duration::ZERO, now);
        });
        assert_eq!(lines.iter().map(|line| &line["count"]).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_summary_has_its_interval_and_a_first_line_has_none() {
        let (failed, begin) = (Repeated::new(events::upstream_failed), Instant::now());
        let due = Duration::from_secs(10);
        let lines = testing::lines(|| {
            for second in [0, 4] {
                failed.count(exchange("a", "refused"), (), begin + Duration::from_secs(second));
            }
            failed.write(due, begin + Duration::from_millis(10_250));
        });
        let intervals: Vec<_> = lines.iter().map(|line| line.get("interval_ms")).collect();
        assert_eq!(intervals, [None, Some(&10_250.into())]);
    }

    #[test]
    fn another_route_and_another_error_have_lines_of_their_own() {
        let failures =
            [(0, "a", "refused"), (1, "b", "refused"), (2, "a", "no answer"), (3, "a", "refused")];
        assert_eq!(counts(&failures), [1, 1, 1, 1]);
    }

    #[test]
    fn memory_is_bounded() {
        let (repeated, now) = (Repeated::new(|_: &String, (), _, _| {}), Instant::now());
        for kind in 0..3 * MOST {
            repeated.count(kind.to_string(), (), now);
        }
        assert!(repeated.kinds.lock().len() <= MOST);
        assert_eq!(repeated.total(), 3_000);
    }
}
