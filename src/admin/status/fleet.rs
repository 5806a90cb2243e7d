//! What a process tells of itself to the others that share its store.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::StatusFacts;
use crate::observe::PROCESS;
use crate::observe::metrics::Reading;
use crate::settings::{LimitSpec, Settings};

/// The most keys of a report.
const MOST_KEYS: usize = 200;

/// The most bytes of these keys as JSON. A report has a few hundred bytes more.
const MOST_BYTES: usize = 15 * 1_024;

impl StatusFacts<'_> {
    pub(super) fn report(&self, settings: &Settings) -> Value {
        let [requests_before, requests, all] = self.readings().map(Reading::requests);
        let [rejected_before, rejected, _] = self.readings().map(Reading::rejected);
        let uptime = Duration::from_micros(self.now.at.micros_since(self.admin.started));
        json!({
            "name": PROCESS.as_str(),
            "version": env!("CARGO_PKG_VERSION"),
            "since": self.ago(uptime),
            "config_version": self.admin.process.config.news().file_version(),
            "requests": all,
            "requests_per_second": self.per_second(requests_before, requests),
            "rejected_per_second": self.per_second(rejected_before, rejected),
            "store": self.admin.process.store.counters().redis_up.unwrap_or(true),
            "rejected": self.most_rejected(settings),
        })
    }

    /// The keys that are rejected most, as many as there is room for.
    fn most_rejected(&self, settings: &Settings) -> Vec<Value> {
        let of_limit = |spec: &Arc<LimitSpec>| {
            let mut keys = self.rejected_keys(spec, MOST_KEYS);
            for key in &mut keys {
                (key["limit"], key["mode"]) = (spec.name.as_str().into(), spec.mode.name().into());
            }
            keys
        };
        let mut keys: Vec<_> = settings.limits.iter().flat_map(of_limit).collect();
        keys.sort_by_key(|key| Reverse(key["count"].as_u64()));
        keys.truncate(MOST_KEYS);
        let mut bytes = 0;
        keys.retain(|key| {
            bytes += key.to_string().len() + 1;
            bytes <= MOST_BYTES
        });
        keys
    }
}
