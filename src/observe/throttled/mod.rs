//! Log lines about throttled requests. The first rejection or delay of a key is logged at once. Later
//! events are counted, and a summary after each interval says how many they were.
//!
//! `throttle` records the events in a bounded table (`table`). A timer of `server` calls
//! [`Throttled::tick`], which writes the summaries. The counts of all lines add up to exactly the number of
//! events.

mod episodes;
mod table;

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::BuildHasher;
use std::mem::take;
use std::net::IpAddr;
use std::time::Duration;

use hashbrown::hash_map::Entry;
use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;
use tracing::{info, warn};

use self::episodes::Episodes;
use self::table::{EventEntry, EventShard, Group, GroupEntries, Overflow, Window};
use crate::limit::algorithm::Algorithm;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::plan::ThrottleLog;

/// The most lines of an interval if one line is enough for all other keys. `LINES - 1` lines are for single
/// keys. All other keys share one line for each limit and decision. The first key of a limit and decision has
/// its line at once, even beyond this number.
pub(crate) const LINES: usize = 100;

/// How many keys are counted one by one, beside a few keys of each limit for which there is always room
/// (`table::OWN_ENTRIES`). Events of further keys are counted together.
pub(crate) const ENTRIES: usize = 10_000;

const SHARDS: usize = 16;

/// A request that a limit does not let pass at once.
#[derive(Clone, Copy)]
pub(crate) struct ThrottleEvent<'e> {
    pub(crate) limit: &'e Name,
    /// The key. Events with different keys are counted apart.
    pub(crate) key: &'e [u8],
    /// The key as the log shows it. It is formatted only where a line or a new entry needs it.
    pub(crate) shown: &'e dyn Display,
    /// Who the key is, as an override of the file says.
    pub(crate) name: Option<&'e str>,
    /// The figures that decided.
    pub(crate) figures: Algorithm,
    pub(crate) route: &'e str,
    pub(crate) client: IpAddr,
    pub(crate) method: &'e str,
    /// The request's path, without its query.
    pub(crate) path: &'e str,
    /// The request's id, if `server.request_id` names a header for the id.
    pub(crate) request_id: Option<&'e str>,
    pub(crate) decision: Shown,
}

/// The decision about a request that a limit does not let pass at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// The request was rejected.
    Rejected {
        /// The time until a retry can pass. `None` means never.
        retry_after: Option<Duration>,
    },
    /// The request is held.
    Delayed {
        /// How long the request is held.
        delay: Duration,
    },
    /// A limit in shadow would have rejected the request.
    Shadow {
        /// The time until a retry could pass. `None` means never.
        retry_after: Option<Duration>,
    },
    /// A limit in shadow would have held the request.
    ShadowDelayed {
        /// How long the request would have been held.
        delay: Duration,
    },
}

const REJECTED: &str = "rejected";

impl Shown {
    /// The value of `decision` in the log.
    fn name(self) -> &'static str {
        match self {
            Self::Rejected { .. } => REJECTED,
            Self::Delayed { .. } => "delayed",
            Self::Shadow { .. } | Self::ShadowDelayed { .. } => "shadow",
        }
    }
}

/// Which line of the log is about a request that was rejected or delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventLine {
    Own,
    /// The line of another limit, which has rejected the same request.
    OfAnotherLimit,
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

/// Counts refusals and delays and writes them to the log.
#[derive(Debug)]
pub(crate) struct Throttled {
    shards: Vec<Mutex<EventShard>>,
    /// Locked for a new entry and at the end of an interval. Whoever holds a shard may take this lock. Whoever holds
    /// this lock must not take a shard.
    window: Mutex<Window>,
    /// Locked for a summary, and by a scrape of the metrics.
    episodes: Mutex<Episodes>,
    secret: (u64, u64),
}

