//! What a limit gave for a request. A [`Grant`] has three ends: it is spent ([`Grant::spend`]), it is settled by what the
//! request used ([`Grant::settle_at`]), or it is dropped and goes back ([`Grant::go_back`]).

use std::fmt;
use std::mem;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::access::Store;
use super::bucket::{BucketAsk, Source};
use super::name::BucketKey;
use super::queue::{BucketQueue, QueueId, QueuedRequest};
use crate::limit::algorithm::{Algorithm, Difference, Receipt};
use crate::limit::bucket::{BucketReceipt, Holder};
use crate::limit::decide::Ask;
use crate::limit::time::Timestamp;
use crate::settings::LimitSpec;

/// A time, and the [`Instant`] at which it was read. From both the present time can be calculated.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// The time, by the process's steady clock.
    pub time: Timestamp,
    /// When `time` was read.
    pub at: Instant,
}

impl ClockReading {
    /// The present moment. `time` is the present time by the steady clock.
    pub fn now(time: Timestamp) -> Self {
        Self { time, at: Instant::now() }
    }

    /// The present time: `time` and what has passed since.
    pub(crate) fn present(&self) -> Timestamp {
        self.time_at(Instant::now())
    }

    /// The time at `now`, which is not before [`ClockReading::at`].
    pub(super) fn time_at(&self, now: Instant) -> Timestamp {
        self.time.plus(now.duration_since(self.at))
    }
}

/// What one limit gave a request: tokens, a slot, or permits of a Redisson limiter. If a grant is dropped, this goes
/// back.
pub struct Grant {
    pub(super) store: Arc<Store>,
    pub(crate) spec: Arc<LimitSpec>,
    pub(super) key: BucketKey,
    /// What was asked, with the limit's own longest wait.
    pub(crate) ask: Ask,
    pub(super) reading: ClockReading,
    pub(super) source: Source,
    /// `None` if the request does not wait, or the limit has no queue.
    pub(super) waiting: Option<WaitingGrant>,
}

/// The moment that a limit has reserved for a request.
pub(super) struct WaitingGrant {
    pub(super) queue: QueueId,
    /// The moment that the limit has named.
    pub(super) goes: Instant,
    /// `None` before the request has joined the queue.
    pub(super) queued: Option<Arc<QueuedRequest>>,
}

impl Grant {
    /// Whether the grant is a slot of a concurrency limit.
    pub(crate) fn is_slot(&self) -> bool {
        matches!(self.ask.algorithm, Algorithm::Concurrency(_))
    }

    /// Ends the grant: the request has used exactly what it took. A slot stays held until the grant is dropped.
    pub fn spend(&mut self) {
        if !self.is_slot() {
            self.end();
        }
    }

    /// Ends a grant that was made before Redis was asked. Redis has given nothing.
    pub(super) fn was_not_given(&mut self) {
        self.end();
    }

    /// The bucket's receipt. `None` for a slot and for permits.
    pub(super) fn receipt(&self) -> Option<Receipt> {
        match self.source {
            Source::Process(BucketReceipt { receipt, .. }) | Source::Redis(receipt) => {
                Some(receipt)
            }
            Source::Slot(_) | Source::Limiter(_) | Source::Ended => None,
        }
    }

    /// The holder of the slot in Redis. `None` if the grant is no such slot.
    pub(super) fn holder(&self) -> Option<Holder> {
        match self.source {
            Source::Slot(holder) => Some(holder),
            _ => None,
        }
    }

    pub(crate) fn present(&self) -> Timestamp {
        self.reading.present()
    }

    /// Ends the grant at the time `now`. `used` says how much more or less the request used than it took.
    pub fn settle_at(&mut self, used: Difference, now: Timestamp) {
        let source = self.end();
        self.settle_with(source, used, now);
    }

    /// The request waits for its moment. `waiter` wakes it when it moves up in the bucket's queue.
    pub(super) fn join_queue(&mut self, waiter: &Arc<Notify>) {
        let Some(waiting) = &mut self.waiting else { return };
        let taken = mem::replace(&mut self.source, Source::Ended);
        let place = (self.ask.cost, taken);
        let queues = &self.store.shared.queues;
        waiting.queued = Some(queues.join(waiting.queue, waiting.goes, place, waiter));
    }

    /// The moment at which this limit lets the request go. `None` if the limit has no queue.
    pub(super) fn goes(&self) -> Option<Instant> {
        let WaitingGrant { goes, queued, .. } = self.waiting.as_ref()?;
        Some(queued.as_ref().map_or(*goes, |queued| queued.goes()))
    }

    /// Ends the grant, and returns what it gave. A request that has moved up in a queue returns what its present
    /// place gave: its first place now belongs to another request.
    fn end(&mut self) -> Source {
        self.end_with(|queue, request| queue.go(request))
    }

    /// Ends the grant. If the request has joined a queue, `leave` removes it there, and returns what goes back.
    fn end_with(
        &mut self,
        leave: impl FnOnce(&mut BucketQueue<Source>, &QueuedRequest) -> Option<Source>,
    ) -> Source {
        let source = mem::replace(&mut self.source, Source::Ended);
        let Some(WaitingGrant { queue, queued: Some(queued), .. }) = self.waiting.take() else {
            return source;
        };
        let left = self.store.shared.queues.with(queue, |queue| leave(queue, &queued));
        // What the grant gave is in the queue since the request has joined it.
        left.unwrap_or(source)
    }

    pub(super) fn question(&self) -> BucketAsk<'_> {
        BucketAsk { spec: &self.spec, key: &self.key, ask: self.ask }
    }

    /// Corrects the bucket by what the request has used. A slot is free again, whatever was used.
    fn settle_with(&self, source: Source, used: Difference, now: Timestamp) {
        let ask = self.question();
        match source {
            Source::Process(taken) => self.store.settle_here(&ask, used, taken, now),
            Source::Redis(receipt) => self.store.settle(&ask, used, receipt, now),
            Source::Limiter(_) => self.store.settle(&ask, used, Receipt::NONE, now),
            Source::Slot(holder) => {
                self.store.redis.iter().for_each(|redis| redis.leases.give_back(holder));
            }
            Source::Ended => {}
        }
    }

    /// The request does not go on. What the limit gave goes back. If the request waits in a queue, those after it move
    /// up, and the last place of the queue goes back.
    fn go_back(&mut self) {
        let source = self.end_with(|queue, request| queue.leave(request, Instant::now()));
        match (source, &self.store.redis) {
            (Source::Limiter(id), Some(redis)) => redis.limiters.give_back(&self.question(), id),
            (source, _) => {
                self.settle_with(source, Difference::Less(self.ask.cost.get()), self.present());
            }
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.go_back();
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grant").field(&self.spec.name).finish()
    }
}
