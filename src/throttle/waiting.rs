//! Holds requests that pass after a wait. Each request waits until its moment.
//!
//! The store gives each request its moment, in the order of its decisions. `store::queue` moves a request up when a
//! request before it has left. This file counts the waiting requests of each limit, for all workers together. The
//! counts belong to the limits' names, so a reload does not change them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::limit::name::Name;

/// The waiting requests of all workers.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// By limit. An entry of zero stays, because there are few names.
    counts: Arc<Mutex<HashMap<Name, WaitingCount>>>,
    /// The end of the process. Requests that would wait for longer are refused. Each request that is held subscribes.
    end: watch::Sender<Option<Instant>>,
}

/// The permits of one limit that requests have taken.
#[derive(Debug, Default)]
struct WaitingCount {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// A request's permit to wait for a limit. It goes back when it is dropped.
#[derive(Debug)]
pub(super) struct WaitingPermit {
    counts: Arc<Mutex<HashMap<Name, WaitingCount>>>,
    limit: Name,
    client: IpAddr,
}

impl Waiting {
    /// Requests that are held now.
    pub(crate) fn held(&self) -> usize {
        self.end.receiver_count()
    }

    /// Requests that wait for this limit now.
    pub(crate) fn held_for(&self, limit: &Name) -> usize {
        self.counts.lock().get(limit).map_or(0, |count| count.all)
    }

    /// Sets when the process ends. Requests that would wait for longer, now or later, are refused at once.
    pub(crate) fn end_at(&self, end: Instant) {
        self.end.send_replace(Some(end));
    }

    /// A permit to wait for this limit, which has `most` permits. `client` is the client's address or network. `None`
    /// if all permits are taken, or if this client has half of them.
    pub(super) fn permit(
        &self,
        limit: &Name,
        most: usize,
        client: IpAddr,
    ) -> Option<WaitingPermit> {
        let mut counts = self.counts.lock();
        let taken = counts.entry(limit.clone()).or_default();
        if taken.all >= most {
            return None;
        }
        let its = taken.by_client.entry(client).or_default();
        if *its >= most.div_ceil(2) {
            return None;
        }
        *its += 1;
        taken.all += 1;
        Some(WaitingPermit { counts: Arc::clone(&self.counts), limit: limit.clone(), client })
    }

