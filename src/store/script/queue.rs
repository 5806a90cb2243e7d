//! Gathers a worker's requests to Redis into calls. `Redis` and `leases` add requests, and the router of
//! [`crate::redis`] sends them.
//!
//! A request joins the call that is being gathered. The first request of a call wakes the sender, which is
//! one of the worker's tasks. The sender runs after the tasks that were ready before it. By then the
//! requests of all these tasks are in the call. No request waits for requests that may still come. Calls
//! follow each other on the connection without waiting for answers. In a cluster the keys of one call share a
//! hash slot. Calls for several hash slots are gathered at the same time.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::limit::bucket::ReceiptUse;
use crate::limit::call::{Call, Reply};
use crate::redis::{CallError, CallKind, HashSlot, Router};

/// A request looks for a call of its hash slot among at most this number of calls. A longer search would cost more
/// than a shared call saves.
const MOST_CALLS: usize = 64;

/// A worker's requests that are to be sent. All clones are the same queue.
#[derive(Clone)]
pub(in crate::store) struct Queue(Arc<Gathered>);

#[derive(Default)]
struct Gathered {
    calls: Mutex<Vec<GatheredCall>>,
    filled: Notify,
    /// The requests under way whose reply nobody waits for.
    one_way: TaskTracker,
}

/// A call, and the recipients of its replies in the order of its requests.
struct GatheredCall {
    hash_slot: HashSlot,
    call: Call,
    waiting: Vec<Recipient>,
    deadline: Instant,
}

/// Who gets the reply to a request.
enum Recipient {
    Waiting(oneshot::Sender<Result<Reply, CallError>>),
    /// Nobody waits for the reply, such as that to a settlement.
    Nobody {
        lost: Option<Lost>,
        #[allow(dead_code, reason = "it counts until it is dropped")]
        counted: TaskTrackerToken,
    },
}

/// Called if Redis may not have got the request, or could not carry it out.
pub(super) type Lost = Box<dyn FnOnce(&CallError) + Send>;

impl Recipient {
    fn has_left(&self) -> bool {
        matches!(self, Self::Waiting(it) if it.is_closed())
    }

    /// Delivers the reply. A request that has ended meanwhile does not get it.
    fn deliver(self, answer: Result<Reply, CallError>) {
        match self {
            Self::Waiting(it) => drop(it.send(answer)),
            Self::Nobody { lost: Some(lost), .. } => match answer {
                Ok(reply) if reply.iter().all(|one| one.decision.is_some()) => {}
                Ok(_) => lost(&CallError::OTHER_TYPE),
                Err(error) => lost(&error),
            },
            Self::Nobody { lost: None, .. } => {}
        }
    }
}

impl Queue {
    /// Begins to send over this router's connections, until the task is dropped.
    pub(super) fn to(router: Arc<Router>) -> (Self, AbortOnDropHandle<()>) {
        let gathered = Arc::new(Gathered::default());
        // `TaskTracker::wait` ends only after `close`. A closed tracker still counts new requests.
        gathered.one_way.close();
        let sender = tokio::spawn(send(Arc::clone(&gathered), router));
        (Self(gathered), AbortOnDropHandle::new(sender))
    }

    /// Waits until Redis has answered every request whose reply nobody waits for.
    pub(in crate::store) async fn answered(&self) {
        self.0.one_way.wait().await;
    }

    /// Adds a request of so many asks to a call of this hash slot. `ask` writes the asks. The reply comes by `deadline`, or by the
    /// deadline of the request that began the call.
    pub(super) fn begin(
        &self,
        hash_slot: HashSlot,
        (asks, receipts): (usize, ReceiptUse),
        deadline: Instant,
        ask: impl FnOnce(&mut Call),
    ) -> Awaited {
        let (sender, answer) = oneshot::channel();
        self.0.join(hash_slot, deadline, Recipient::Waiting(sender), asks, |call| {
            call.request(asks, receipts);
            ask(call);
        });
        Awaited(answer)
    }

