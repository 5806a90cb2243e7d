//! Who waits for an upstream, and whose turn is next: by class, then in fair turns between keys.
//!
//! It is pure: it neither reads a clock nor wakes anybody.

use std::collections::HashMap;
use std::hash::Hash;

use super::window::{Micros, SECOND};
use crate::settings::Priority;

/// The most requests that wait for one upstream. Each holds a client's connection.
pub(crate) const MOST_WAITING: usize = 1_000;

/// Strict priority would starve the lower classes, so that every such turn is theirs.
const TURN_OF_OTHERS: u64 = 10;

pub(crate) const CLASSES: usize = Priority::ALL.len();

/// A queue that was not empty for this long stands. To wait longer in it serves nobody more, and delays everybody.
const STANDS: Micros = SECOND;

/// One that waits.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    pub(crate) since: Micros,
    pub(crate) until: Micros,
    /// What its key pays in advance for each request that runs.
    pub(crate) charge: Micros,
    pub(crate) value: T,
}

/// What a key has in one class.
#[derive(Debug)]
struct QueueShare<T> {
    /// The waiting requests in the order of arrival, each with its number.
    waiting: Vec<(u64, Waiter<T>)>,
    running: u64,
    /// Microseconds of the API's time.
    used: Micros,
}

impl<T> QueueShare<T> {
    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }
}

/// Who waits and who runs.
#[derive(Debug)]
pub(crate) struct FairQueue<K, T> {
    shares: [HashMap<K, QueueShare<T>>; CLASSES],
    /// How many requests wait, by class.
    pub(crate) waiting: [usize; CLASSES],
    turns: u64,
    served_at: [u64; CLASSES],
    empty_at: Micros,
    arrived: u64,
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    pub(crate) fn new() -> Self {
        let (shares, none) = (Default::default(), Default::default());
        Self { shares, waiting: none, turns: 0, served_at: [0; CLASSES], empty_at: 0, arrived: 0 }
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the queue stands: it has not been empty for some time.
    pub(crate) fn stands(&self, now: Micros) -> bool {
        !self.is_empty() && now >= self.empty_at + STANDS
    }

    /// A request is sent without waiting.
    pub(crate) fn begin(&mut self, class: Priority, key: &K) {
        self.share(class, key).running += 1;
    }

    /// The share of a key that is about to wait or to run. Who was away saved nothing up.
    fn share(&mut self, class: Priority, key: &K) -> &mut QueueShare<T> {
        let shares = &mut self.shares[class as usize];
        let least = Self::least(shares).unwrap_or_default();
        let new = || QueueShare { waiting: Vec::new(), running: 0, used: 0 };
        let share = shares.entry(key.clone()).or_insert_with(new);
        if share.is_idle() {
            share.used = share.used.max(least);
        }
        share
    }

    /// The least that those have used who wait or run.
    fn least(shares: &HashMap<K, QueueShare<T>>) -> Option<Micros> {
        shares.values().filter(|share| !share.is_idle()).map(|share| share.used).min()
    }

    /// Puts a request at the end of its key's queue. If too many requests wait, returns the request that must leave: in
    /// the lowest class, the last request of the key with the most. It may be the new request.
    pub(crate) fn wait(
        &mut self,
        class: Priority,
        key: &K,
        waiter: Waiter<T>,
    ) -> Option<Waiter<T>> {
        if self.is_empty() {
            self.empty_at = waiter.since;
        }
        self.arrived += 1;
        let number = self.arrived;
        self.share(class, key).waiting.push((number, waiter));
        self.waiting[class as usize] += 1;
        if self.len() <= MOST_WAITING {
            return None;
        }
        let lowest = (0..CLASSES).rfind(|class| self.waiting[*class] > 0)?;
        let longest = self.shares[lowest]
            .values_mut()
            .max_by_key(|share| (share.waiting.len(), share.waiting.last().map(|last| last.0)));
        let (_, evicted) = longest?.waiting.pop()?;
        self.waiting[lowest] -= 1;
        self.forget(lowest);
        Some(evicted)
    }

    /// Removes and returns the requests that no longer wait.
    pub(crate) fn drain(&mut self, is_over: impl Fn(&Waiter<T>) -> bool) -> Vec<Waiter<T>> {
        let mut out = Vec::new();
        for class in 0..CLASSES {
            let before = out.len();
            for share in self.shares[class].values_mut() {
                let over = share.waiting.extract_if(.., |(_, waiter)| is_over(waiter));
                out.extend(over.map(|(_, waiter)| waiter));
            }
            self.waiting[class] -= out.len() - before;
            self.forget(class);
        }
        out
    }

    /// Whose turn it is. Who does not fit is passed over. It runs from now on.
    pub(crate) fn next(&mut self, fits: impl Fn(&T) -> bool) -> Option<Waiter<T>> {
        let mut classes = [0, 1, 2];
        if (self.turns + 1).is_multiple_of(TURN_OF_OTHERS) {
            classes.sort_by_key(|class| self.served_at[*class]);
        }
        let (class, key, at) = classes.into_iter().find_map(|class| {
            let candidates = self.shares[class].iter().filter_map(|(key, share)| {
                let at = share.waiting.iter().position(|(_, waiter)| fits(&waiter.value))?;
                let (number, waiter) = &share.waiting[at];
                Some(((share.used + share.running * waiter.charge, *number), key, at))
            });
            let (_, key, at) = candidates.min_by_key(|(rank, ..)| *rank)?;
            Some((class, key.clone(), at))
        })?;
        self.turns += 1;
        self.served_at[class] = self.turns;
        self.waiting[class] -= 1;
        let share = self.shares[class].get_mut(&key)?;
        share.running += 1;
        Some(share.waiting.remove(at).1)
    }

    /// A request that ran has ended.
    pub(crate) fn end(&mut self, class: Priority, key: &K, took: Micros) {
        if let Some(share) = self.shares[class as usize].get_mut(key) {
            share.running = share.running.saturating_sub(1);
            share.used += took;
        }
        self.forget(class as usize);
    }

    /// Forgets the keys that neither wait nor run, and have used no more than those who do.
    fn forget(&mut self, class: usize) {
        let shares = &mut self.shares[class];
        let least = Self::least(shares);
        shares.retain(|_, share| !share.is_idle() || least.is_some_and(|least| share.used > least));
    }

    /// Whether nothing is remembered of any key.
    #[cfg(test)]
    pub(crate) fn is_forgotten(&self) -> bool {
        self.shares.iter().all(HashMap::is_empty)
    }
}
