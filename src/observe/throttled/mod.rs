//! Log lines about throttled requests. The first rejection or delay of a key is logged at once. Later
//! events are counted, and a summary after each interval says how many they were.
//!
//! `throttle` records the events in a bounded table (`table`). A timer of `server` calls
//! [`Throttled::tick`], which writes the summaries. The counts of all lines add up to exactly the number of
//! events.

mod episode;
mod table;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt::Display;
use std::mem::take;
use std::net::IpAddr;
use std::time::Duration;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use parking_lot::Mutex;
use tracing::{info, warn};
use uuid::Uuid;

use self::table::{EventEntry, EventShard, Group, Others, Window};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decision::Outcome;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::observe::millis_up;
use crate::settings::ThrottleLog;

/// The most lines of an interval: `LINES - 1` for single keys, and one for all other keys. There are two exceptions.
/// The other keys of each limit and decision have a line. The first key of a limit and decision has its line at once.
pub(crate) const LINES: usize = 100;

/// The most keys that are counted one by one. For a few keys of each limit there is always room
/// (`table::OWN_ENTRIES`). Events of further keys are counted together.
pub(crate) const ENTRIES: usize = 10_000;

const SHARDS: usize = 16;

/// A request that a limit does not let pass at once.
#[derive(Clone, Copy)]
pub(crate) struct ThrottleEvent<'e> {
    pub(crate) limit: &'e Name,
    /// The [`key_hash`](crate::observe::key_hash) of the key. Events with different hashes are counted separately.
    pub(crate) key: u64,
    /// The key as the log shows it. It is formatted only if a line or a new entry needs it.
    pub(crate) shown: &'e dyn Display,
    /// The name that an override of the file gives the key.
    pub(crate) name: Option<&'e str>,
    /// The plan that has the figures.
    pub(crate) plan: Option<&'e str>,
    /// The figures that decided.
    pub(crate) figures: Algorithm,
    pub(crate) route: &'e str,
    pub(crate) client: IpAddr,
    pub(crate) method: &'e str,
    /// The request's path, without its query.
    pub(crate) path: &'e str,
    /// The request's id, if `server.request_id` names a header for the id.
    pub(crate) request_id: Option<&'e str>,
    /// The ID of the rejection, which its answer names too.
    pub(crate) id: Option<Uuid>,
    /// What the limit decided: to reject the request, or to hold it.
    pub(crate) outcome: Outcome,
    /// The limit's mode. Only an enforcing limit rejects or holds the request.
    pub(crate) mode: Mode,
    /// Why the limit would refuse the request, if the limit cannot count it.
    pub(crate) reason: Option<&'static str>,
}

const REJECTED: &str = "rejected";

impl ThrottleEvent<'_> {
    /// The value of `decision` in the log.
    fn decision(&self) -> &'static str {
        match (self.mode, self.outcome) {
            (Mode::Enforce, Outcome::Reject { .. }) => REJECTED,
            (Mode::Enforce, Outcome::Allow | Outcome::Delay(_)) => "delayed",
            (Mode::Mark, Outcome::Reject { .. }) => "marked",
            (Mode::Mark | Mode::Shadow | Mode::Candidate, _) => "shadow",
        }
    }
}

/// Writes a throttle line. A rejection is a warning; other decisions are information.
macro_rules! by_decision {
    ($decision:expr, $($fields:tt)*) => {
        match $decision {
            REJECTED => warn!(target: TARGET, $($fields)* "throttled"),
            _ => info!(target: TARGET, $($fields)* "throttled"),
        }
    };
}

/// Counts rejections and delays and writes them to the log.
#[derive(Debug)]
pub(crate) struct Throttled {
    shards: Vec<Mutex<EventShard>>,
    /// Locked for a new entry, for a summary, and by a scrape of the metrics. A thread that holds a shard's lock may
    /// take this lock. A thread that holds this lock must not take a shard's lock.
    window: Mutex<Window>,
}

