//! The requests in flight at an upstream that has `max_requests`, and those that wait for them.
//!
//! `overload` says how many may be in flight, and who is next. Who waits costs neither a task nor a timer: one task for
//! each upstream keeps the time, while anything is in flight or waits.

mod permit;
mod timekeeper;
mod uploads;

use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub(crate) use self::permit::{RequestPermit, UploadPermit};
use self::timekeeper::Timekeeper;
use self::uploads::Uploads;
use super::overload::report::{OverloadReport, QueueFacts};
use super::overload::rule::{LimitChange, LimitMode, LimitRule, SentEnd, SentRequest};
use super::overload::turns::{FairQueue, Waiter};
use super::overload::window::{Micros, SECOND};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::settings::{GoalMode, MaxRequests, Priority, UpstreamSpec};

/// The `retry-after` of a refusal.
const RETRY_AFTER: (f64, f64) = (1.0, 30.0);

/// The requests of an upstream in flight and those that wait, of all workers. Used only if the upstream has
/// `max_requests`.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    name: Name,
    began: Instant,
    /// Whether a limit is in force. Without one, a request needs no key.
    is_bound: AtomicBool,
    /// Somebody begins to wait.
    waits: Notify,
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    max_requests: MaxRequests,
    rule: LimitRule,
    turns: FairQueue<Key, UpstreamWaiter>,
    in_flight: usize,
    uploads: Uploads,
    /// Since when those who wait go at most twice as fast each second, and how many were in flight then.
    released: Option<(Micros, usize)>,
    /// Whether a task keeps the time.
    is_timed: bool,
    report: OverloadReport,
}

#[derive(Debug)]
struct UpstreamWaiter {
    /// The client of a request whose body is still to come.
    uploads: Option<IpAddr>,
    give: oneshot::Sender<Result<(), QueueError>>,
}

/// Whose request wants a permit.
#[derive(Clone, Debug)]
pub(crate) struct RequestOrigin {
    /// The client's address or network, if the request has a body that has not come yet.
    pub(crate) uploads: Option<IpAddr>,
    pub(crate) priority: Priority,
    /// The route's own goal.
    pub(crate) slower_than: Option<Duration>,
    /// Who shares turns with others.
    pub(crate) key: Key,
}

/// What a request gets that may go. The second permit is for a body that is to come.
pub(crate) type Entered = (RequestPermit, Option<UploadPermit>);

/// Why a request is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueError {
    /// Whether it has waited for as long as it may. If not, too many wait.
    pub(crate) has_waited: bool,
    /// When the queue will have gone, at the API's present speed.
    pub(crate) retry_after: Duration,
}

impl QueueState {
    fn mode(max_requests: MaxRequests) -> LimitMode {
        match max_requests {
            MaxRequests::Number(most) => LimitMode::Fixed(most),
            MaxRequests::Goal(goal) if goal.mode == GoalMode::Shadow => LimitMode::Shadow,
            MaxRequests::Goal(_) => LimitMode::Enforce,
        }
    }

    fn rule(max_requests: MaxRequests, limit: Option<f64>, now: Micros) -> LimitRule {
        let at_least = max_requests.goal().map_or(1, |goal| goal.at_least);
        LimitRule::new(at_least, Self::mode(max_requests), limit, now)
    }

    fn is_number(&self) -> bool {
        self.max_requests.goal().is_none()
    }

    fn has_room(&self, now: impl FnOnce() -> Micros) -> bool {
        self.rule.has_room(self.in_flight)
            && self.released.is_none_or(|(at, before)| {
                let seconds = now().saturating_sub(at) as f64 / SECOND as f64;
                (self.in_flight as f64) < before.max(1) as f64 * seconds.exp2()
            })
    }

    /// Takes the one whose turn it is, if there is room for it.
    fn next(&mut self, now: Micros) -> Option<Waiter<UpstreamWaiter>> {
        if self.turns.is_empty() || !self.has_room(|| now) {
            return None;
        }
        let (uploads, limit) = (&self.uploads, self.rule.bound());
        let fits = |it: &UpstreamWaiter| it.uploads.is_none_or(|by| uploads.allow(by, limit));
        let (.., next) = self.turns.next(fits, now)?;
        self.begin(next.value.uploads);
        Some(next)
    }

    fn begin(&mut self, uploads: Option<IpAddr>) {
        self.in_flight += 1;
        uploads.into_iter().for_each(|client| self.uploads.begin(client));
    }

