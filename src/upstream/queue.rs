//! The requests that wait because an upstream has `max_requests` in flight.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most requests that wait for one upstream, and half of them of one client. Each holds a client's connection.
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
    /// The requests in flight whose body still comes from the client, all and by client.
    uploads: usize,
    uploads_of: HashMap<IpAddr, usize>,
    /// In the order of arrival.
    waiting: VecDeque<UpstreamWaiter>,
}

#[derive(Debug)]
struct UpstreamWaiter {
    by: RequestOrigin,
    give: oneshot::Sender<Entered>,
}

/// Whose request wants a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestOrigin {
    /// The address or network of the client.
    pub(crate) client: IpAddr,
    /// Whether the request has a body that is still to come.
    pub(crate) uploads: bool,
}

/// The right to be one of the requests in flight. Dropping it gives the right to the request that has waited longest.
#[derive(Debug)]
pub(crate) struct RequestPermit(Arc<RequestQueue>);

/// Counts a request in flight as an upload. To be dropped when the request's body has come.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    queue: Arc<RequestQueue>,
    client: IpAddr,
}

/// What a request gets that may go. The second permit is for a body that is to come.
pub(crate) type Entered = (RequestPermit, Option<UploadPermit>);

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueueError {
    /// Too many requests wait already, or too many of this client.
    #[error(
        "max_requests are in flight, and {MOST_WAITING} more wait, or half as many of this client"
    )]
    Full,
    /// No request ended within `queue_timeout`.
    #[error("max_requests are in flight, and none of them ended within queue_timeout")]
    Timeout,
}

impl QueueState {
    /// Counts a request as in flight, if there may be one more. Returns whether it is counted.
    ///
    /// An upload begins only if the number of all uploads plus that of this client's uploads is below the maximum. So
    /// one client has at most half of the permits while it sends its bodies. Each further client has at most half of
    /// the permits that are left.
    fn begin(&mut self, RequestOrigin { client, uploads }: RequestOrigin) -> bool {
        if self.in_flight >= self.most {
            return false;
        }
        if uploads {
            let its = self.uploads_of.get(&client).copied().unwrap_or_default();
            if self.uploads + its >= self.most {
                return false;
            }
            self.uploads += 1;
            self.uploads_of.insert(client, its + 1);
        }
        self.in_flight += 1;
        true
    }

    /// Begins the request that has waited longest of those that may begin.
    fn next(&mut self) -> Option<UpstreamWaiter> {
        while self.waiting.front().is_some_and(|first| first.give.is_closed()) {
            self.waiting.pop_front();
        }
        let next = (0..self.waiting.len()).find(|at| {
            let UpstreamWaiter { by, give } = &self.waiting[*at];
            let by = *by;
            !give.is_closed() && self.begin(by)
        })?;
        self.waiting.remove(next)
    }

    /// Whether too many requests wait, or too many of this client.
    fn is_full(&mut self, client: IpAddr) -> bool {
        if self.waiting.len() < MOST_WAITING / 2 {
            return false;
        }
        self.waiting.retain(|waiting| !waiting.give.is_closed());
        let its = self.waiting.iter().filter(|waiting| waiting.by.client == client).count();
        self.waiting.len() >= MOST_WAITING || its >= MOST_WAITING / 2
    }
}

impl RequestQueue {
    /// A permit for one of `most` requests in flight. Waits at most `time_limit` for it.
    pub(super) async fn enter(
        self: &Arc<Self>,
        most: usize,
        time_limit: Duration,
        by: RequestOrigin,
    ) -> Result<Entered, QueueError> {
        let given = {
            let mut state = self.state.lock();
            state.most = most;
            if state.waiting.is_empty() && state.begin(by) {
                return Ok(self.permits(by));
            }
            if state.is_full(by.client) {
                return Err(QueueError::Full);
            }
            let (give, given) = oneshot::channel();
            state.waiting.push_back(UpstreamWaiter { by, give });
            given
        };
        // A reload may have raised the maximum.
        self.advance();
        match timeout(time_limit, given).await {
            Ok(Ok(permits)) => Ok(permits),
            Ok(Err(_)) | Err(_) => Err(QueueError::Timeout),
        }
    }

    /// The permits of a request that has begun.
    fn permits(self: &Arc<Self>, RequestOrigin { client, uploads }: RequestOrigin) -> Entered {
        let upload = uploads.then(|| UploadPermit { queue: self.clone(), client });
        (RequestPermit(self.clone()), upload)
    }

