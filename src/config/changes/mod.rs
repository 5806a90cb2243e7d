//! Says for the log what a reload changes: the difference of two trees of settings. It never shows a secret.

use std::collections::HashMap;

use super::tree::{FileText, MASKED, SettingEntry, Tree};
use crate::limit::Scope;
use crate::limit::time::Timestamp;
use crate::plans::PlanFile;
use crate::request::key::KeySource;
use crate::settings::{LimitSpec, Settings, StoreLocation};
use crate::text::misleads;
use crate::tls::server::Material;

/// Further changes are only counted: ten thousand changed routes do not fit into a log line.
const MOST: usize = 50;

/// Further changed overrides of a limit are only counted.
const MOST_OVERRIDES: usize = 10;

/// The most bytes of a value that is shown.
const LONGEST: usize = 500;

/// What differs between two files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changed fields that only a restart applies.
    pub(crate) restart: Vec<NeededRestart>,
    /// Changes that the new file applies, such as `limits.per-client rate 100/s -> 50/s`.
    pub(crate) changed: Vec<String>,
}

/// A changed field that only a restart applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NeededRestart {
    /// The field, such as `server.listen`.
    pub(crate) field: String,
    /// What changes, in a line for people.
    pub(crate) line: String,
}

/// Settings, and the text of the file from which they were made.
pub(crate) type PlanOfFile<'p> = (&'p Settings, &'p FileText);

/// What is different in `new`. A list of changes that is too long ends with the number of further changes.
/// `env` returns the value of an environment variable.
pub(crate) fn diff(
    (old, old_text): PlanOfFile<'_>,
    (new, new_text): PlanOfFile<'_>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Changes {
    let (was, is) = (&old_text.tree(env), &new_text.tree(env));
    let mut changes = Changes::default();
    changes.section("server", was, is);
    changes.named("upstreams.", named(was.get("upstreams")), named(is.get("upstreams")));
    changes.limits([old, new], named(was.get("limits")), named(is.get("limits")));
    changes.named("route ", routes(old, was), routes(new, is));
    changes.named("jwt.", named(was.get("jwt")), named(is.get("jwt")));
    for section in ["plans", "store", "reject", "cors", "log", "trace"] {
        changes.section(section, was, is);
    }
    // A token that the file has lost may still be in force, see `server/adopt.rs`. Then nothing has changed. The
    // same holds for `[decide]`.
    if old.admin != new.admin {
        changes.section("admin", was, is);
    }
    if old.decide != new.decide {
        changes.section("decide", was, is);
    }
    // Whether the port speaks TLS stays as it was at the start.
    if old.decide.tls.is_some() != new.decide.tls.is_some() {
        changes.changed.retain(|line| !line.starts_with("decide.tls."));
        changes.push("decide.tls", true, None);
    }
    changes.certificates(old, new);
    let more = changes.changed.len().saturating_sub(MOST);
    if more > 0 {
        changes.changed.truncate(MOST);
        changes.changed.push(format!("and {more} more"));
    }
    changes
}

impl Changes {
    /// Whether nothing is different.
    pub fn is_empty(&self) -> bool {
        self.restart.is_empty() && self.changed.is_empty()
    }

    fn section(&mut self, name: &str, old: &Tree, new: &Tree) {
        self.table(&format!("{name}."), old.get(name).entries(), new.get(name).entries());
    }

