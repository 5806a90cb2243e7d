//! Log lines for what may happen thousands of times a second. The first event of a kind is logged at once.
//! The others are counted, and a line every ten seconds says how many they were. The counts add up.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Between two lines of the same kind.
const PAUSE: Duration = Duration::from_secs(10);

/// The most kinds that are counted apart. With one more, all counts are logged and begin anew.
const MOST: usize = 1_000;

/// Counts by kind. Of each kind the details of its last event are kept.
#[derive(Debug)]
pub(super) struct Repeated<K, S> {
    kinds: Mutex<HashMap<K, EventKind<S>>>,
    /// Writes a line: the kind, the last event's details, and the count.
    say: fn(&K, &S, u64),
}

#[derive(Debug)]
struct EventKind<S> {
    /// When its last line was written.
    told: Instant,
    /// Events since that line.
    untold: u64,
    /// The last event's.
    details: S,
}

impl<K: Clone + Eq + Hash, S: Clone> Repeated<K, S> {
    /// Nothing yet; `say` writes a line.
    pub(super) fn new(say: fn(&K, &S, u64)) -> Self {
        Self { kinds: Mutex::default(), say }
    }

    /// Counts an event of this kind at `now`.
    pub(super) fn count(&self, kind: K, details: S, now: Instant) {
        let mut kinds = self.kinds.lock();
        if let Some(known) = kinds.get_mut(&kind) {
            known.untold += 1;
            known.details = details;
            return;
        }
        let over = match kinds.len() < MOST {
            true => HashMap::new(),
            false => mem::take(&mut *kinds),
        };
        let new = EventKind { told: now, untold: 0, details: details.clone() };
        kinds.insert(kind.clone(), new);
        drop(kinds);
        for (kind, EventKind { untold, details, .. }) in
            over.iter().filter(|(_, kind)| kind.untold > 0)
        {
            (self.say)(kind, details, *untold);
        }
        (self.say)(&kind, &details, 1);
    }

    /// Writes the counts of kinds whose last line is ten seconds old. To be called every second or so.
    pub(super) fn tick(&self, now: Instant) {
        self.tell(|kind| now.saturating_duration_since(kind.told) >= PAUSE, now);
    }

    /// Writes all counts that no line has told yet, as at the end of the process.
    pub(super) fn flush(&self, now: Instant) {
        self.tell(|_| true, now);
    }

    /// Writes what is due; what has not come again since its last line is forgotten.
    fn tell(&self, is_due: impl Fn(&EventKind<S>) -> bool, now: Instant) {
        let mut lines = Vec::new();
        self.kinds.lock().retain(|name, kind| {
            if !is_due(kind) {
                return true;
            }
            let count = mem::take(&mut kind.untold);
            kind.told = now;
            if count > 0 {
                lines.push((name.clone(), kind.details.clone(), count));
            }
            count > 0
        });
        lines.iter().for_each(|(kind, details, count)| (self.say)(kind, details, *count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        let (repeated, now) = (Repeated::new(|_: &String, (), _| {}), Instant::now());
        for kind in 0..3 * MOST {
            repeated.count(kind.to_string(), (), now);
        }
        assert!(repeated.kinds.lock().len() <= MOST);
    }
}