    /// Gives permits to the requests that have waited longest, while there are any.
    fn advance(self: &Arc<Self>) {
        loop {
            let Some(UpstreamWaiter { by, give }) = self.state.lock().next() else { return };
            // If the request has left meanwhile, its permits are dropped here, and the next request gets them.
            let _ = give.send(self.permits(by));
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.state.lock().in_flight -= 1;
        self.0.advance();
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state.lock();
            state.uploads -= 1;
            let its = state.uploads_of.get(&self.client).copied().unwrap_or_default();
            match its {
                0 | 1 => state.uploads_of.remove(&self.client),
                _ => state.uploads_of.insert(self.client, its - 1),
            };
        }
        self.queue.advance();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const TIME_LIMIT: Duration = Duration::from_secs(1);
    const WHOLE: RequestOrigin = by(0, false);

    const fn by(client: u8, uploads: bool) -> RequestOrigin {
        RequestOrigin { client: IpAddr::V4(Ipv4Addr::new(192, 0, 2, client)), uploads }
    }

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_permit_and_no_longer_than_its_patience() {
        let queue = Arc::new(RequestQueue::default());
        let first = queue.enter(1, TIME_LIMIT, WHOLE).await.unwrap();
        let mut second = pin!(queue.enter(1, TIME_LIMIT, WHOLE));
        let mut third = pin!(queue.enter(1, TIME_LIMIT, WHOLE));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        drop(first);
        assert!(poll(third.as_mut()).is_pending(), "the second came first");
        let Poll::Ready(Ok(permit)) = poll(second.as_mut()) else {
            panic!("it has waited longest")
        };
        assert_eq!(third.await.unwrap_err(), QueueError::Timeout);
        drop(permit);
        assert!(queue.enter(1, TIME_LIMIT, WHOLE).await.is_ok(), "who left has no permit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_gives_its_permit_to_the_next() {
        let queue = Arc::new(RequestQueue::default());
        let first = queue.enter(1, TIME_LIMIT, WHOLE).await.unwrap();
        let mut leaves = Box::pin(queue.enter(1, TIME_LIMIT, WHOLE));
        let mut stays = pin!(queue.enter(1, TIME_LIMIT, WHOLE));
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
        let _first = queue.enter(1, TIME_LIMIT, WHOLE).await.unwrap();
        let mut second = pin!(queue.enter(1, TIME_LIMIT, WHOLE));
        assert!(poll(second.as_mut()).is_pending());
        let mut third = pin!(queue.enter(3, TIME_LIMIT, WHOLE));
        assert!(matches!(poll(third.as_mut()), Poll::Ready(Ok(_))));
        assert!(matches!(poll(second.as_mut()), Poll::Ready(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_has_an_end() {
        let queue = Arc::new(RequestQueue::default());
        let _first = queue.enter(1, TIME_LIMIT, WHOLE).await.unwrap();
        let enter = |client| queue.enter(1, TIME_LIMIT, by(client, false));
        let mut waiting: Vec<_> =
            (0..MOST_WAITING).map(|n| Box::pin(enter(u8::try_from(n % 2).unwrap()))).collect();
        assert!(waiting.iter_mut().all(|it| poll(it.as_mut()).is_pending()));
        assert_eq!(enter(2).await.unwrap_err(), QueueError::Full);
        waiting.clear();
        let mut next = pin!(enter(2));
        assert!(poll(next.as_mut()).is_pending(), "those that left have made room");
    }

    /// A regression: the requests of one client filled the queue, and all others got 503.
    #[tokio::test(start_paused = true)]
    async fn one_client_has_half_of_the_queue() {
        let queue = Arc::new(RequestQueue::default());
        let _first = queue.enter(1, TIME_LIMIT, WHOLE).await.unwrap();
        let enter = |client| Box::pin(queue.enter(1, TIME_LIMIT, by(client, false)));
        let mut waiting: Vec<_> = (0..MOST_WAITING / 2).map(|_| enter(1)).collect();
        assert!(waiting.iter_mut().all(|it| poll(it.as_mut()).is_pending()));
        assert_eq!(enter(1).await.unwrap_err(), QueueError::Full);
        assert!(poll(enter(2).as_mut()).is_pending(), "another client");
        waiting.pop();
        assert!(poll(enter(1).as_mut()).is_pending(), "one of its own has left");
    }

    /// A regression: one client took all permits with bodies of a byte a second.
    #[tokio::test(start_paused = true)]
    async fn one_client_that_uploads_has_half_of_the_permits() {
        for (most, expected) in
            [(1, &[1, 0][..]), (2, &[1, 1]), (3, &[2, 1]), (4, &[2, 1, 1]), (8, &[4, 2, 1, 1, 0])]
        {
            let queue = Arc::new(RequestQueue::default());
            let mut held = Vec::new();
            for (client, expected) in (1..).zip(expected) {
                let before = held.len();
                while let Poll::Ready(permit) =
                    poll(pin!(queue.enter(most, TIME_LIMIT, by(client, true))))
                {
                    held.push(permit.unwrap());
                }
                assert_eq!(held.len() - before, *expected, "{most}, client {client}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whole_requests_pass_uploads_that_wait() {
        let queue = Arc::new(RequestQueue::default());
        let enter = |client, uploads| Box::pin(queue.enter(4, TIME_LIMIT, by(client, uploads)));
        let (first, upload) = enter(1, true).await.unwrap();
        let second = enter(1, true).await.unwrap();
        let mut third = enter(1, true);
        assert!(poll(third.as_mut()).is_pending());
        let whole = enter(1, false).await.unwrap();
        assert!(poll(third.as_mut()).is_pending());
        drop(upload);
        let Poll::Ready(Ok(third)) = poll(third.as_mut()) else { panic!("a body has come") };
        let mut fifth = enter(2, false);
        assert!(poll(fifth.as_mut()).is_pending(), "four are in flight");
        drop(second);
        assert!(poll(fifth.as_mut()).is_ready());
        assert_eq!(queue.state.lock().uploads, 1);
        drop((first, third, whole));
        let state = queue.state.lock();
        assert_eq!((state.uploads, state.uploads_of.len(), state.in_flight), (0, 0, 0));
    }
}
