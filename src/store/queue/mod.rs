//! Each bucket has a queue: the requests of this process that wait for the bucket's tokens.
//!
//! A place in a queue is a moment that the bucket has reserved. When a request leaves, those after it move up by one
//! place, and the last place goes back to the bucket. If another process holds a later place, the bucket does not take
//! it back, and the place stays unused.
//!
//! A request moves only to a place of its cost. So no place ever has two requests, the bucket's count stays right, and
//! no request goes later than at its first moment.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limit::rate::Cost;

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
    places: BTreeMap<PlaceOrder, QueuePlace<T>>,
    /// The places that were ever added.
    added: u64,
}

/// A moment that a bucket has reserved for a request.
#[derive(Debug)]
struct QueuePlace<T> {
    /// The tokens that the bucket has counted.
    cost: Cost,
    /// What the bucket noted. With it the place can go back.
    taken: T,
    /// Who goes at this moment.
    request: Arc<QueuedRequest>,
}

impl<T> BucketQueue<T> {
    /// Adds a place after all places of the same moment.
    fn join(
        &mut self,
        goes: Instant,
        (cost, taken): (Cost, T),
        waiter: &Arc<Notify>,
    ) -> Arc<QueuedRequest> {
        let order = (goes, self.added);
        self.added += 1;
        let waiter = Arc::clone(waiter);
        let request = Arc::new(QueuedRequest { place: Mutex::new(order), waiter });
        self.places.insert(order, QueuePlace { cost, taken, request: Arc::clone(&request) });
        request
    }

    /// The request goes. Returns what the bucket noted of the place that it has used.
    pub(super) fn go(&mut self, request: &QueuedRequest) -> Option<T> {
        self.places.remove(&*request.place.lock()).map(|place| place.taken)
    }

    /// The request leaves, and those after it move up. Returns what the bucket noted of the last place, which is to go
    /// back. If the moment of the request's place has come, nothing goes back: the bucket would give the tokens to a
    /// new request, which would follow the last one of the queue too early.
    pub(super) fn leave(&mut self, request: &QueuedRequest, now: Instant) -> Option<T> {
        let has_come = request.goes() <= now;
        if !has_come {
            self.move_to_the_end(request);
        }
        self.go(request).filter(|_| !has_come)
    }

    /// Each request after this one takes the place before its own. This one gets the last place of its cost.
    fn move_to_the_end(&mut self, request: &QueuedRequest) {
        let mut own = request.place.lock();
        let mut from = self.places.range_mut(*own..);
        let Some((mut free, mut place)) = from.next() else { return };
        let cost = place.cost;
        for (order, next) in from.filter(|(_, next)| next.cost == cost) {
            mem::swap(&mut place.request, &mut next.request);
            *place.request.place.lock() = *free;
            place.request.waiter.notify_one();
            (free, place) = (order, next);
        }
        *own = *free;
    }
}

/// A bucket of this process or in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueId {
    /// The bucket's identity in this process.
    pub(super) bucket: u128,
    pub(super) is_here: bool,
}

/// The queues of all buckets, for all workers. A bucket for which nobody waits has none.
#[derive(Debug)]
pub(super) struct Queues<T>(Mutex<HashMap<QueueId, BucketQueue<T>>>);

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Queues<T> {
    /// A request begins to wait. It goes at the moment `goes`, for which the bucket has counted its cost and noted
    /// something. `waiter` wakes it when it has moved up.
    pub(super) fn join(
        &self,
        id: QueueId,
        goes: Instant,
        place: (Cost, T),
        waiter: &Arc<Notify>,
    ) -> Arc<QueuedRequest> {
        let mut queues = self.0.lock();
        let empty = || BucketQueue { places: BTreeMap::new(), added: 0 };
        queues.entry(id).or_insert_with(empty).join(goes, place, waiter)
    }

    /// Changes the queue of a bucket for which somebody waits. If the queue is empty then, forgets it.
    pub(super) fn with<A>(
        &self,
        id: QueueId,
        change: impl FnOnce(&mut BucketQueue<T>) -> Option<A>,
    ) -> Option<A> {
        let mut queues = self.0.lock();
        let queue = queues.get_mut(&id)?;
        let answer = change(queue);
        if queue.places.is_empty() {
            queues.remove(&id);
        }
        answer
    }

    /// The requests that wait for a bucket.
    pub(super) fn waiting(&self, id: QueueId) -> usize {
        self.0.lock().get(&id).map_or(0, |queue| queue.places.len())
    }
}

#[cfg(test)]
mod tests;