impl Throttled {
    /// Starts without counts. `interval` is the time between two summaries.
    pub(crate) fn new(mode: ThrottleLog, interval: Duration) -> Self {
        let shard = |_| Mutex::new(EventShard { mode, entries: HashMap::new() });
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            window: Mutex::new(Window::new(mode, interval)),
        }
    }

    /// Counts an event. Logs the event at once if it is the first one of its limit, key and decision, or if
    /// the mode logs every event.
    pub(crate) fn record(&self, event: &ThrottleEvent<'_>, now: Timestamp) {
        if self.count(event, true, now) {
            write_line(event, 1, None);
        }
    }

    /// Counts the rejection of a request that another limit has rejected, too. The line of this request names
    /// the other limit.
    pub(crate) fn record_beside(&self, event: &ThrottleEvent<'_>, now: Timestamp) {
        self.count(event, false, now);
    }

    /// Writes the summaries if an interval has ended by `now`. To be called a few times in each interval. A
    /// call costs little while the interval still runs.
    pub(crate) fn tick(&self, now: Timestamp) {
        self.summarise(now, true);
    }

    /// Writes all counts that no line has yet. The end of the process calls this, too.
    pub(crate) fn flush(&self, now: Timestamp) {
        self.summarise(now, false);
    }

    /// Keys that this limit rejected in the last summary interval.
    pub(crate) fn throttled_keys(&self, limit: &Name) -> u64 {
        self.window.lock().throttled_keys(limit)
    }

    /// Changes the mode and the interval from now on.
    pub(crate) fn configure(&self, mode: ThrottleLog, interval: Duration, now: Timestamp) {
        let before = self.window.lock().configure(mode, interval);
        for shard in &self.shards {
            shard.lock().mode = mode;
        }
        if before == ThrottleLog::Summary && mode != before {
            self.flush(now);
        }
    }

    /// Counts the event. `is_shown` is false if another limit has rejected the same request, and the line of that
    /// limit shows the request. Returns whether the event is logged at once, in its own line.
    fn count(&self, event: &ThrottleEvent<'_>, is_shown: bool, now: Timestamp) -> bool {
        let id = identity(event);
        let Some(shard) = self.shards.get(usize::from(id.to_be_bytes()[0]) % SHARDS) else {
            return false;
        };
        let mut shard = shard.lock();
        let is_summed = is_shown && shard.mode == ThrottleLog::Summary;
        let is_each = is_shown && shard.mode == ThrottleLog::Each;
        // Rejections are counted in each mode, for the metric and the end of the throttling.
        if !is_summed && event.decision() != REJECTED {
            return is_each;
        }
        let is_full = shard.entries.len() >= ENTRIES / SHARDS;
        let entry = match shard.entries.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                if !self.window.lock().enter(event, is_full, is_summed, now) {
                    return is_each;
                }
                entry.insert(EventEntry::new(event, now))
            }
        };
        let is_first = is_summed && !entry.is_listed;
        entry.is_listed |= is_summed;
        let at_once = is_each || is_first && self.window.lock().list(event);
        match is_summed && !at_once {
            true => entry.add(event, now),
            false => entry.add_unsummed(now),
        }
        at_once
    }

    /// Writes the summaries. If `is_regular`, this happens only after whole intervals. Before the end of an interval,
    /// nobody knows whether the throttling of a limit has ended.
    fn summarise(&self, now: Timestamp, is_regular: bool) {
        let passed = self.window.lock().next_interval(now, is_regular);
        let Some(interval) = passed else { return };
        let mut chosen = self.heaviest();
        let mut spare = LINES - 1 - chosen.len();
        let mut lines = Vec::new();
        for shard in &self.shards {
            let (mut shard, mut window) = (shard.lock(), self.window.lock());
            shard.entries.retain(|id, entry| {
                let group = window.group(&entry.seen.event());
                let (count, unsummed) = (take(&mut entry.count), take(&mut entry.unsummed));
                group.add(*id, count + unsummed, entry.last);
                let is_chosen = count > 0 && chosen.remove(id);
                if is_chosen || count > 0 && spare > 0 {
                    spare -= usize::from(!is_chosen);
                    lines.push((entry.seen.clone(), count));
                    return true;
                }
                let is_kept = count == 0 && unsummed > 0;
                if !is_kept {
                    group.remove(entry.is_listed, count);
                }
                is_kept
            });
        }
        let others = self.window.lock().close(spare, is_regular);
        // The most throttled keys come first: operators look for these keys.
        lines.sort_by_key(|(_, count)| Reverse(*count));
        for (seen, count) in lines {
            write_line(&seen.event(), count, Some(interval));
        }
        for (group, others) in others {
            write_others(&group, &others, interval);
        }
    }

    /// The entries with the most events that no line has yet. At most as many entries are chosen as there are lines for
    /// single keys.
    fn heaviest(&self) -> HashSet<u64> {
        let mut counts = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let counted = shard.entries.iter().filter(|(_, entry)| entry.count > 0);
            counts.extend(counted.map(|(id, entry)| (entry.count, *id)));
        }
        if counts.len() >= LINES {
            counts.select_nth_unstable_by(LINES - 1, |a, b| b.cmp(a));
            counts.truncate(LINES - 1);
        }
        counts.into_iter().map(|(_, id)| id).collect()
    }
}

pub(super) const TARGET: &str = "tidegate::throttle";

fn write_line(event: &ThrottleEvent<'_>, count: u64, interval: Option<Duration>) {
    let (retry_after, delay) = match event.outcome {
        Outcome::Reject { retry_after } => (retry_after, None),
        Outcome::Delay(delay) => (None, Some(delay)),
        Outcome::Allow => (None, None),
    };
    by_decision!(
        event.decision(),
        limit = event.limit.as_str(),
        key = %event.shown,
        route = event.route,
        client = %event.client,
        method = event.method,
        path = event.path,
        decision = event.decision(),
        reason = event.reason,
        retry_after_ms = retry_after.map(millis_up),
        delay_ms = delay.map(millis_up),
        // A limit with slots has no rate. Then the line has the number of slots.
        rate = event.figures.rate().unwrap_or_else(|| event.figures.to_string()),
        name = event.name,
        plan = event.plan,
        id = event.id.map(tracing::field::display),
        count,
        interval_ms = interval.map(millis_up),
        request_id = event.request_id,
    );
}

/// Writes the line that the other keys of a group share.
fn write_others(group: &Group, others: &Others, interval: Duration) {
    by_decision!(
        group.decision,
        limit = group.limit.as_str(),
        key = "others",
        decision = group.decision,
        keys = others.keys,
        count = others.count,
        interval_ms = millis_up(interval),
    );
}

/// A hash of limit, key and decision. No client can find two keys with the same hash. Therefore the table stores no keys.
fn identity(event: &ThrottleEvent<'_>) -> u64 {
    // No two decisions begin with the same letter.
    let decision = event.decision().bytes().next().map_or(0, u64::from);
    event.key ^ event.limit.fingerprint() ^ decision
}

#[cfg(test)]
mod flood_tests;
#[cfg(test)]
mod tests;
