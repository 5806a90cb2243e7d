//! The limits with their figures, their decisions, and their most interesting keys.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::{StatusFacts, busiest, rounded};
use crate::admin::limits::plans;
use crate::admin::metrics;
use crate::config::Spelled as _;
use crate::observe::metrics::{DecisionCounts, DecisionKind, Reading};
use crate::observe::top_keys::KeyCount;
use crate::request::key::shown;
use crate::settings::{LimitSpec, Settings};

/// The most keys in each list of a limit.
const KEYS: usize = 10;

impl StatusFacts<'_> {
    /// The limits, each followed by its candidate.
    pub(super) fn limits(&self, settings: &Settings) -> Vec<Value> {
        let specs: Vec<(&LimitSpec, &str)> = settings
            .limits
            .iter()
            .flat_map(|spec| {
                let candidate = spec.candidate.iter().map(|it| (&**it, "candidate"));
                [(&**spec, spec.mode.name())].into_iter().chain(candidate)
            })
            .collect();
        busiest(&specs, |(spec, _)| self.busy(spec), |(spec, mode)| self.limit(spec, mode))
    }

    /// The number of decisions other than "allowed" between the last two readings, and the number of all decisions
    /// since the start.
    fn busy(&self, spec: &LimitSpec) -> (u64, u64) {
        let [before, last, _] = self.readings().map(|it| decisions(it, spec));
        let all = |counts: DecisionCounts| counts.iter().sum::<u64>();
        let held = |counts| all(counts) - counts[DecisionKind::Allowed as usize];
        (held(last).saturating_sub(held(before)), all(last))
    }

    fn limit(&self, spec: &LimitSpec, mode: &str) -> Value {
        let process = &self.admin.process;
        let algorithm = spec.figures.at(self.admin.clocks());
        let per_second = metrics::rate(algorithm).filter(|it| it.is_finite());
        let mut limit = self.admin.limit(spec);
        limit["rate_per_second"] = per_second.into();
        limit["mode"] = mode.into();
        limit["on_store_error"] = spec.on_store_error.spelling().into();
        limit["override"] = self.admin.override_of_all(spec.name.as_str()).into();
        limit["overrides"] = spec.overrides.len().into();
        limit["plans"] = plans(spec);
        limit["max_waiting"] = spec.max_waiting.into();
        limit["waiting"] = process.waiting.held_for(&spec.name).into();
        limit["throttled_keys"] = process.throttled.throttled_keys(&spec.name).into();
        let counts = self.readings().map(|reading| decisions(reading, spec));
        self.write_outcomes(&mut limit, counts);
        limit["rejected_keys"] = self.rejected_keys(spec, KEYS).into();
        limit
    }

    /// The keys of this limit that are rejected most.
    pub(super) fn rejected_keys(&self, spec: &LimitSpec, most: usize) -> Vec<Value> {
        let keys = self.admin.process.metrics.top_keys(&spec.name, self.now.at, most);
        keys.iter().map(|key| self.rejected(key)).collect()
    }

    fn rejected(&self, key: &KeyCount) -> Value {
        json!({
            "key": shown(&key.label.text),
            "lookup": key.label.text,
            "name": key.label.name,
            "count": key.count,
            "at_most_over": key.at_most_over,
            "per_second": rounded(key.recent.per_second(self.now.at)),
        })
    }
}

/// The most rejected keys of all limits. Candidates are left out, because a candidate has the keys of its limit.
pub(super) fn top_keys(limits: &[Value]) -> Vec<Value> {
    let limits = limits.iter().filter(|limit| limit["mode"] != "candidate");
    let keys = limits.flat_map(|limit| {
        let of = limit["rejected_keys"].as_array().into_iter().flatten();
        of.map(move |key| {
            let mut key = key.clone();
            (key["limit"], key["mode"]) = (limit["name"].clone(), limit["mode"].clone());
            key
        })
    });
    let mut keys: Vec<_> = keys.collect();
    keys.sort_by_key(|key| Reverse(key["count"].as_u64()));
    keys.truncate(KEYS);
    keys
}

fn decisions(reading: &Reading, spec: &LimitSpec) -> DecisionCounts {
    reading.limits.get(&spec.name).copied().unwrap_or_default()
}
