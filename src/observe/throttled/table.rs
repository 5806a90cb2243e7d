//! The state between two summaries: the table of events, and the running interval.

use std::net::IpAddr;
use std::time::Duration;

use hashbrown::HashMap;

use super::{LINES, Shown, ThrottleEvent};
use crate::limit::algorithm::Algorithm;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::start;
use crate::plan::ThrottleLog;

/// The most bytes of a path, key or method that an entry keeps. Clients choose these texts, but an entry
/// must stay small.
const TEXT: usize = 512;

/// Entries that each limit and decision has room for even if the table is full. A client that uses up the
/// table with the keys of one limit cannot hide what the other limits do.
pub(super) const OWN_ENTRIES: usize = 20;

/// A part of the table, with its own lock.
#[derive(Debug)]
pub(super) struct EventShard {
    pub(super) mode: ThrottleLog,
    pub(super) entries: HashMap<u128, EventEntry>,
}

impl EventShard {
    pub(super) fn new(mode: ThrottleLog) -> Self {
        Self { mode, entries: HashMap::default() }
    }
}

/// The events of one limit, key and decision.
#[derive(Debug)]
pub(super) struct EventEntry {
    /// Events for the next summary.
    pub(super) count: u64,
    /// Other events since the last summary: those with their own line, and those without any line.
    pub(super) unsummed: u64,
    /// Whether this entry is in the log: an event had its line, or is counted for a summary.
    pub(super) is_listed: bool,
    /// The times of the first and of the last event since the last summary.
    pub(super) times: (Timestamp, Timestamp),
    /// The last event.
    pub(super) seen: PastEvent,
}

impl EventEntry {
    /// An entry without events.
    pub(super) fn new(event: &ThrottleEvent<'_>, now: Timestamp) -> Self {
        Self {
            count: 0,
            unsummed: 0,
            is_listed: false,
            times: (now, now),
            seen: PastEvent::of(event),
        }
    }

    /// Adds an event for the next summary.
    pub(super) fn add(&mut self, event: &ThrottleEvent<'_>, now: Timestamp) {
        self.touch(now);
        self.count += 1;
        self.seen.update(event);
    }

    /// Adds an event that no summary has.
    pub(super) fn add_unsummed(&mut self, now: Timestamp) {
        self.touch(now);
        self.unsummed += 1;
    }

    fn touch(&mut self, now: Timestamp) {
        if self.count + self.unsummed == 0 {
            self.times.0 = now;
        }
        self.times.1 = now;
    }
}

/// Events for which the table has no room.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overflow {
    /// Those that a summary is to count.
    pub(super) summed: u64,
    pub(super) all: u64,
}

/// How many entries the table has of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupEntries {
    pub(super) all: usize,
    /// Those that are in the log.
    pub(super) listed: usize,
}

/// The limit and the decision. Entries, and events without an entry, are counted by this group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Group {
    pub(super) limit: Name,
    pub(super) decision: &'static str,
}

impl Group {
    pub(super) fn of(event: &ThrottleEvent<'_>) -> Self {
        Self { limit: event.limit.clone(), decision: event.decision.name() }
    }
}

/// A copy of an event, for a later line.
#[derive(Clone, Debug)]
pub(super) struct PastEvent {
    limit: Name,
    key: Box<str>,
    route: String,
    client: IpAddr,
    method: String,
    path: String,
    decision: Shown,
    name: Option<Box<str>>,
    figures: Algorithm,
}

impl PastEvent {
    fn of(event: &ThrottleEvent<'_>) -> Self {
        Self {
            limit: event.limit.clone(),
            key: start(&event.shown.to_string(), TEXT).into(),
            route: event.route.into(),
            client: event.client,
            method: start(event.method, TEXT).into(),
            path: start(event.path, TEXT).into(),
            decision: event.decision,
            name: event.name.map(Into::into),
            figures: event.figures,
        }
    }

    /// Copies the parts that may differ between two events of an entry.
    fn update(&mut self, event: &ThrottleEvent<'_>) {
        event.route.clone_into(&mut self.route);
        self.client = event.client;
        start(event.method, TEXT).clone_into(&mut self.method);
        start(event.path, TEXT).clone_into(&mut self.path);
        (self.decision, self.figures) = (event.decision, event.figures);
        if self.name.as_deref() != event.name {
            self.name = event.name.map(Into::into);
        }
    }

