//! Follows the episodes of throttling. An episode begins with a limit's first rejection. It ends with the first
//! interval in which the limit rejects nothing. A line in the log then says so.

use std::collections::{HashMap, HashSet};

use tracing::info;

use super::table::{EventEntry, Group, OWN_ENTRIES};
use super::{ENTRIES, REJECTED, TARGET};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::plan::ThrottleLog;

/// The limits that reject clients, and for how long they have done so.
#[derive(Debug, Default)]
pub(super) struct Episodes {
    limits: HashMap<Name, Episode>,
    /// How many keys all episodes know. Not more than [`ENTRIES`], beside [`OWN_ENTRIES`] for each limit.
    known: usize,
}

#[derive(Debug)]
struct Episode {
    began: Timestamp,
    last: Timestamp,
    /// The keys that are known, by their hashes. Each key counts once, however often it comes back.
    keys: HashSet<u128>,
    count: u64,
    /// Keys that were rejected since the last summary (`keys_now`), and in the interval before
    /// (`keys_before`).
    keys_now: u64,
    keys_before: u64,
    /// Whether the limit has rejected a request since the last summary.
    goes_on: bool,
}

impl Episodes {
    /// Adds the counts of a key since the last summary. `id` is the key's hash.
    pub(super) fn add(&mut self, id: u128, entry: &EventEntry) {
        let event = entry.seen.event();
        let count = entry.count + entry.unsummed;
        if event.decision.name() != REJECTED || count == 0 {
            return;
        }
        let (first, last) = entry.times;
        let new = Episode {
            began: first,
            last,
            keys: HashSet::new(),
            count: 0,
            keys_now: 0,
            keys_before: 0,
            goes_on: true,
        };
        let episode = self.limits.entry(event.limit.clone()).or_insert(new);
        episode.began = episode.began.min(first);
        episode.last = episode.last.max(last);
        let has_room = self.known < ENTRIES || episode.keys.len() < OWN_ENTRIES;
        if has_room && episode.keys.insert(id) {
            self.known += 1;
        }
        episode.count += count;
        episode.keys_now += 1;
        episode.goes_on = true;
    }

    /// Keys that a limit rejected in the last interval.
    pub(super) fn keys_of(&self, limit: &Name) -> u64 {
        self.limits.get(limit).map_or(0, |episode| episode.keys_before)
    }

    /// Adds `count` rejections of keys for which the table had no room. They are left out if no key of the
    /// limit is in the table.
    pub(super) fn add_uncounted(&mut self, group: &Group, count: u64) {
        if group.decision == REJECTED
            && let Some(episode) = self.limits.get_mut(&group.limit)
        {
            episode.count += count;
            episode.goes_on = true;
        }
    }

    /// How many limits reject clients.
    pub(super) fn len(&self) -> usize {
        self.limits.len()
    }

    /// Ends the episodes of the limits without a rejection since the last summary, and logs their ends
    /// unless the mode is "off".
    pub(super) fn end(&mut self, mode: ThrottleLog) {
        self.limits.retain(|limit, episode| {
            episode.keys_before = std::mem::take(&mut episode.keys_now);
            if std::mem::take(&mut episode.goes_on) {
                return true;
            }
            self.known -= episode.keys.len();
            if mode != ThrottleLog::Off {
                let Episode { began, last, count, .. } = *episode;
                let (keys, lasted_ms) = (episode.keys.len(), last.micros_since(began) / 1_000);
                info!(target: TARGET, limit = limit.as_str(), keys, count, lasted_ms, "throttling ended");
            }
            false
        });
    }
}
