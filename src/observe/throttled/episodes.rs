//! Follows the episodes of throttling. An episode begins with a limit's first rejection. It ends with the first
//! interval in which the limit rejects nothing. A line in the log then tells the end.

use std::collections::HashMap;

use tracing::info;

use super::table::{EventEntry, Group};
use super::{REJECTED, TARGET};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;

/// The limits that reject clients, and for how long they have done so.
#[derive(Debug, Default)]
pub(super) struct Episodes(HashMap<Name, Episode>);

#[derive(Debug)]
struct Episode {
    began: Timestamp,
    last: Timestamp,
    keys: u64,
    count: u64,
    /// Keys that were rejected since the last summary (`keys_now`), and in the interval before
    /// (`keys_before`).
    keys_now: u64,
    keys_before: u64,
    /// Whether the limit has rejected a request since the last summary.
    goes_on: bool,
}

impl Episodes {
    /// Adds the counts of a key since the last summary.
    pub(super) fn add(&mut self, entry: &EventEntry) {
        let event = entry.seen.event();
        let count = entry.count + entry.told;
        if event.decision.name() != REJECTED || count == 0 {
            return;
        }
        let (first, last) = entry.times;
        let new = Episode {
            began: first,
            last,
            keys: 0,
            count: 0,
            keys_now: 0,
            keys_before: 0,
            goes_on: true,
        };
        let episode = self.0.entry(event.limit.clone()).or_insert(new);
        episode.began = episode.began.min(first);
        episode.last = episode.last.max(last);
        // A key that had no events for an interval has lost its entry. If it comes again, it is counted again.
        episode.keys += u64::from(entry.fresh);
        episode.count += count;
        episode.keys_now += 1;
        episode.goes_on = true;
    }

    /// Keys that a limit rejected in the last interval.
    pub(super) fn keys_of(&self, limit: &Name) -> u64 {
        self.0.get(limit).map_or(0, |episode| episode.keys_before)
    }

    /// Adds `count` rejections of keys for which the table had no room. They are left out if no key of the
    /// limit is in the table.
    pub(super) fn add_uncounted(&mut self, group: &Group, count: u64) {
        if group.decision == REJECTED
            && let Some(episode) = self.0.get_mut(&group.limit)
        {
            episode.count += count;
            episode.goes_on = true;
        }
    }

    /// How many limits reject clients.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Logs the limits without a rejection since the last summary, and ends their episodes.
    pub(super) fn tell_ended(&mut self) {
        self.0.retain(|limit, episode| {
            episode.keys_before = std::mem::take(&mut episode.keys_now);
            if std::mem::take(&mut episode.goes_on) {
                return true;
            }
            let Episode { began, last, keys, count, .. } = *episode;
            let lasted_ms = last.micros_since(began) / 1_000;
            info!(target: TARGET, limit = limit.as_str(), keys, count, lasted_ms, "throttling ended");
            false
        });
    }
}