impl Throttled {
    /// Starts without counts. `interval` is the time between two summaries.
    pub(crate) fn new(mode: ThrottleLog, interval: Duration) -> Self {
        // The secrets of the hash are random: a client cannot find two keys with the same hash.
        let random = RandomState::new();
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(EventShard::new(mode))).collect(),
            window: Mutex::new(Window::new(mode, interval)),
            episodes: Mutex::default(),
            secret: (random.hash_one(0), random.hash_one(1)),
        }
    }

    /// Counts an event. Logs the event at once if it is the first one of its limit, key and decision, or if
    /// the mode logs every event.
    pub(crate) fn record(&self, event: &ThrottleEvent<'_>, now: Timestamp) {
        if self.count(event, EventLine::Own, now) {
            write_line(event, 1, None);
        }
    }

    /// Counts the rejection of a request that another limit has rejected, too. The request's line names the
    /// other limit.
    pub(crate) fn record_beside(&self, event: &ThrottleEvent<'_>, now: Timestamp) {
        self.count(event, EventLine::OfAnotherLimit, now);
    }

    /// Writes the summaries if an interval has ended by `now`. To be called a few times in each interval. A
    /// call costs little while the interval still runs.
    pub(crate) fn tick(&self, now: Timestamp) {
        let mut window = self.window.lock();
        let (ended, mode) = (window.turn(now), window.mode);
        drop(window);
        if let Some(interval) = ended {
            self.summarise(interval, |episodes| episodes.end(mode));
        }
    }

    /// Writes all counts that no line has yet. The end of the process calls this, too.
    pub(crate) fn flush(&self, now: Timestamp) {
        let elapsed = self.window.lock().restart(now);
        // The interval may not be over, so it is too early to say that a limit's throttling has ended.
        self.summarise(elapsed, |_| {});
    }

    /// Keys that this limit rejected in the last summary interval.
    pub(crate) fn throttled_keys(&self, limit: &Name) -> u64 {
        self.episodes.lock().keys_of(limit)
    }

    /// Changes the mode and the interval from now on.
    pub(crate) fn configure(&self, mode: ThrottleLog, interval: Duration, now: Timestamp) {
        let mut window = self.window.lock();
        window.set_interval(interval);
        let before = std::mem::replace(&mut window.mode, mode);
        drop(window);
        for shard in &self.shards {
            shard.lock().mode = mode;
        }
        if before == ThrottleLog::Summary && mode != before {
            self.flush(now);
        }
    }

    /// Counts the event. Returns whether the event is logged at once, in its own line.
    fn count(&self, event: &ThrottleEvent<'_>, line: EventLine, now: Timestamp) -> bool {
        let id = self.identity(event);
        let Some(shard) = self.shards.get(place(id)) else { return false };
        let mut shard = shard.lock();
        let is_summed = line == EventLine::Own && shard.mode == ThrottleLog::Summary;
        let is_each = line == EventLine::Own && shard.mode == ThrottleLog::Each;
        // Rejections are counted in each mode, for the metric and the end of the throttling.
        if !is_summed && event.decision.name() != REJECTED {
            return is_each;
        }
        let is_full = shard.entries.len() >= ENTRIES / SHARDS;
        let entry = match shard.entries.entry(id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(place) => {
                let overflow = Overflow { summed: u64::from(is_summed), all: 1 };
                if !self.window.lock().enter(event, is_full.then_some(overflow), now) {
                    return is_each;
                }
                place.insert(EventEntry::new(event, now))
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

    fn summarise(&self, interval: Duration, log_ends: impl FnOnce(&mut Episodes)) {
        let mut chosen = self.heaviest();
        let mut spare = LINES - 1 - chosen.len();
        let (mut lines, mut others, mut kept) = (Vec::new(), HashMap::<_, Others>::new(), 0);
        let mut lost = HashMap::<_, GroupEntries>::new();
        let mut episodes = self.episodes.lock();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.entries.retain(|id, entry| {
                episodes.add(*id, entry);
                let (count, unsummed) = (take(&mut entry.count), take(&mut entry.unsummed));
                let is_chosen = count > 0 && chosen.remove(id);
                if is_chosen || count > 0 && spare > 0 {
                    spare -= usize::from(!is_chosen);
                    lines.push((entry.seen.clone(), count));
                    return true;
                }
                if count == 0 && unsummed > 0 {
                    return true;
                }
                let group = Group::of(&entry.seen.event());
                let lost = lost.entry(group.clone()).or_default();
                lost.all += 1;
                lost.listed += usize::from(entry.is_listed);
                if count > 0 {
                    let others = others.entry(group).or_default();
                    others.keys += 1;
                    others.count += count;
                }
                false
            });
            kept += shard.entries.len();
        }
        let mut window = self.window.lock();
        lost.iter().for_each(|(group, lost)| window.leave(group, *lost));
        for (group, overflow) in window.take_overflow() {
            episodes.add_uncounted(&group, overflow.all);
            if overflow.summed > 0 {
                others.entry(group).or_default().count += overflow.summed;
            }
        }
        log_ends(&mut episodes);
        window.close(spare, kept + episodes.len());
        drop((window, episodes));
        // The most throttled keys come first: operators look for these keys.
        lines.sort_by_key(|(_, count)| Reverse(*count));
        for (seen, count) in lines {
            write_line(&seen.event(), count, Some(interval));
        }
        for (group, others) in others {
            others.write(&group, interval);
        }
    }

    /// The entries with the most events that no line has: one for each line for a single key.
    fn heaviest(&self) -> HashSet<u128> {
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

    /// A hash of limit, key and decision. It has 128 bits and depends on secrets, so in practice two hashes are never
    /// equal. Therefore the table stores no keys.
    fn identity(&self, event: &ThrottleEvent<'_>) -> u128 {
        let decision = match event.decision {
            Shown::Rejected { .. } => 0,
            Shown::Shadow { .. } | Shown::ShadowDelayed { .. } => 1,
            Shown::Delayed { .. } => 2,
        };
        // Limit and decision are part of the secrets. Only the key is left to hash.
        let secret = (self.secret.0 ^ event.limit.fingerprint(), self.secret.1 ^ decision);
        SipHasher13::new_with_keys(secret.0, secret.1).hash(event.key).as_u128()
    }
}

/// The counts of the keys that share a line, for one limit and decision.
#[derive(Default)]
struct Others {
    /// Distinct keys, without those for which the table had no room.
    keys: u64,
    count: u64,
}

impl Others {
    fn write(&self, group: &Group, interval: Duration) {
        by_decision!(
            group.decision,
            limit = group.limit.as_str(),
            key = "others",
            decision = group.decision,
            keys = self.keys,
            count = self.count,
            interval_ms = millis(interval),
        );
    }
}

pub(super) const TARGET: &str = "tidegate::throttle";

fn write_line(event: &ThrottleEvent<'_>, count: u64, interval: Option<Duration>) {
    let (retry_after, delay) = match event.decision {
        Shown::Rejected { retry_after } | Shown::Shadow { retry_after } => (retry_after, None),
        Shown::Delayed { delay } | Shown::ShadowDelayed { delay } => (None, Some(delay)),
    };
    by_decision!(
        event.decision.name(),
        limit = event.limit.as_str(),
        key = %event.shown,
        route = event.route,
        client = %event.client,
        method = event.method,
        path = event.path,
        decision = event.decision.name(),
        retry_after_ms = retry_after.map(millis),
        delay_ms = delay.map(millis),
        // Slots have no rate: their number is shown.
        rate = event.figures.rate().unwrap_or_else(|| event.figures.to_string()),
        name = event.name,
        count,
        interval_ms = interval.map(millis),
        request_id = event.request_id,
    );
}

/// Whole milliseconds, rounded up: a client that waits for the logged time has waited long enough.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn place(id: u128) -> usize {
    usize::from(id.to_be_bytes()[0]) % SHARDS
}

#[cfg(test)]
mod flood_tests;
#[cfg(test)]
mod tests;