    /// Waits until the moment that `due` says. `moved` is notified when this moment has changed. If the process ends
    /// before this moment, fails at once with the rest of the wait.
    pub(super) async fn wait(
        &self,
        due: impl Fn() -> Instant,
        moved: &Notify,
    ) -> Result<(), Duration> {
        let mut end = self.end.subscribe();
        loop {
            let due = due();
            let ends_before = |end: &Option<Instant>| end.is_some_and(|end| end < due);
            tokio::select! {
                biased;
                () = sleep_until(due) => return Ok(()),
                () = moved.notified() => {}
                Ok(_) = end.wait_for(ends_before) => return Err(due - Instant::now()),
            }
        }
    }
}

impl Drop for WaitingPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        let Some(taken) = counts.get_mut(&self.limit) else { return };
        taken.all -= 1;
        let its = taken.by_client.entry(self.client).or_default();
        *its = its.saturating_sub(1);
        if *its == 0 {
            taken.by_client.remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use tokio::task::JoinSet;

    use super::*;
    use crate::limit::decide::Ask;
    use crate::limit::key::Key;

    use crate::limit::time::Timestamp;
    use crate::settings::testing::settings_with;
    use crate::settings::{Figures, KeyDisplay};
    use crate::store::{BucketAsk, Claim, ClockReading, ProcessStore, Store};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn poll<F: Future>(held: &mut Pin<Box<F>>) -> Poll<F::Output> {
        held.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Waits until a moment that does not change.
    async fn until(waiting: &Waiting, due: Instant) -> Result<(), Duration> {
        waiting.wait(|| due, &Notify::new()).await
    }

    #[test]
    fn each_limit_has_so_many_permits() {
        let waiting = Waiting::default();
        let (one, other) = (name("one"), name("other"));
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        let first = waiting.permit(&one, 2, a).unwrap();
        let _second = waiting.permit(&one, 2, b).unwrap();
        for _ in 0..3 {
            assert!(waiting.permit(&one, 2, c).is_none(), "who is rejected gives no permit back");
        }
        assert!(waiting.permit(&one, 3, c).is_some(), "a reload allows more");
        assert!(waiting.permit(&other, 1, a).is_some());
        assert!(waiting.permit(&other, 0, a).is_none());
        drop(first);
        assert!(waiting.permit(&one, 2, c).is_some());
    }

    /// A regression: 40 connections of one address took all 20 permits, and another client was rejected.
    #[test]
    fn one_client_has_at_most_half_of_the_permits() {
        let (waiting, limit) = (Waiting::default(), name("one"));
        let [greedy, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        for (most, half) in [(1, 1), (2, 1), (5, 3), (20, 10)] {
            let its: Vec<_> =
                (0..40).filter_map(|_| waiting.permit(&limit, most, greedy)).collect();
            assert_eq!(its.len(), half, "{most}");
            let others: Vec<_> =
                (0..40).filter_map(|_| waiting.permit(&limit, most, other)).collect();
            assert_eq!(others.len(), most - half, "{most}");
            assert_eq!(waiting.held_for(&limit), most);
            drop((its, others));
            let counts = waiting.counts.lock();
            let count = &counts[&limit];
            assert!(count.all == 0 && count.by_client.is_empty());
        }
    }

    /// A regression: a request waited for Redis for more than a second, and then this process decided. Its
    /// tokens went back by the time at which the request had come. For the bucket this was a clock that had
    /// stepped back, and the bucket gained that time twice.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_leaves_late_sets_no_bucket_back() {
        let settings = settings_with("rate = \"10/10s\"\nwait = \"1m\"");
        let store =
            Store::new(ProcessStore::new(&settings.store), &settings.store, KeyDisplay::Plain);
        let spec = &settings.limits[0];
        let Figures::Limited(algorithm) = spec.figures else { panic!("no figures") };
        let ask = Ask { max_wait: spec.wait, ..Ask::for_one(algorithm) };
        let came = ClockReading::now(Timestamp::from_micros(1 << 50).unwrap());
        tokio::time::advance(Duration::from_secs(5)).await;
        let decided = ClockReading::now(came.present());
        let mut claims: Vec<_> =
            (0..11).map(|_| Claim::new(&store, spec, Key::of([None]).into(), ask)).collect();
        for claim in &mut claims {
            store.take(&mut [claim], decided).await.unwrap();
        }
        let held = claims.pop();
        drop(held);
        let one = BucketAsk { spec, key: &Key::of([None]).into(), ask };
        assert_eq!(store.look(&one, came.present()).await.unwrap().remaining, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_goes_at_its_moment() {
        let waiting = Waiting::default();
        let mut held = Box::pin(until(&waiting, Instant::now() + Duration::from_secs(3_600)));
        assert!(poll(&mut held).is_pending());
        assert_eq!(waiting.held(), 1);
        tokio::time::advance(Duration::from_millis(3_599_990)).await;
        assert!(poll(&mut held).is_pending(), "not before");
        tokio::time::advance(Duration::from_millis(11)).await;
        assert_eq!(held.await, Ok(()));
        assert_eq!(waiting.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_requests_go_in_the_order_they_came() {
        let (waiting, went) = (Arc::new(Waiting::default()), Arc::new(Mutex::new(Vec::new())));
        let begin = Instant::now();
        let mut all = JoinSet::new();
        // Their moments are less than a millisecond apart. Timers are no finer.
        for n in 0..50_u64 {
            if n == 25 {
                // The others begin to wait when the first are nearly there.
                tokio::time::sleep(Duration::from_millis(99)).await;
            }
            let (waiting, went) = (Arc::clone(&waiting), Arc::clone(&went));
            all.spawn(async move {
                let due = begin + Duration::from_micros(100_000 + n * 300);
                until(&waiting, due).await.unwrap();
                went.lock().push(n);
            });
        }
        all.join_all().await;
        let went = went.lock();
        assert!(went.len() == 50 && went.is_sorted(), "{went:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_leaves_waits_no_longer() {
        let waiting = Waiting::default();
        let mut held = Box::pin(until(&waiting, Instant::now() + Duration::from_secs(1)));
        assert!(poll(&mut held).is_pending());
        drop(held);
        assert_eq!(waiting.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_of_the_process_only_requests_whose_turn_comes_wait() {
        let waiting = Waiting::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let (mut soon, mut late) =
            (Box::pin(until(&waiting, at(10))), Box::pin(until(&waiting, at(31))));
        assert!(poll(&mut soon).is_pending() && poll(&mut late).is_pending());
        waiting.end_at(at(30));
        assert!(poll(&mut soon).is_pending());
        let left = |seconds| Err(Duration::from_secs(seconds));
        assert_eq!(poll(&mut late), Poll::Ready(left(31)));
        assert_eq!(until(&waiting, at(40)).await, left(40));
        assert_eq!(soon.await, Ok(()));
    }
}
