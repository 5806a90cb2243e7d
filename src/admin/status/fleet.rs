//! What a process tells of itself to the others that share its store.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{MOST, ProcessReading, StatusFacts};
use crate::admin::Admin;
use crate::observe::PROCESS;
use crate::observe::metrics::Reading;
use crate::settings::LimitSpec;

/// The most bytes of the rejected keys as JSON. A report has a few hundred bytes more.
const MOST_BYTES: usize = 15 * 1_024;

/// What the process tells of itself to the others that share its store.
pub(in crate::admin) fn report(admin: &Admin) -> Value {
    let (now, readings) = (ProcessReading::now(&admin.process), admin.pulse.readings());
    let facts = StatusFacts::new(admin, &now, &readings);
    let [requests_before, requests, all] = facts.readings().map(Reading::requests);
    let [rejected_before, rejected, _] = facts.readings().map(Reading::rejected);
    let uptime = Duration::from_micros(now.at.micros_since(admin.started));
    let store = &admin.process.store;
    json!({
        "name": PROCESS.as_str(),
        "version": env!("CARGO_PKG_VERSION"),
        "since": facts.ago(uptime),
        "config_version": *store.fleet.file.lock(),
        "requests": all,
        "requests_per_second": facts.per_second(requests_before, requests),
        "rejected_per_second": facts.per_second(rejected_before, rejected),
        "store": store.counters().redis_up.unwrap_or(true),
        "rejected": most_rejected(&facts),
    })
}

/// The keys that are rejected most, as many as there is room for.
fn most_rejected(facts: &StatusFacts<'_>) -> Vec<Value> {
    let of_limit = |spec: &Arc<LimitSpec>| {
        let mut keys = facts.rejected_keys(spec, MOST);
        for key in &mut keys {
            (key["limit"], key["mode"]) = (spec.name.as_str().into(), spec.mode.name().into());
        }
        keys
    };
    let settings = Arc::clone(&facts.admin.published.borrow().settings);
    let mut keys: Vec<_> = settings.limits.iter().flat_map(of_limit).collect();
    keys.sort_by_key(|key| Reverse(key["count"].as_u64()));
    keys.truncate(MOST);
    let mut bytes = 0;
    keys.retain(|key| {
        bytes += key.to_string().len() + 1;
        bytes <= MOST_BYTES
    });
    keys
}
