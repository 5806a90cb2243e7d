//! Who waits for an upstream, and whose turn is next: by class, then in fair turns between keys.
//!
//! It is pure: it neither reads a clock nor wakes anybody.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use super::window::{Micros, SECOND};
use crate::settings::Priority;

/// The most requests that wait for one upstream. Each holds a client's connection.
pub(crate) const MOST_WAITING: usize = 1_000;

/// Strict priority would starve the lower classes, so that every such turn is theirs.
const TURN_OF_OTHERS: u64 = 10;

const CLASSES: usize = Priority::ALL.len();

/// A queue that was not empty for this long stands. To wait longer in it serves nobody more, and delays everybody.
const STANDS: Micros = SECOND;

/// One that waits.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    /// In the order of arrival.
    id: u64,
    pub(crate) since: Micros,
    until: Micros,
    /// What its key pays in advance for each request that runs.
    charge: Micros,
    pub(crate) value: T,
}

/// What a key has in one class.
#[derive(Debug)]
struct QueueShare<T> {
    waiting: VecDeque<Waiter<T>>,
    running: u64,
    /// Microseconds of the API's time.
    used: Micros,
}

impl<T> Default for QueueShare<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), running: 0, used: 0 }
    }
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
    waiting: [usize; CLASSES],
    turns: u64,
    served_at: [u64; CLASSES],
    empty_at: Micros,
    arrived: u64,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self {
            shares: Default::default(),
            waiting: Default::default(),
            turns: 0,
            served_at: Default::default(),
            empty_at: 0,
            arrived: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, T> FairQueue<K, T> {
    pub(crate) fn len(&self) -> usize {
        self.waiting.iter().sum()
    }

    pub(crate) fn waiting(&self, class: Priority) -> usize {
        self.waiting[class as usize]
    }

    /// A request is sent without waiting.
    pub(crate) fn begin(&mut self, class: Priority, key: &K) {
        self.share(class, key).running += 1;
    }

    /// The share of a key that is about to wait or to run. Who was away saved nothing up.
    fn share(&mut self, class: Priority, key: &K) -> &mut QueueShare<T> {
        let shares = &mut self.shares[class as usize];
        let least = Self::least(shares);
        let share = shares.entry(key.clone()).or_default();
        if share.is_idle() {
            share.used = share.used.max(least.unwrap_or_default());
        }
        share
    }

    /// The least that those have used who wait or run.
    fn least(shares: &HashMap<K, QueueShare<T>>) -> Option<Micros> {
        shares.values().filter(|share| !share.is_idle()).map(|share| share.used).min()
    }

    /// Puts a request at the end of its key's queue for a time: the second one in a queue that stands. Returns its number,
    /// and who must leave because there are too many: it may be this one.
    pub(crate) fn wait(
        &mut self,
        class: Priority,
        key: &K,
        (time_limit, standing): (Micros, Micros),
        charge: Micros,
        value: T,
        now: Micros,
    ) -> (u64, Option<(Priority, K, Waiter<T>)>) {
        if self.is_empty() {
            self.empty_at = now;
        }
        let stands = now >= self.empty_at + STANDS;
        let until = now + if stands { time_limit.min(standing) } else { time_limit };
        self.arrived += 1;
        let id = self.arrived;
        let waiter = Waiter { id, since: now, until, charge, value };
        self.share(class, key).waiting.push_back(waiter);
        self.waiting[class as usize] += 1;
        let evicted = if self.len() > MOST_WAITING { self.evict() } else { None };
        (id, evicted)
    }

    /// The last one of the key with most waiting in the lowest class.
    fn evict(&mut self) -> Option<(Priority, K, Waiter<T>)> {
        let class = *Priority::ALL.iter().rev().find(|class| self.waiting(**class) > 0)?;
        let longest = self.shares[class as usize].iter().max_by_key(|(_, share)| {
            (share.waiting.len(), share.waiting.back().map(|last| last.id))
        });
        let (key, share) = longest?;
        let (key, id) = (key.clone(), share.waiting.back()?.id);
        let waiter = self.remove(class, &key, id)?;
        Some((class, key, waiter))
    }

    /// Takes one out that waits no more.
    pub(crate) fn remove(&mut self, class: Priority, key: &K, id: u64) -> Option<Waiter<T>> {
        let share = self.shares[class as usize].get_mut(key)?;
        let at = share.waiting.iter().position(|waiter| waiter.id == id)?;
        let waiter = share.waiting.remove(at);
        self.waiting[class as usize] -= 1;
        self.forget(class);
        waiter
    }

    /// Whose turn it is. Who does not fit is passed over. It runs from now on.
    pub(crate) fn next(
        &mut self,
        fits: impl Fn(&T) -> bool,
        now: Micros,
    ) -> Option<(Priority, K, Waiter<T>)> {
        let waits = |class: &usize| self.waiting[*class] > 0;
        let mut classes: Vec<usize> = (0..CLASSES).filter(waits).collect();
        if (self.turns + 1).is_multiple_of(TURN_OF_OTHERS) {
            classes.sort_by_key(|class| self.served_at[*class]);
        }
        let (class, key, at) = classes.into_iter().find_map(|class| {
            let candidates = self.shares[class].iter().filter_map(|(key, share)| {
                let at = share.waiting.iter().position(|waiter| fits(&waiter.value))?;
                let waiter = &share.waiting[at];
                Some(((share.used + share.running * waiter.charge, waiter.id), key, at))
            });
            let (_, key, at) = candidates.min_by_key(|(rank, ..)| *rank)?;
            Some((class, key.clone(), at))
        })?;
        self.turns += 1;
        self.served_at[class] = self.turns;
        self.waiting[class] -= 1;
        let share = self.shares[class].get_mut(&key)?;
        share.running += 1;
        let waiter = share.waiting.remove(at)?;
        if self.is_empty() {
            self.empty_at = now;
        }
        Some((Priority::ALL[class], key, waiter))
    }

    /// Those who have waited for as long as they may.
    pub(crate) fn expired(&mut self, now: Micros) -> Vec<(Priority, K, Waiter<T>)> {
        let mut gone = Vec::new();
        for class in Priority::ALL {
            for (key, share) in &self.shares[class as usize] {
                let late = share.waiting.iter().filter(|waiter| waiter.until <= now);
                gone.extend(late.map(|waiter| (class, key.clone(), waiter.id)));
            }
        }
        let remove = |(class, key, id): (Priority, K, u64)| {
            self.remove(class, &key, id).map(|waiter| (class, key, waiter))
        };
        gone.into_iter().filter_map(remove).collect()
    }

    /// A request that ran has ended.
    pub(crate) fn end(&mut self, class: Priority, key: &K, took: Micros) {
        if let Some(share) = self.shares[class as usize].get_mut(key) {
            share.running = share.running.saturating_sub(1);
            share.used += took;
        }
        self.forget(class);
    }

    /// Forgets the keys that neither wait nor run, and have used no more than those who do.
    fn forget(&mut self, class: Priority) {
        let shares = &mut self.shares[class as usize];
        let least = Self::least(shares);
        shares.retain(|_, share| !share.is_idle() || least.is_some_and(|least| share.used > least));
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nothing is remembered of any key.
    #[cfg(test)]
    pub(crate) fn is_forgotten(&self) -> bool {
        self.shares.iter().all(HashMap::is_empty)
    }
}
