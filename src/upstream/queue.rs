//! The requests that wait because an upstream has `max_requests` in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most requests that wait for one upstream. Each holds a client's connection.
const MOST_WAITING: usize = 1_000;

/// The requests of an upstream in flight and those that wait, of all workers. Used only where the upstream
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
    waiting: VecDeque<oneshot::Sender<RequestSlot>>,
}

/// A place among the requests in flight. Dropping it gives the place to the request that has waited longest.
#[derive(Debug)]
pub(crate) struct RequestSlot(Arc<RequestQueue>);

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueError {
    /// Too many requests wait already.
    #[error("max_requests are in flight, and {MOST_WAITING} more wait")]
    Full,
    /// No place became free within `queue_timeout`.
    #[error("max_requests are in flight, and none of them ended within queue_timeout")]
    Timeout,
}

impl RequestQueue {
    /// A place among `most` requests in flight. Waits at most `time_limit` for one.
    pub(super) async fn enter(
        self: &Arc<Self>,
        most: usize,
        time_limit: Duration,
    ) -> Result<RequestSlot, QueueError> {
        let turn = {
            let mut state = self.state.lock();
            state.most = most;
            if state.waiting.is_empty() && state.in_flight < most {
                state.in_flight += 1;
                return Ok(RequestSlot(self.clone()));
            }
            if state.waiting.len() >= MOST_WAITING {
                state.waiting.retain(|waiting| !waiting.is_closed());
            }
            if state.waiting.len() >= MOST_WAITING {
                return Err(QueueError::Full);
            }
            let (tell, turn) = oneshot::channel();
            state.waiting.push_back(tell);
            turn
        };
        // A reload may have raised the maximum.
        self.advance();
        match timeout(time_limit, turn).await {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(_)) | Err(_) => Err(QueueError::Timeout),
        }
    }

    /// Gives free places to the requests that have waited longest.
    fn advance(self: &Arc<Self>) {
        while let Some(next) = self.next() {
            // If the request has left meanwhile, the slot is dropped here, and its place is free again.
            let _ = next.send(RequestSlot(self.clone()));
        }
    }

    /// Takes the place for the next request that waits, if both are there.
    fn next(&self) -> Option<oneshot::Sender<RequestSlot>> {
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

impl Drop for RequestSlot {
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
    async fn a_request_waits_for_its_turn_and_no_longer_than_its_patience() {
        let queue = Arc::new(RequestQueue::default());
        let first = queue.enter(1, TIME_LIMIT).await.unwrap();
        let mut second = pin!(queue.enter(1, TIME_LIMIT));
        let mut third = pin!(queue.enter(1, TIME_LIMIT));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        drop(first);
        assert!(poll(third.as_mut()).is_pending(), "the second came first");
        let Poll::Ready(Ok(slot)) = poll(second.as_mut()) else { panic!("it has its turn") };
        assert_eq!(third.await.unwrap_err(), QueueError::Timeout);
        drop(slot);
        assert!(queue.enter(1, TIME_LIMIT).await.is_ok(), "who left has no place");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_gives_its_place_to_the_next() {
        let queue = Arc::new(RequestQueue::default());
        let first = queue.enter(1, TIME_LIMIT).await.unwrap();
        let mut leaves = Box::pin(queue.enter(1, TIME_LIMIT));
        let mut stays = pin!(queue.enter(1, TIME_LIMIT));
        assert!(poll(leaves.as_mut()).is_pending());
        assert!(poll(stays.as_mut()).is_pending());
        drop(first);
        // The first client's turn has come, but the client leaves before its request goes on.
        drop(leaves);
        assert!(matches!(poll(stays.as_mut()), Poll::Ready(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_raised_maximum_lets_in_those_that_wait() {
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
