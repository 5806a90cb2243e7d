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
use self::uploads::Uploads;
use super::overload::report::{OverloadReport, QueueFacts};
use super::overload::rule::{LimitChange, LimitRule, whole};
use super::overload::turns::{FairQueue, MOST_WAITING, Waiter};
use super::overload::window::{Micros, SECOND};
use crate::limit::key::Key;
use crate::settings::{MaxRequests, Priority, UpstreamSpec};

/// The `retry-after` of a refusal.
const RETRY_AFTER: (f64, f64) = (1.0, 30.0);

/// The requests of an upstream in flight and those that wait, of all workers. Used only if the upstream has
/// `max_requests`.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    began: Instant,
    /// Whether a limit is in force. Without one, a request needs no key.
    is_bound: AtomicBool,
    /// Somebody begins to wait.
    waits: Notify,
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    rule: LimitRule,
    turns: FairQueue<Key, UpstreamWaiter>,
    in_flight: usize,
    uploads: Uploads,
    /// Since when those who wait go at most twice as fast each second, and how many were in flight then.
    released: Option<(Micros, usize)>,
    /// Whether a task keeps the time.
    is_timed: bool,
    report: OverloadReport,
    /// The goals of the routes that have their own.
    goals: Vec<(Arc<str>, Duration)>,
}

#[derive(Debug)]
struct UpstreamWaiter {
    by: RequestOrigin,
    give: oneshot::Sender<Result<Entered, QueueError>>,
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
    /// The time after which the answer to this request is slow.
    fn goal(&self, by: &RequestOrigin) -> Micros {
        // If `max_requests` is a number, a route's goal has no effect.
        let goal = self.rule.goal.map(|goal| by.slower_than.unwrap_or(goal.slower_than));
        goal.map_or(SECOND, micros)
    }

    /// Whether the limit for uploads lets this request be sent.
    fn allows(&self, by: &RequestOrigin) -> bool {
        by.uploads.is_none_or(|client| self.uploads.allow(client, self.rule.bound()))
    }

    /// Takes the one whose turn it is, if there is room for it.
    fn next(&mut self, now: Micros) -> Option<UpstreamWaiter> {
        let goes = self.released.is_none_or(|(at, before)| {
            let seconds = now.saturating_sub(at) as f64 / SECOND as f64;
            (self.in_flight as f64) < before.max(1) as f64 * seconds.exp2()
        });
        if !goes || !self.rule.has_room(self.in_flight) {
            return None;
        }
        let (uploads, bound) = (&self.uploads, self.rule.bound());
        let Waiter { since, value, .. } = self.turns.next(|it| {
            let fits = it.by.uploads.is_none_or(|client| uploads.allow(client, bound));
            fits && !it.give.is_closed()
        })?;
        self.report.waits.observe(Duration::from_micros(now.saturating_sub(since)));
        Some(value)
    }

    fn refuse(&mut self, waiter: UpstreamWaiter, has_waited: bool, now: Micros) {
        let UpstreamWaiter { by, give } = waiter;
        if give.is_closed() {
            return;
        }
        let state = (&self.rule, self.in_flight);
        self.report.refused((by.priority, &by.key), has_waited, state, now);
        let (least, most) = RETRY_AFTER;
        let seconds = match self.rule.last.answers_per_second() {
            speed if speed > 0.0 => (self.turns.len() as f64 / speed).ceil().clamp(least, most),
            _ => most,
        };
        let retry_after = Duration::from_secs_f64(seconds);
        _ = give.send(Err(QueueError { has_waited, retry_after }));
    }
}

impl RequestQueue {
    pub(super) fn new(spec: &UpstreamSpec) -> Self {
        let max_requests = spec.max_requests.unwrap_or(MaxRequests::Number(usize::MAX));
        let state = QueueState {
            rule: LimitRule::new(max_requests, 0),
            turns: FairQueue::new(),
            in_flight: 0,
            uploads: Uploads::default(),
            released: None,
            is_timed: false,
            report: OverloadReport::of(spec.name.clone()),
            goals: Vec::new(),
        };
        Self {
            began: Instant::now(),
            is_bound: AtomicBool::new(state.rule.bound().is_some()),
            waits: Notify::new(),
            state: Mutex::new(state),
        }
    }

    /// Takes new settings after a reload. `goals` are the goals of the routes that have their own.
    pub(crate) fn reload(self: &Arc<Self>, spec: &UpstreamSpec, goals: Vec<(Arc<str>, Duration)>) {
        let Some(new) = spec.max_requests else { return };
        self.happens(|state, now| {
            state.rule.reload(new, state.goals != goals, now);
            let shortest = goals.iter().map(|(_, goal)| *goal).min();
            let goal = state.rule.goal.map(|goal| goal.slower_than);
            state.report.goal = goal.into_iter().chain(shortest).min().unwrap_or_default();
            state.goals = goals;
            self.is_bound.store(state.rule.bound().is_some(), Ordering::Relaxed);
        });
    }

