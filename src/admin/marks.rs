//! What happened in the last hour: reloads, outages, overrides. The plots of the page mark these moments. Also since when
//! each alarm stands.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Admin, status};
use crate::limit::time::Timestamp;

/// The time for which a mark is kept, and the most marks.
const KEPT: Duration = Duration::from_secs(3_600);
const MOST: usize = 50;

#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The states at the last look. `None` before the first look.
    before: Option<Watched>,
    /// The oldest first, with the time by the steady clock.
    list: VecDeque<(Timestamp, String)>,
    /// The alarms at the last look, by their `id`: since when each stands.
    pub(super) alarms: BTreeMap<String, Timestamp>,
}

/// States that last for some time. The key is the text of the mark for the begin of a state. The value is the text of
/// the mark for its end. `None` means that the end has no mark.
type Watched = BTreeMap<String, Option<String>>;

impl Admin {
    /// Marks what has changed since the last look.
    pub(super) fn mark(&self, now: Timestamp) {
        let store = &self.process.store;
        let upstreams = &self.published.borrow().upstreams;
        let down = upstreams.iter().filter(|it| it.servers().iter().all(|server| !server.is_up()));
        let redis = (store.counters().redis_up == Some(false)).then(|| "Redis".to_owned());
        let away = down.map(|it| it.name().to_string()).chain(redis);
        let mut watched: Watched =
            away.map(|name| (format!("{name} away"), Some(format!("{name} back")))).collect();
        let overloaded = upstreams.iter().filter(|it| it.queue().facts().lasts.is_some());
        watched.extend(overloaded.map(|it| {
            let name = it.name();
            (format!("overload of {name} began"), Some(format!("overload of {name} ended")))
        }));
        watched.extend(store.overrides().into_iter().map(|it| {
            let key = format!("{} {}", it.entry.limit, it.entry.one_key().unwrap_or("all keys"));
            let begun = if it.entry.is_ban { "banned" } else { "override set" };
            (format!("{begun}: {key}"), Some(format!("override ended: {key}")))
        }));
        watched.insert(format!("reload: version {}", self.process.config.news().version), None);
        let alarms = status::alarms(self);
        let mut marks = self.marks.lock();
        marks.note(watched, now);
        let ids = alarms.iter().filter_map(|alarm| alarm["id"].as_str());
        let since = |id: &str| marks.alarms.get(id).copied().unwrap_or(now);
        marks.alarms = ids.map(|id| (id.to_owned(), since(id))).collect();
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
        let begun = now.keys().filter(|text| !before.contains_key(*text)).cloned();
        let ended = before.iter().filter(|(text, _)| !now.contains_key(*text));
        let texts = begun.chain(ended.filter_map(|(_, end)| end.clone()));
        self.list.extend(texts.map(|text| (at, text)));
        self.list.drain(..self.list.len().saturating_sub(MOST));
    }
}