    pub(super) fn event(&self) -> ThrottleEvent<'_> {
        ThrottleEvent {
            limit: &self.limit,
            key: self.key.as_bytes(),
            shown: &self.key,
            route: &self.route,
            client: self.client,
            method: &self.method,
            path: &self.path,
            request_id: None,
            decision: self.decision,
            name: self.name.as_deref(),
            figures: self.figures,
        }
    }
}

/// The running interval, and how many lines it has left.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) mode: ThrottleLog,
    interval: u64,
    /// `None` while nothing is counted: the next event begins an interval.
    start: Option<Timestamp>,
    lines_left: usize,
    /// The entries of the table.
    entries: HashMap<Group, GroupEntries>,
    /// Events for which the table has no room.
    overflow: HashMap<Group, Overflow>,
    /// Whether a new entry, or an event without an entry, came since the last summary began.
    used: bool,
}

impl Window {
    pub(super) fn new(mode: ThrottleLog, interval: Duration) -> Self {
        let mut window = Self {
            mode,
            interval: 1,
            start: None,
            lines_left: 0,
            entries: HashMap::new(),
            overflow: HashMap::new(),
            used: false,
        };
        window.set_interval(interval);
        window
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = u64::try_from(interval.as_micros()).unwrap_or(u64::MAX).max(1);
    }

    /// Whether the table takes a new entry for the event. If the table is full, each group has room for a few
    /// entries only, and then the event counts as this `overflow`.
    pub(super) fn enter(
        &mut self,
        event: &ThrottleEvent<'_>,
        overflow: Option<Overflow>,
        now: Timestamp,
    ) -> bool {
        self.begin(now);
        let group = Group::of(event);
        let entries = self.entries.entry(group.clone()).or_default();
        if let Some(overflow) = overflow.filter(|_| entries.all >= OWN_ENTRIES) {
            let sum = self.overflow.entry(group).or_default();
            sum.summed += overflow.summed;
            sum.all += overflow.all;
            return false;
        }
        entries.all += 1;
        true
    }

    /// An entry is in the log from now on. Returns whether it may have its line at once.
    pub(super) fn list(&mut self, event: &ThrottleEvent<'_>) -> bool {
        let entries = self.entries.entry(Group::of(event)).or_default();
        entries.listed += 1;
        // The first key of a limit has its line even if the keys of another limit have used up the lines.
        let has_line = self.lines_left > 0 || entries.listed == 1;
        self.lines_left = self.lines_left.saturating_sub(1);
        has_line
    }

    /// The table has lost these entries of the group.
    pub(super) fn leave(&mut self, group: &Group, lost: GroupEntries) {
        if let Some(entries) = self.entries.get_mut(group) {
            entries.all = entries.all.saturating_sub(lost.all);
            entries.listed = entries.listed.saturating_sub(lost.listed);
            if entries.all == 0 {
                self.entries.remove(group);
            }
        }
    }

    /// Begins the next interval if the running one has ended, and returns the length of the ended one.
    /// Intervals follow each other without a gap, even if this is called late.
    pub(super) fn turn(&mut self, now: Timestamp) -> Option<Duration> {
        let start = self.start?;
        let elapsed = now.micros_since(start);
        let ended = elapsed - elapsed % self.interval;
        if ended == 0 {
            return None;
        }
        self.start = Some(start.plus_micros(ended));
        self.used = false;
        Some(Duration::from_micros(ended))
    }

    /// Begins the next interval now, and returns the length of the last one.
    pub(super) fn restart(&mut self, now: Timestamp) -> Duration {
        let elapsed = self.start.map_or(0, |start| now.micros_since(start));
        self.start = self.start.map(|_| now);
        self.used = false;
        Duration::from_micros(elapsed)
    }

    /// The events without an entry since the last summary.
    pub(super) fn take_overflow(&mut self) -> HashMap<Group, Overflow> {
        std::mem::take(&mut self.overflow)
    }

    /// Ends a summary. `lines_left` are the lines for new keys until the next summary. `entries` is the
    /// number of entries and episodes that the next summary must look at.
    pub(super) fn close(&mut self, lines_left: usize, entries: usize) {
        self.lines_left = lines_left;
        if entries == 0 && !self.used {
            self.start = None;
        }
    }

    fn begin(&mut self, now: Timestamp) {
        if self.start.is_none() {
            self.start = Some(now);
            self.lines_left = LINES - 1;
        }
        self.used = true;
    }
}
