//! Decides whether a request passes its limits: keys, one question to the store, a verdict, perhaps a wait.
//!
//! A decision has four steps. Each is a method of [`Throttle`] beside a file:
//! 1. `begin` finds the limits and candidates that apply (`gather`).
//! 2. `prepare` takes a permit to wait for each limit that may hold the request (`open`).
//! 3. `take` asks the store once. `together` asks it once for several requests.
//! 4. `end` makes one verdict (`open`), counts and logs it (`tell`), and holds the request if it must wait (`waiting`).
//!
//! [`Throttle::admit`] joins the steps for a request of the proxy, and `decide` joins them for calls. `rehearsal` joins
//! them without the counting and the wait.
//!
//! If the client leaves while its request waits, the claims are dropped, and what they hold goes back
//! (`store::grant`). `permit` keeps what a request holds until its response ends. `usage` reads a response's cost.
//! `left` shows what limits leave, and takes nothing.

mod gather;
pub(crate) mod kept;
mod left;
mod open;
mod permit;
mod quota;
mod refused;
mod rehearsal;
pub(crate) mod rejection;
mod reported;
mod request_limit;
mod tell;
mod together;
pub mod usage;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::gather::gather;
pub(crate) use self::gather::{AppliedLimit, NotCounted, applied, read_key};
pub use self::gather::{cost, largest_cost};
use self::kept::KeptRejections;
pub(crate) use self::open::OpenDecision;
pub(crate) use self::permit::{Permit, most_of};
use self::quota::quota;
pub(crate) use self::quota::{Quota, Quotas, violated};
pub use self::refused::{Refused, ToldRejection};
pub(crate) use self::rehearsal::{Rehearsal, RehearsedAnswer, RehearsedLimit, RehearsedRequest};
use self::rejection::{RejectedRequest, RejectedWait, Rejection};
pub(crate) use self::reported::Hits;
use self::request_limit::RequestLimit;
pub(crate) use self::together::MOST_LIMITS;
pub(crate) use self::waiting::Waiting;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Outcome, Verdict};
use crate::limit::time::Timestamp;
use crate::observe::metrics::{DecisionKind, WorkerMetrics};
use crate::observe::near_limit::NearLimit;
use crate::observe::new_uuid;
use crate::observe::throttled::Throttled;
use crate::observe::trace::LimitAnswers;
use crate::request::key::View;
use crate::settings::Settings;
use crate::store::{Claim, ClockReading, Store, Unavailable};

/// One worker's access to the limits.
pub(crate) struct Throttle {
    /// The worker's store, which decides.
    pub(crate) store: Arc<Store>,
    /// The requests that wait, of all workers.
    pub(crate) waiting: Arc<Waiting>,
    /// Logs requests that limits reject or delay, in shadow too.
    pub(crate) log: Arc<Throttled>,
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// Tells of keys that are near a limit.
    pub(crate) near: Arc<NearLimit>,
    /// The last rejections of all workers, and the number of this one.
    pub(crate) kept: Arc<KeptRejections>,
    pub(crate) worker: usize,
}

/// A request whose limits decide.
#[derive(Clone, Copy)]
pub(crate) struct LimitedRequest<'r, 'p> {
    /// The settings under which it began.
    pub(crate) settings: &'p Settings,
    pub(crate) view: &'r View<'r>,
    /// When it began.
    pub(crate) now: Timestamp,
}

/// The time that the store needed to decide, if it is measured.
///
/// # Errors
/// As [`Store::take`].
pub(crate) type Taken = Result<Option<Duration>, Unavailable>;

/// A request that passes.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// What the request holds until its response has ended.
    pub(crate) permit: Permit,
    /// The common decision of all limits about the request.
    pub(crate) decision: DecisionKind,
    /// The names of the limits with `mode = "mark"` that would refuse the request, for the API. `None` if there are
    /// none.
    pub(crate) over: Option<HeaderValue>,
}

