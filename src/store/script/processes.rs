//! Announces this process in Redis, and counts the processes that share it. Without Redis each of them
//! enforces its share: see `order`.
//!
//! A process is announced by a slot of an internal concurrency limit. One worker of the process renews it, and gives
//! it back when the process ends.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::call::{self, Call, Holder, Verb};
use crate::limit::algorithm::{Algorithm, concurrency};
use crate::limit::decide::Ask;
use crate::limit::rate::Burst;
use crate::redis::{CallAdvice, CallKind, HashSlot, LastingFailures, Router};
use crate::store::ProcessStore;
use crate::store::bucket::ReceiptUse;
use crate::store::process::LEASE;

/// The time between two announcements. A process that starts is known to the others after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// The number of slots: more than anybody has processes.
const MOST: u64 = 1_000_000;

const ADVICE: CallAdvice = CallAdvice {
    other_type: "delete the key PREFIX::processes, and stop the other program that writes it; until then the last count stays in force",
    otherwise: "the last count stays in force; the processes are counted again when redis answers",
};

/// The announcement of this process, which is renewed until it is withdrawn or dropped.
pub(super) struct Announcement {
    router: Arc<Router>,
    slot: HashSlot,
    withdrawal: Cmd,
    task: AbortOnDropHandle<()>,
}

impl Announcement {
    /// Announces this process again and again, and notes the number of processes in `shared`. Must be called
    /// within the worker's runtime.
    pub(super) fn begin(
        router: Arc<Router>,
        prefix: &str,
        shared: Arc<ProcessStore>,
    ) -> Option<Self> {
        let algorithm = Algorithm::Concurrency(concurrency::Params::new(Burst::new(MOST)?, LEASE));
        let ask = Ask::for_one(algorithm);
        let worker = RandomState::new().hash_one("process") >> 11;
        let holder = Some(Holder { worker, request: 0 });
        // No limit's key looks like this, because a limit's name is never empty.
        let name = format!("{prefix}::processes");
        let call = |asks: &[(Option<Holder>, Verb)]| {
            let mut call = Call::default();
            for (holder, verb) in asks {
                call.request(1, ReceiptUse::Unneeded);
                call.ask_for(*holder, *verb, &ask, |key| key.extend_from_slice(name.as_bytes()));
            }
            call
        };
        let slot = router.hash_slot(name.as_bytes());
        let withdrawal = call(&[(holder, Verb::Release)]).command();
        let announcement = call(&[(holder, Verb::Hold), (None, Verb::Look)]);
        let announcing = announce(Arc::clone(&router), slot, announcement, shared);
        let task = AbortOnDropHandle::new(tokio::spawn(announcing));
        Some(Self { router, slot, withdrawal, task })
    }

    /// The process ends. With this call, the other processes need not wait for the end of its lease. Takes at most
    /// `store.timeout`.
    pub(super) async fn withdraw(self) {
        let Self { router, slot, withdrawal, task } = self;
        drop(task);
        if router.nodes.is_up(slot) {
            // If this fails, the lease ends by itself.
            let (read, deadline) = (|_| Some(()), router.deadline());
            let _ = router.call(CallKind::Background, slot, &withdrawal, read, deadline).await;
        }
    }
}

async fn announce(router: Arc<Router>, slot: HashSlot, call: Call, shared: Arc<ProcessStore>) {
    let command = call.command();
    let mut failures = LastingFailures::new(ADVICE);
    loop {
        let read = |answer| call.read(&answer)?.last();
        let calling =
            router.call(CallKind::Background, slot, &command, read, router.deadline()).await;
        let held = calling.and_then(|reply| {
            let decision = reply.first().and_then(|one| one.decision);
            decision.map(|it| MOST.saturating_sub(it.remaining)).ok_or(call::OTHER_TYPE)
        });
        if let Ok(held) = held {
            shared.count_processes(held, Instant::now());
        }
        if let Some((error, help)) = failures.news(&held, router.nodes.is_up(slot)) {
            tracing::warn!(%error, help, "processes not counted");
        }
        sleep(PAUSE).await;
    }
}
