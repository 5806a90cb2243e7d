//! `/api/history`: the last hour, for a page that has just been opened.

use serde_json::{Map, Value, json};

use super::Admin;
use super::status::millis;
use crate::observe::history::{History, Ring, STEP};
use crate::observe::metrics::DECISIONS;

impl Admin {
    pub(super) fn history(&self) -> Value {
        self.pulse.with_history(|history| self.points(history))
    }

    fn points(&self, history: &History) -> Value {
        let points = history.ends().len();
        let wall = self.process.clock.wall();
        let ends: Vec<_> = history.ends().map(|end| wall.at(end).as_micros() / 1_000).collect();
        let named = |name: &str, mut series: Map<String, Value>| {
            series.insert("name".to_owned(), name.into());
            series
        };
        let limits = history.limits();
        let limits = limits.map(|(name, ring)| named(name.as_str(), counts(ring, points)));
        let routes = history.routes().map(|(name, ring)| named(name, counts(ring, points)));
        let store = history.store();
        json!({
            "interval_ms": millis(STEP),
            "ends_ms": ends,
            "limits": limits.collect::<Vec<_>>(),
            "routes": routes.collect::<Vec<_>>(),
            "other_routes": counts(history.others(), points),
            "store_p50_ms": padded(store, points, |it| short(it.p50)),
            "store_p99_ms": padded(store, points, |it| short(it.p99)),
        })
    }
}

/// A list of `points` for each decision, and of a route for the requests that failed.
fn counts<const N: usize>(ring: &Ring<[u32; N]>, points: usize) -> Map<String, Value> {
    let names = DECISIONS.into_iter().chain(["failed"]);
    let lists = names.take(N).enumerate().map(|(place, name)| {
        (name.to_owned(), padded(ring, points, |counts| counts[place].into()))
    });
    lists.collect()
}

/// The values of a series as a list of `points`. A series that began later has zeros in front.
fn padded<T>(ring: &Ring<T>, points: usize, write: impl Fn(&T) -> Value) -> Value {
    let missing = points.saturating_sub(ring.iter().len());
    std::iter::repeat_n(0.into(), missing).chain(ring.iter().map(write)).collect()
}

/// A few digits are enough.
fn short(number: Option<f32>) -> Value {
    number.map(|number| (f64::from(number) * 1_000.0).round() / 1_000.0).into()
}
