//! The time-out for the head of an answer.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::body::BodyEnd;
use crate::clock::FAR;

/// The time that a server has for the head of an answer. It runs from the last piece of the request that
/// the server got. It does not run while the client has to send more: a slow upload is not the server's
/// fault.
///
/// One timer serves all requests of a connection. It is moved to a later time only when it fires.
#[derive(Debug, Default)]
pub(super) struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    /// Ready once the answer to a request that was handed over at `sent` has taken longer than
    /// `limit`.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        sent: Instant,
        limit: Duration,
        body: &BodyEnd,
    ) -> Poll<()> {
        // `FAR` stands in for a limit that the clock cannot express. When the timer fires, it is set again.
        let end = |since: Instant| since.checked_add(limit).unwrap_or_else(|| Instant::now() + FAR);
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(end(sent))));
        // The request before may have had a longer limit.
        if timer.deadline() > end(sent) && body.is_empty() {
            timer.as_mut().reset(end(sent));
        }
        // Polled without tokio's budget, which the request's body may have used up.
        while pin!(unconstrained(timer.as_mut())).poll(cx).is_ready() {
            let now = Instant::now();
            let due = end(body.awaits_server_since(sent).unwrap_or(now));
            if due <= now {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    async fn over(deadline: &mut Deadline, end: &BodyEnd) {
        let sent = Instant::now();
        poll_fn(|cx| deadline.poll(cx, sent, LIMIT, end)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_for_an_answer_runs_from_the_last_byte_of_the_request() {
        let began = Instant::now();
        over(&mut Deadline::default(), &BodyEnd::default()).await;
        assert_eq!(began.elapsed(), LIMIT, "without a body");

        let end = BodyEnd::begin();
        let sending = async {
            end.await_client();
            tokio::time::sleep(Duration::from_secs(100)).await;
            end.reach();
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        let mut deadline = Deadline::default();
        tokio::select! {
            () = over(&mut deadline, &end) => {}
            () = sending => {}
        }
        assert_eq!(began.elapsed().as_secs(), 130, "not while the client is to send");
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_is_kept_gives_the_next_request_its_whole_time() {
        let mut deadline = Deadline::default();
        for pause in [1, 10, 29, 100] {
            let end = BodyEnd::default();
            let answer = tokio::time::timeout(LIMIT / 2, over(&mut deadline, &end));
            assert!(answer.await.is_err(), "over too soon");
            tokio::time::sleep(Duration::from_secs(pause)).await;
            let began = Instant::now();
            over(&mut deadline, &end).await;
            assert_eq!(began.elapsed(), LIMIT, "{pause}");
        }
    }
}
