//! Where a worker's requests meet on their way to Redis.
//!
//! Whoever asks joins the call that is being gathered, and the first one to do so wakes the sender.
//! That is one of the worker's tasks like any other: it runs when those that were ready before it
//! have run, so it finds what they all asked, and nobody waits for anybody who may still come. Calls
//! follow each other on the connection without waiting for answers.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::call::{Call, Said};
use super::connection::Connection;
use crate::limit::decide::PerAsk;
use crate::store::StoreError;

/// A worker's requests that are to be sent.
pub(super) struct Queue {
    gathered: Arc<Gathered>,
    sender: JoinHandle<()>,
}

#[derive(Default)]
struct Gathered {
    calls: Mutex<Vec<Shared>>,
    filled: Notify,
}

/// A call, and who waits for its answers, in the order of its requests.
struct Shared {
    call: Call,
    /// `None` is nobody, for what is to be said in any case.
    waiting: Vec<Option<oneshot::Sender<Answer>>>,
    deadline: Instant,
}

pub(super) type Answer = Result<PerAsk<Said>, StoreError>;

impl Queue {
    /// Begins to send over this connection.
    pub(super) fn to(connection: Arc<Connection>) -> Self {
        let gathered = Arc::new(Gathered::default());
        let sender = tokio::spawn(send(Arc::clone(&gathered), connection));
        Self { gathered, sender }
    }

    /// A way in for what needs no answer.
    pub(super) fn teller(&self) -> Teller {
        Teller(Arc::clone(&self.gathered))
    }

    /// Joins a call with a request of so many asks, which `ask` adds, and waits for what is said to
    /// them: at most until `deadline`, or until that of whoever began the call.
    pub(super) async fn join(
        &self,
        asks: usize,
        deadline: Instant,
        ask: impl FnOnce(&mut Call),
    ) -> Answer {
        self.begin(asks, deadline, ask).answer().await
    }

    /// Joins in the same way, and leaves the waiting to whoever keeps what is returned.
    pub(super) fn begin(
        &self,
        asks: usize,
        deadline: Instant,
        ask: impl FnOnce(&mut Call),
    ) -> Awaited {
        let (sender, answer) = oneshot::channel();
        self.gathered.join(deadline, Some(sender), asks, |call| {
            call.request(asks);
            ask(call);
        });
        Awaited::of(answer)
    }
}

/// What will be said to a request that has joined a call. Once it is dropped the call may be left out.
pub(in crate::store) struct Awaited(oneshot::Receiver<Answer>);

impl Awaited {
    /// What will be sent there.
    pub(super) fn of(answer: oneshot::Receiver<Answer>) -> Self {
        Self(answer)
    }

    /// To be asked for once.
    pub(in crate::store) async fn answer(&mut self) -> Result<PerAsk<Said>, StoreError> {
        // An error means that the worker ends.
        (&mut self.0).await.unwrap_or(Err(StoreError::NotConnected))
    }
}

/// A way into a worker's queue that outlives nobody: for what is said without waiting.
#[derive(Clone)]
pub(super) struct Teller(Arc<Gathered>);

impl Teller {
    /// Joins a call with a request of one ask, whose answer nobody waits for.
    pub(super) fn tell(&self, deadline: Instant, ask: impl FnOnce(&mut Call)) {
        self.0.join(deadline, None, 1, |call| {
            call.request(1);
            ask(call);
        });
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

impl Gathered {
    fn join(
        &self,
        deadline: Instant,
        waiting: Option<oneshot::Sender<Answer>>,
        asks: usize,
        add: impl FnOnce(&mut Call),
    ) {
        let mut calls = self.calls();
        if calls.is_empty() {
            self.filled.notify_one();
        }
        if !calls.last().is_some_and(|shared| shared.call.has_room(asks)) {
            calls.push(Shared { call: Call::default(), waiting: Vec::new(), deadline });
        }
        if let Some(shared) = calls.last_mut() {
            add(&mut shared.call);
            shared.waiting.push(waiting);
        }
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Shared>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn send(gathered: Arc<Gathered>, connection: Arc<Connection>) {
    loop {
        gathered.filled.notified().await;
        let calls = mem::take(&mut *gathered.calls());
        for shared in calls {
            tokio::spawn(shared.run(Arc::clone(&connection)));
        }
    }
}

impl Shared {
    async fn run(mut self, connection: Arc<Connection>) {
        let has_left = |waiting: &Option<oneshot::Sender<Answer>>| {
            waiting.as_ref().is_some_and(oneshot::Sender::is_closed)
        };
        if self.waiting.iter().all(has_left) {
            return;
        }
        let waiting = &mut self.waiting;
        let call = &self.call;
        // Whoever has left in the meantime does not hear it.
        let tell_all = |answer| {
            let answers = call.read(&answer)?;
            for (waiting, answer) in waiting.drain(..).zip(answers) {
                let _ = waiting.map(|waiting| waiting.send(Ok(answer)));
            }
            Some(())
        };
        if let Err(error) = connection.call(&call.command(), tell_all, self.deadline).await {
            for waiting in self.waiting.into_iter().flatten() {
                let _ = waiting.send(Err(error.clone()));
            }
        }
    }
}
