//! Each bucket has a queue: the requests of this process that wait for the bucket's tokens.
//!
//! A place in a queue is a moment that the bucket has reserved. When a request leaves, those after it move up by one
//! place, and the last place goes back to the bucket. If another process holds a later place, the bucket does not take
//! it back. Then the place is kept for this process's next request, until its moment has come.
//!
//! A request moves only to a place of its cost. So no place ever has two requests, the bucket's count stays right, and
//! no request goes later than at its first moment.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limit::rate::Cost;

/// A moment that a bucket has reserved for a request.
#[derive(Debug)]
pub(super) struct QueuePlace<T> {
    /// When the request goes.
    pub(super) goes: Instant,
    /// The tokens that the bucket has counted.
    pub(super) cost: Cost,
    /// What the bucket noted. With it the place can go back.
    pub(super) taken: T,
}

/// The queue of one bucket. `T` is what the bucket noted of a place.
#[derive(Debug)]
pub(super) struct BucketQueue<T> {
    /// In the order of their moments.
    entries: VecDeque<QueueEntry<T>>,
}

#[derive(Debug)]
struct QueueEntry<T> {
    place: QueuePlace<T>,
    /// Wakes the request when it has moved up, and identifies it. `None` if the place is kept for the next request.
    waiter: Option<Arc<Notify>>,
}

impl<T> BucketQueue<T> {
    /// Adds a place after all places of the same moment. Returns its index.
    fn add(&mut self, place: QueuePlace<T>, waiter: Option<Arc<Notify>>) -> usize {
        let at = self.entries.partition_point(|entry| entry.place.goes <= place.goes);
        self.entries.insert(at, QueueEntry { place, waiter });
        at
    }

    fn find(&self, waiter: &Arc<Notify>) -> Option<usize> {
        let is_it = |it: &Arc<Notify>| Arc::ptr_eq(it, waiter);
        self.entries.iter().position(|entry| entry.waiter.as_ref().is_some_and(is_it))
    }

    /// When the request goes.
    pub(super) fn goes(&self, waiter: &Arc<Notify>) -> Option<Instant> {
        self.entries.get(self.find(waiter)?).map(|entry| entry.place.goes)
    }

    /// The request goes. Returns the place that it has used.
    pub(super) fn go(&mut self, waiter: &Arc<Notify>) -> Option<QueuePlace<T>> {
        self.entries.remove(self.find(waiter)?).map(|entry| entry.place)
    }

    /// The request leaves, and those after it move up. Returns the last place, which is to go back. If the moment of
    /// the request's place has come, nothing goes back: the bucket would give the tokens to a new request, which would
    /// follow the last one of the queue too early.
    pub(super) fn leave(&mut self, waiter: &Arc<Notify>, now: Instant) -> Option<QueuePlace<T>> {
        let free = self.find(waiter)?;
        let is_to_come = self.is_to_come(free, now);
        self.move_up(free, now).filter(|_| is_to_come)
    }

    /// Gives a free place to the next request after it, and so on. Returns the place that is free then. If no request
    /// comes after the place, keeps it.
    fn offer(&mut self, place: QueuePlace<T>, now: Instant) -> Option<QueuePlace<T>> {
        let free = self.add(place, None);
        let is_wanted = self.next_after(free).is_some() && self.is_to_come(free, now);
        if is_wanted { self.move_up(free, now) } else { None }
    }

    /// Lets each request after the index `free` move up by one place. If the moment of the place at `free` has come,
    /// none moves. Removes and returns the place that is free then.
    fn move_up(&mut self, mut free: usize, now: Instant) -> Option<QueuePlace<T>> {
        if self.is_to_come(free, now) {
            while let Some(next) = self.next_after(free) {
                let waiter = self.entries.get_mut(next).and_then(|entry| entry.waiter.take());
                waiter.iter().for_each(|waiter| waiter.notify_one());
                if let Some(entry) = self.entries.get_mut(free) {
                    entry.waiter = waiter;
                }
                free = next;
            }
        }
        self.entries.remove(free).map(|entry| entry.place)
    }

    fn is_to_come(&self, index: usize, now: Instant) -> bool {
        self.entries.get(index).is_some_and(|entry| entry.place.goes > now)
    }

    /// The index of the first request after `index` that has the same cost.
    fn next_after(&self, index: usize) -> Option<usize> {
        let cost = self.entries.get(index)?.place.cost;
        let fits = |entry: &QueueEntry<T>| entry.waiter.is_some() && entry.place.cost == cost;
        let after = self.entries.iter().enumerate().skip(index + 1);
        after.into_iter().find_map(|(at, entry)| fits(entry).then_some(at))
    }