    /// Counts a request as under way before it is sent, until the token is dropped.
    pub(in crate::store) fn count(&self) -> TaskTrackerToken {
        self.0.one_way.token()
    }

    /// Adds a request of one ask, whose reply nobody waits for, to a call.
    pub(super) fn send(
        &self,
        hash_slot: HashSlot,
        deadline: Instant,
        lost: Option<Lost>,
        ask: impl FnOnce(&mut Call),
    ) {
        let nobody = Recipient::Nobody { lost, counted: self.0.one_way.token() };
        self.0.join(hash_slot, deadline, nobody, 1, |call| {
            call.request(1, ReceiptUse::Unneeded);
            ask(call);
        });
    }
}

/// The reply to a request that has joined a call. A call is not sent if all its requests have dropped their
/// `Awaited`.
pub(super) struct Awaited(oneshot::Receiver<Result<Reply, CallError>>);

impl Awaited {
    /// Waits for the reply. To be called once.
    pub(super) async fn answer(&mut self) -> Result<Reply, CallError> {
        // A receive error means that the worker ends.
        (&mut self.0).await.unwrap_or(Err(CallError::NotConnected))
    }
}

impl Gathered {
    fn join(
        &self,
        hash_slot: HashSlot,
        deadline: Instant,
        waiting: Recipient,
        asks: usize,
        add: impl FnOnce(&mut Call),
    ) {
        let mut calls = self.calls.lock();
        if calls.is_empty() {
            self.filled.notify_one();
        }
        // A request joins only the newest call of its hash slot. An older call is sent earlier, and a question must not
        // overtake an earlier settlement.
        let newest =
            calls.iter_mut().rev().take(MOST_CALLS).find(|call| call.hash_slot == hash_slot);
        if let Some(shared) = newest.filter(|shared| shared.call.has_room(asks)) {
            add(&mut shared.call);
            return shared.waiting.push(waiting);
        }
        let mut call = Call::default();
        add(&mut call);
        calls.push(GatheredCall { hash_slot, call, waiting: vec![waiting], deadline });
    }
}

async fn send(gathered: Arc<Gathered>, router: Arc<Router>) {
    loop {
        gathered.filled.notified().await;
        let calls = mem::take(&mut *gathered.calls.lock());
        for shared in calls {
            tokio::spawn(shared.run(Arc::clone(&router)));
        }
    }
}

impl GatheredCall {
    async fn run(mut self, router: Arc<Router>) {
        if self.waiting.iter().all(Recipient::has_left) {
            return;
        }
        let waiting = &mut self.waiting;
        let call = &self.call;
        let deliver_all = |answer: Value| {
            let Value::BulkString(answer) = answer else { return None };
            let answers = call.read(&answer)?;
            for (waiting, answer) in waiting.drain(..).zip(answers) {
                waiting.deliver(Ok(answer));
            }
            Some(())
        };
        let command = call.command();
        let calling =
            router.call(CallKind::Awaited, self.hash_slot, &command, deliver_all, self.deadline);
        let Err(error) = calling.await else { return };
        if error.is_of_several_keys() && self.waiting.len() > 1 {
            return self.run_apart(&router);
        }
        for waiting in self.waiting {
            waiting.deliver(Err(error.clone()));
        }
    }

    /// Sends each request of the call by itself: the hash slot moves, and one server has some of the keys and
    /// another server has the others.
    fn run_apart(self, router: &Arc<Router>) {
        for (call, waiting) in self.call.split().into_iter().zip(self.waiting) {
            let one = Self {
                call,
                waiting: vec![waiting],
                hash_slot: self.hash_slot,
                deadline: self.deadline,
            };
            // Boxed, because `run` calls this function, and this function calls `run`.
            let run: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(one.run(Arc::clone(router)));
            tokio::spawn(run);
        }
    }
}
