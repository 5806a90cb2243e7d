//! Describes for the log what a reload changes. The description never holds a secret.

use std::collections::HashMap;
use std::fmt::Display;

use super::change::{Changes, NeededRestart};
use super::reader::duration_text;
use super::section::limit::mode_word;
use super::section::{admin, answer, limit, log, route, server, store, trace, upstream};
use super::setting::{Settings, Spelled, listed};
use crate::limit::Scope;
use crate::limit::algorithm::Algorithm;
use crate::limit::time::Timestamp;
use crate::plan::{
    Action, Figures, LimitSpec, NamedLimits, Plan, RouteSpec, ServerTls, StoreLocation,
    UpstreamSpec,
};
use crate::request::key::KeySource;
use crate::request::overrides::{OverrideKey, PartShape};

/// Further changes are only counted: ten thousand changed routes do not fit into a log line.
const MOST: usize = 50;

/// Further changed overrides of a limit are only counted.
const MOST_OVERRIDES: usize = 10;

/// What is different in `new`. A list of changes that is too long ends with the number of further changes.
pub fn diff(old: &Plan, new: &Plan) -> Changes {
    let mut changes = Changes::default();
    changes.settings("server.", server::SETTINGS, &old.server, &new.server);
    changes.server_tls(old.server.tls.as_ref(), new.server.tls.as_ref());
    changes.upstreams(&old.upstreams, &new.upstreams);
    changes.limits(old, new);
    changes.routes(old, new);
    changes.settings("store.", store::SETTINGS, &old.store, &new.store);
    changes.settings("reject.", answer::SETTINGS, &*old.reject, &*new.reject);
    changes.settings("log.", log::SETTINGS, &old.log, &new.log);
    changes.settings("admin.", admin::SETTINGS, &old.admin, &new.admin);
    changes.settings("trace.", trace::SETTINGS, &old.trace, &new.trace);
    let more = changes.changed.len().saturating_sub(MOST);
    if more > 0 {
        changes.changed.truncate(MOST);
        changes.changed.push(format!("and {more} more"));
    }
    changes
}

impl Changes {
    /// Compares the settings of a table. `title` stands in front of each setting's name.
    fn settings<S>(&mut self, title: &str, settings: Settings<S>, old: &S, new: &S) {
        for setting in settings {
            setting.compare(title, old, new, self);
        }
    }

    fn server_tls(&mut self, old: Option<&ServerTls>, new: Option<&ServerTls>) {
        let [was, is] = [old, new].map(|tls| optional(tls.map(|tls| listed(&tls.listen))));
        if was != is {
            let field = "server.tls.listen".to_owned();
            self.restart.push(NeededRestart { field, values: Some([was, is]) });
        }
        let (Some(old), Some(new)) = (old, new) else { return };
        let certificates =
            |tls: &ServerTls| (tls.files.certificates.clone(), tls.material.identities.clone());
        self.some("server.tls.certificates", &certificates(old), &certificates(new));
        let authorities = |tls: &ServerTls| {
            let file = tls.files.client_ca.as_ref().map(|(file, _)| file.clone());
            (file, tls.material.clients.as_ref().map(|(found, _)| found.clone()))
        };
        self.some("server.tls.client_ca", &authorities(old), &authorities(new));
        // `client_auth` is compared only where both plans have a `client_ca`.
        if let (Some((_, old)), Some((_, new))) = (&old.files.client_ca, &new.files.client_ca) {
            self.value("server.tls.client_auth", &old.spelling(), &new.spelling());
        }
    }

    fn upstreams(&mut self, old: &[UpstreamSpec], new: &[UpstreamSpec]) {
        let pairs = pairs(old, new, |upstream| upstream.name.as_str());
        for (name, pair) in pairs {
            let title = format!("upstreams.{name}");
            let Some((old, new)) = self.both(&title, pair) else { continue };
            self.settings(&format!("{title} "), upstream::SETTINGS, old, new);
        }
    }

    fn limits(&mut self, old: &Plan, new: &Plan) {
        let is_off = |plan: &Plan, name: &str| plan.off.iter().any(|off| off.as_str() == name);
        let store = &new.store.location;
        let pairs = pairs(&old.limits, &new.limits, |limit| limit.name.as_str());
        for (name, pair) in pairs {
            let title = format!("limits.{name}");
            match pair {
                (Some(limit), None) if is_off(new, name) => {
                    self.changed.push(format!("{title} mode {} -> off", mode_word(limit.mode)));
                }
                (None, Some(limit)) if is_off(old, name) => {
                    let figures = figures(&limit.figures).into_iter();
                    let figures = figures.map(|(name, value)| format!(", {name} {value}"));
                    let all = mode_word(limit.mode).to_owned() + &figures.collect::<String>();
                    self.changed.push(format!("{title} mode off -> {all}"));
                }
                (None, Some(limit)) => {
                    let facts = facts(limit).into_iter();
                    let facts: Vec<_> = facts.map(|(name, it)| format!("{name} {it}")).collect();
                    let mode = mode_word(limit.mode);
                    self.changed.push(format!("{title} added: {mode}, {}", facts.join(", ")));
                }
                pair => {
                    if let Some((old, new)) = self.both(&title, pair) {
                        self.limit(&title, old, new, store);
                    }
                }
            }
        }
    }

