//! The slots that a worker's requests hold in Redis. Each slot has a lease, which is renewed until the slot's
//! return.
//!
//! A slot has its name before Redis is asked for it. Therefore it can be given back even if the answer was lost.
//! Renewals and returns join the worker's other calls, and nobody waits for their replies. A return that may not have
//! reached Redis is sent again, until the lease has ended by itself.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::queue::{Lost, Queue};
use crate::limit::bucket::Holder;
use crate::limit::call::Verb;
use crate::limit::decide::Ask;
use crate::redis::{CallError, Router};

/// A lease is renewed after a third of its length, and after [`LONGEST`] at the latest.
const RENEWALS: u32 = 3;

/// The longest time between two renewals. If somebody deletes Redis's data, Redis may give the held slots to
/// others for at most this time.
const LONGEST: Duration = Duration::from_secs(3);

/// When a lease is due, the leases that are due soon are renewed too: within the time between two renewals, divided by
/// this.
const GATHERED: u32 = 4;

/// Time until a return that may not have reached Redis is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// A worker's slots.
pub(in crate::store) struct SlotLeases {
    worker: u64,
    slots: Mutex<Slots>,
    /// Wakes the keeper if something is due before its next look.
    sooner: Notify,
    queue: Queue,
    router: Arc<Router>,
}

#[derive(Default)]
struct Slots {
    named: u64,
    known: HashMap<u64, LeasedSlot>,
    /// When the keeper looks next.
    look: Option<Instant>,
}

/// A slot that is asked for, is held, or goes back.
struct LeasedSlot {
    /// The name of its bucket's key.
    name: Vec<u8>,
    ask: Ask,
    /// When its lease is renewed, or its return is sent again. `None` until Redis has given the slot.
    due: Option<Instant>,
    /// When the lease has ended in any case. `Some` if the slot's return may not have reached Redis.
    end: Option<Instant>,
}

impl SlotLeases {
    /// Begins to renew. Must be called within the worker's runtime.
    pub(super) fn begin(queue: Queue, router: Arc<Router>) -> (Arc<Self>, AbortOnDropHandle<()>) {
        // Seeded by the system, differently for each worker of each process.
        let worker = RandomState::new().hash_one("worker") >> 11;
        let slots = Mutex::default();
        let (sooner, connects) = (Notify::new(), router.connects());
        let leases = Arc::new(Self { worker, slots, sooner, queue, router });
        let keeper = tokio::spawn(renew_leases(Arc::clone(&leases), connects));
        (leases, AbortOnDropHandle::new(keeper))
    }

    /// Names a slot before Redis is asked for it.
    pub(super) fn name(&self, ask: &Ask, name: Vec<u8>) -> Holder {
        let mut slots = self.slots.lock();
        slots.named += 1;
        let request = slots.named;
        slots.known.insert(request, LeasedSlot { name, ask: *ask, due: None, end: None });
        Holder { worker: self.worker, request }
    }

    /// Redis gave the slot: from now on its lease is renewed.
    pub(super) fn renew(&self, Holder { request, .. }: Holder) {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.known.get_mut(&request) else { return };
        let due = Instant::now() + pause(&slot.ask);
        slot.due = Some(due);
        self.look_at(slots, due);
    }

    /// Redis did not give the slot: there is nothing to give back.
    pub(super) fn forget(&self, Holder { request, .. }: Holder) {
        self.slots.lock().known.remove(&request);
    }

    /// Gives back a slot that Redis has given or may give.
    pub(in crate::store) fn give_back(self: &Arc<Self>, Holder { request, .. }: Holder) {
        let Some(mut slot) = self.slots.lock().known.remove(&request) else { return };
        slot.end = Some(Instant::now() + slot.ask.algorithm.lease().unwrap_or_default());
        self.send_back(request, slot);
    }

    /// Makes the keeper look at this time at the latest.
    fn look_at(&self, mut slots: MutexGuard<'_, Slots>, due: Instant) {
        if slots.look.is_none_or(|look| due < look) {
            slots.look = Some(due);
            self.sooner.notify_one();
        }
    }

    fn tell(&self, request: u64, verb: Verb, name: &[u8], ask: &Ask, lost: Option<Lost>) {
        let holder = Holder { worker: self.worker, request };
        let deadline = self.router.deadline();
        self.queue.send(self.router.hash_slot(name), deadline, lost, |call| {
            call.ask(verb, ask, Some(holder), name.to_vec());
        });
    }

    fn send_back(self: &Arc<Self>, request: u64, slot: LeasedSlot) {
        let (leases, name, ask) = (Arc::clone(self), slot.name.clone(), slot.ask);
        // If the key has another type, it holds no slot, and nothing must be sent again.
        let lost: Lost = Box::new(move |error| match error {
            CallError::UnusableKey(_) => {}
            _ => leases.was_not_heard(request, slot),
        });
        self.tell(request, Verb::RELEASE, &name, &ask, Some(lost));
    }

    fn was_not_heard(&self, request: u64, mut slot: LeasedSlot) {
        let due = Instant::now() + AGAIN;
        if slot.end.is_some_and(|end| due < end) {
            slot.due = Some(due);
            let mut slots = self.slots.lock();
            slots.known.insert(request, slot);
            self.look_at(slots, due);
        }
    }

    /// Makes the lease of every held slot due now.
    fn announce(&self) {
        let now = Instant::now();
        self.slots.lock().known.values_mut().filter(|slot| slot.is_held()).for_each(|slot| {
            slot.due = Some(now);
        });
    }

    /// Sends the renewals and returns that are due. Returns when to look again.
    fn look(self: &Arc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let mut slots = self.slots.lock();
        // Leases that are due soon are renewed at the same time. From then on they are due together.
        let is_due = |slot: &LeasedSlot, by| slot.due.is_some_and(|due| due <= by);
        for (request, slot) in slots.known.iter_mut().filter(|(_, slot)| slot.is_held()) {
            if is_due(slot, now + pause(&slot.ask) / GATHERED) {
                slot.due = Some(now + pause(&slot.ask));
                self.tell(*request, Verb::HOLD, &slot.name, &slot.ask, None);
            }
        }
        let again = |_: &u64, slot: &mut LeasedSlot| slot.end.is_some() && is_due(slot, now);
        let again: Vec<_> = slots.known.extract_if(again).collect();
        slots.look = slots.known.values().filter_map(|slot| slot.due).min();
        let look = slots.look;
        drop(slots);
        for (request, slot) in again {
            // While Redis is away, nothing is sent.
            match self.router.nodes.is_up(self.router.hash_slot(&slot.name)) {
                true => self.send_back(request, slot),
                false => self.was_not_heard(request, slot),
            }
        }
        look
    }
}

impl LeasedSlot {
    fn is_held(&self) -> bool {
        self.due.is_some() && self.end.is_none()
    }
}

async fn renew_leases(leases: Arc<SlotLeases>, mut connects: watch::Receiver<u64>) {
    loop {
        let look = leases.look();
        let due = async {
            match look {
                Some(look) => sleep_until(look).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = leases.sooner.notified() => {}
            // The server may have lost its data. All held slots are renewed at once.
            Ok(()) = connects.changed() => leases.announce(),
        }
    }
}

/// Time between two renewals.
fn pause(ask: &Ask) -> Duration {
    (ask.algorithm.lease().unwrap_or_default() / RENEWALS).min(LONGEST)
}