    /// Why a request is refused that waits or would wait.
    fn error(&self, has_waited: bool) -> QueueError {
        let speed = self.rule.last.answers_per_second;
        let (least, most) = RETRY_AFTER;
        // Without an answer the quotient is infinite or no number.
        let seconds = (self.turns.len() as f64 / speed).max(least).min(most);
        let seconds = if speed > 0.0 { seconds.ceil() } else { most };
        QueueError { has_waited, retry_after: Duration::from_secs_f64(seconds) }
    }
}

impl RequestQueue {
    pub(super) fn new(spec: &UpstreamSpec) -> Self {
        let max_requests = spec.max_requests.unwrap_or(MaxRequests::Number(usize::MAX));
        let state = QueueState {
            max_requests,
            rule: QueueState::rule(max_requests, None, 0),
            turns: FairQueue::default(),
            in_flight: 0,
            uploads: Uploads::default(),
            released: None,
            is_timed: false,
            report: OverloadReport::default(),
        };
        Self {
            name: spec.name.clone(),
            began: Instant::now(),
            is_bound: AtomicBool::new(state.rule.bound().is_some()),
            waits: Notify::new(),
            state: Mutex::new(state),
        }
    }

    /// After a reload. With another goal or floor the rule begins anew, but with its old limit: the gate must not open in
    /// the middle of an overload.
    pub(super) fn reload(&self, spec: &UpstreamSpec) {
        let Some(new) = spec.max_requests else { return };
        let mut state = self.state.lock();
        let old = mem::replace(&mut state.max_requests, new);
        let kept = |it: MaxRequests| it.goal().map(|goal| (goal.slower_than, goal.at_least));
        if kept(old) != kept(new) {
            let limit = state.rule.limit().filter(|_| old.goal().is_some());
            let limit = limit.zip(new.goal()).map(|(limit, goal)| limit.max(goal.at_least as f64));
            state.rule = QueueState::rule(new, limit, self.now());
        }
        state.rule.set_mode(QueueState::mode(new));
        self.is_bound.store(state.rule.bound().is_some(), Ordering::Relaxed);
        self.advance(&mut state);
    }

    /// Whether a limit is in force, so that a request needs a key.
    pub(super) fn is_bound(&self) -> bool {
        self.is_bound.load(Ordering::Relaxed)
    }

    fn now(&self) -> Micros {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(Micros::MAX)
    }

    /// A permit, if the request need not wait for it.
    pub(super) fn enter(self: &Arc<Self>, by: &RequestOrigin) -> Option<Entered> {
        let mut state = self.state.lock();
        let limit = state.rule.bound();
        let may_go = state.turns.is_empty()
            && state.rule.has_room(state.in_flight)
            && by.uploads.is_none_or(|client| state.uploads.allow(client, limit));
        if !may_go {
            return None;
        }
        state.begin(by.uploads);
        let turn = limit.map(|_| {
            state.turns.begin(by.priority, &by.key);
            (by.priority, by.key.clone(), self.now())
        });
        if !state.is_number() {
            self.keep_time(&mut state);
        }
        let goal = Self::goal(&state, by);
        drop(state);
        Some(self.permits(by, goal, turn))
    }

    /// Waits for a permit, for `time_limit` at most.
    ///
    /// # Errors
    /// If too many wait, or none was free in time.
    pub(super) async fn wait(
        self: Arc<Self>,
        by: RequestOrigin,
        time_limit: Duration,
    ) -> Result<Entered, QueueError> {
        let (give, given) = oneshot::channel();
        let (mut waiting, goal) = {
            let mut state = self.state.lock();
            let (goal, now) = (Self::goal(&state, &by), self.now());
            let time_limit = micros(time_limit);
            let (standing, charge) = match state.is_number() {
                true => (time_limit, state.rule.last.mean),
                false => (goal / 4, goal),
            };
            let (priority, key, uploads) = (by.priority, &by.key, by.uploads);
            let waiter = UpstreamWaiter { uploads, give };
            let limits = (time_limit, standing);
            let (id, evicted) = state.turns.wait(priority, key, limits, charge, waiter, now);
            if let Some((priority, key, evicted)) = evicted {
                self.refuse(&mut state, priority, &key, evicted, false);
            }
            // It may have room by now, or it may not wait at all.
            self.look(&mut state, now);
            self.keep_time(&mut state);
            (UpstreamTurn { queue: &self, by: &by, id, given: Some(given) }, goal)
        };
        self.waits.notify_one();
        waiting.given().await?;
        let turn = (by.priority, by.key.clone(), self.now());
        Ok(self.permits(&by, goal, Some(turn)))
    }

    /// After which time the answer is slow.
    fn goal(state: &QueueState, by: &RequestOrigin) -> Micros {
        let goal = state.max_requests.goal();
        // With a number the goal says nothing.
        goal.map_or(SECOND, |goal| micros(by.slower_than.unwrap_or(goal.slower_than)))
    }

