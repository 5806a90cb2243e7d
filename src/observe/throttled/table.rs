//! The state between two summaries: the table of events, and the running interval.

use std::mem::{replace, take};
use std::net::IpAddr;
use std::time::Duration;

use hashbrown::HashMap;
use uuid::Uuid;

use super::episode::Episode;
use super::{LINES, REJECTED, ThrottleEvent};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decision::Outcome;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::start;
use crate::settings::ThrottleLog;

/// The most bytes of a path, key or method that an entry keeps. Clients choose these texts, but an entry
/// must stay small.
const TEXT: usize = 512;

/// The entries of each limit and decision for which there is room even in a full table. A client can fill the
/// table with the keys of one limit, but cannot hide what the other limits do.
pub(super) const OWN_ENTRIES: usize = 20;

/// A part of the table, with its own lock.
#[derive(Debug)]
pub(super) struct EventShard {
    pub(super) mode: ThrottleLog,
    pub(super) entries: HashMap<u64, EventEntry>,
}

/// The events of one limit, key and decision.
#[derive(Debug)]
pub(super) struct EventEntry {
    /// Events for the next summary.
    pub(super) count: u64,
    /// Other events since the last summary: events with their own line, and events without any line.
    pub(super) unsummed: u64,
    /// Whether this entry is in the log: an event had its line, or is counted for a summary.
    pub(super) is_listed: bool,
    pub(super) last: Timestamp,
    /// The last event for a summary. Before such an event comes, the first event.
    pub(super) seen: PastEvent,
}

impl EventEntry {
    /// An entry without events.
    pub(super) fn new(event: &ThrottleEvent<'_>, now: Timestamp) -> Self {
        let seen = PastEvent::of(event);
        Self { count: 0, unsummed: 0, is_listed: false, last: now, seen }
    }

    /// Adds an event for the next summary.
    pub(super) fn add(&mut self, event: &ThrottleEvent<'_>, now: Timestamp) {
        self.last = now;
        self.count += 1;
        self.seen.update(event);
    }

    /// Adds an event that no summary has.
    pub(super) fn add_unsummed(&mut self, now: Timestamp) {
        self.last = now;
        self.unsummed += 1;
    }
}

/// A limit and a decision. Each entry belongs to a group, and so does each event without an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    pub(super) limit: Name,
    pub(super) decision: &'static str,
}

impl Group {
    fn of(event: &ThrottleEvent<'_>) -> Self {
        Self { limit: event.limit.clone(), decision: event.decision() }
    }
}

/// What is counted of a group.
#[derive(Debug, Default)]
pub(super) struct GroupCounts {
    entries: usize,
    /// The entries that are in the log.
    listed: usize,
    others: Others,
    /// Only a group of rejections has an episode.
    episode: Option<Episode>,
}

/// The counts of the keys that share a line, since the last summary.
#[derive(Debug, Default)]
pub(super) struct Others {
    /// Distinct keys, without those for which the table has no room.
    pub(super) keys: u64,
    pub(super) count: u64,
}

impl GroupCounts {
    /// Adds the events of an entry since the last summary to the group's episode. `id` is the key's hash.
    pub(super) fn add(&mut self, id: u64, count: u64, last: Timestamp) {
        if let Some(episode) = self.episode.as_mut().filter(|_| count > 0) {
            episode.add(id, count, last);
        }
    }

    /// The table has lost an entry. `count` of its events are in no line yet.
    pub(super) fn remove(&mut self, is_listed: bool, count: u64) {
        self.entries = self.entries.saturating_sub(1);
        self.listed = self.listed.saturating_sub(usize::from(is_listed));
        self.others.keys += u64::from(count > 0);
        self.others.count += count;
    }
}

/// A copy of an event, for a later line.
#[derive(Clone, Debug)]
pub(super) struct PastEvent {
    limit: Name,
    key: u64,
    shown: Box<str>,
    route: String,
    client: IpAddr,
    method: String,
    path: String,
    outcome: Outcome,
    mode: Mode,
    reason: Option<&'static str>,
    name: Option<Box<str>>,
    plan: Option<Box<str>>,
    figures: Algorithm,
    id: Option<Uuid>,
}

impl PastEvent {
    fn of(event: &ThrottleEvent<'_>) -> Self {
        Self {
            limit: event.limit.clone(),
            key: event.key,
            shown: start(&event.shown.to_string(), TEXT).into(),
            route: event.route.into(),
            client: event.client,
            method: start(event.method, TEXT).into(),
            path: start(event.path, TEXT).into(),
            outcome: event.outcome,
            mode: event.mode,
            reason: event.reason,
            name: event.name.map(Into::into),
            plan: event.plan.map(Into::into),
            figures: event.figures,
            id: event.id,
        }
    }

    /// Copies the parts that may differ between two events of an entry.
    fn update(&mut self, event: &ThrottleEvent<'_>) {
        event.route.clone_into(&mut self.route);
        self.client = event.client;
        start(event.method, TEXT).clone_into(&mut self.method);
        start(event.path, TEXT).clone_into(&mut self.path);
        (self.outcome, self.figures, self.id) = (event.outcome, event.figures, event.id);
        for (own, new) in [(&mut self.name, event.name), (&mut self.plan, event.plan)] {
            if own.as_deref() != new {
                *own = new.map(Into::into);
            }
        }
    }

