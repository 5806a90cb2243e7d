//! Time-outs of bodies.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::times::ClientTimes;
use crate::clock::FAR;

/// The time after which a wait checks again whether a reload has changed its time limit.
const LOOK: Duration = Duration::from_secs(1);

/// A time-out between two events. The timer is created and moved only while an event is waited for.
#[derive(Debug)]
pub(crate) struct EventTimeout {
    limit: EventLimit,
    timer: Option<Pin<Box<Sleep>>>,
    /// Since when the event is waited for.
    since: Option<Instant>,
}

#[derive(Debug)]
enum EventLimit {
    Fixed(Duration),
    /// The `body_timeout` in force.
    OfClient(Rc<Cell<ClientTimes>>),
}

impl EventTimeout {
    /// A time-out of this length.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit: EventLimit::Fixed(limit), timer: None, since: None }
    }

    /// A time-out of the `body_timeout` in force, which a reload may change.
    pub(super) fn of_client(times: Rc<Cell<ClientTimes>>) -> Self {
        Self { limit: EventLimit::OfClient(times), timer: None, since: None }
    }

    /// The time that it takes.
    pub(crate) fn limit(&self) -> Duration {
        match &self.limit {
            EventLimit::Fixed(limit) => *limit,
            EventLimit::OfClient(times) => times.get().body,
        }
    }

    /// The event came. Returns whether anybody was waiting for it.
    pub(crate) fn renew(&mut self) -> bool {
        self.since.take().is_some()
    }

    /// To be polled while the event has not come. Ready once the wait has been too long.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_new = self.since.is_none();
        let since = *self.since.get_or_insert_with(Instant::now);
        let next = || match &self.limit {
            EventLimit::Fixed(limit) => later(since, *limit),
            EventLimit::OfClient(times) => {
                later(since, times.get().body).min(Instant::now() + LOOK)
            }
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(next())));
        if is_new {
            timer.as_mut().reset(next());
        }
        poll_due(timer.as_mut(), cx, next)
    }
}

/// The time that is `limit` after `since`. `FAR` stands in for a time that the clock cannot express.
pub(super) fn later(since: Instant, limit: Duration) -> Instant {
    since.checked_add(limit).unwrap_or_else(|| Instant::now() + FAR)
}

/// Ready once `due` is over, which may move while it is waited for. Polled without tokio's budget: a client that sends
/// all the time uses the budget up, and the timer would never fire.
pub(super) fn poll_due(
    mut timer: Pin<&mut Sleep>,
    cx: &mut Context<'_>,
    due: impl Fn() -> Instant,
) -> Poll<()> {
    while pin!(unconstrained(timer.as_mut())).poll(cx).is_ready() {
        let due = due();
        if due <= Instant::now() {
            return Poll::Ready(());
        }
        timer.as_mut().reset(due);
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::task::coop::poll_proceed;
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_time_out_fires_though_tokio_s_budget_is_used_up() {
        let mut silence = EventTimeout::new(Duration::from_secs(1));
        let waits = poll_fn(|cx| Poll::Ready(silence.poll_over(cx).is_pending())).await;
        assert!(waits, "it has just begun");
        advance(Duration::from_secs(2)).await;
        let is_over = poll_fn(|cx| {
            let units = (0..1_000).map_while(|_| match poll_proceed(cx) {
                Poll::Ready(unit) => {
                    unit.made_progress();
                    Some(())
                }
                Poll::Pending => None,
            });
            assert!(units.count() < 1_000, "the budget has an end");
            Poll::Ready(silence.poll_over(cx).is_ready())
        });
        assert!(is_over.await);
    }
}
