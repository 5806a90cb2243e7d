//! What operators see of an upstream that is full: the log lines, and the numbers for metrics and the page.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::mem;
use std::time::Duration;

use super::rule::{LimitChange, LimitRule};
use super::window::{Micros, SECOND};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::observe::events::{self, OverloadBegin, OverloadSummary};
use crate::observe::metrics::Histogram;
use crate::settings::{GoalMode, MaxRequests, Priority};

const CLASSES: usize = Priority::ALL.len();

/// The most keys of which refusals are counted by themselves.
const MOST_KEYS: usize = 1_000;

/// What has happened at an upstream's queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverloadReport {
    overload: Option<Overload>,
    /// By priority: those who found the queue full, and those who had waited.
    refused: [[u64; 2]; CLASSES],
    waits: Histogram,
    changes: [u64; LimitChange::COUNTED.len()],
    /// When it was last written, how many were refused by then, and how many a second before.
    written: (Micros, u64, f64),
}

/// From the first limit or refusal until nobody was refused for an interval.
#[derive(Clone, Debug)]
struct Overload {
    since: Micros,
    refused_at: Micros,
    refused: u64,
    by_key: HashMap<Key, [u64; CLASSES]>,
    line: OverloadLine,
}

/// What has happened since the last line.
#[derive(Clone, Debug, Default)]
struct OverloadLine {
    at: Option<Micros>,
    refused: [u64; CLASSES],
    keys: HashSet<Key>,
    limits: Option<(u64, u64)>,
}

/// What operators see of an upstream's queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueFacts {
    pub(crate) limit: Option<u64>,
    pub(crate) in_flight: usize,
    /// By priority.
    pub(crate) waiting: [usize; CLASSES],
    pub(crate) refused: [[u64; 2]; CLASSES],
    pub(crate) refused_per_second: f64,
    /// The keys of this overload that were refused most, by priority.
    pub(crate) by_key: Vec<(Key, [u64; CLASSES])>,
    /// `None` with a number, which has no goal.
    pub(crate) goal: Option<GoalFacts>,
    /// For how long the overload has lasted.
    pub(crate) lasts: Option<Micros>,
    pub(crate) changes: [u64; LimitChange::COUNTED.len()],
    pub(crate) waits: Histogram,
}

/// What operators see of an upstream's goal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GoalFacts {
    pub(crate) slow_share: f64,
    /// The shortest goal of those in use, in milliseconds.
    pub(crate) milliseconds: u64,
    pub(crate) times: u32,
    pub(crate) mode: &'static str,
}

impl Overload {
    fn begin(now: Micros) -> Self {
        let (by_key, line) = (HashMap::new(), OverloadLine::default());
        Self { since: now, refused_at: now, refused: 0, by_key, line }
    }
}

fn mode(max_requests: &MaxRequests) -> &'static str {
    match max_requests.goal().map(|goal| goal.mode) {
        Some(GoalMode::Shadow) => "shadow",
        Some(GoalMode::Enforce) | None => "enforce",
    }
}

impl OverloadReport {
    /// A request was sent after it had waited.
    pub(crate) fn waited(&mut self, time: Micros) {
        self.waits.observe(Duration::from_micros(time));
    }

    pub(crate) fn refused(&mut self, priority: Priority, key: &Key, waited: bool, now: Micros) {
        let class = priority as usize;
        self.refused[class][usize::from(waited)] += 1;
        let overload = self.overload.get_or_insert_with(|| Overload::begin(now));
        overload.refused_at = now;
        overload.refused += 1;
        overload.line.refused[class] += 1;
        if overload.line.keys.len() < MOST_KEYS {
            overload.line.keys.insert(key.clone());
        }
        if overload.by_key.len() < MOST_KEYS || overload.by_key.contains_key(key) {
            overload.by_key.entry(key.clone()).or_default()[class] += 1;
        }
    }

