//! Keeps what was counted in the last hour, in points of five seconds. The page of the admin endpoint shows it when it
//! is opened.
//!
//! The memory is fixed. For each point, a limit or a route takes at most 24 bytes. In an hour this is 14 to 24 KiB. All
//! limits and routes together take less than 5 MiB.
//!
//! A reload may bring new limits and routes. If there is no room for a new one, it takes the place of the one that was
//! unused for the longest time. The history of the old one is lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::metrics::{Reading, RouteReading};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;

/// The time from one point to the next.
pub(crate) const STEP: Duration = Duration::from_secs(5);

/// The points of an hour.
const POINTS: usize = 720;

/// The most limits, and the most routes, that have a history.
const MOST: usize = 100;

/// A series gives its place to a new one only if it was unused for this time. Otherwise, with more limits than
/// [`MOST`] in use, each limit would soon lose its history to another one.
const UNUSED: Duration = Duration::from_secs(60);

/// The history of a process.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The end of each point, by the steady clock.
    ends: Ring<Timestamp>,
    limits: SeriesTable<Name, PointCounts>,
    routes: SeriesTable<Arc<str>, RoutePoint>,
    /// The requests of all routes without a history.
    others: Ring<RoutePoint>,
    store: Ring<StoreLatency>,
}

/// The decisions of one point, in the order of [`DECISIONS`](super::metrics::DECISIONS).
pub(crate) type PointCounts = [u32; 5];

/// The requests of one point: the decisions, then the requests that failed.
pub(crate) type RoutePoint = [u32; 6];

/// How long the store took for its answers, in milliseconds: the median, and the 99th percentile. `None` where the
/// store was not asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StoreLatency {
    pub(crate) p50: Option<f32>,
    pub(crate) p99: Option<f32>,
}

/// The last values of a series, the oldest first. A series that began later than others has fewer values.
pub(crate) type Ring<T> = VecDeque<T>;

/// The series of the limits, or of the routes.
#[derive(Debug)]
struct SeriesTable<N, T>(Vec<Series<N, T>>);

#[derive(Debug)]
struct Series<N, T> {
    name: N,
    values: Ring<T>,
    /// The end of the last point that is not zero.
    used: Timestamp,
}

impl History {
    /// Adds a point: what was counted between two readings. `end` is the time of the second one.
    pub(crate) fn add(&mut self, before: &Reading, now: &Reading, end: Timestamp) {
        push(&mut self.ends, end);
        let limits = now.limits.iter().map(|(name, later)| {
            let earlier = before.limits.get(name).copied().unwrap_or_default();
            (name, difference(&earlier, later))
        });
        self.limits.add(&limits.collect(), end);
        let routes = now.routes.iter().map(|(name, later)| {
            let earlier = before.routes.get(name).copied().unwrap_or_default();
            (name, difference(&earlier.outcomes(), &later.outcomes()))
        });
        let routes = routes.collect();
        self.routes.add(&routes, end);
        let own = self.routes.iter().filter_map(|(name, _)| routes.get(name));
        let [before_all, all] = [before, now].map(|reading| {
            let (decisions, failed) = (reading.decisions(), reading.failed());
            RouteReading { decisions, failed, ..RouteReading::default() }.outcomes()
        });
        let all = difference(&before_all, &all);
        let others = own.fold(all, |rest, own| {
            std::array::from_fn(|place| rest[place].saturating_sub(own[place]))
        });
        push(&mut self.others, others);
        let store = now.store_seconds.since(&before.store_seconds);
        #[allow(clippy::cast_possible_truncation, reason = "milliseconds need no more digits")]
        let quantile = |share| store.quantile_ms(share).map(|millis| millis as f32);
        push(&mut self.store, StoreLatency { p50: quantile(0.5), p99: quantile(0.99) });
    }

    /// The end of each point.
    pub(crate) fn ends(&self) -> impl ExactSizeIterator<Item = Timestamp> {
        self.ends.iter().copied()
    }

