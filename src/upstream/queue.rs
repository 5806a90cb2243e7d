//! The requests that wait because an upstream has `max_requests` in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most requests that wait for one upstream. Each holds a client's connection.
const MOST_WAITING: usize = 1_000;

/// The requests of an upstream in flight and those that wait, of all workers. Used only if the upstream
/// has `max_requests`.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    state: Mutex<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    /// The maximum that the last request came with. A reload may change it.
    most: usize,
    in_flight: usize,
    /// In the order of arrival.
    waiting: VecDeque<oneshot::Sender<RequestPermit>>,
}

/// The right to be one of the requests in flight. Dropping it gives the right to the request that has waited longest.
#[derive(Debug)]
pub(crate) struct RequestPermit(Arc<RequestQueue>);

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueError {
    /// Too many requests wait already.
    #[error("max_requests are in flight, and {MOST_WAITING} more wait")]
    Full,
    /// No request ended within `queue_timeout`.
    #[error("max_requests are in flight, and none of them ended within queue_timeout")]
    Timeout,
}

impl RequestQueue {
    /// A permit for one of `most` requests in flight. Waits at most `time_limit` for it.
    pub(super) async fn enter(
        self: &Arc<Self>,
        most: usize,
        time_limit: Duration,
    ) -> Result<RequestPermit, QueueError> {
        let given = {
            let mut state = self.state.lock();
            state.most = most;
            if state.waiting.is_empty() && state.in_flight < most {
                state.in_flight += 1;
                return Ok(RequestPermit(self.clone()));
            }
            if state.waiting.len() >= MOST_WAITING {
                state.waiting.retain(|waiting| !waiting.is_closed());
            }
            if state.waiting.len() >= MOST_WAITING {
                return Err(QueueError::Full);
            }
            let (give, given) = oneshot::channel();
            state.waiting.push_back(give);
            given
        };
        // A reload may have raised the maximum.
        self.advance();
        match timeout(time_limit, given).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) | Err(_) => Err(QueueError::Timeout),
        }
    }

    /// Gives permits to the requests that have waited longest, while there are any.
    fn advance(self: &Arc<Self>) {
        while let Some(next) = self.next() {
            // If the request has left meanwhile, the permit is dropped here, and the next request gets it.
            let _ = next.send(RequestPermit(self.clone()));
        }
    }

    /// Counts the next request that waits as in flight, if there may be one more.
    fn next(&self) -> Option<oneshot::Sender<RequestPermit>> {
        let mut state = self.state.lock();
        while state.in_flight < state.most {
            let next = state.waiting.pop_front()?;
            if !next.is_closed() {
                state.in_flight += 1;
                return Some(next);
            }
        }
        None
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.state.lock().in_flight -= 1;
        self.0.advance();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const TIME_LIMIT: Duration = Duration::from_secs(1);

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_permit_and_no_longer_than_its_patience() {
        let queue = Arc::new(RequestQueue::default());
        let first = queue.enter(1, TIME_LIMIT).await.unwrap();
        let mut second = pin!(queue.enter(1, TIME_LIMIT));
        let mut third = pin!(queue.enter(1, TIME_LIMIT));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        drop(first);
        assert!(poll(third.as_mut()).is_pending(), "the second came first");
        let Poll::Ready(Ok(permit)) = poll(second.as_mut()) else {
            panic!("it has waited longest")
        };
        assert_eq!(third.await.unwrap_err(), QueueError::Timeout);
        drop(permit);
        assert!(queue.enter(1, TIME_LIMIT).await.is_ok(), "who left has no permit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_gives_its_permit_to_the_next() {
        let queue = Arc::new(RequestQueue::default());
        let first = queue.enter(1, TIME_LIMIT).await.unwrap();
        let mut leaves = Box::pin(queue.enter(1, TIME_LIMIT));
        let mut stays = pin!(queue.enter(1, TIME_LIMIT));
        assert!(poll(leaves.as_mut()).is_pending());
        assert!(poll(stays.as_mut()).is_pending());
        drop(first);
        // The first client has the permit, but leaves before its request goes on.
        drop(leaves);
        assert!(matches!(poll(stays.as_mut()), Poll::Ready(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_raised_maximum_lets_waiting_requests_in() {
        let queue = Arc::new(RequestQueue::default());
        let _first = queue.enter(1, TIME_LIMIT).await.unwrap();
        let mut second = pin!(queue.enter(1, TIME_LIMIT));
        assert!(poll(second.as_mut()).is_pending());
        let mut third = pin!(queue.enter(3, TIME_LIMIT));
        assert!(matches!(poll(third.as_mut()), Poll::Ready(Ok(_))));
        assert!(matches!(poll(second.as_mut()), Poll::Ready(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_has_an_end() {
        let queue = Arc::new(RequestQueue::default());
        let _first = queue.enter(1, TIME_LIMIT).await.unwrap();
        let mut waiting: Vec<_> =
            (0..MOST_WAITING).map(|_| Box::pin(queue.enter(1, TIME_LIMIT))).collect();
        assert!(waiting.iter_mut().all(|it| poll(it.as_mut()).is_pending()));
        assert_eq!(queue.enter(1, TIME_LIMIT).await.unwrap_err(), QueueError::Full);
        waiting.clear();
        let mut next = pin!(queue.enter(1, TIME_LIMIT));
        assert!(poll(next.as_mut()).is_pending(), "those that left have made room");
    }
}