    /// The rule has changed the limit or the goal.
    pub(crate) fn changed(
        &mut self,
        (upstream, max_requests): (&Name, &MaxRequests),
        rule: &LimitRule,
        in_flight: usize,
        change: LimitChange,
        now: Micros,
    ) {
        let counted = LimitChange::COUNTED.iter().position(|(counted, _)| *counted == change);
        counted.into_iter().for_each(|at| self.changes[at] += 1);
        let upstream = upstream.as_str();
        let (limit, slow) = (rule.whole_limit(), rule.last.slow_percent());
        match change {
            LimitChange::First if self.overload.is_none() => {
                self.overload = Some(Overload::begin(now));
                events::overload_began(&OverloadBegin {
                    upstream,
                    limit,
                    in_flight: rule.last.peak.max(in_flight),
                    slow_percent: slow,
                    answers: rule.last.answers,
                    goal_ms: rule.last.goal_ms(),
                    mode: mode(max_requests),
                });
            }
            LimitChange::Verdict => {
                let in_flight = rule.verdict.map(|it| it.peak);
                let means = rule.verdict.map(|it| (it.mean as f64 / 100.0).round() / 10.0);
                events::slow_from_elsewhere(upstream, in_flight, means, rule.goal_times());
            }
            LimitChange::Mistrust => {
                events::from_load_after_all(upstream, limit, rule.goal_times(), slow);
            }
            LimitChange::Restored if rule.goal_times() == 1 => {
                events::goal_in_force_again(upstream, limit, rule.goal_times(), slow);
            }
            LimitChange::AtLeast => events::limit_at_at_least(upstream, limit, 1, slow),
            _ => {}
        }
        self.note_limit(limit);
    }

    fn note_limit(&mut self, limit: Option<u64>) {
        if let (Some(overload), Some(limit)) = (&mut self.overload, limit) {
            let (lowest, highest) = overload.line.limits.unwrap_or((limit, limit));
            overload.line.limits = Some((lowest.min(limit), highest.max(limit)));
        }
    }

    fn total(&self) -> u64 {
        self.refused.iter().flatten().sum()
    }

    /// Writes the lines that are due. To be called about once a second.
    pub(crate) fn write(
        &mut self,
        upstream: &Name,
        rule: &LimitRule,
        waiting: usize,
        interval: Micros,
        now: Micros,
    ) {
        let (upstream, limit) = (upstream.as_str(), rule.whole_limit());
        self.note_limit(limit);
        let (at, before, _) = self.written;
        let seconds = now.saturating_sub(at).max(1) as f64 / SECOND as f64;
        let total = self.total();
        self.written = (now, total, (total - before) as f64 / seconds);
        let Some(overload) = &mut self.overload else { return };
        let is_due = overload.line.at.is_none_or(|at| now >= at + interval);
        let refused = overload.line.refused;
        if is_due && refused != [0; CLASSES] {
            let line = mem::take(&mut overload.line);
            overload.line.at = Some(now);
            events::overload(&OverloadSummary {
                upstream,
                limit,
                lowest: line.limits.map(|(lowest, _)| lowest),
                highest: line.limits.map(|(_, highest)| highest),
                waiting,
                refused,
                keys: line.keys.len(),
                slow_percent: rule.last.slow_percent(),
            });
        }
        let lasts = rule.is_shadow() && rule.limit().is_some();
        if !lasts && now >= overload.refused_at + interval && overload.line.refused == [0; CLASSES]
        {
            let lasted = now.saturating_sub(overload.since) / 1_000;
            events::overload_ended(upstream, limit, overload.refused, lasted);
            self.overload = None;
        }
    }

    pub(crate) fn facts(
        &self,
        max_requests: &MaxRequests,
        rule: &LimitRule,
        in_flight: usize,
        waiting: [usize; CLASSES],
        now: Micros,
    ) -> QueueFacts {
        let overload = self.overload.as_ref();
        let by_key = overload.into_iter().flat_map(|it| &it.by_key);
        let mut by_key: Vec<_> = by_key.map(|(key, counts)| (key.clone(), *counts)).collect();
        by_key.sort_by_key(|(_, counts)| Reverse(counts.iter().sum::<u64>()));
        let goal = max_requests.goal().map(|goal| GoalFacts {
            slow_share: rule.last.slow_share,
            milliseconds: u64::try_from(goal.slower_than.as_millis()).unwrap_or(u64::MAX),
            times: rule.goal_times(),
            mode: mode(max_requests),
        });
        QueueFacts {
            limit: rule.whole_limit(),
            in_flight,
            waiting,
            refused: self.refused,
            refused_per_second: self.written.2,
            by_key,
            goal,
            lasts: overload.map(|it| now.saturating_sub(it.since)),
            changes: self.changes,
            waits: self.waits.clone(),
        }
    }
}
