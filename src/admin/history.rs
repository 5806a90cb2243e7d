//! `/api/history`: the last hour, for a page that has just been opened.

use serde_json::{Map, Value, json};

use super::Admin;
use super::status::millis;
use crate::observe::history::{History, PointCounts, Ring, STEP};
use crate::observe::metrics::DECISIONS;

impl Admin {
    pub(super) fn history(&self) -> Value {
        self.pulse.with_history(|history| self.points(history))
    }

    fn points(&self, history: &History) -> Value {
        let points = history.ends().len();
        let wall = self.process.clock.wall();
        let ends: Vec<_> = history.ends().map(|end| wall.at(end).as_micros() / 1_000).collect();
        let named = |name: &str, ring| {
            let mut series = decisions(ring, points);
            series.insert("name".to_owned(), name.into());
            series
        };
        let limits = history.limits().map(|(name, ring)| named(name.as_str(), ring));
        let routes = history.routes().map(|(name, ring)| named(name, ring));
        let store = history.store();
        json!({
            "interval_ms": millis(STEP),
            "ends_ms": ends,
            "limits": limits.collect::<Vec<_>>(),
            "routes": routes.collect::<Vec<_>>(),
            "other_routes": decisions(history.others(), points),
            "store_p50_ms": padded(store, points, |it| short(it.p50)),
            "store_p99_ms": padded(store, points, |it| short(it.p99)),
        })
    }
}

/// A list of `points` for each decision.
fn decisions(ring: &Ring<PointCounts>, points: usize) -> Map<String, Value> {
    let lists = DECISIONS.iter().enumerate().map(|(place, decision)| {
        ((*decision).to_owned(), padded(ring, points, |counts| counts[place].into()))
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