    /// Removes and returns the first kept place of this cost whose moment is after `now` and not after `latest`.
    fn take_kept(&mut self, cost: Cost, now: Instant, latest: Instant) -> Option<QueuePlace<T>> {
        let fits = |entry: &QueueEntry<T>| {
            let QueuePlace { goes, cost: its, .. } = entry.place;
            entry.waiter.is_none() && its == cost && goes > now && goes <= latest
        };
        let at = self.entries.iter().position(fits)?;
        self.entries.remove(at).map(|entry| entry.place)
    }

    /// Forgets the kept places whose moments have come.
    fn forget_kept(&mut self, now: Instant) {
        self.entries.retain(|entry| entry.waiter.is_some() || entry.place.goes > now);
    }
}

/// A bucket of this process or in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueId {
    /// The bucket's identity in this process.
    pub(super) bucket: u128,
    pub(super) is_here: bool,
}

/// The queues of all buckets, for all workers. A bucket for which nobody waits has none.
#[derive(Debug)]
pub(super) struct Queues<T> {
    all: Mutex<AllQueues<T>>,
    /// How many places are kept, or were kept until a moment ago.
    kept: AtomicUsize,
}

#[derive(Debug)]
struct AllQueues<T> {
    queues: HashMap<QueueId, BucketQueue<T>>,
    /// The moments of the kept places.
    kept: BTreeSet<(Instant, QueueId)>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        let all = Mutex::new(AllQueues { queues: HashMap::new(), kept: BTreeSet::new() });
        Self { all, kept: AtomicUsize::new(0) }
    }
}

impl<T> Queues<T> {
    /// A request begins to wait. `waiter` wakes it when it has moved up.
    pub(super) fn join(&self, id: QueueId, place: QueuePlace<T>, waiter: &Arc<Notify>) {
        self.all.lock().queue(id).add(place, Some(Arc::clone(waiter)));
    }

    /// Asks or changes the queue of a bucket for which somebody waits.
    pub(super) fn with<A>(
        &self,
        id: QueueId,
        change: impl FnOnce(&mut BucketQueue<T>) -> Option<A>,
    ) -> Option<A> {
        self.all.lock().with(id, change)
    }

    /// The bucket does not take this place back. If requests of this process have joined after it, they move up, and
    /// the last place is returned: it is to go back. Otherwise the place is kept until its moment has come.
    pub(super) fn keep(
        &self,
        id: QueueId,
        place: QueuePlace<T>,
        now: Instant,
    ) -> Option<QueuePlace<T>> {
        let mut all = self.all.lock();
        all.forget_kept(now);
        if place.goes > now {
            let goes = place.goes;
            let last = all.queue(id).offer(place, now);
            if last.is_some() {
                return last;
            }
            all.kept.insert((goes, id));
        }
        self.kept.store(all.kept.len(), Ordering::Relaxed);
        None
    }

    /// Whether a place may be kept. This needs no lock.
    pub(super) fn have_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > 0
    }

    /// Takes a kept place of this cost whose moment is not after `latest`.
    pub(super) fn take_kept(
        &self,
        id: QueueId,
        cost: Cost,
        now: Instant,
        latest: Instant,
    ) -> Option<QueuePlace<T>> {
        let mut all = self.all.lock();
        all.forget_kept(now);
        self.kept.store(all.kept.len(), Ordering::Relaxed);
        all.with(id, |queue| queue.take_kept(cost, now, latest))
    }
}

impl<T> AllQueues<T> {
    fn queue(&mut self, id: QueueId) -> &mut BucketQueue<T> {
        self.queues.entry(id).or_insert_with(|| BucketQueue { entries: VecDeque::new() })
    }

    /// Changes a queue. If it is empty then, forgets it.
    fn with<A>(
        &mut self,
        id: QueueId,
        change: impl FnOnce(&mut BucketQueue<T>) -> Option<A>,
    ) -> Option<A> {
        let queue = self.queues.get_mut(&id)?;
        let answer = change(queue);
        if queue.entries.is_empty() {
            self.queues.remove(&id);
        }
        answer
    }

    fn forget_kept(&mut self, now: Instant) {
        while let Some((goes, id)) = self.kept.first().copied().filter(|(goes, _)| *goes <= now) {
            self.kept.remove(&(goes, id));
            self.with(id, |queue| {
                queue.forget_kept(now);
                None::<()>
            });
        }
    }
}

#[cfg(test)]
mod tests;
