//! Each bucket has a queue: the requests of this process that wait for the bucket's tokens.
//!
//! A place in a queue is a moment that the bucket has reserved. When a request leaves, those after it move up by one
//! place, and the last place goes back to the bucket. If another process holds a later place, the bucket does not take
//! it back. Then the place is kept for this process's next request, until its moment has come.
//!
//! A request moves only to a place of its cost. So no place ever has two requests, the bucket's count stays right, and
//! no request goes later than at its first moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
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

/// The order of a queue: by moment, and places of the same moment as they came.
type PlaceOrder = (Instant, u64);

/// A request in a queue.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    /// Its present place. It changes when the request moves up, which wakes `waiter`.
    place: Mutex<PlaceOrder>,
    waiter: Arc<Notify>,
}

impl QueuedRequest {
    /// When the request goes.
    pub(super) fn goes(&self) -> Instant {
        self.place.lock().0
    }
}

/// The queue of one bucket. `T` is what the bucket noted of a place.
#[derive(Debug)]
pub(super) struct BucketQueue<T> {
    entries: BTreeMap<PlaceOrder, QueueEntry<T>>,
    /// The places that were ever added.
    added: u64,
}

#[derive(Debug)]
struct QueueEntry<T> {
    place: QueuePlace<T>,
    /// `None` if the place is kept for the next request.
    request: Option<Arc<QueuedRequest>>,
}

impl<T> QueueEntry<T> {
    fn is_requests(&self, cost: Cost) -> bool {
        self.request.is_some() && self.place.cost == cost
    }
}

impl<T> BucketQueue<T> {
    /// Adds a place after all places of the same moment.
    fn add(&mut self, place: QueuePlace<T>) -> PlaceOrder {
        let order = (place.goes, self.added);
        self.added += 1;
        self.entries.insert(order, QueueEntry { place, request: None });
        order
    }

    fn join(&mut self, place: QueuePlace<T>, waiter: &Arc<Notify>) -> Arc<QueuedRequest> {
        let order = self.add(place);
        let (place, waiter) = (Mutex::new(order), Arc::clone(waiter));
        let request = Arc::new(QueuedRequest { place, waiter });
        if let Some(entry) = self.entries.get_mut(&order) {
            entry.request = Some(Arc::clone(&request));
        }
        request
    }

    fn remove(&mut self, order: PlaceOrder) -> Option<QueuePlace<T>> {
        self.entries.remove(&order).map(|entry| entry.place)
    }

    /// The request goes. Returns the place that it has used.
    pub(super) fn go(&mut self, request: &QueuedRequest) -> Option<QueuePlace<T>> {
        self.remove(*request.place.lock())
    }

    /// The request leaves, and those after it move up. Returns the last place, which is to go back. If the moment of
    /// the request's place has come, nothing goes back: the bucket would give the tokens to a new request, which would
    /// follow the last one of the queue too early.
    pub(super) fn leave(&mut self, request: &QueuedRequest, now: Instant) -> Option<QueuePlace<T>> {
        let free = *request.place.lock();
        if free.0 > now {
            return self.move_up(free);
        }
        self.remove(free);
        None
    }

    /// Lets each request after a free place move up by one place. Removes and returns the place that is free then.
    fn move_up(&mut self, free: PlaceOrder) -> Option<QueuePlace<T>> {
        let mut from = self.entries.range_mut(free..);
        let (mut free, mut entry) = from.next()?;
        let cost = entry.place.cost;
        for (order, next) in from.filter(|(_, next)| next.is_requests(cost)) {
            entry.request = next.request.take().inspect(|request| {
                *request.place.lock() = *free;
                request.waiter.notify_one();
            });
            (free, entry) = (order, next);
        }
        let free = *free;
        self.remove(free)
    }

    /// Whether a request could move up to this place.
    fn is_wanted(&self, free: PlaceOrder) -> bool {
        let mut from = self.entries.range(free..).map(|(_, entry)| entry);
        let cost = from.next().map(|entry| entry.place.cost);
        cost.is_some_and(|cost| from.any(|entry| entry.is_requests(cost)))
    }

    /// Removes and returns the first kept place of this cost whose moment is after `now` and not after `latest`.
    fn take_kept(&mut self, cost: Cost, now: Instant, latest: Instant) -> Option<QueuePlace<T>> {
        let fits = |entry: &QueueEntry<T>| entry.request.is_none() && entry.place.cost == cost;
        let from = (Excluded((now, u64::MAX)), Unbounded);
        let mut to_come = self.entries.range(from).take_while(|((goes, _), _)| *goes <= latest);
        let (order, _) = to_come.find(|(_, entry)| fits(entry))?;
        let order = *order;
        self.remove(order)
    }

    /// Forgets a place unless a request has it.
    fn forget_kept(&mut self, order: PlaceOrder) {
        if self.entries.get(&order).is_some_and(|entry| entry.request.is_none()) {
            self.remove(order);
        }
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
    /// The kept places, by their moments.
    kept: BTreeSet<(PlaceOrder, QueueId)>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        let all = Mutex::new(AllQueues { queues: HashMap::new(), kept: BTreeSet::new() });
        Self { all, kept: AtomicUsize::new(0) }
    }
}

impl<T> Queues<T> {
    /// A request begins to wait. `waiter` wakes it when it has moved up.
    pub(super) fn join(
        &self,
        id: QueueId,
        place: QueuePlace<T>,
        waiter: &Arc<Notify>,
    ) -> Arc<QueuedRequest> {
        self.all.lock().queue(id).join(place, waiter)
    }

    /// Changes the queue of a bucket for which somebody waits.
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
            let queue = all.queue(id);
            let free = queue.add(place);
            if queue.is_wanted(free) {
                return queue.move_up(free);
            }
            all.kept.insert((free, id));
        }
        self.kept.store(all.kept.len(), Ordering::Relaxed);
        None
    }

    /// The requests that wait for a bucket.
    pub(super) fn waiting(&self, id: QueueId) -> usize {
        let all = self.all.lock();
        let entries = all.queues.get(&id).into_iter().flat_map(|queue| queue.entries.values());
        entries.filter(|entry| entry.request.is_some()).count()
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
        self.queues.entry(id).or_insert_with(|| BucketQueue { entries: BTreeMap::new(), added: 0 })
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
        let has_come = |((goes, _), _): &(PlaceOrder, QueueId)| *goes <= now;
        while let Some((order, id)) = self.kept.first().copied().filter(has_come) {
            self.kept.remove(&(order, id));
            self.with(id, |queue| {
                queue.forget_kept(order);
                None::<()>
            });
        }
    }
}

#[cfg(test)]
mod tests;