impl Throttle {
    /// Lets a request pass, perhaps after a wait, or refuses it. `limits` has the indexes of its limits in
    /// [`Settings::used`]. Asks the store at most once. Whether the request passes or not, `quotas` gets what the
    /// answer tells the client, and `traced` gets the decisions for the request's span, if it has one.
    ///
    /// If this future is dropped while the request waits, what was taken goes back. Once the request has passed, what
    /// it took is spent, except for what the returned permit holds. The permit must be held until the response has
    /// ended.
    ///
    /// # Errors
    /// If the request may not pass.
    pub(crate) async fn admit<'p>(
        &self,
        request: LimitedRequest<'_, 'p>,
        limits: &[u32],
        quotas: &mut Quotas<'p>,
        traced: Option<&mut LimitAnswers>,
    ) -> Result<Admission, Refused<'p>> {
        let mut open = OpenDecision::default();
        self.begin(request, limits, &mut open)?;
        if open.is_empty() {
            return Ok(Admission::default());
        }
        self.prepare(request, &mut open);
        let reading = ClockReading::now(request.now);
        let taken = match self.store.is_local() {
            true => Ok(self.take_here(&mut open, reading)),
            false if open.limits.iter().all(RequestLimit::is_decided) => Ok(None),
            // Boxed, because requests whose buckets are in this process need no room for this future.
            false => Box::pin(self.take(&mut open.claims(), reading)).await,
        };
        self.end(request, &mut open, taken, quotas, traced).await
    }

    /// Finds the limits that apply to a request, each with its key. Nothing is taken yet.
    ///
    /// # Errors
    /// If a key or a cost cannot be read from the request.
    pub(crate) fn begin<'p>(
        &self,
        LimitedRequest { settings, view, now }: LimitedRequest<'_, 'p>,
        limits: &[u32],
        open: &mut OpenDecision<'p>,
    ) -> Result<(), Refused<'p>> {
        let (specs, rule) = (settings.limits_at(limits), settings.plans.as_deref());
        let gathered = gather(specs, view, rule, &self.store, self.store.both(now), open);
        gathered.inspect_err(|refused| {
            if let Refused::Key { limit, .. } = refused {
                self.metrics.decision(limit, DecisionKind::Refused);
            }
        })
    }

    /// Prepares the question to the store.
    pub(crate) fn prepare(&self, request: LimitedRequest<'_, '_>, open: &mut OpenDecision<'_>) {
        open.prepare(request.view.client, &self.store, &self.waiting, request.now);
    }

    /// Asks the buckets of this process.
    fn take_here(&self, open: &mut OpenDecision<'_>, reading: ClockReading) -> Option<Duration> {
        let is_asked = open.limits.iter().any(|limit| !limit.is_decided());
        self.store.take_locally(&mut open.claims(), reading);
        is_asked.then(|| reading.at.elapsed())
    }

    /// Asks the store about claims on which nobody has decided yet.
    async fn take(&self, claims: &mut [&mut Claim<'_>], reading: ClockReading) -> Taken {
        if claims.is_empty() {
            return Ok(None);
        }
        self.store.take(claims, reading).await?;
        // Only the time of Redis's decisions is measured. While Redis is away, the process decides.
        let is_measured =
            self.store.is_local() || claims.iter().any(|claim| claim.is_decided_in_redis());
        Ok(is_measured.then(|| reading.at.elapsed()))
    }

    /// Ends a decision after the store was asked: makes one verdict, tells of it, and holds the request if it must wait.
    ///
    /// # Errors
    /// If the request may not pass.
    pub(crate) async fn end<'p>(
        &self,
        request: LimitedRequest<'_, 'p>,
        open: &mut OpenDecision<'p>,
        taken: Taken,
        quotas: &mut Quotas<'p>,
        traced: Option<&mut LimitAnswers>,
    ) -> Result<Admission, Refused<'p>> {
        let LimitedRequest { view, now, .. } = request;
        tell::trace(&open.limits, taken.unwrap_or_default(), traced);
        let Ok(took) = taken else {
            self.tell_failed(open);
            return Err(Refused::StoreUnavailable);
        };
        let verdict = open.finish();
        if !open.is_void {
            self.tell(open, took, view, now);
        }
        let wall = self.store.both(now).wall;
        let goes = match verdict {
            Verdict::Pass { wait } => wall.plus(wait),
            Verdict::Refuse { .. } => wall,
        };
        let told = open.limits.iter().filter_map(|limit| quota(limit, goes));
        told.for_each(|quota| quotas.push(quota));
        match verdict {
            Verdict::Pass { wait } => {
                // A request of a call that is refused passes nowhere.
                let passes = |it: &&RequestLimit<'_>| !open.is_void && it.mode() == Mode::Enforce;
                for RequestLimit { claim, .. } in open.limits.iter().filter(passes) {
                    self.kept.passed(&claim.spec.name, claim.key.shown());
                }
                let over = open.over();
                let decision = match over {
                    _ if !wait.is_zero() => {
                        // Boxed, because few requests wait, and the others need no room for this future.
                        Box::pin(self.hold(request, &mut open.limits, wait, quotas)).await?;
                        DecisionKind::Delayed
                    }
                    Some(_) => DecisionKind::Marked,
                    None => open.decision_at_once(),
                };
                Ok(Admission { permit: open.permit(), decision, over })
            }
            Verdict::Refuse { by, retry_after } => {
                let limits = &open.limits;
                // A banned client gets the answer to banned clients, whatever other limits say.
                let banned = |limit: &RequestLimit<'_>| limit.is_banned && limit.rejects();
                let by = limits.iter().position(banned).unwrap_or(by);
                let rejected = self.rejected(request, limits, by, retry_after);
                if !open.is_void {
                    self.tell_rejected(&rejected);
                    self.keep(&rejected);
                }
                Err(rejected.refused())
            }
        }
    }

    /// Holds a request until all limits let it go.
    ///
    /// # Errors
    /// If the process ends before. That is not the key's fault, and the decision has been counted.
    async fn hold<'p>(
        &self,
        request: LimitedRequest<'_, 'p>,
        limits: &mut [RequestLimit<'p>],
        wait: Duration,
        quotas: &mut Quotas<'p>,
    ) -> Result<(), Refused<'p>> {
        let LimitedRequest { view, now, .. } = request;
        let by = open::slowest(limits, wait);
        self.record(&limits[by], view, Outcome::Delay(wait), None, now);
        self.wait(limits, wait).await.map_err(|left| {
            quota::reject_delayed(quotas, left);
            let rejected = self.rejected(request, limits, by, Some(left));
            self.keep(&rejected);
            let outcome = Outcome::Reject { retry_after: Some(left) };
            self.record(&limits[by], view, outcome, Some(rejected.id), now);
            rejected.refused()
        })
    }

    /// Waits until the latest of the limits' moments.
    async fn wait(&self, limits: &mut [RequestLimit<'_>], wait: Duration) -> Result<(), Duration> {
        let (moved, begin) = (Arc::new(Notify::new()), Instant::now());
        let mut waiting: PerAsk<_> =
            limits.iter_mut().filter(|limit| limit.mode() == Mode::Enforce).collect();
        waiting.iter_mut().for_each(|limit| limit.claim.join_queue(&moved));
        let due = || {
            let moments = waiting.iter().filter_map(|limit| limit.goes(begin));
            moments.max().unwrap_or(begin + wait)
        };
        self.waiting.wait(due, &moved).await
    }

    fn keep(&self, rejected: &RejectedRequest<'_, '_, '_>) {
        let Claim { spec, key, .. } = &rejected.by().claim;
        let (now, told) = (rejected.now.steady, rejected.wait.told);
        let write = |kept: &mut Rejection| rejected.write(kept);
        self.kept.keep(self.worker, (&spec.name, key.shown()), (now, told), write);
    }

    /// The rejected request. `by` is the index of the limit that the answer and the log name.
    fn rejected<'l, 'r, 'p>(
        &self,
        request: LimitedRequest<'r, 'p>,
        limits: &'l [RequestLimit<'p>],
        by: usize,
        retry_after: Option<Duration>,
    ) -> RejectedRequest<'l, 'r, 'p> {
        let limit = &limits[by];
        let (Claim { spec, key, ask, .. }, answer) = (&limit.claim, limit.answer(request.settings));
        let told = match ask.algorithm {
            // The wait for a slot is the same guess for all. Clients that were rejected at different moments come back
            // at different moments anyway.
            Algorithm::Concurrency(_) => retry_after,
            _ => retry_after.map(|wait| answer.jitter.spread(wait, &spec.name, key.plain())),
        };
        let (wait, now) = (RejectedWait { retry_after, told }, self.store.both(request.now));
        RejectedRequest { request, now, limits, by, answer, id: new_uuid(now.wall), wait }
    }
}
