//! Announces this process in Redis, and counts the processes that share it. Without Redis each of them
//! enforces its share: see `order`.
//!
//! A process is announced under its name with a lease: `processes.lua` describes the key. One worker of the process
//! renews the lease, and gives it back when the process ends. If it does not, the others say so.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{FromRedisValue, Script, Value};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::observe::{events, host};
use crate::redis::{CallError, CallKind, HashSlot, LastingFailures, Router};
use crate::store::ProcessStore;
use crate::store::process::LEASE;

pub(super) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("processes.lua")));

/// The time between two announcements. A process that starts is known to the others after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// A process is gone if its lease is over at so many announcements in a row. After an outage of Redis the others may not
/// have announced themselves again yet.
const LOOKS: u32 = 4;

const OTHER_TYPE: &str = "delete the key PREFIX::processes, and stop the other program that writes it; until then the last count stays in force";

const OTHERWISE: &str =
    "the last count stays in force; the processes are counted again when redis answers";

/// The announcement of this process, which is renewed until it is withdrawn or dropped.
pub(super) struct Announcement {
    caller: Arc<Caller>,
    task: AbortOnDropHandle<()>,
}

/// Calls the script.
struct Caller {
    router: Arc<Router>,
    slot: HashSlot,
    key: String,
    /// The machine, the number of the process, and an id: processes in containers may have the same number.
    own: String,
}

impl Announcement {
    /// Announces this process again and again, and notes the number of processes in `shared`. Must be called
    /// within the worker's runtime.
    pub(super) fn begin(router: Arc<Router>, prefix: &str, shared: Arc<ProcessStore>) -> Self {
        // No limit's key looks like this, because a limit's name is never empty.
        let key = format!("{prefix}::processes");
        let own = format!("{}:{} {}", host(), std::process::id(), shared.client_id);
        let slot = router.hash_slot(key.as_bytes());
        let caller = Arc::new(Caller { router, slot, key, own });
        let announcing = tokio::spawn(announce(Arc::clone(&caller), shared));
        Self { caller, task: AbortOnDropHandle::new(announcing) }
    }

    /// The process ends. With this call, the other processes need not wait for the end of its lease. Takes at most
    /// `store.timeout`.
    pub(super) async fn withdraw(&self) {
        let Self { caller, task } = self;
        task.abort();
        if caller.router.nodes.is_up(caller.slot) {
            // If this fails, the lease ends by itself.
            let _ = caller.call(Duration::ZERO).await;
        }
    }
}

impl Caller {
    /// Returns the number of processes, and the names of those whose lease is over.
    async fn call(&self, lease: Duration) -> Result<(u64, Vec<String>), CallError> {
        let mut call = redis::cmd("EVALSHA");
        let lease = lease.as_micros().to_string();
        call.arg(SCRIPT.get_hash()).arg(1).arg(&self.key).arg(&self.own).arg(lease);
        let read = |answer| {
            let mut values = Vec::<Value>::from_redis_value(answer).ok()?.into_iter();
            let held = u64::from_redis_value(values.next()?).ok()?;
            // Older versions have names that are no text.
            Some((held, values.filter_map(|name| String::from_redis_value(name).ok()).collect()))
        };
        let deadline = self.router.deadline();
        let called = self.router.call(CallKind::Background, self.slot, &call, read, deadline).await;
        match called {
            Err(CallError::Redis(error)) if error.code() == Some("WRONGTYPE") => {
                Err(CallError::OTHER_TYPE)
            }
            called => called,
        }
    }
}

async fn announce(caller: Arc<Caller>, shared: Arc<ProcessStore>) {
    let mut failures = LastingFailures::new(OTHER_TYPE, OTHERWISE);
    let mut silent = HashMap::<String, u32>::new();
    loop {
        let called = caller.call(LEASE).await;
        if let Some((error, help)) = failures.news(&called, caller.router.nodes.is_up(caller.slot))
        {
            tracing::warn!(%error, help, "processes not counted");
        }
        if let Ok((held, ended)) = called {
            shared.count_processes(held, Instant::now());
            silent.retain(|name, _| ended.contains(name));
            ended.into_iter().for_each(|name| *silent.entry(name).or_default() += 1);
            for (name, _) in silent.iter().filter(|(_, looks)| **looks == LOOKS) {
                events::process_gone(name.split(' ').next().unwrap_or_default());
            }
        }
        sleep(PAUSE).await;
    }
}