    /// Gives permits to those whose turn it is, while there are any.
    fn advance(&self, state: &mut QueueState) {
        if state.turns.is_empty() {
            return;
        }
        let now = self.now();
        while let Some(Waiter { since, value, .. }) = state.next(now) {
            state.report.waited(now.saturating_sub(since));
            // A request that leaves takes itself out of the queue first.
            let _ = value.give.send(Ok(()));
        }
        if state.turns.is_empty() {
            state.released = None;
        }
    }

    fn refuse(
        &self,
        state: &mut QueueState,
        priority: Priority,
        key: &Key,
        waiter: Waiter<UpstreamWaiter>,
        has_waited: bool,
    ) {
        state.report.refused(priority, key, has_waited, self.now());
        let _ = waiter.value.give.send(Err(state.error(has_waited)));
    }

    /// Refuses those who have waited for too long, and lets others go if there is room.
    fn look(&self, state: &mut QueueState, now: Micros) {
        self.advance(state);
        for (priority, key, waiter) in state.turns.expired(now) {
            self.refuse(state, priority, &key, waiter, true);
        }
        if state.turns.is_empty() {
            state.released = None;
        }
    }

    /// Something has come of a sending.
    fn ended(&self, state: &mut QueueState, sent: Option<SentRequest>, end: SentEnd) {
        let Some(sent) = sent else { return };
        let (in_flight, now) = (state.in_flight, self.now());
        let change = state.rule.ended(sent, end, in_flight, now);
        self.changed(state, change, now);
    }

    /// What follows from what the rule has changed.
    fn changed(&self, state: &mut QueueState, change: Option<LimitChange>, now: Micros) {
        let Some(change) = change else { return };
        if matches!(change, LimitChange::Verdict | LimitChange::Forgotten) {
            state.released = Some((now, state.in_flight)).filter(|_| !state.turns.is_empty());
        }
        self.is_bound.store(state.rule.bound().is_some(), Ordering::Relaxed);
        let QueueState { max_requests, rule, in_flight, report, .. } = state;
        report.changed((&self.name, max_requests), rule, *in_flight, change, now);
    }

    /// Starts the task that keeps the time, if there is none.
    fn keep_time(self: &Arc<Self>, state: &mut QueueState) {
        if !mem::replace(&mut state.is_timed, true) {
            tokio::spawn(Timekeeper::of(self.clone()).keep());
        }
    }

    /// Writes the lines that are due. To be called about once a second.
    pub(crate) fn report(&self, interval: Duration) {
        let mut state = self.state.lock();
        let QueueState { rule, turns, report, .. } = &mut *state;
        report.write(&self.name, rule, turns.len(), micros(interval), self.now());
    }

    /// What operators see of the queue.
    pub(crate) fn facts(&self) -> QueueFacts {
        let state = self.state.lock();
        let QueueState { max_requests, rule, turns, in_flight, report, .. } = &*state;
        let waiting = Priority::ALL.map(|priority| turns.waiting(priority));
        report.facts(max_requests, rule, *in_flight, waiting, self.now())
    }
}

fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(Micros::MAX / 2)
}

/// The turn for which a request waits. If the request leaves, the turn is another's.
struct UpstreamTurn<'q> {
    queue: &'q Arc<RequestQueue>,
    by: &'q RequestOrigin,
    id: u64,
    /// `None` once it has got its answer.
    given: Option<oneshot::Receiver<Result<(), QueueError>>>,
}

impl UpstreamTurn<'_> {
    async fn given(&mut self) -> Result<(), QueueError> {
        let Some(given) = &mut self.given else { return Ok(()) };
        let given = given.await;
        self.given = None;
        // The queue lives as long as this, and drops nobody without an answer.
        given.unwrap_or_else(|_| Err(self.queue.state.lock().error(true)))
    }
}

impl Drop for UpstreamTurn<'_> {
    fn drop(&mut self) {
        let Some(mut given) = self.given.take() else { return };
        let RequestOrigin { priority, key, uploads, .. } = self.by;
        let mut state = self.queue.state.lock();
        if state.turns.remove(*priority, key, self.id).is_some() {
            // Those behind an upload that had to wait may go.
            return self.queue.advance(&mut state);
        }
        if let Ok(Ok(())) = given.try_recv() {
            state.in_flight -= 1;
            uploads.iter().for_each(|client| state.uploads.end(*client));
            state.turns.end(*priority, key, 0);
            self.queue.advance(&mut state);
        }
    }
}

#[cfg(test)]
mod tests;
