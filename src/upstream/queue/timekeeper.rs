//! The task that keeps the time of a queue: who waits needs no timer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::RequestQueue;

/// So many ticks without any request end the task that keeps the time. A new one for each request would cost more.
const IDLE_TICKS: u32 = 20;

/// How often the rule is told that time passes.
const TICK: Duration = Duration::from_millis(100);

/// How often those who have waited for too long are looked for.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// Keeps the time of a queue. Another task does so after this one has ended, or its worker has.
pub(super) struct Timekeeper(Arc<RequestQueue>);

impl Timekeeper {
    pub(super) fn of(queue: Arc<RequestQueue>) -> Self {
        Self(queue)
    }

    pub(super) async fn keep(self) {
        let queue = &self.0;
        let (mut ticked, mut idle) = (Instant::now(), 0);
        loop {
            let waits = {
                let mut state = queue.state.lock();
                let now = queue.now();
                if ticked.elapsed() >= TICK {
                    ticked = Instant::now();
                    let is_idle = state.in_flight == 0 && state.turns.is_empty();
                    idle = if is_idle { idle + 1 } else { 0 };
                    let in_flight = state.in_flight;
                    let change = if is_idle { None } else { state.rule.tick(in_flight, now) };
                    queue.changed(&mut state, change, now);
                }
                queue.look(&mut state, now);
                if idle == IDLE_TICKS || state.is_number() && state.turns.is_empty() {
                    state.is_timed = false;
                    return;
                }
                !state.turns.is_empty()
            };
            match waits {
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