    /// Reports a limit that both plans have. Where its buckets begin anew, the last line says so.
    fn limit(&mut self, title: &str, old: &LimitSpec, new: &LimitSpec, store: &StoreLocation) {
        let (had, has) = (facts(old), facts(new));
        let is_redis = *store != StoreLocation::Memory;
        // In memory a bucket has the same place with both scopes.
        let mut begins_anew = is_redis && old.scope != new.scope;
        let counts = has.iter().any(|(name, _)| *name == "algorithm");
        for (name, old) in &had {
            if let Some((_, value)) = has.iter().find(|(other, _)| other == name) {
                if old != value {
                    self.changed.push(format!("{title} {name} {old} -> {value}"));
                }
                begins_anew |= matches!(*name, "algorithm" | "name") && old != value;
            } else if counts {
                self.changed.push(format!("{title} {name} {old} -> none"));
            }
        }
        // Where nothing was counted, the rate's line says that counting begins.
        for (name, new) in only_of(&has, &had).filter(|(name, _)| *name != "algorithm") {
            self.changed.push(format!("{title} {name} none -> {new}"));
        }
        self.overrides(title, old, new);
        self.settings(&format!("{title} "), limit::SETTINGS, old, new);
        // A key in Redis has the values of the key, and not the names of their sources.
        let is_shared = is_redis && new.scope == Scope::Cluster;
        let (old, new) = (&old.key, &new.key);
        let counts_ip =
            || new.sources.iter().any(|source| source.alternatives().contains(&KeySource::Ip));
        self.changed.extend(match () {
            () if begins_anew => Some(format!("{title} begins anew")),
            () if old.sources != new.sources && is_shared => {
                Some(format!("{title} keeps the buckets of values that both keys have"))
            }
            () if old.sources != new.sources => Some(format!("{title} begins anew")),
            () if old.ipv6_prefix != new.ipv6_prefix && counts_ip() => {
                Some(format!("{title} begins anew for IPv6 clients"))
            }
            () => None,
        });
    }

    /// Reports the overrides that changed, and counts the others.
    fn overrides(&mut self, title: &str, old: &LimitSpec, new: &LimitSpec) {
        let (had, has) = (old.overrides.by_key(), new.overrides.by_key());
        let added = has.keys().filter(|key| !had.contains_key(*key)).count();
        let removed = had.keys().filter(|key| !has.contains_key(*key)).count();
        let both = had.iter().filter_map(|(key, figures)| {
            let text = override_key(&old.key.sources, *key);
            Some((text, *figures, *has.get(key)?))
        });
        let mut differ: Vec<_> = both.filter(|(_, old, new)| old != new).collect();
        differ.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        for (key, old, new) in differ.iter().take(MOST_OVERRIDES) {
            let (had, has) = (figures(old), figures(new));
            for (name, value) in &has {
                let before = had.iter().find(|(other, _)| other == name).map(|(_, value)| value);
                self.value(&format!("{title} override {key} {name}"), &optional(before), value);
            }
            // Where all or nothing passes, the rate's line says so.
            if algorithm(new).is_some() {
                for (name, value) in only_of(&had, &has) {
                    self.changed.push(format!("{title} override {key} {name} {value} -> none"));
                }
            }
        }
        let more = differ.len().saturating_sub(MOST_OVERRIDES);
        for (count, what) in [(added, "added"), (removed, "removed"), (more, "more changed")] {
            if count > 0 {
                self.changed.push(format!("{title} overrides: {count} {what}"));
            }
        }
    }

    fn routes(&mut self, old: &Plan, new: &Plan) {
        let (had_limits, has_limits) = (&old.named_limits, &new.named_limits);
        let everywhere = |named: &NamedLimits| listed(&named.everywhere);
        self.value("server.limits", &everywhere(had_limits), &everywhere(has_limits));
        let [had, have] = [old, new].map(|plan| plan.routes.iter().enumerate().collect::<Vec<_>>());
        for (name, pair) in pairs(&had, &have, |(_, route)| &*route.name) {
            let title = format!("route {name}");
            let Some(((place, was), (new_place, is))) = self.both(&title, pair) else { continue };
            let field = |name: &str| format!("{title} {name}");
            let limits = |named: &NamedLimits, place: usize| {
                listed(named.routes.get(place).into_iter().flatten())
            };
            self.value(
                &field("limits"),
                &limits(had_limits, *place),
                &limits(has_limits, *new_place),
            );
            let (path, new_path) = (old.table.pattern(*place), new.table.pattern(*new_place));
            self.value(&field("path"), &path.as_str(), &new_path.as_str());
            let (had, has) = (old.table.conditions(*place), new.table.conditions(*new_place));
            self.value(&field("methods"), &listed(&had.methods), &listed(&has.methods));
            self.value(&field("host"), &optional(had.host.as_ref()), &optional(has.host.as_ref()));
            self.some(&field("headers"), &had.headers, &has.headers);
            self.value(&field("upstream"), &target(old, was), &target(new, is));
            match (&was.action, &is.action) {
                (Action::Forward { rewrite: old, .. }, Action::Forward { rewrite: new, .. }) => {
                    self.some(&field("rewrite"), old, new);
                }
                (old @ Action::Respond { .. }, new @ Action::Respond { .. }) => {
                    self.some(&field("respond"), old, new);
                }
                _ => {}
            }
            self.settings(&format!("{title} "), route::SETTINGS, was.options(), is.options());
        }
    }

