//! Announces this process in Redis, and counts the processes that share it. Without Redis each of them
//! enforces its share: see `outage`.
//!
//! A process is announced by a slot of an internal concurrency limit. One worker of the process renews it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::advice::refusal;
use super::call::{Call, Holder, Request, Verb};
use super::router::Router;
use crate::limit::algorithm::{Algorithm, concurrency};
use crate::limit::decide::Ask;
use crate::limit::rate::Burst;
use crate::observe::seldom::Seldom;
use crate::store::reserve::{LEASE, ProcessCount};
use crate::store::{Shared, StoreError};

/// The time between two announcements. A process that starts is known to the others after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// The time between two warnings that the processes cannot be counted.
const SILENCE: Duration = Duration::from_secs(600);

/// More processes than anybody has.
const MOST: u64 = 1_000_000;

/// Announces this process again and again, and notes in `shared` how many there are.
pub(super) async fn announce(router: Arc<Router>, prefix: String, shared: Arc<Shared>) {
    let Some(most) = Burst::new(MOST) else { return };
    let algorithm = Algorithm::Concurrency(concurrency::Params::new(most, LEASE));
    let ask = Ask::for_one(algorithm);
    let worker = RandomState::new().hash_one("process") >> 11;
    let holder = Some(Holder { worker, request: 0 });
    // No limit's key looks like this, because a limit's name is never empty.
    let name = format!("{prefix}::processes");
    let mut call = Call::default();
    for (holder, verb) in [(holder, Verb::Hold), (None, Verb::Look)] {
        call.request(Request { asks: 1, receipts: false });
        call.ask_for(holder, verb, &ask, |key| key.extend_from_slice(name.as_bytes()));
    }
    let command = call.command();
    let mut count = ProcessCount::begin(Instant::now());
    let told = Seldom::new(SILENCE);
    loop {
        let (slot, sent) = (router.slot(name.as_bytes()), Instant::now());
        match router.try_call(slot, &command, |answer| call.read(&answer)?.last()).await {
            Ok(reply) => {
                let decision = reply.first().and_then(|one| one.decision);
                let held = decision.map_or(1, |it| MOST.saturating_sub(it.remaining));
                count.note(&shared, held, sent, Instant::now());
            }
            // Without an answer the last count is the best there is.
            Err(error) => {
                if let StoreError::Redis(refused) = &error
                    && let Some((_, help)) = refusal(refused)
                    && told.is_due(())
                {
                    let help = help.unwrap_or_default();
                    tracing::warn!(%error, "help" = help, "processes not counted");
                }
            }
        }
        sleep(PAUSE).await;
    }
}