    /// Compares tables that the operator has named.
    fn named<'t>(&mut self, kind: &str, old: Items<'t, Tree>, new: Items<'t, Tree>) {
        for (name, pair) in pairs(old, new) {
            let title = format!("{kind}{name}");
            match pair {
                [Some(old), Some(new)] => {
                    self.table(&format!("{title} "), old.entries(), new.entries());
                }
                [_, None] => self.changed.push(format!("{title} removed")),
                [None, _] => self.changed.push(format!("{title} added")),
            }
        }
    }

    /// Compares the fields of a table. `title` stands in front of their names.
    fn table<'t>(
        &mut self,
        title: &str,
        old: impl IntoIterator<Item = &'t SettingEntry>,
        new: impl IntoIterator<Item = &'t SettingEntry>,
    ) {
        let [old, new] = [Vec::from_iter(old), Vec::from_iter(new)];
        // Most tables stay as they are, even if there are ten thousand.
        if old == new {
            return;
        }
        // Only a restart adds or removes a table with such a field.
        let is_later =
            (old.is_empty() || new.is_empty()) && old.iter().chain(&new).any(|entry| entry.restart);
        let by_name = |entries: Vec<&'t SettingEntry>| {
            entries.into_iter().map(|it| (&*it.name, it)).collect()
        };
        for (name, pair) in pairs(by_name(old), by_name(new)) {
            let restart = pair.iter().flatten().any(|entry| entry.restart);
            // Another algorithm may have other fields. A field that comes or goes counts only if the file has it.
            let counts =
                pair.iter().all(Option::is_some) || pair.iter().flatten().any(|it| it.is_written);
            if counts && restart >= is_later {
                let [old, new] = pair.map(|entry| entry.map_or(&Tree::None, |entry| &entry.value));
                self.value(&format!("{title}{name}"), restart, old, new);
            }
        }
    }

    fn value(&mut self, path: &str, restart: bool, old: &Tree, new: &Tree) {
        match (old, new) {
            (Tree::Table(_), Tree::Table(_) | Tree::None) | (Tree::None, Tree::Table(_)) => {
                self.table(&format!("{path}."), old.entries(), new.entries());
            }
            _ if old != new => self.push(path, restart, shown(old, new)),
            _ => {}
        }
    }

    fn push(&mut self, path: &str, restart: bool, values: Option<String>) {
        let hidden = if restart { "changes" } else { "changed" };
        let line = format!("{path} {}", values.as_deref().unwrap_or(hidden));
        if restart {
            let line = format!("{line} with a restart");
            self.restart.push(NeededRestart { field: path.to_owned(), line });
        } else {
            self.changed.push(line);
        }
    }

    fn limits<'t>(&mut self, plans: [&Settings; 2], old: Items<'t, Tree>, new: Items<'t, Tree>) {
        let [had, has] = plans.map(|settings| {
            let limits = settings.limits.iter().map(|limit| (limit.name.as_str(), &**limit));
            limits.collect::<HashMap<_, _>>()
        });
        for (name, pair) in pairs(old, new) {
            let title = format!("limits.{name}");
            match pair {
                [Some(old), Some(new)] => {
                    let fields =
                        |limit: &'t Tree| limit.entries().iter().filter(|it| it.name != OVERRIDES);
                    self.table(&format!("{title} "), fields(old), fields(new));
                    // A limit that is off is not in the settings.
                    let specs = (had.get(name), has.get(name));
                    let key = specs.1.map_or(&[][..], |spec| &spec.key.sources);
                    self.overrides(&title, key, old.get(OVERRIDES), new.get(OVERRIDES));
                    let buckets =
                        specs.0.zip(specs.1).and_then(|(old, new)| buckets(old, new, plans[1]));
                    self.changed.extend(buckets.map(|sentence| format!("{title} {sentence}")));
                }
                [_, None] => self.changed.push(format!("{title} removed")),
                [None, Some(new)] => {
                    let settings = Some(new.written()).filter(|it| may_show(it));
                    let settings = settings.map_or(String::new(), |it| format!(": {it}"));
                    self.changed.push(format!("{title} added{settings}"));
                }
            }
        }
    }

    /// Reports the overrides that changed, and counts the others. `key` is the key of the limit.
    fn overrides(&mut self, title: &str, key: &[KeySource], old: &Tree, new: &Tree) {
        let [had, has] = [old, new].map(|list| {
            let overrides = list.items().iter().map(|it| (it.get("key").plain(), it));
            overrides.collect::<HashMap<_, _>>()
        });
        let added = has.keys().filter(|it| !had.contains_key(*it)).count();
        let removed = had.keys().filter(|it| !has.contains_key(*it)).count();
        let both =
            old.items().iter().filter_map(|old| Some((old, *has.get(&old.get("key").plain())?)));
        let differ: Vec<_> = both.filter(|(old, new)| old != new).collect();
        for (old, new) in differ.iter().take(MOST_OVERRIDES) {
            let title = format!("{title} override {} ", override_key(key, old.get("key").items()));
            self.table(&title, old.entries(), new.entries());
        }
        let more = differ.len().saturating_sub(MOST_OVERRIDES);
        for (count, what) in [(added, "added"), (removed, "removed"), (more, "more changed")] {
            if count > 0 {
                self.changed.push(format!("{title} overrides: {count} {what}"));
            }
        }
    }

    /// Reports certificate files that have the same name and new contents.
    fn certificates(&mut self, old: &Settings, new: &Settings) {
        for ((name, old), (_, new)) in old.listener_tls().into_iter().zip(new.listener_tls()) {
            let (Some(old), Some(new)) = (old, new) else { continue };
            let (old, new) = (&old.material, &new.material);
            let authorities = |tls: &Material| tls.clients.as_ref().map(|(found, _)| found.clone());
            self.content(&format!("{name}.certificates"), old.identities != new.identities);
            self.content(&format!("{name}.client_ca"), authorities(old) != authorities(new));
        }
        let [had, has] = [old, new].map(|settings| settings.plans.as_ref()?.file.as_ref());
        let content = |file: &PlanFile| file.content();
        self.content("plans.file", had.map(content) != has.map(content));
        let had: HashMap<_, _> = old.upstreams.iter().map(|it| (&it.name, &it.tls)).collect();
        for new in &new.upstreams {
            let differs = had.get(&new.name).is_some_and(|old| **old != new.tls);
            self.content(&format!("upstreams.{} tls", new.name), differs);
        }
        let is_reported = self.restart.iter().any(|it| it.field.starts_with("store."));
        if !is_reported && old.store.location != new.store.location {
            self.push("store.tls", true, None);
        }
    }

    fn content(&mut self, path: &str, differs: bool) {
        if differs && !self.changed.iter().any(|line| line.starts_with(path)) {
            self.push(path, false, None);
        }
    }
}

