//! `/api/history`: the last hour, for a page that has just been opened.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use serde_json::{Map, Value, json};

use super::Admin;
use super::status::rounded;
use crate::observe::history::{Counted, History, MOST, Point, STEP, add_counts};
use crate::observe::metrics::OUTCOMES;
use crate::observe::millis;

impl Admin {
    pub(super) fn history(&self) -> Value {
        self.pulse.with_history(|history| self.points(history))
    }

    fn points(&self, history: &History) -> Value {
        let wall = self.process.clock.wall();
        let ends = history.iter().map(|point| wall.at(point.end).as_micros() / 1_000);
        let limits = series(history, |point| &point.limits);
        let routes = series(history, |point| &point.routes);
        let others = history.iter().map(|point| {
            let mut others = point.others;
            let unlisted = point.routes.iter().filter(|(name, _)| !routes.contains_key(name));
            unlisted.for_each(|(_, counts)| add_counts(&mut others, counts));
            others
        });
        let store = |index: usize| -> Value {
            let points = history.iter().map(|point| point.store_ms[index]);
            points.map(|millis| Value::from(millis.map(|it| rounded(it.into())))).collect()
        };
        json!({
            "interval_ms": millis(STEP),
            "ends_ms": ends.collect::<Value>(),
            "limits": limits.iter().map(|(name, counts)| named(name.as_str(), counts)).collect::<Value>(),
            "routes": routes.iter().map(|(name, counts)| named(name, counts)).collect::<Value>(),
            "other_routes": lists(&others.collect::<Vec<_>>()),
            "store_p50_ms": store(0),
            "store_p99_ms": store(1),
        })
    }
}

/// The busiest limits or routes of the hour, with their counts in each point.
fn series<N: Eq + Hash + Ord, const K: usize>(
    history: &History,
    of: fn(&Point) -> &Counted<N, K>,
) -> BTreeMap<&N, Vec<[u32; K]>> {
    let mut sums = HashMap::<&N, u64>::new();
    for (name, counts) in history.iter().flat_map(of) {
        *sums.entry(name).or_default() += counts.iter().map(|count| u64::from(*count)).sum::<u64>();
    }
    let mut names: Vec<_> = sums.into_iter().collect();
    names.sort_by_key(|(name, sum)| (Reverse(*sum), *name));
    names.truncate(MOST);
    let mut series: BTreeMap<_, _> =
        names.into_iter().map(|(name, _)| (name, vec![[0; K]; history.len()])).collect();
    for (index, point) in history.iter().enumerate() {
        for (name, counts) in of(point) {
            if let Some(series) = series.get_mut(name) {
                series[index] = *counts;
            }
        }
    }
    series
}

fn named<const K: usize>(name: &str, points: &[[u32; K]]) -> Map<String, Value> {
    let mut lists = lists(points);
    lists.insert("name".to_owned(), name.into());
    lists
}

/// A list for each decision. A route has one more list, for the requests that failed.
fn lists<const K: usize>(points: &[[u32; K]]) -> Map<String, Value> {
    let list = |index: usize| points.iter().map(|counts| counts[index]).collect();
    let names = OUTCOMES.into_iter().take(K);
    names.enumerate().map(|(index, name)| (name.to_owned(), list(index))).collect()
}
