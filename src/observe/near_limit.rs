//! Tells of keys that have used the share of their bucket that the limit's `near` names. A key is told once, and again
//! only after it was below.

use std::collections::{BTreeMap, HashSet};
use std::mem::take;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::events;
use super::throttled::LINES;
use super::{key_hash, millis};
use crate::limit::name::Name;

/// The most keys that are known to be near. If there are more, all are forgotten, and may be told again.
const MOST: usize = 10_000;

/// The keys near their limits, of all workers.
#[derive(Debug, Default)]
pub(crate) struct NearLimit(Mutex<NearKeys>);

#[derive(Debug, Default)]
struct NearKeys {
    /// The hashes of limits and keys.
    known: HashSet<u64>,
    totals: BTreeMap<Name, u64>,
    /// The lines of the running interval, and the keys of each limit that had none.
    lines: usize,
    others: BTreeMap<Name, u64>,
    /// When the interval began. `None` before its first line.
    begin: Option<Instant>,
}

impl NearLimit {
    /// Notes what a bucket of this key holds after a request. `share` is in percent.
    pub(crate) fn note(&self, limit: &Name, key: &str, (remaining, burst): (u64, u64), share: u8) {
        let used = u128::from(burst.saturating_sub(remaining)) * 100;
        let is_near = used >= u128::from(burst) * u128::from(share);
        let id = limit.fingerprint() ^ key_hash(key.as_bytes());
        let mut keys = self.0.lock();
        if !is_near {
            keys.known.remove(&id);
            return;
        }
        if keys.known.len() >= MOST {
            keys.known.clear();
        }
        if !keys.known.insert(id) {
            return;
        }
        *keys.totals.entry(limit.clone()).or_default() += 1;
        keys.begin.get_or_insert_with(Instant::now);
        keys.lines += 1;
        if keys.lines >= LINES {
            *keys.others.entry(limit.clone()).or_default() += 1;
            return;
        }
        drop(keys);
        events::near_limit(limit.as_str(), key, Some(remaining), Some(burst), 1, None);
    }

    /// Ends the interval if it is over, and writes a line for the keys of each limit that had none.
    pub(crate) fn write(&self, interval: Duration, now: Instant) {
        let mut keys = self.0.lock();
        let Some(passed) = keys.begin.map(|begin| now.saturating_duration_since(begin)) else {
            return;
        };
        if passed < interval {
            return;
        }
        (keys.lines, keys.begin) = (0, None);
        for (limit, count) in take(&mut keys.others) {
            events::near_limit(limit.as_str(), "others", None, None, count, Some(millis(passed)));
        }
    }

    /// How often keys of this limit came near since the start.
    pub(crate) fn total(&self, limit: &Name) -> u64 {
        self.0.lock().totals.get(limit).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn a_key_is_told_once_and_again_after_it_was_below() {
        let (limit, near) = (Name::new("l").unwrap(), NearLimit::default());
        let lines = testing::lines(|| {
            for remaining in [9, 3, 2, 1, 0, 2, 3, 2, 1] {
                near.note(&limit, "a", (remaining, 10), 80);
            }
        });
        let told: Vec<_> = lines.iter().map(|line| line["remaining"].as_u64().unwrap()).collect();
        assert_eq!((told, near.total(&limit)), (vec![2, 2], 2));
        assert_eq!((&lines[0]["message"], &lines[0]["burst"]), (&"near limit".into(), &10.into()));
    }

    #[test]
    fn a_flood_of_keys_is_summarised() {
        let (limit, near) = (Name::new("l").unwrap(), NearLimit::default());
        let lines = testing::lines(|| {
            (0..250).for_each(|key| near.note(&limit, &key.to_string(), (0, 10), 80));
            near.write(Duration::ZERO, Instant::now());
        });
        let counted = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum::<u64>();
        assert_eq!((lines.len(), counted), (LINES, 250));
        assert_eq!(lines[LINES - 1]["key"], "others");
    }
}