/// The field of a limit whose entries are compared one by one.
const OVERRIDES: &str = "overrides";

/// What happens to the buckets of a limit. `None` if they all stay.
fn buckets(old: &LimitSpec, new: &LimitSpec, settings: &Settings) -> Option<&'static str> {
    let is_redis = settings.store.location != StoreLocation::Memory;
    let [as_was, as_is] = [old, new].map(|limit| settings.log.keys.hides(limit));
    // A bucket is known by its key as it is shown. A Redisson limiter is known by the values themselves.
    let is_renamed = old.key == new.key && as_was != as_is && new.limiter.is_none();
    // If nothing is counted, there are no buckets.
    let [was, is] = [old, new].map(|it| it.figures.at(Timestamp::MIN).map(|it| it.name()));
    let has_other = was.is_some() && is.is_some() && (was, &old.limiter) != (is, &new.limiter);
    let counts_ip = || new.key.sources.iter().any(|it| it.alternatives().contains(&KeySource::Ip));
    // In memory both scopes have the same bucket.
    if has_other || is_renamed || is_redis && old.scope != new.scope {
        return Some("begins anew");
    }
    if old.key.sources != new.key.sources {
        // A key in Redis has the values of the key, and not the names of their sources.
        return Some(match is_redis && new.scope == Scope::Cluster {
            true => "keeps the buckets of values that both keys have",
            false => "begins anew",
        });
    }
    let (old, new) = (old.key.prefixes, new.key.prefixes);
    if old == new || !counts_ip() {
        return None;
    }
    Some(match (old.v4 != new.v4, old.v6 != new.v6) {
        (true, true) => "begins anew for all clients",
        (true, false) => "begins anew for IPv4 clients",
        _ => "begins anew for IPv6 clients",
    })
}

/// The key of an override. A value that may be a client's secret is masked.
fn override_key(sources: &[KeySource], values: &[Tree]) -> String {
    let value = |(index, value): (usize, &Tree)| match value {
        Tree::Value(value) if value.plain == "*" => "*".to_owned(),
        Tree::Value(value)
            if !value.is_foreign && sources.get(index).is_some_and(|it| !it.is_secret()) =>
        {
            value.plain.clone()
        }
        _ => MASKED.to_owned(),
    };
    let values: Vec<_> = values.iter().enumerate().map(value).collect();
    format!("[{}]", values.join(", "))
}

/// The old value and the new one. `None` if they are too long, or if a message must not show the difference.
fn shown(old: &Tree, new: &Tree) -> Option<String> {
    let [old, new] = [old.text(), new.text()];
    (old != new && may_show(&old) && may_show(&new)).then(|| format!("{old} -> {new}"))
}

/// Whether a text is short enough for a line and has no misleading character.
fn may_show(text: &str) -> bool {
    text.len() <= LONGEST && !text.contains(misleads)
}

/// Items with their names.
type Items<'t, T> = Vec<(&'t str, &'t T)>;

/// The tables `[KIND.NAME]`, by their names.
fn named(tables: &Tree) -> Items<'_, Tree> {
    tables.entries().iter().map(|entry| (&*entry.name, &entry.value)).collect()
}

/// The routes, by the names that the settings give them.
fn routes<'t>(settings: &'t Settings, file: &'t Tree) -> Items<'t, Tree> {
    settings.routes.iter().map(|route| &*route.name).zip(file.get("routes").items()).collect()
}

/// The old and the new item of each name. All names of `old` come first, in their order, then the names that only `new`
/// has.
fn pairs<'t, T>(old: Items<'t, T>, new: Items<'t, T>) -> Vec<(&'t str, [Option<&'t T>; 2])> {
    let [had, has] = [&old, &new].map(|items| items.iter().copied().collect::<HashMap<_, _>>());
    let added = new.iter().filter(|(name, _)| !had.contains_key(name));
    let names = old.iter().chain(added).map(|(name, _)| *name);
    names.map(|name| (name, [had.get(name).copied(), has.get(name).copied()])).collect()
}

#[cfg(test)]
mod tests;