    /// Both sides of a pair. Where one side is missing, notes "added" or "removed".
    fn both<'p, T>(&mut self, title: &str, pair: PlanPair<'p, T>) -> Option<(&'p T, &'p T)> {
        match pair {
            (Some(_), None) => self.changed.push(format!("{title} removed")),
            (None, Some(_)) => self.changed.push(format!("{title} added")),
            _ => {}
        }
        pair.0.zip(pair.1)
    }
}

/// An item of the old plan, and the item of the same name in the new plan.
type PlanPair<'p, T> = (Option<&'p T>, Option<&'p T>);

/// Pairs items of the same name. First all old items in their order, then the items that only `new` has.
fn pairs<'p, T>(
    old: &'p [T],
    new: &'p [T],
    name: impl Fn(&'p T) -> &'p str,
) -> Vec<(&'p str, PlanPair<'p, T>)> {
    let old_names: HashMap<&str, &T> = old.iter().map(|item| (name(item), item)).collect();
    let new_names: HashMap<&str, &T> = new.iter().map(|item| (name(item), item)).collect();
    let kept =
        old.iter().map(|item| (name(item), (Some(item), new_names.get(name(item)).copied())));
    let added = new
        .iter()
        .filter(|item| !old_names.contains_key(name(item)))
        .map(|item| (name(item), (None, Some(item))));
    kept.chain(added).collect()
}

/// What a line shows of a limit, with the names of the settings.
fn facts(limit: &LimitSpec) -> Vec<(&'static str, String)> {
    let mut facts = vec![("key", listed(limit.key.sources.iter()))];
    facts.extend(algorithm(&limit.figures).map(|name| ("algorithm", name.to_owned())));
    facts.extend(limit.limiter.iter().map(|name| ("name", name.clone())));
    if let Figures::Limited(Algorithm::Concurrency(params)) = &limit.figures {
        facts.push(("lease", duration_text(params.lease())));
    }
    if let Figures::Limited(Algorithm::Redisson(params)) = &limit.figures {
        facts.extend(params.keep_alive.map(|keep| ("keep_alive", duration_text(keep))));
    }
    facts.extend(figures(&limit.figures));
    facts
}

/// The facts that `others` lack.
fn only_of<'f>(
    facts: &'f [(&'static str, String)],
    others: &'f [(&'static str, String)],
) -> impl Iterator<Item = &'f (&'static str, String)> {
    facts.iter().filter(|(name, _)| !others.iter().any(|(other, _)| other == name))
}

/// An override's key, where a value that may be a client's secret is masked.
fn override_key(sources: &[KeySource], (shape, values): OverrideKey<'_>) -> String {
    let parts = shape.iter().zip(values.split('|')).enumerate();
    listed(parts.map(|(place, (shape, value))| match shape {
        PartShape::Any => "*",
        _ if sources.get(place).is_none_or(KeySource::is_secret) => "********",
        PartShape::Exact | PartShape::Network(..) => value,
    }))
}

/// The figures, with their names in the file.
fn figures(figures: &Figures) -> Vec<(&'static str, String)> {
    match figures {
        Figures::Limited(Algorithm::TokenBucket(params)) => {
            vec![("rate", params.rate.to_string()), ("burst", params.burst.get().to_string())]
        }
        Figures::Limited(Algorithm::LeakyBucket(params)) => {
            vec![("rate", params.rate.to_string()), ("queue", params.queue().to_string())]
        }
        Figures::Limited(Algorithm::SlidingLog(params)) => {
            vec![("rate", format!("{}/{}", params.count, params.interval))]
        }
        Figures::Limited(Algorithm::Concurrency(params)) => {
            vec![("limit", params.limit.get().to_string())]
        }
        figures => vec![("rate", figures.to_string())],
    }
}

/// The algorithm's name. `None` where nothing is counted: everything passes, or nothing.
fn algorithm(figures: &Figures) -> Option<&'static str> {
    figures.at(Timestamp::MIN).filter(|it| *it != Algorithm::Closed).map(|it| it.name())
}

/// Where a route's requests go. The index of an upstream is valid in its own plan only.
fn target<'p>(plan: &'p Plan, route: &RouteSpec) -> &'p str {
    match &route.action {
        Action::Forward { upstream, .. } => {
            plan.upstream(*upstream).map_or("", |upstream| upstream.name.as_str())
        }
        Action::Respond { .. } => "respond",
    }
}

/// A value that may be missing.
fn optional<T: Display>(value: Option<T>) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests;