    /// The decisions of each limit. The limit that was used first comes first.
    pub(crate) fn limits(&self) -> impl ExactSizeIterator<Item = (&Name, &Ring<PointCounts>)> {
        self.limits.iter()
    }

    /// The requests of each route, by what their limits decided. The route that was used first comes first.
    pub(crate) fn routes(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Ring<RoutePoint>)> {
        self.routes.iter()
    }

    /// The requests of the routes without a history.
    pub(crate) fn others(&self) -> &Ring<RoutePoint> {
        &self.others
    }

    pub(crate) fn store(&self) -> &Ring<StoreLatency> {
        &self.store
    }
}

impl<N, T> Default for SeriesTable<N, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<N: Clone + Ord, T: Copy + Default + PartialEq> SeriesTable<N, T> {
    /// Adds a value to each series. A series begins with the first value of its name that is not zero.
    fn add(&mut self, values: &BTreeMap<&N, T>, end: Timestamp) {
        let is_used = |value: &T| *value != T::default();
        for (&name, _) in values.iter().filter(|(_, value)| is_used(value)) {
            let is_known = self.0.iter().any(|series| series.name == *name);
            if !is_known && self.make_room(end) {
                self.0.push(Series { name: name.clone(), values: Ring::default(), used: end });
            }
        }
        for series in &mut self.0 {
            let value = values.get(&series.name).copied().unwrap_or_default();
            if is_used(&value) {
                series.used = end;
            }
            push(&mut series.values, value);
        }
    }

