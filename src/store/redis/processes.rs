//! Announces this process in Redis, and counts the processes that share it. Without Redis each of them
//! enforces its share: see `outage`.
//!
//! A process is announced by a slot of an internal concurrency limit. One worker of the process renews it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::call::{Call, Holder, Request, Verb};
use super::connection::RedisConnection;
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, concurrency};
use crate::limit::decide::Ask;
use crate::limit::patience::Patience;
use crate::limit::rate::{Burst, Cost};
use crate::store::Shared;

/// A process that died counts for this long.
const LEASE: Duration = Duration::from_secs(10);

/// The time between two announcements. A process that starts is known to the others after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// More processes than anybody has.
const MOST: u64 = 1_000_000;

/// Announces this process again and again, and notes in `shared` how many there are.
pub(super) async fn announce(
    connection: Arc<RedisConnection>,
    prefix: String,
    shared: Arc<Shared>,
) {
    let Some(most) = Burst::new(MOST) else { return };
    let algorithm = Algorithm::Concurrency(concurrency::Params::new(most, LEASE));
    let ask = Ask { algorithm, cost: Cost::ONE, patience: Patience::NONE, mode: Mode::Enforce };
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
    loop {
        let counted = connection.try_call(&command, |answer| call.read(&answer)?.last());
        // Without an answer the last count is the best there is.
        if let Some(decision) = counted.await.and_then(|reply| reply.first()?.decision) {
            let known = MOST.saturating_sub(decision.remaining).max(1);
            shared.processes.store(known, Ordering::Relaxed);
        }
        sleep(PAUSE).await;
    }
}
