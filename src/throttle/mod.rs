//! Decides whether a request passes its limits: keys, one question to the store, a verdict, perhaps a wait.
//!
//! `proxy` calls [`Throttle::admit`] for each request. `gather` finds the limits and candidates that apply: each is a
//! `RequestLimit` with a claim. A limit that may hold the request gives it a permit to wait. Then `store` decides, and
//! `open` makes one verdict. `waiting` holds a request until its moment. If the client leaves meanwhile, the claims are
//! dropped, and what they hold goes back (`store::grant`). `permit` keeps what a request holds until its response
//! ends. `usage` reads a response's cost. `events` reports what limits reject or delay. Requests that are decided
//! together meet in `together`.

mod events;
mod gather;
mod open;
mod permit;
mod refused;
mod rehearsal;
mod reported;
mod request_limit;
mod together;
pub mod usage;
mod waiting;

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use self::gather::{Applied, NotCounted, applied};
pub use self::gather::{cost, largest_cost};
use self::open::Open;
pub(crate) use self::permit::{Permit, most_of};
pub use self::refused::Refused;
pub(crate) use self::rehearsal::{Rehearsal, RehearsedAnswer, RehearsedLimit, RehearsedRequest};
pub(crate) use self::reported::Hits;
use self::request_limit::RequestLimit;
pub(crate) use self::together::{MOST_LIMITS, Seat, Together};
pub(crate) use self::waiting::Waiting;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome, Verdict, whole_seconds};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::observe::candidates::RejectedBy;
use crate::observe::metrics::{DecisionKind, WorkerMetrics};
use crate::observe::throttled::Throttled;
use crate::observe::top_keys::is_near;
use crate::observe::trace::{LimitAnswers, LimitDecision};
use crate::plan::{Figures, LimitSpec, Plan};
use crate::request::key::View;
use crate::request::network::client_network;
use crate::store::{Claim, Moment, Store};

/// One worker's access to the limits.
pub(crate) struct Throttle {
    /// The worker's store, which decides.
    pub(crate) store: Arc<Store>,
    /// The requests that wait, of all workers.
    pub(crate) waiting: Arc<Waiting>,
    /// Logs requests that limits reject or delay, in shadow too.
    pub(crate) log: Arc<Throttled>,
    pub(crate) metrics: Arc<WorkerMetrics>,
}

/// What an enforcing limit says to a client, for the `ratelimit` fields (`proxy/headers/quotas.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota<'p> {
    pub(crate) limit: &'p Arc<LimitSpec>,
    /// The bucket's size. 0 if nothing passes.
    pub(crate) burst: u64,
    /// The whole seconds in which the bucket refills, rounded up. `None` if time does not refill it.
    pub(crate) window: Option<u64>,
    /// The whole seconds, rounded up, after which the bucket is full again if no other request comes. It is less than
    /// `window` only for windows that are open. `None` if time does not refill the bucket.
    pub(crate) reset: Option<u64>,
    /// The unit that is counted, if it is not requests.
    pub(crate) unit: Option<&'static str>,
    /// Whole tokens left after this request.
    pub(crate) remaining: u64,
    /// Whether this limit refuses, and when it would allow.
    pub(crate) outcome: Outcome,
}

impl Quota<'_> {
    /// The time after which the bucket is full again at the latest, if no other request comes. `None` if time does
    /// not refill the bucket.
    pub(crate) fn full_after(&self) -> Option<Duration> {
        let window = Duration::from_secs(self.reset?);
        let missing = self.burst.saturating_sub(self.remaining);
        match self.limit.figures {
            Figures::Limited(Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_)) => {
                let micros = window.as_micros() * u128::from(missing);
                let micros = micros.div_ceil(u128::from(self.burst.max(1)));
                Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
            }
            _ if missing == 0 => Some(Duration::ZERO),
            _ => Some(window),
        }
    }
}

/// What the enforcing limits that were asked say to a request, one entry for each, in the route's order.
pub(crate) type Quotas<'p> = PerAsk<Quota<'p>>;

