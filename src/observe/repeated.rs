//! What may happen thousands of times a second and is to be told all the same: the first of a kind at
//! once, and a line ten seconds later that says how many more they were. The counts add up.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Between two lines of the same kind.
const PAUSE: Duration = Duration::from_secs(10);

/// So many kinds are told apart; past it all are told and begin anew.
const MOST: usize = 1_000;

/// Counts by kind, each with what was special about the last one.
#[derive(Debug)]
pub(super) struct Repeated<S> {
    kinds: Mutex<HashMap<String, Kind<S>>>,
    /// Writes a line: the kind, what was special, and how many.
    say: fn(&str, &S, u64),
}

#[derive(Debug)]
struct Kind<S> {
    told: Instant,
    /// Since then.
    untold: u64,
    special: S,
}

impl<S: Clone> Repeated<S> {
    /// Nothing yet; `say` writes a line.
    pub(super) fn new(say: fn(&str, &S, u64)) -> Self {
        Self { kinds: Mutex::default(), say }
    }

    /// It happened at `now`.
    pub(super) fn count(&self, kind: String, special: S, now: Instant) {
        let mut kinds = self.kinds();
        if let Some(known) = kinds.get_mut(&kind) {
            known.untold += 1;
            known.special = special;
            return;
        }
        let over = match kinds.len() < MOST {
            true => HashMap::new(),
            false => mem::take(&mut *kinds),
        };
        let new = Kind { told: now, untold: 0, special: special.clone() };
        kinds.insert(kind.clone(), new);
        drop(kinds);
        for (kind, Kind { untold, special, .. }) in over.iter().filter(|(_, kind)| kind.untold > 0)
        {
            (self.say)(kind, special, *untold);
        }
        (self.say)(&kind, &special, 1);
    }

    /// Says how many there were besides, where ten seconds are over. To be called now and then.
    pub(super) fn tick(&self, now: Instant) {
        self.tell(|kind| now.saturating_duration_since(kind.told) >= PAUSE, now);
    }

    /// Says all that is counted and not yet said, as at the end of the process.
    pub(super) fn flush(&self, now: Instant) {
        self.tell(|_| true, now);
    }

    /// Writes what is due; what has not come again since its last line is forgotten.
    fn tell(&self, is_due: impl Fn(&Kind<S>) -> bool, now: Instant) {
        let mut lines = Vec::new();
        self.kinds().retain(|name, kind| {
            if !is_due(kind) {
                return true;
            }
            let count = mem::take(&mut kind.untold);
            kind.told = now;
            if count > 0 {
                lines.push((name.clone(), kind.special.clone(), count));
            }
            count > 0
        });
        lines.iter().for_each(|(kind, special, count)| (self.say)(kind, special, *count));
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<String, Kind<S>>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        let (repeated, now) = (Repeated::new(|_, (), _| {}), Instant::now());
        for kind in 0..3 * MOST {
            repeated.count(kind.to_string(), (), now);
        }
        assert!(repeated.kinds().len() <= MOST);
    }
}