    /// Makes room for one more series. If there is none, a series that is unused ends. Returns whether there is room.
    fn make_room(&mut self, now: Timestamp) -> bool {
        if self.0.len() < MOST {
            return true;
        }
        let oldest = self.0.iter().enumerate().min_by_key(|(_, series)| series.used);
        let Some((place, oldest)) = oldest else { return false };
        let is_unused = Duration::from_micros(now.micros_since(oldest.used)) >= UNUSED;
        if is_unused {
            self.0.remove(place);
        }
        is_unused
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = (&N, &Ring<T>)> {
        self.0.iter().map(|series| (&series.name, &series.values))
    }
}

/// Adds a value, in place of the oldest one where the hour is full.
fn push<T>(ring: &mut Ring<T>, value: T) {
    if ring.len() >= POINTS {
        ring.pop_front();
    }
    ring.push_back(value);
}

fn difference<const N: usize>(earlier: &[u64; N], later: &[u64; N]) -> [u32; N] {
    let count = |place: usize| later[place].saturating_sub(earlier[place]);
    std::array::from_fn(|place| u32::try_from(count(place)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: usize) -> Timestamp {
        let steps = u32::try_from(step).unwrap();
        Timestamp::from_micros(1_800_000_000_000_000).unwrap().plus(STEP * steps)
    }

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn answered(requests: u64) -> RouteReading {
        RouteReading {
            statuses: [0, requests, 0, 0, requests],
            decisions: [2 * requests, 0, 0, 0, 0],
            failed: requests,
        }
    }

    fn reading(limits: &[(&str, u64)], routes: &[(&str, u64)]) -> Reading {
        Reading {
            limits: limits.iter().map(|(limit, n)| (name(limit), [*n, 0, 0, 2 * n, 0])).collect(),
            routes: routes.iter().map(|(route, n)| ((*route).into(), answered(*n))).collect(),
            ..Reading::default()
        }
    }

    #[test]
    fn a_point_is_what_came_between_two_readings() {
        let mut history = History::default();
        let first = reading(&[], &[("/", 1)]);
        let second = reading(&[("a", 5)], &[("/", 8)]);
        let third = reading(&[("a", 7), ("b", 1)], &[("/", 8), ("/x", 2)]);
        history.add(&Reading::default(), &first, at(1));
        history.add(&first, &second, at(2));
        history.add(&second, &third, at(3));
        assert_eq!(history.ends().collect::<Vec<_>>(), [at(1), at(2), at(3)]);
        let [(_, a), (_, b)] = history.limits().collect::<Vec<_>>()[..] else {
            panic!("{history:?}")
        };
        assert_eq!(a.iter().collect::<Vec<_>>(), [&[5, 0, 0, 10, 0], &[2, 0, 0, 4, 0]]);
        assert_eq!(
            b.iter().collect::<Vec<_>>(),
            [&[1, 0, 0, 2, 0]],
            "it begins with its first use"
        );
        let [(_, root), (_, x)] = history.routes().collect::<Vec<_>>()[..] else {
            panic!("{history:?}")
        };
        assert_eq!(*root, [[2, 0, 0, 0, 0, 1], [14, 0, 0, 0, 0, 7], [0; 6]]);
        assert_eq!(*x, [[4, 0, 0, 0, 0, 2]]);
        assert_eq!(history.store().iter().next(), Some(&StoreLatency::default()));
    }

    #[test]
    fn the_last_hour_stays_and_the_memory_is_fixed() {
        let mut history = History::default();
        let mut before = Reading::default();
        for step in 0..POINTS + 10 {
            let now = reading(&[("a", (step * step) as u64)], &[]);
            history.add(&before, &now, at(step));
            before = now;
        }
        assert_eq!(history.ends().len(), POINTS);
        assert!(history.ends().is_sorted());
        assert_eq!(history.ends().next(), Some(at(10)));
        let points: Vec<_> =
            history.limits().next().unwrap().1.iter().map(|point| point[0]).collect();
        assert_eq!((points.len(), points[0]), (POINTS, 19), "10 x 10 - 9 x 9");
        assert!(points.is_sorted());
    }

    #[test]
    fn routes_beyond_the_last_one_are_counted_together() {
        let names: Vec<_> = (0..MOST + 5).map(|n| format!("/{n:03}")).collect();
        let routes: Vec<_> = names.iter().map(|route| (route.as_str(), 3)).collect();
        let limits: Vec<_> = names.iter().map(|name| (&name[1..], 1)).collect();
        let mut history = History::default();
        history.add(&Reading::default(), &reading(&limits, &routes), at(1));
        assert_eq!((history.routes().len(), history.limits().len()), (MOST, MOST));
        assert_eq!(*history.others(), [[30, 0, 0, 0, 0, 15]]);
    }

    /// Each of many reloads adds a name, and the name before is no longer used.
    #[test]
    fn new_names_come_in_after_many_reloads() {
        let mut history = History::default();
        let mut before = Reading::default();
        let mut now = Reading::default();
        for reload in 0..2 * MOST {
            now.limits.insert(name(&format!("l{reload}")), [1, 0, 0, 0, 0]);
            now.routes.insert(format!("/{reload}").into(), answered(1));
            history.add(&before, &now, at(20 * reload));
            before = now.clone();
        }
        let limits: Vec<_> = history.limits().map(|(name, _)| name.as_str()).collect();
        assert_eq!((limits.len(), limits[0], limits[MOST - 1]), (MOST, "l100", "l199"));
        assert_eq!(history.routes().last().unwrap().0.as_ref(), "/199");
        assert!(history.others().iter().all(|counts| *counts == [0; 6]));
    }

    #[test]
    fn names_in_use_do_not_lose_their_past_to_others() {
        let mut history = History::default();
        let (mut before, mut now) = (Reading::default(), Reading::default());
        for step in 1..=50 {
            for number in 0..MOST + 5 {
                now.limits.insert(name(&format!("l{number:03}")), [step, 0, 0, 0, 0]);
            }
            history.add(&before, &now, at(usize::try_from(step).unwrap()));
            before = now.clone();
        }
        assert_eq!(history.limits().len(), MOST);
        assert!(history.limits().all(|(_, values)| values.iter().len() == 50));
    }
}