    pub(super) fn event(&self) -> ThrottleEvent<'_> {
        ThrottleEvent {
            limit: &self.limit,
            key: self.key,
            shown: &self.shown,
            route: &self.route,
            client: self.client,
            method: &self.method,
            path: &self.path,
            request_id: None,
            id: self.id,
            outcome: self.outcome,
            mode: self.mode,
            reason: self.reason,
            name: self.name.as_deref(),
            plan: self.plan.as_deref(),
            figures: self.figures,
        }
    }
}

/// The running interval, and what is counted of each group.
#[derive(Debug)]
pub(super) struct Window {
    mode: ThrottleLog,
    interval: u64,
    /// `None` while nothing is counted: the next event begins an interval.
    start: Option<Timestamp>,
    lines_left: usize,
    groups: HashMap<Group, GroupCounts>,
}

impl Window {
    pub(super) fn new(mode: ThrottleLog, interval: Duration) -> Self {
        let mut window =
            Self { mode, interval: 1, start: None, lines_left: 0, groups: HashMap::new() };
        window.configure(mode, interval);
        window
    }

    /// Changes the mode and the interval. Returns the mode before.
    pub(super) fn configure(&mut self, mode: ThrottleLog, interval: Duration) -> ThrottleLog {
        self.interval = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1);
        replace(&mut self.mode, mode)
    }

    pub(super) fn group(&mut self, event: &ThrottleEvent<'_>) -> &mut GroupCounts {
        self.groups.entry(Group::of(event)).or_default()
    }

    /// Whether the table takes a new entry for the event. If the table is full, each group has room for only a few
    /// entries, and further events are counted together. `is_summed` says whether a summary counts the event.
    pub(super) fn enter(
        &mut self,
        event: &ThrottleEvent<'_>,
        is_full: bool,
        is_summed: bool,
        now: Timestamp,
    ) -> bool {
        if self.start.is_none() {
            self.start = Some(now);
            self.lines_left = LINES - 1;
        }
        let group = self.group(event);
        if event.decision() == REJECTED {
            // An old episode goes on, too: a summary under way may already have counted its other keys.
            group.episode.get_or_insert_with(|| Episode::new(now)).goes_on = true;
        }
        if is_full && group.entries >= OWN_ENTRIES {
            group.others.count += u64::from(is_summed);
            group.episode.iter_mut().for_each(|episode| episode.add_uncounted(1));
            return false;
        }
        group.entries += 1;
        true
    }

    /// An entry is in the log from now on. Returns whether it may have its line at once.
    pub(super) fn list(&mut self, event: &ThrottleEvent<'_>) -> bool {
        let group = self.group(event);
        group.listed += 1;
        let is_first = group.listed == 1;
        // The first key of a limit has its line even if the keys of another limit have used up the lines.
        let has_line = self.lines_left > 0 || is_first;
        self.lines_left = self.lines_left.saturating_sub(1);
        has_line
    }

    /// Keys that a limit rejected in the last interval.
    pub(super) fn throttled_keys(&self, limit: &Name) -> u64 {
        let group = self.groups.get(&Group { limit: limit.clone(), decision: REJECTED });
        let episode = group.and_then(|group| group.episode.as_ref());
        episode.map_or(0, |episode| episode.keys_before)
    }

    /// Begins the next interval, and returns the length of the last one. If `is_regular`, only whole intervals end.
    /// They follow each other without a gap, even if this is called late.
    pub(super) fn next_interval(&mut self, now: Timestamp, is_regular: bool) -> Option<Duration> {
        let start = self.start?;
        let elapsed = now.micros_since(start);
        let ended = if is_regular { elapsed - elapsed % self.interval } else { elapsed };
        if is_regular && ended == 0 {
            return None;
        }
        self.start = Some(start.plus_micros(ended));
        Some(Duration::from_micros(ended))
    }

    /// Ends a summary, and returns the counts of the keys that share a line. `lines_left` is the number of lines for
    /// new keys until the next summary. If `is_over` is true, the interval has ended. Then each episode without a
    /// rejection in this interval ends, too.
    pub(super) fn close(&mut self, lines_left: usize, is_over: bool) -> Vec<(Group, Others)> {
        let (mut others, mode) = (Vec::new(), self.mode);
        self.groups.retain(|group, counts| {
            let of_group = take(&mut counts.others);
            if of_group.count > 0 {
                others.push((group.clone(), of_group));
            }
            if is_over
                && let Some(ended) = counts.episode.take_if(|it| !it.end_interval())
                && mode != ThrottleLog::Off
            {
                ended.log(&group.limit);
            }
            counts.entries > 0 || counts.episode.is_some()
        });
        self.lines_left = lines_left;
        if self.groups.is_empty() {
            self.start = None;
        }
        others
    }
}
