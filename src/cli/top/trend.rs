//! What each limit rejected in the last minute, or would have rejected if it enforced, second by second.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::cli::admin::{list, text};

/// The seconds of a trend.
pub(super) const SECONDS: usize = 60;

/// The decisions that are rejections, or would be if the limit enforced.
const REJECTIONS: [&str; 3] = ["rejected", "shadow", "marked"];

#[derive(Debug, Default)]
pub(super) struct Trends(HashMap<String, VecDeque<f64>>);

impl Trends {
    /// Begins with the last minute of `/api/history`. A point of it stands for several seconds.
    pub(super) fn of(history: &Value) -> Self {
        let seconds = history["interval_ms"].as_u64().unwrap_or(1_000).div_ceil(1_000).max(1);
        let mut trends = Self::default();
        for limit in list(history, "limits") {
            let trend = trends.0.entry(text(&limit["name"])).or_default();
            let points = list(history, "ends_ms").len();
            let from = points.saturating_sub(SECONDS / usize::try_from(seconds).unwrap_or(SECONDS));
            for point in from..points {
                let count = |decision: &str| limit[decision][point].as_f64().unwrap_or_default();
                let second = REJECTIONS.map(count).iter().sum::<f64>() / seconds as f64;
                (0..seconds).for_each(|_| push(trend, second));
            }
        }
        trends
    }

    /// Adds the present second.
    pub(super) fn add(&mut self, status: &Value) {
        for limit in list(status, "limits") {
            let per_second = |decision: &str| {
                limit[format!("{decision}_per_second")].as_f64().unwrap_or_default()
            };
            let second = REJECTIONS.map(per_second).iter().sum();
            push(self.0.entry(text(&limit["name"])).or_default(), second);
        }
        // A limit that is gone has no row.
        let is_there =
            |name: &str| list(status, "limits").iter().any(|limit| limit["name"] == *name);
        self.0.retain(|name, _| is_there(name));
    }

    /// The last `width` seconds of a limit, the oldest first.
    pub(super) fn last(&self, limit: &str, width: usize) -> Vec<f64> {
        let Some(trend) = self.0.get(limit) else { return Vec::new() };
        trend.iter().skip(trend.len().saturating_sub(width)).copied().collect()
    }
}

fn push(trend: &mut VecDeque<f64>, second: f64) {
    if trend.len() >= SECONDS {
        trend.pop_front();
    }
    trend.push_back(second);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trend_begins_with_the_history_and_has_a_minute() {
        let counts: Vec<u64> = (0..20).map(|n| n * 5).collect();
        let history = json!({
            "interval_ms": 5_000,
            "ends_ms": counts,
            "limits": [{ "name": "a", "allowed": counts, "delayed": [], "rejected": counts }],
        });
        let mut trends = Trends::of(&history);
        let first = trends.last("a", 100);
        assert_eq!(first.len(), SECONDS);
        assert_eq!(first[0], 8.0);
        assert_eq!(first[59], 19.0);
        let limit =
            |name| json!({ "name": name, "allowed_per_second": 9.0, "shadow_per_second": 3.0 });
        trends.add(&json!({ "limits": [limit("a"), limit("b")] }));
        assert_eq!(trends.last("a", 2)[1], 3.0);
        assert_eq!((trends.last("a", 100).len(), trends.last("b", 100).len()), (SECONDS, 1));
        trends.add(&json!({ "limits": [limit("b")] }));
        assert!(trends.last("a", 100).is_empty());
    }
}
