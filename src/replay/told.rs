//! Uses what tidegate logged of its requests: the keys, costs and plans that it counted, and the overrides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_LENGTH;

use super::fact::Fact;
use super::log::{LogRecord, LoggedCounts, ToldChange};
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::request::counted::{CountedLimit, CountedRequest};
use crate::request::key::{ALL_KEYS, KeySource, KeySpec};
use crate::settings::{CostSpec, LimitSpec, Settings};
use crate::store;
use crate::throttle::Rehearsal;

/// What was read from the log so far.
#[derive(Default)]
pub(super) struct ToldCounts {
    /// The `key` of each limit of the file that was in force. Empty until a line gives it.
    counts_by: BTreeMap<String, Vec<String>>,
    /// Whether the requests in the log have plans. If no request has a plan, the log cannot say which plan it would
    /// have.
    has_plans: bool,
    /// The overrides that end by themselves, each with its end, limit and key.
    ends: BTreeSet<(Timestamp, String, String)>,
}

impl ToldCounts {
    pub(super) fn change(&mut self, change: &ToldChange, settings: &Settings, buckets: &Rehearsal) {
        match change {
            ToldChange::File { counts_by, plans_by } => {
                self.counts_by.clone_from(counts_by);
                let rule = settings.plans.as_ref().and_then(|rule| rule.by.sources.first());
                self.has_plans = plans_by.is_some() && *plans_by == rule.map(ToString::to_string);
            }
            ToldChange::OverrideSet { limit, key, wanted, until } => {
                let mut limits = settings.limits.iter();
                let Some(spec) = limits.find(|spec| spec.name.as_str() == limit) else { return };
                if self.counts_alike(limit, spec) {
                    let key = stored(key.as_deref());
                    buckets.set_override(spec, key.clone(), wanted.clone());
                    // The line gives whole seconds, so the override may last almost a second longer.
                    let end = until.map(|until| until.plus(Duration::from_secs(1)));
                    self.ends.extend(end.map(|end| (end, limit.clone(), key)));
                }
            }
            ToldChange::OverrideEnded { limit, key } => {
                let key = stored(key.as_deref());
                self.ends.retain(|(_, of, it)| (of, it) != (limit, &key));
                buckets.end_override(limit, &key);
            }
        }
    }

    /// To be called before each request is decided.
    pub(super) fn begin(&mut self, record: &LogRecord, buckets: &Rehearsal) {
        self.has_plans |= record.counted.as_ref().is_some_and(|counts| counts.plan.is_some());
        // Overrides also end without a line in the log.
        let now = record.time;
        while self.ends.first().is_some_and(|(end, ..)| *end <= now) {
            let Some((_, limit, key)) = self.ends.pop_first() else { return };
            buckets.end_override(&limit, &key);
        }
    }

    /// What these limits count of a logged request. They are those of its route: a limit may cost something else on
    /// another route.
    pub(super) fn of_request<'p>(
        &self,
        counts: &LoggedCounts,
        specs: impl Iterator<Item = &'p Arc<LimitSpec>>,
    ) -> CountedRequest {
        let limits = specs.filter_map(|spec| self.of_limit(counts, spec));
        let plan = self.has_plans.then(|| counts.plan.clone());
        CountedRequest { limits: limits.collect(), plan }
    }

    fn of_limit(&self, counts: &LoggedCounts, spec: &LimitSpec) -> Option<CountedLimit> {
        let own = counts.keys.get_key_value(spec.name.as_str());
        let mut all = own.into_iter().chain(&counts.keys);
        let (of, text) = all.find(|(of, _)| self.counts_alike(of, spec))?;
        let key = store::stored_key(text)?;
        let cost = counts.costs.get(of).copied().filter(|_| of == spec.name.as_str());
        let is_asked = counts.via.is_some();
        let (cost, used) = match spec.cost {
            CostSpec::Response { .. } => (None, cost),
            CostSpec::Fixed(_) if !is_asked => (None, None),
            CostSpec::Header { .. } | CostSpec::Fixed(_) => (cost.filter(|cost| *cost > 0), None),
        };
        Some(CountedLimit { limit: spec.name.to_string(), key, cost, used })
    }

    /// Whether the logged limit with this name has the same `key` as this limit. If no line gave the keys of the
    /// limits, the limits must have the same name.
    fn counts_alike(&self, of: &str, spec: &LimitSpec) -> bool {
        match self.counts_by.get(of) {
            Some(sources) => *sources == spec.key.parts_text(),
            None => self.counts_by.is_empty() && of == spec.name.as_str(),
        }
    }
}

/// The text of a key in Redis, from its text in the log. The log shows a missing part as `-`, and no key for all keys.
fn stored(shown: Option<&str>) -> String {
    let Some(shown) = shown else { return ALL_KEYS.to_owned() };
    let parts = shown.split('|').map(|part| if part == "-" { "%-" } else { part });
    parts.collect::<Vec<_>>().join("|")
}

/// Whether the logged counts contain all that the limit reads of this fact.
pub(super) fn tells(
    counted: &CountedRequest,
    spec: &LimitSpec,
    by: Option<&KeySpec>,
    fact: &Fact,
) -> bool {
    let Some(limit) = counted.of(spec.name.as_str()) else { return false };
    let reads = |key: &KeySpec| {
        let mut sources = key.sources.iter().flat_map(KeySource::alternatives);
        sources.any(|source| Fact::of_source(source).as_ref() == Some(fact))
    };
    if by.is_some_and(reads) && counted.plan.is_none() {
        return false;
    }
    match (fact, &spec.cost) {
        (Fact::Use, _) => limit.used.is_some(),
        (Fact::Header(name), CostSpec::Header { name: of, .. }) if **of == *name => {
            limit.cost.is_some()
        }
        (Fact::Header(name), CostSpec::Response { .. }) if *name == CONTENT_LENGTH => false,
        // These facts decide whether a request is exempt. A request that was counted was not.
        (Fact::Header(_) | Fact::Client, _) => true,
        _ => reads(&spec.key) || by.is_some_and(reads),
    }
}

/// The same settings, with overrides that also match the hashed keys of a log.
pub fn with_hashed_overrides(mut settings: Settings) -> Settings {
    for limit in settings.limits.iter_mut().chain(&mut settings.used) {
        if settings.log.keys.hides(limit) {
            let spec = Arc::make_mut(limit);
            let key = &spec.key;
            spec.overrides.add_changed(|part, text| {
                let sources = key.sources.get(part).cloned().into_iter().collect::<Vec<_>>().into();
                let part = KeySpec { sources, ..key.clone() };
                Key::parse(text).map_or_else(String::new, |key| part.hashed(&key).to_string())
            });
        }
    }
    settings
}
