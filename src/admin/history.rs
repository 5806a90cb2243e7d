//! `/api/history`: the last hour, for a page that has just been opened.

use std::fmt::Display;

use serde_json::{Map, Value, json};

use super::Admin;
use super::status::rounded;
use crate::observe::history::{Counted, Point, STEP};
use crate::observe::metrics::OUTCOMES;
use crate::observe::millis;

impl Admin {
    pub(super) fn history(&self) -> Value {
        let wall = self.process.clock.wall();
        let point = |point: &Point| {
            json!({
                "end_ms": wall.at(point.end).as_micros() / 1_000,
                "limits": by_name(&point.limits),
                "routes": by_name(&point.routes),
                "other_routes": point.others,
                "store_ms": point.store_ms.map(|millis| millis.map(|it| rounded(it.into()))),
            })
        };
        let points: Value = self.pulse.with_history(|history| history.iter().map(point).collect());
        json!({ "interval_ms": millis(STEP), "counts": OUTCOMES, "points": points })
    }
}

fn by_name<N: Display, const K: usize>(counted: &Counted<N, K>) -> Map<String, Value> {
    counted.iter().map(|(name, counts)| (name.to_string(), counts[..].into())).collect()
}