/// What a request asks its limits.
#[derive(Default)]
pub(crate) struct LimitQuestion<'t, 'p> {
    /// The quotas for the answer to the client.
    pub(crate) quotas: Quotas<'p>,
    /// `Some` if the request is decided together with others.
    pub(crate) seat: Option<Seat<'t, 'p>>,
    /// What the cost that the caller names is.
    pub(crate) hits: Hits,
}

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
    /// Lets a request pass, perhaps after a wait, or refuses it. `limits` has the indexes of its limits in the plan.
    /// Asks the store at most once. Whether the request passes or not, `question` gets the quotas for the answer to the
    /// client, and `traced` gets the decisions for the request's span, if it has one. A request with a seat takes only
    /// if the others pass too.
    ///
    /// If this future is dropped while the request waits, what was taken goes back. Once the request has passed, what
    /// it took is spent, except for what the returned permit holds. The permit must be held until the response has
    /// ended.
    ///
    /// # Errors
    /// If the request may not pass.
    pub(crate) async fn admit<'p>(
        &self,
        plan: &'p Plan,
        limits: &[u32],
        request: &View<'_>,
        now: Timestamp,
        question: &mut LimitQuestion<'_, 'p>,
        traced: Option<&mut LimitAnswers>,
    ) -> Result<Admission, Refused<'p>> {
        let mut open = Open::default();
        let clocks = self.store.both(now);
        let specs = plan.limits_at(limits);
        let begun =
            open.begin(specs, request, plan.tiers.as_deref(), &self.store, &self.waiting, clocks);
        begun.inspect_err(|refused| {
            if let Refused::Key { limit, .. } = refused {
                self.metrics.decision(limit, DecisionKind::Refused);
            }
        })?;
        let LimitQuestion { quotas, seat, hits } = question;
        let seat = seat.take();
        if open.limits.is_empty() && open.unread.is_empty() && seat.is_none() {
            return Ok(Admission::default());
        }
        if *hits != Hits::Asked {
            // Boxed, because other requests need no room for this future.
            Box::pin(reported::settle(&mut open, *hits, &self.store, now)).await;
            open::only_look_after_refusal(slice::from_mut(&mut open));
        }
        let moment = Moment::now(now);
        let is_asked = open.limits.iter().any(|limit| !limit.is_decided());
        // Buckets of this process are asked without an `await`. An `await` would copy everything that lives on after
        // it.
        let asked = match seat {
            // Boxed, because other requests need no room for this future.
            Some(seat) => Box::pin(seat.take(&self.store, &mut open, moment)).await,
            None if self.store.is_local() => {
                self.store.take_locally(&mut open.claims(), moment);
                Ok(is_asked)
            }
            None if is_asked => {
                let asked = self.store.take(&mut open.claims(), moment).await;
                // Only the time of Redis's decisions is measured. While Redis is away, the process decides.
                asked.map(|()| open.limits.iter().any(|limit| limit.claim.is_decided_in_redis()))
            }
            None => Ok(false),
        };
        let Ok(is_measured) = asked else {
            let open_limits = open.limits.iter().filter(|limit| !limit.is_decided());
            let failed = open_limits.map(|limit| (&limit.claim.spec.name, DecisionKind::Error));
            self.metrics.decided(None, failed);
            trace(&open.limits, Some(moment.at.elapsed()), traced);
            return Err(Refused::StoreUnavailable);
        };
        let verdict = open.finish();
        let limits = &open.limits;
        let took = is_measured.then(|| moment.at.elapsed());
        trace(limits, took, traced);
        if !open.is_void {
            let unread = open.unread.iter().map(|limit| (&limit.spec.name, limit.kind()));
            let decided = limits.iter().map(|limit| (&limit.claim.spec.name, kind(limit)));
            self.metrics.decided(took, decided.chain(unread));
            self.note_keys(limits, now);
            self.note_candidates(limits);
            self.record_shadows(limits, request, now);
            self.record_unread(&open.unread, request, now);
        }
        let goes = match verdict {
            Verdict::Pass { wait } => clocks.wall.plus(wait),
            Verdict::Refuse { .. } => clocks.wall,
        };
        quotas.extend(limits.iter().filter_map(|limit| quota(limit, goes)));
        let over = over(&open);
        match verdict {
            Verdict::Pass { wait } if wait.is_zero() => {
                let decision = match over {
                    Some(_) => DecisionKind::Marked,
                    None if open.unread.is_empty() => decision_at_once(limits),
                    None => DecisionKind::Shadow,
                };
                Ok(Admission { permit: open.permit(), decision, over })
            }
            Verdict::Pass { wait } => {
                let by = open::slowest(limits, wait);
                self.record(&limits[by], request, Outcome::Delay(wait), now);
                // Boxed, because few requests wait, and the others need no room for this future.
                let held = Box::pin(self.wait(&mut open.limits, wait));
                match held.await {
                    Ok(()) => {
                        let decision = DecisionKind::Delayed;
                        Ok(Admission { permit: open.permit(), decision, over })
                    }
                    Err(left) => {
                        // The process ends. That is not the key's fault, and the decision has been counted.
                        waiting::reject_delayed(quotas, left);
                        Err(self.refuse(plan, &open.limits[by], request, Some(left), now))
                    }
                }
            }
            Verdict::Refuse { by, retry_after } if open.is_void => {
                let Claim { spec, .. } = &limits[by].claim;
                let answer = spec.reject.as_ref().unwrap_or(&plan.reject);
                Err(Refused::Throttled { limit: &spec.name, retry_after, answer })
            }
            Verdict::Refuse { by, retry_after } => {
                // A banned client gets the answer to banned clients, whatever other limits say.
                let banned = |limit: &RequestLimit<'_>| limit.is_banned && limit.rejects();
                let by = limits.iter().position(banned).unwrap_or(by);
                self.count_others(limits, by, request, now);
                let rejecting = limits.iter().filter(|limit| limit.rejects());
                rejecting.for_each(|limit| self.count_for_ban(limit, request, now));
                Err(self.refuse(plan, &limits[by], request, retry_after, now))
            }
        }
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

    fn refuse<'p>(
        &self,
        plan: &'p Plan,
        limit: &RequestLimit<'p>,
        request: &View<'_>,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) -> Refused<'p> {
        self.record(limit, request, Outcome::Reject { retry_after }, now);
        let Claim { spec, key, ask, .. } = &limit.claim;
        let of_ban = spec.ban.as_ref().filter(|_| limit.is_banned).map(|ban| &ban.answer);
        let answer = of_ban.or(spec.reject.as_ref()).unwrap_or(&plan.reject);
        let retry_after = match ask.algorithm {
            // The wait for a slot is the same guess for all. Clients that were rejected at different moments come back
            // at different moments anyway.
            Algorithm::Concurrency(_) => retry_after,
            _ => retry_after.map(|wait| answer.jitter.spread(wait, &spec.name, key.plain())),
        };
        Refused::Throttled { limit: &spec.name, retry_after, answer }
    }

    /// Notes the keys that are rejected, and those near their limit. A key with enough left costs only a
    /// comparison.
    fn note_keys(&self, limits: &[RequestLimit<'_>], now: Timestamp) {
        for limit in limits {
            let Claim { spec, .. } = &limit.claim;
            let Some(Decision { remaining, outcome }) = limit.claim.decision() else { continue };
            let burst = burst(&limit.claim);
            match outcome {
                Outcome::Reject { .. } => {
                    self.metrics.top_keys.rejected(&spec.name, limit.label(), now);
                }
                Outcome::Allow | Outcome::Delay(_) if is_near(remaining, burst) => {
                    let keys = &self.metrics.top_keys;
                    keys.near(&spec.name, limit.label(), remaining, burst, now);
                }
                Outcome::Allow | Outcome::Delay(_) => {}
            }
        }
    }

    /// Counts what candidates would have rejected, and what the limit in front of each rejects. An enforcing limit is
    /// no candidate, and costs only a comparison.
    fn note_candidates(&self, limits: &[RequestLimit<'_>]) {
        for (index, tried) in limits.iter().enumerate() {
            let Claim { spec, key, .. } = &tried.claim;
            let Some(decision) = tried.claim.decision() else { continue };
            if tried.mode() == Mode::Enforce || !spec.name.is_of_candidate() {
                continue;
            }
            // A limit that lets everything pass is not asked, and does not stand in front of its candidate.
            let limit = index.checked_sub(1).and_then(|before| limits.get(before));
            let limit = limit.filter(|it| it.claim.spec.name.as_str() == spec.name.limit());
            let limit = limit.and_then(|limit| limit.claim.decision());
            let by = RejectedBy {
                candidate: !decision.outcome.passes(),
                limit: limit.is_some_and(|it| !it.outcome.passes()),
            };
            self.metrics.candidates.count(spec, key.shown().as_bytes(), by);
        }
    }

    fn count_for_ban(&self, limit: &RequestLimit<'_>, request: &View<'_>, now: Timestamp) {
        if limit.may_be_banned() && !self.is_crowded_out(limit) {
            let Claim { spec, key, .. } = &limit.claim;
            let client = client_network(request.client, spec.key.prefixes);
            self.store.count_rejection(spec, key, client, now);
        }
    }

    /// Whether the limit would have held the request, but other keys have too many permits to wait. A Redisson limiter
    /// does not say which key has them.
    fn is_crowded_out(&self, limit: &RequestLimit<'_>) -> bool {
        let spec = limit.claim.spec;
        let Some(Outcome::Reject { retry_after: Some(wait) }) = limit.outcome() else {
            return false;
        };
        limit.lacks_permit
            && limit.claim.figures().is_none()
            && MaxWait::of(wait) <= spec.wait
            && self.store.waiting_for(&limit.claim.question()) < spec.max_waiting.div_ceil(2)
    }
}

fn kind(limit: &RequestLimit<'_>) -> DecisionKind {
    match (limit.outcome(), limit.mode()) {
        (None, _) => DecisionKind::Error,
        (Some(Outcome::Allow), _) => DecisionKind::Allowed,
        (Some(Outcome::Delay(_)), _) => DecisionKind::Delayed,
        (Some(Outcome::Reject { .. }), Mode::Enforce) => DecisionKind::Rejected,
        (Some(Outcome::Reject { .. }), Mode::Mark) => DecisionKind::Marked,
        (Some(Outcome::Reject { .. }), Mode::Shadow | Mode::Candidate) => DecisionKind::Shadow,
    }
}

/// The common decision of all limits about a request that passes without a wait and without a mark.
fn decision_at_once(limits: &[RequestLimit<'_>]) -> DecisionKind {
    let is_there = |wanted| limits.iter().any(|limit| kind(limit) == wanted);
    let other = [DecisionKind::Shadow, DecisionKind::Error];
    other.into_iter().find(|kind| is_there(*kind)).unwrap_or_default()
}

/// The names of the limits with `mode = "mark"` that would refuse the request, in the route's order, joined by commas.
fn over(Open { limits, unread, .. }: &Open<'_>) -> Option<HeaderValue> {
    let marks = limits.iter().enumerate().filter(|(_, it)| kind(it) == DecisionKind::Marked);
    let marks = marks.map(|(before, limit)| (before, 1, limit.claim.spec));
    let unread = unread.iter().filter(|limit| limit.kind() == DecisionKind::Marked);
    let unread = unread.map(|limit| (limit.before, 0, limit.spec));
    let mut names: SmallVec<[_; 2]> = marks.chain(unread).collect();
    names.sort_by_key(|(before, is_read, _)| (*before, *is_read));
    let mut names = names.iter().map(|(_, _, spec)| spec.name.as_str());
    let first = names.next()?.to_owned();
    // A limit's name is always a valid field value.
    HeaderValue::try_from(names.fold(first, |text, name| text + "," + name)).ok()
}

/// Notes what the limits said, if the request is traced. `took` is the time that the store needed.
fn trace(limits: &[RequestLimit<'_>], took: Option<Duration>, traced: Option<&mut LimitAnswers>) {
    let Some(answers) = traced else { return };
    let at = Instant::now();
    let decisions = limits.iter().map(|limit| LimitDecision {
        at,
        limit: limit.claim.spec.name.clone(),
        mode: limit.mode(),
        kind: kind(limit),
        decision: limit.claim.decision(),
    });
    *answers = LimitAnswers { store: took, decisions: decisions.collect() };
}

/// What an enforcing limit says to the client. `goes` is the time of day at which the request goes or is refused.
/// `None` for other limits, and if the limit did not decide.
fn quota<'p>(limit: &RequestLimit<'p>, goes: Timestamp) -> Option<Quota<'p>> {
    let Claim { spec, ask: Ask { algorithm, cost, mode, .. }, .. } = &limit.claim;
    let decision = limit.claim.decision().filter(|_| *mode == Mode::Enforce);
    let Decision { remaining, outcome } = decision?;
    // A leaky bucket may refuse although its queue has room: the wait would exceed `wait`. Then 0 remain.
    let has_too_few = remaining < cost.get();
    let remaining = if outcome.passes() || has_too_few { remaining } else { 0 };
    let window = match limit.claim.figures() {
        Some(figures) => Some(figures.window_seconds()),
        None => algorithm.window_seconds(),
    };
    // A window that is open ends when it must. Every other limit is full again after its whole window.
    let reset = match (algorithm, limit.claim.window_left) {
        (_, Some(left)) if outcome == Outcome::Allow => Some(whole_seconds(left)),
        (Algorithm::FixedWindow(params), _) => Some(params.windows.seconds_left(goes)),
        _ => window,
    };
    let (burst, unit) = (burst(&limit.claim), unit(algorithm));
    Some(Quota { limit: spec, burst, window, reset, unit, remaining, outcome })
}

/// The size of a claim's bucket.
fn burst(claim: &Claim<'_>) -> u64 {
    claim.figures().map_or_else(|| claim.ask.algorithm.capacity(), |figures| figures.capacity)
}

/// The quota unit of draft-ietf-httpapi-ratelimit-headers, if it is not the default.
fn unit(algorithm: &Algorithm) -> Option<&'static str> {
    matches!(algorithm, Algorithm::Concurrency(_)).then_some("concurrent-requests")
}

/// The names of the limits that refuse, in the route's order.
pub(crate) fn violated<'q>(quotas: &'q [Quota<'_>]) -> impl Iterator<Item = &'q Name> {
    quotas.iter().filter(|quota| !quota.outcome.passes()).map(|quota| &quota.limit.name)
}
