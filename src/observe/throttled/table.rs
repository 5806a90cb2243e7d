//! The state between two summaries: the table of events, and the running interval.

use std::net::IpAddr;
use std::time::Duration;

use hashbrown::HashMap;

use super::{LINES, Shown, ThrottleEvent};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::plan::ThrottleLog;

/// The most bytes of a path, key or method that an entry keeps. Clients choose these texts, but an entry
/// must stay small.
const TEXT: usize = 512;

/// Entries that each limit and decision has room for even if the table is full. A client that uses up the
/// table with the keys of one limit cannot hide what the other limits do.
pub(super) const OWN_ENTRIES: usize = 20;

/// A part of the table, with a lock of its own.
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
    /// Events that no line tells of yet.
    pub(super) count: u64,
    /// Events that had a line of their own since the last summary.
    pub(super) told: u64,
    /// Whether the entry is new since the last summary.
    pub(super) fresh: bool,
    /// The times of the first and of the last event since the last summary.
    pub(super) times: (Timestamp, Timestamp),
    /// The last event.
    pub(super) seen: PastEvent,
}

impl EventEntry {
    /// The entry of a first event. `is_told` says that the event has a line of its own. Otherwise the event
    /// is counted.
    pub(super) fn new(event: &ThrottleEvent<'_>, is_told: bool, now: Timestamp) -> Self {
        let (count, told) = (u64::from(!is_told), u64::from(is_told));
        Self { count, told, fresh: true, times: (now, now), seen: PastEvent::of(event) }
    }

    pub(super) fn add(&mut self, event: &ThrottleEvent<'_>, now: Timestamp) {
        if self.count + self.told == 0 {
            self.times.0 = now;
        }
        self.times.1 = now;
        self.count += 1;
        self.seen.update(event);
    }
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
}

impl PastEvent {
    fn of(event: &ThrottleEvent<'_>) -> Self {
        Self {
            limit: event.limit.clone(),
            key: start(&event.shown.to_string()).into(),
            route: event.route.into(),
            client: event.client,
            method: start(event.method).into(),
            path: start(event.path).into(),
            decision: event.decision,
        }
    }

    /// Copies the parts that may differ between two events of an entry.
    fn update(&mut self, event: &ThrottleEvent<'_>) {
        event.route.clone_into(&mut self.route);
        self.client = event.client;
        start(event.method).clone_into(&mut self.method);
        start(event.path).clone_into(&mut self.path);
        self.decision = event.decision;
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
        }
    }
}

/// The first [`TEXT`] bytes, or a few bytes less where a character would be cut.
fn start(text: &str) -> &str {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}

/// The running interval, and how many lines it has left.
#[derive(Debug)]
pub(super) struct Window {
    interval: u64,
    /// `None` while nothing is counted: the next event begins an interval.
    start: Option<Timestamp>,
    lines_left: usize,
    /// The entries of the table.
    entries: HashMap<Group, usize>,
    /// Events for which the table has no room.
    overflow: HashMap<Group, u64>,
    /// Whether a new entry, or an event without an entry, came since the last summary began.
    used: bool,
}

impl Window {
    pub(super) fn new(interval: Duration) -> Self {
        let mut window = Self {
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

    /// Counts the new entry of an event, or the event alone if the table `is_full` and the event's group has
    /// had its own entries. Returns whether the event has its line at once. `None` means no entry.
    pub(super) fn enter(
        &mut self,
        event: &ThrottleEvent<'_>,
        is_full: bool,
        now: Timestamp,
    ) -> Option<bool> {
        self.begin(now);
        let group = Group::of(event);
        let entries = self.entries.entry(group.clone()).or_default();
        if is_full && *entries >= OWN_ENTRIES {
            *self.overflow.entry(group).or_default() += 1;
            return None;
        }
        *entries += 1;
        // The first key of a limit has its line even if the keys of another limit have used up the lines.
        let is_told = self.lines_left > 0 || *entries == 1;
        self.lines_left = self.lines_left.saturating_sub(1);
        Some(is_told)
    }

    /// The table has lost this many entries of the group.
    pub(super) fn leave(&mut self, group: &Group, lost: usize) {
        if let Some(entries) = self.entries.get_mut(group) {
            *entries = entries.saturating_sub(lost);
            if *entries == 0 {
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

    /// The events that had no entry since the last summary.
    pub(super) fn take_overflow(&mut self) -> HashMap<Group, u64> {
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
