//! What happened in the last hour: reloads, outages, overrides. The plots of the page mark these moments.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use super::Admin;
use crate::limit::time::Timestamp;

/// The time for which a mark is kept, and the most marks.
const KEPT: Duration = Duration::from_secs(3_600);
const MOST: usize = 50;

#[derive(Debug, Default)]
pub(super) struct Marks {
    /// What held when it was last looked at. `None` before the first look.
    before: Option<Watched>,
    /// The oldest first, with the time by the steady clock.
    list: VecDeque<(Timestamp, String)>,
}

/// What is looked at each second.
#[derive(Debug)]
struct Watched {
    version: u64,
    /// What is away: Redis, and upstreams without a server.
    away: BTreeSet<String>,
    /// The limits and keys that have an override.
    overrides: BTreeSet<String>,
}

impl Admin {
    /// Marks what has changed since the last look.
    pub(super) fn mark(&self, now: Timestamp) {
        let store = &self.process.store;
        let upstreams = &self.plan.borrow().upstreams;
        let down = upstreams.iter().filter(|it| it.servers().iter().all(|server| !server.is_up()));
        let redis = (store.counters().redis_up == Some(false)).then(|| "Redis".to_owned());
        let overrides = store.overrides().into_iter();
        let watched = Watched {
            version: self.process.config.news().version,
            away: down.map(|it| it.name().to_string()).chain(redis).collect(),
            overrides: overrides.map(|it| format!("{} {}", it.entry.limit, it.entry.key)).collect(),
        };
        self.marks.lock().note(watched, now);
    }

    pub(super) fn marks(&self) -> Vec<Value> {
        let (now, wall) = (self.process.clock.now(), self.process.clock.wall());
        let marks = self.marks.lock();
        let age = |at: Timestamp| Duration::from_micros(now.micros_since(at));
        let recent = marks.list.iter().filter(|(at, _)| age(*at) < KEPT);
        let mark = |(at, text): &(Timestamp, String)| json!({ "at_ms": wall.at(*at).as_micros() / 1_000, "text": text });
        recent.map(mark).collect()
    }
}

impl Marks {
    fn note(&mut self, now: Watched, at: Timestamp) {
        let Some(before) = self.before.replace(now) else { return };
        let Some(now) = &self.before else { return };
        let mut texts = Vec::new();
        if now.version != before.version {
            texts.push(format!("reload: version {}", now.version));
        }
        texts.extend(now.away.difference(&before.away).map(|name| format!("{name} away")));
        texts.extend(before.away.difference(&now.away).map(|name| format!("{name} back")));
        let (set, ended) = (&now.overrides - &before.overrides, &before.overrides - &now.overrides);
        texts.extend(set.iter().map(|key| format!("override set: {key}")));
        texts.extend(ended.iter().map(|key| format!("override ended: {key}")));
        self.list.extend(texts.into_iter().map(|text| (at, text)));
        self.list.drain(..self.list.len().saturating_sub(MOST));
    }
}
