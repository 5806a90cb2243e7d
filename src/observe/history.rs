//! Keeps the counts of the last hour, in points of five seconds. The page of the admin endpoint shows these counts as
//! soon as somebody opens it.
//!
//! The memory is bounded: a point has only the busiest limits and routes, with at most 56 bytes each. An hour takes
//! less than 8 MiB.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::metrics::Reading;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;

/// The time from one point to the next.
pub(crate) const STEP: Duration = Duration::from_secs(5);

/// The points of an hour.
const POINTS: usize = 720;

/// The most limits of a point, and the most routes.
pub(crate) const MOST: usize = 100;

/// The last points, the oldest first.
pub(crate) type History = VecDeque<Point>;

/// The counts of limits or routes, with their names. A limit or route whose counts are all zero is left out.
pub(crate) type Counted<N, const K: usize> = Vec<(N, [u32; K])>;

/// What was counted between two readings.
#[derive(Debug)]
pub(crate) struct Point {
    /// The time of the second reading, by the steady clock.
    pub(crate) end: Timestamp,
    /// The decisions of the busiest limits, in the order of [`OUTCOMES`](super::metrics::OUTCOMES).
    pub(crate) limits: Counted<Name, 7>,
    /// The outcomes of the busiest routes, in the same order.
    pub(crate) routes: Counted<Arc<str>, 8>,
    /// The requests of all other routes.
    pub(crate) others: [u32; 8],
    /// The store's answer time in milliseconds: the median and the 99th percentile. `None` if the store was not
    /// asked.
    pub(crate) store_ms: [Option<f32>; 2],
}

/// Adds a point. If the hour is full, the new point replaces the oldest one.
pub(crate) fn add(history: &mut History, before: &Reading, now: &Reading, end: Timestamp) {
    let limits = now.limits.iter().map(|(name, later)| {
        let earlier = before.limits.get(name).copied().unwrap_or_default();
        (name.clone(), difference(earlier, *later))
    });
    let routes = now.routes.iter().map(|(name, later)| {
        let earlier = before.routes.get(name).map(|route| route.outcomes).unwrap_or_default();
        (name.clone(), difference(earlier, later.outcomes))
    });
    let (limits, _) = busiest(limits);
    let (routes, rest) = busiest(routes);
    let others = std::array::from_fn(|index| rest.iter().map(|(_, counts)| counts[index]).sum());
    let store = now.store_seconds.since(&before.store_seconds);
    #[allow(clippy::cast_possible_truncation, reason = "milliseconds need no more digits")]
    let store_ms = [0.5, 0.99].map(|share| store.quantile_ms(share).map(|millis| millis as f32));
    if history.len() >= POINTS {
        history.pop_front();
    }
    history.push_back(Point { end, limits, routes, others, store_ms });
}

/// Splits the entries into the busiest ones and the others. The busiest entry comes first. Entries whose counts are
/// all zero are left out.
fn busiest<N, const K: usize>(
    all: impl Iterator<Item = (N, [u32; K])>,
) -> (Counted<N, K>, Counted<N, K>) {
    let mut all: Vec<_> = all.filter(|(_, counts)| *counts != [0; K]).collect();
    all.sort_by_key(|(_, counts)| Reverse(counts.iter().map(|it| u64::from(*it)).sum::<u64>()));
    let others = all.split_off(all.len().min(MOST));
    // The vector still has the memory of the others. A point would keep it for an hour.
    all.shrink_to_fit();
    (all, others)
}

fn difference<const K: usize>(earlier: [u64; K], later: [u64; K]) -> [u32; K] {
    let count = |index: usize| later[index].saturating_sub(earlier[index]);
    std::array::from_fn(|index| u32::try_from(count(index)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::metrics::RouteCounts;

    fn at(step: usize) -> Timestamp {
        let steps = u32::try_from(step).unwrap();
        Timestamp::from_micros(1_800_000_000_000_000).unwrap().plus(STEP * steps)
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn answered(requests: u64) -> RouteCounts {
        let outcomes = [2 * requests, 0, 0, 0, 0, 0, 0, requests];
        RouteCounts { outcomes, ..RouteCounts::default() }
    }

    fn reading(limits: &[(&str, u64)], routes: &[(&str, u64)]) -> Reading {
        Reading {
            limits: limits
                .iter()
                .map(|(limit, n)| (name(limit), [*n, 0, 0, 2 * n, 0, 0, 0]))
                .collect(),
            routes: routes.iter().map(|(route, n)| ((*route).into(), answered(*n))).collect(),
            ..Reading::default()
        }
    }

    #[test]
    fn a_point_is_the_difference_of_two_readings() {
        let mut history = History::default();
        let first = reading(&[], &[("/", 1)]);
        let second = reading(&[("a", 5)], &[("/", 8)]);
        let third = reading(&[("a", 7), ("b", 3)], &[("/", 8), ("/x", 2)]);
        add(&mut history, &Reading::default(), &first, at(1));
        add(&mut history, &first, &second, at(2));
        add(&mut history, &second, &third, at(3));
        let ends: Vec<_> = history.iter().map(|point| point.end).collect();
        assert_eq!(ends, [at(1), at(2), at(3)]);
        let limits: Vec<_> = history.iter().map(|point| point.limits.as_slice()).collect();
        let (a, b) =
            (|n| (name("a"), [n, 0, 0, 2 * n, 0, 0, 0]), (name("b"), [3, 0, 0, 6, 0, 0, 0]));
        assert_eq!(limits, [&[][..], &[a(5)], &[b, a(2)]], "the busiest comes first");
        let routes: Vec<_> = history.iter().map(|point| point.routes.as_slice()).collect();
        let route = |text: &str, n| (Arc::from(text), [2 * n, 0, 0, 0, 0, 0, 0, n]);
        assert_eq!(routes, [&[route("/", 1)][..], &[route("/", 7)], &[route("/x", 2)]]);
        assert_eq!(history[0].store_ms, [None; 2]);
    }

    #[test]
    fn the_last_hour_stays() {
        let mut history = History::default();
        for step in 0..POINTS + 10 {
            add(&mut history, &Reading::default(), &Reading::default(), at(step));
        }
        assert_eq!((history.len(), history[0].end), (POINTS, at(10)));
    }

    #[test]
    fn routes_beyond_the_busiest_are_counted_together() {
        let names: Vec<_> = (0..MOST + 5).map(|n| format!("/{n:03}")).collect();
        let busy = |index: usize| if index < 5 { 3 } else { 4 };
        let routes: Vec<_> =
            names.iter().enumerate().map(|(index, route)| (route.as_str(), busy(index))).collect();
        let limits: Vec<_> = names.iter().map(|name| (&name[1..], 1)).collect();
        let mut history = History::default();
        add(&mut history, &Reading::default(), &reading(&limits, &routes), at(1));
        assert_eq!((history[0].routes.len(), history[0].limits.len()), (MOST, MOST));
        assert_eq!(history[0].others, [30, 0, 0, 0, 0, 0, 0, 15]);
        assert!(history[0].routes.iter().all(|(name, _)| **name >= *"/005"));
        let memory = (history[0].routes.capacity(), history[0].limits.capacity());
        assert_eq!(memory, (MOST, MOST), "a point keeps no memory of the others");
    }
}