    /// Whether a limit is in force, so that a request needs a key.
    pub(super) fn is_bound(&self) -> bool {
        self.is_bound.load(Ordering::Relaxed)
    }

    fn now(&self) -> Micros {
        micros(self.began.elapsed())
    }

    /// Handles an event and its changes under one lock. Then lets requests go while there is room. The lock is taken
    /// anew for each of them.
    fn happens(self: &Arc<Self>, event: impl FnOnce(&mut QueueState, Micros)) {
        let mut guard = self.state.lock();
        let (state, now) = (&mut *guard, self.now());
        event(state, now);
        if !state.rule.changes.is_empty() {
            self.changed(state, now);
        }
        if state.turns.is_empty() {
            state.released = None;
            return;
        }
        drop(guard);
        loop {
            let mut state = self.state.lock();
            let Some(UpstreamWaiter { by, give }) = state.next(now) else { return };
            let entered = self.begin(&mut state, by, Some(now));
            drop(state);
            // If the request was given up just now, its permits are dropped here. Then the next request gets them.
            let _ = give.send(Ok(entered));
        }
    }

    /// Applies the changes that the rule made: reports them, and updates whether a limit is in force.
    #[cold]
    fn changed(&self, state: &mut QueueState, now: Micros) {
        for change in mem::take(&mut state.rule.changes) {
            if matches!(change, LimitChange::Verdict | LimitChange::Forgotten) {
                state.released = Some((now, state.in_flight));
            }
            state.report.changed(change, &state.rule, state.in_flight, now);
        }
        self.is_bound.store(state.rule.bound().is_some(), Ordering::Relaxed);
    }

    /// Gives the request its permits, if it need not wait.
    ///
    /// # Errors
    /// If the request must wait. It is handed back.
    pub(super) fn enter(self: &Arc<Self>, by: RequestOrigin) -> Result<Entered, RequestOrigin> {
        let mut state = self.state.lock();
        let has_room = state.turns.is_empty() && state.rule.has_room(state.in_flight);
        if !has_room || !state.allows(&by) {
            return Err(by);
        }
        let turn = state.rule.bound().map(|_| {
            state.turns.begin(by.priority, &by.key);
            self.now()
        });
        if state.rule.goal.is_some() {
            self.keep_time(&mut state);
        }
        Ok(self.begin(&mut state, by, turn))
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
        self.happens(|state, now| {
            let (goal, mut time_limit) = (state.goal(&by), micros(time_limit));
            let has_goal = state.rule.goal.is_some();
            if has_goal && state.turns.stands(now) {
                time_limit = time_limit.min(goal / 4);
            }
            let charge = if has_goal { goal } else { state.rule.last.mean() };
            let (priority, key) = (by.priority, by.key.clone());
            if state.turns.len() >= MOST_WAITING {
                state.turns.drain(|it| it.value.give.is_closed());
            }
            let value = UpstreamWaiter { by, give };
            let waiter = Waiter { since: now, until: now + time_limit, charge, value };
            if let Some(evicted) = state.turns.wait(priority, &key, waiter) {
                state.refuse(evicted.value, false, now);
            }
            self.keep_time(state);
        });
        self.waits.notify_one();
        // This error is never seen: the queue lives as long as this call, and answers every waiting request.
        let gone = QueueError { has_waited: true, retry_after: Duration::from_secs(1) };
        given.await.unwrap_or(Err(gone))
    }

    /// Writes the lines that are due. To be called about once a second.
    pub(crate) fn report(&self, interval: Duration) {
        let QueueState { rule, turns, report, .. } = &mut *self.state.lock();
        report.write(rule, turns.len(), micros(interval), self.now());
    }

    /// What operators see of the queue.
    pub(crate) fn facts(&self) -> QueueFacts {
        let QueueState { rule, turns, in_flight, report, .. } = &*self.state.lock();
        let since = report.overload.as_ref().map(|overload| overload.since);
        QueueFacts {
            limit: rule.limit.map(whole),
            in_flight: *in_flight,
            waiting: turns.waiting,
            has_goal: rule.goal.is_some(),
            slow_share: rule.last.slow_share(),
            goal_times: rule.goal_times(),
            lasts: since.map(|since| Duration::from_micros(self.now().saturating_sub(since))),
            report: report.clone(),
        }
    }
}

fn micros(duration: Duration) -> Micros {
    duration.as_secs().saturating_mul(SECOND).saturating_add(duration.subsec_micros().into())
}

#[cfg(test)]
mod tests;
