//! The task that keeps the time of a queue: who waits needs no timer.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{QueueState, RequestQueue, UpstreamWaiter};
use crate::upstream::overload::turns::Waiter;
use crate::upstream::overload::window::{Micros, SECOND};

/// How often the rule is told that time passes.
const TICK: Duration = Duration::from_millis(100);

/// How often those who have waited for too long are looked for.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// How long the task runs on when there are no requests.
const LASTS: Micros = 2 * SECOND;

/// Keeps the time of a queue. Another task does so after this one has ended, or its worker has.
struct Timekeeper(Arc<RequestQueue>);

impl RequestQueue {
    /// Starts the task that keeps the time, if there is none.
    pub(super) fn keep_time(self: &Arc<Self>, state: &mut QueueState) {
        if !mem::replace(&mut state.is_timed, true) {
            tokio::spawn(Timekeeper(self.clone()).keep());
        }
    }
}

impl Timekeeper {
    async fn keep(self) {
        // One task that runs on for two seconds without requests is cheaper than a new task for each request.
        let (queue, mut busy_at) = (&self.0, self.0.now());
        loop {
            let (mut waits, mut is_over) = (false, false);
            queue.happens(|state, now| {
                // Requests that were given up leave the queue here too. They do not count as refused.
                let is_late =
                    |it: &Waiter<UpstreamWaiter>| it.until <= now || it.value.give.is_closed();
                for late in state.turns.drain(is_late) {
                    state.refuse(late.value, true, now);
                }
                waits = !state.turns.is_empty();
                if waits || state.in_flight > 0 {
                    state.rule.tick(state.in_flight, now);
                }
                if waits || state.in_flight > 0 && state.rule.goal.is_some() {
                    busy_at = now;
                }
                is_over = now >= busy_at + LASTS;
                state.is_timed = !is_over;
            });
            match waits {
                _ if is_over => return,
                true => sleep(LOOK).await,
                false => _ = timeout(TICK, queue.waits.notified()).await,
            }
        }
    }
}

impl Drop for Timekeeper {
    fn drop(&mut self) {
        // Its worker ends. If another task keeps the time already, two of them do no harm.
        self.0.state.lock().is_timed = false;
    }
}
