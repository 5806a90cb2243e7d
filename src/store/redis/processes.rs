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

use super::call::{self, Call, Holder, Request, Verb};
use crate::limit::algorithm::{Algorithm, concurrency};
use crate::limit::decide::Ask;
use crate::limit::rate::Burst;
use crate::redis::{CallError, HashSlot, LastingFailures, Router, refusal};
use crate::store::ProcessStore;
use crate::store::process::LEASE;

/// The time between two announcements. A process that starts is known to the others after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// More processes than anybody has.
const MOST: u64 = 1_000_000;

/// What an operator is told where there is no advice.
const GOES_ON: &str =
    "the last count stays in force; the processes are counted again when redis answers";

const OTHER_TYPE: &str = "delete the key PREFIX::processes, and keep what else writes there away from it; until \
                          then the last count stays in force";

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
                call.request(Request { asks: 1, receipts: false });
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

    /// The process ends: the others need not wait for the end of the lease. Takes at most `store.timeout`.
    pub(super) async fn withdraw(self) {
        let Self { router, slot, withdrawal, task } = self;
        drop(task);
        if router.nodes.is_up(slot) {
            // Where this fails, the lease ends by itself.
            let _ = router.try_call(slot, &withdrawal, |_| Some(())).await;
        }
    }
}

async fn announce(router: Arc<Router>, slot: HashSlot, call: Call, shared: Arc<ProcessStore>) {
    let command = call.command();
    let mut failures = LastingFailures::new();
    loop {
        let answer = router.try_call(slot, &command, |answer| call.read(&answer)?.last()).await;
        let held = answer.and_then(|reply| {
            let decision = reply.first().and_then(|one| one.decision);
            decision.map(|it| MOST.saturating_sub(it.remaining)).ok_or(call::OTHER_TYPE)
        });
        let now = Instant::now();
        let help = match &held {
            Ok(held) => {
                shared.count_processes(*held, now);
                failures.end();
                None
            }
            Err(CallError::UnusableKey(_)) => Some(OTHER_TYPE),
            Err(CallError::Redis(refused)) => {
                refusal(refused).map(|(_, help)| help.unwrap_or(GOES_ON))
            }
            // Without an answer the last count is the best there is.
            Err(_) => None,
        };
        if let (Err(error), Some(help)) = (&held, help)
            && failures.is_news(router.nodes.is_up(slot), now)
        {
            tracing::warn!(%error, help, "processes not counted");
        }
        sleep(PAUSE).await;
    }
}
