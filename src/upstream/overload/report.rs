//! What operators see of an upstream that is full: the log lines, and the numbers for metrics and the page.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::time::Duration;

use super::rule::{LimitChange, LimitRule, whole};
use super::turns::CLASSES;
use super::window::{Micros, SECOND};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::observe::metrics::Histogram;
use crate::observe::{events, millis};
use crate::settings::Priority;

/// The most keys of which refusals are counted by themselves.
const MOST_KEYS: usize = 1_000;

/// What has happened at an upstream's queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverloadReport {
    upstream: Name,
    /// The shortest goal of the upstream and its routes.
    pub(crate) goal: Duration,
    pub(crate) overload: Option<Overload>,
    /// By priority: those who found the queue full, and those who had waited.
    pub(crate) refused: [[u64; 2]; CLASSES],
    pub(crate) waits: Histogram,
    pub(crate) changes: [u64; LimitChange::ALL],
    pub(crate) refused_per_second: f64,
    /// When lines were last written, and how many requests had been refused by then.
    written: (Micros, u64),
}

/// From the first limit or refusal until nobody was refused for an interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overload {
    pub(crate) since: Micros,
    refused_at: Micros,
    refused: u64,
    /// The refused requests of each key, by priority.
    pub(crate) by_key: HashMap<Key, [u64; CLASSES]>,
    /// When the last line was written. The next three fields count from then on.
    line_at: Option<Micros>,
    line_refused: [u64; CLASSES],
    line_keys: HashSet<Key>,
    line_limits: Option<[u64; 2]>,
}

/// What operators see of an upstream's queue now.
#[derive(Clone, Debug)]
pub(crate) struct QueueFacts {
    pub(crate) limit: Option<u64>,
    pub(crate) in_flight: usize,
    /// By priority.
    pub(crate) waiting: [usize; CLASSES],
    pub(crate) has_goal: bool,
    pub(crate) slow_share: f64,
    pub(crate) goal_times: u32,
    /// For how long the overload has lasted.
    pub(crate) lasts: Option<Duration>,
    pub(crate) report: OverloadReport,
}

impl QueueFacts {
    /// Whether requests were refused in this overload.
    pub(crate) fn refuses(&self) -> bool {
        self.report.overload.as_ref().is_some_and(|overload| overload.refused > 0)
    }
}

impl OverloadReport {
    pub(crate) fn of(upstream: Name) -> Self {
        Self { upstream, ..Self::default() }
    }

    fn begin(&mut self, rule: &LimitRule, in_flight: usize, now: Micros) -> &mut Overload {
        self.overload.get_or_insert_with(|| {
            if rule.goal.is_some() && rule.limit.is_some() {
                let goal_ms = millis(self.goal);
                let mode = if rule.is_shadow() { "shadow" } else { "enforce" };
                let (limit, last) = (rule.limit.map(whole), &rule.last);
                let (in_flight, slow) = (in_flight.max(last.peak), last.slow_percent());
                let name = self.upstream.as_str();
                events::overload_began(name, limit, in_flight, slow, last.seen, goal_ms, mode);
            }
            Overload { since: now, refused_at: now, ..Overload::default() }
        })
    }

    pub(crate) fn refused(
        &mut self,
        (priority, key): (Priority, &Key),
        has_waited: bool,
        (rule, in_flight): (&LimitRule, usize),
        now: Micros,
    ) {
        let class = priority as usize;
        self.refused[class][usize::from(has_waited)] += 1;
        let overload = self.begin(rule, in_flight, now);
        overload.refused_at = now;
        overload.refused += 1;
        overload.line_refused[class] += 1;
        if overload.line_keys.len() < MOST_KEYS {
            overload.line_keys.insert(key.clone());
        }
        if overload.by_key.len() < MOST_KEYS || overload.by_key.contains_key(key) {
            overload.by_key.entry(key.clone()).or_default()[class] += 1;
        }
    }

    /// The rule has changed the limit or the goal.
    pub(crate) fn changed(
        &mut self,
        change: LimitChange,
        rule: &LimitRule,
        in_flight: usize,
        now: Micros,
    ) {
        self.changes[change as usize] += 1;
        let (upstream, limit) = (self.upstream.as_str(), rule.limit.map(whole));
        let (times, slow) = (rule.goal_times(), rule.last.slow_percent());
        match change {
            LimitChange::First => _ = self.begin(rule, in_flight, now),
            LimitChange::Verdict => {
                let in_flight = rule.verdict.map(|it| whole(it.in_flight));
                let means = rule.verdict.map(|it| (it.mean as f64 / 100.0).round() / 10.0);
                events::slow_from_elsewhere(upstream, in_flight, means, times);
            }
            LimitChange::Mistrust => events::from_load_after_all(upstream, limit, times, slow),
            LimitChange::Restored if times == 1 => {
                events::goal_in_force_again(upstream, limit, times, slow);
            }
            LimitChange::AtLeast => events::limit_at_at_least(upstream, limit, times, slow),
            _ => {}
        }
        self.note_limit(limit);
    }

    fn note_limit(&mut self, limit: Option<u64>) {
        if let (Some(overload), Some(limit)) = (&mut self.overload, limit) {
            let [lowest, highest] = overload.line_limits.unwrap_or([limit; 2]);
            overload.line_limits = Some([lowest.min(limit), highest.max(limit)]);
        }
    }

    /// Writes the lines that are due. To be called about once a second.
    pub(crate) fn write(
        &mut self,
        rule: &LimitRule,
        waiting: usize,
        interval: Micros,
        now: Micros,
    ) {
        let limit = rule.limit.map(whole);
        self.note_limit(limit);
        let (at, before) =
            mem::replace(&mut self.written, (now, self.refused.iter().flatten().sum()));
        let seconds = now.saturating_sub(at).max(1) as f64 / SECOND as f64;
        self.refused_per_second = (self.written.1 - before) as f64 / seconds;
        let (name, Some(it)) = (self.upstream.as_str(), &mut self.overload) else { return };
        let refused = it.line_refused;
        if refused == [0; CLASSES] {
            let lasts = rule.is_shadow() && rule.limit.is_some();
            if !lasts && now >= it.refused_at + interval {
                events::overload_ended(name, limit, it.refused, (now - it.since) / 1_000);
                self.overload = None;
            }
        } else if it.line_at.is_none_or(|at| now >= at + interval) {
            let (limits, slow) = (it.line_limits, rule.last.slow_percent());
            events::overload(name, limit, limits, waiting, refused, it.line_keys.len(), slow);
            (it.line_at, it.line_refused, it.line_limits) = (Some(now), [0; CLASSES], None);
            it.line_keys.clear();
        }
    }
}
