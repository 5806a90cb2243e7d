//! Where a request meets its limits: keys, one question to the store, one verdict, and perhaps a wait.

mod candidate;
mod permit;
mod queue;
mod usage;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use self::permit::{Due, Held};
pub use self::permit::{Permit, most_of};
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, Receipt};
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::patience::Patience;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::observe::metrics::{DecisionKind, WorkerMetrics};
use crate::observe::throttled::{Shown, ThrottleEvent, Throttled};
use crate::plan::{AnswerSpec, CostSpec, Figures, KeyDisplay, LimitSpec, Plan, RouteSpec, Terms};
use crate::request::key::{KeyError, Keyed, View};
pub use crate::store::Slots;
use crate::store::{Answer, BucketAsk, By, Store, Taken, Told};

pub use self::queue::Waiting;
use self::queue::{NoTurn, Place};

/// One worker's way to the limits.
pub struct Throttle {
    /// Where the buckets are.
    pub store: Arc<Store>,
    /// Who waits.
    pub waiting: Arc<Waiting>,
    /// What the log says of it.
    pub log: Arc<Throttled>,
    /// What is counted of it.
    pub metrics: Arc<WorkerMetrics>,
    /// How the log shows keys.
    pub keys: KeyDisplay,
}

/// What an enforcing limit says to a client, for the `ratelimit` fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The limit.
    pub limit: Arc<LimitSpec>,
    /// The bucket's size; 0 where nothing passes.
    pub burst: u64,
    /// The whole seconds in which it refills, rounded up; `None` where it never does, or not by time.
    pub window: Option<u64>,
    /// What is counted, where it is not requests.
    pub unit: Option<&'static str>,
    /// Whole tokens left.
    pub remaining: u64,
    /// Whether this limit refuses, and when it would allow.
    pub outcome: Outcome,
}

/// What the limits say to a request, one entry for each enforcing limit that was asked, in the
/// route's order.
pub type Quotas = PerAsk<Quota>;

/// A request that passed.
#[derive(Debug, Default)]
pub struct Passed {
    /// What its client is told.
    pub quotas: Quotas,
    /// What it holds until its response has ended.
    pub permit: Permit,
}

/// Why the limits do not let a request pass.
#[derive(Debug)]
pub enum Refused {
    /// A key cannot be read off it.
    Key(KeyError),
    /// The header that tells its cost does not hold a whole number from 1 to `max`.
    Cost {
        /// The header.
        header: http::HeaderName,
        /// The most it may say.
        max: Cost,
    },
    /// Too much.
    Throttled(Box<Refusing>),
    /// A limit that rejects without its store cannot ask it.
    StoreUnavailable,
}

/// The limits that refuse a request.
#[derive(Debug)]
pub struct Refusing {
    /// When all of them would allow it; `None` is never.
    pub retry_after: Option<Duration>,
    /// Of all enforcing limits.
    pub quotas: Quotas,
    /// The answer of the limit that decides.
    pub answer: Arc<AnswerSpec>,
}

/// One limit, or the candidate of one, that applies to a request.
struct Applying<'p> {
    spec: &'p Arc<LimitSpec>,
    key: Key,
    terms: Terms,
    cost: Cost,
    mode: Mode,
}

impl Applying<'_> {
    /// What it has taken of a request, once it has.
    fn taken(&self, key: Key, algorithm: Algorithm, (by, receipt): (By, Receipt)) -> Taken {
        let (cost, patience, mode) = (self.cost, self.spec.wait, self.mode);
        let ask = Ask { algorithm, cost, patience, mode };
        Taken { spec: Arc::clone(self.spec), key, ask, by, receipt }
    }

    fn is_closed(&self) -> bool {
        self.terms == Terms::Nothing
    }

    /// Whether a request may have to be held for it.
    fn may_hold(&self) -> bool {
        self.mode == Mode::Enforce
            && self.spec.wait > Patience::NONE
            && matches!(self.terms, Terms::Limited(_))
    }
}

impl Throttle {
    /// Lets a request pass, perhaps after a wait, or refuses it, with one question to the store at most.
    ///
    /// Dropped while the request waits, it gives back what was taken for it. Once it has let the request
    /// pass that is spent, whatever becomes of the request then.
    ///
    /// # Errors
    /// Where it may not pass.
    pub async fn admit(
        &self,
        plan: &Plan,
        route: &RouteSpec,
        request: &View<'_>,
        now: Timestamp,
    ) -> Result<Passed, Refused> {
        let mut applying = applying(plan, route, request, self.store.wall(now))?;
        candidate::leave_closed(&mut applying);
        if applying.is_empty() {
            return Ok(Passed::default());
        }
        // Before the store is asked, so that nobody has a turn there who may not wait for it.
        let places: PerAsk<Option<Place>> = applying
            .iter()
            .map(|limit| match limit.may_hold() {
                true => self.waiting.claim(&limit.spec.name, limit.spec.max_waiting),
                false => None,
            })
            .collect();
        let decided = self.decide(&applying, &places, now).await?;
        for (limit, decision) in applying.iter().zip(&decided.decisions) {
            self.metrics.decision(limit.spec.name.as_str(), kind(limit.mode, decision.as_ref()));
        }
        self.tell_shadows(&applying, &decided.decisions, request, now);
        let quotas = quotas(&applying, &decided);
        match decided.verdict {
            Verdict::Pass { wait } if wait.is_zero() => {
                Ok(Passed { quotas, permit: self.permit(applying, decided, now) })
            }
            Verdict::Pass { wait } => {
                let by = queue::slowest(&applying, &decided.decisions, wait);
                self.tell(&applying[by], request, Shown::Delayed { delay: wait }, now);
                // Few requests wait, and none of the others is to make room for it.
                let held = Box::pin(self.hold(wait, &applying, places, &decided, now));
                match held.await {
                    Ok(()) => Ok(Passed { quotas, permit: self.permit(applying, decided, now) }),
                    Err(NoTurn { left }) => {
                        let limit = &applying[by];
                        self.metrics.decision(limit.spec.name.as_str(), DecisionKind::Rejected);
                        let quotas = queue::without_turn(quotas, left);
                        let retry_after = Some(left);
                        Err(self.refuse(plan, limit, request, (retry_after, quotas), now))
                    }
                }
            }
            Verdict::Refuse { by, retry_after } => {
                Err(self.refuse(plan, &applying[by], request, (retry_after, quotas), now))
            }
        }
    }

    fn refuse(
        &self,
        plan: &Plan,
        limit: &Applying<'_>,
        request: &View<'_>,
        (retry_after, quotas): (Option<Duration>, Quotas),
        now: Timestamp,
    ) -> Refused {
        self.tell(limit, request, Shown::Rejected { retry_after }, now);
        let answer = limit.spec.reject.as_ref().unwrap_or(&plan.reject).clone();
        Refused::Throttled(Box::new(Refusing { retry_after, quotas, answer }))
    }

    /// What is to be settled or given back when the response has ended.
    fn permit(&self, applying: PerAsk<Applying<'_>>, decided: Decided, now: Timestamp) -> Permit {
        // Most limits have nothing of the kind, and then nothing is made here.
        if decided.slots.is_empty() && !applying.iter().any(|limit| limit.spec.is_settled()) {
            return Permit::default();
        }
        let mut dues = Vec::new();
        for (place, (limit, decision)) in applying.into_iter().zip(&decided.decisions).enumerate() {
            let took = decision.is_some_and(|decision| decision.outcome.passes());
            if let Terms::Limited(algorithm) = limit.terms
                && took
                && limit.spec.is_settled()
            {
                let key = limit.key.clone();
                dues.push(Due::new(limit.taken(key, algorithm, decided.noted(place))));
            }
        }
        let Decided { began, slots, .. } = decided;
        Permit::holding(Held { store: self.store.clone(), now, began, dues, slots })
    }

    /// Asks the store about the limits that need one, and joins what needs none.
    async fn decide(
        &self,
        applying: &[Applying<'_>],
        claimed: &[Option<Place>],
        now: Timestamp,
    ) -> Result<Decided, Refused> {
        let mut places: PerAsk<usize> = PerAsk::new();
        let mut asks: PerAsk<BucketAsk<'_>> = PerAsk::new();
        for (place, limit) in applying.iter().enumerate() {
            if let Terms::Limited(algorithm) = limit.terms {
                // Without a place it may not wait. One that is in shadow never does.
                let patience = match limit.mode == Mode::Enforce && claimed[place].is_none() {
                    true => Patience::NONE,
                    false => limit.spec.wait,
                };
                let ask = Ask { algorithm, cost: limit.cost, patience, mode: limit.mode };
                places.push(place);
                asks.push(BucketAsk { spec: limit.spec, key: &limit.key, ask });
            }
        }
        let closed =
            applying.iter().position(|limit| limit.is_closed() && limit.mode == Mode::Enforce);
        let closed = closed.map(|by| Verdict::Refuse { by, retry_after: None });
        let all_asked = asks.len() == applying.len();
        let closed_decisions = || -> PerAsk<_> {
            applying.iter().map(|limit| limit.is_closed().then_some(Decision::NEVER)).collect()
        };
        if asks.is_empty() {
            let decisions = closed_decisions();
            let (by, began) = (decisions.iter().map(|_| By::Nobody).collect(), Instant::now());
            let (verdict, slots) = (closed.unwrap_or(Verdict::PASS), Slots::default());
            let (told, receipts) = (Vec::new(), Box::default());
            return Ok(Decided { decisions, by, verdict, slots, began, told, receipts });
        }
        let began = Instant::now();
        let answer = self.store.decide(&asks, now).await;
        self.metrics.store(began.elapsed());
        let answer = answer.map_err(|_| {
            for ask in &asks {
                self.metrics.decision(ask.spec.name.as_str(), DecisionKind::Error);
            }
            Refused::StoreUnavailable
        })?;
        if all_asked {
            let Answer { decisions, by, verdict, told, slots, receipts } = answer;
            return Ok(Decided { decisions, by, verdict, slots, began, told, receipts });
        }
        let mut decisions = closed_decisions();
        let told = answer.told.into_iter();
        let told = told.map(|told| Told { place: places[told.place], ..told }).collect();
        let mut by: PerAsk<By> = decisions.iter().map(|_| By::Nobody).collect();
        for (place, (decision, who)) in
            places.iter().zip(answer.decisions.into_iter().zip(answer.by))
        {
            (decisions[*place], by[*place]) = (decision, who);
        }
        let mut receipts: Box<[Receipt]> = by.iter().map(|_| Receipt::NONE).collect();
        for (place, receipt) in places.iter().zip(answer.receipts) {
            receipts[*place] = receipt;
        }
        let verdict = match (closed, answer.verdict) {
            (Some(refuse), _) => refuse,
            (None, Verdict::Refuse { by, retry_after }) => {
                Verdict::Refuse { by: places[by], retry_after }
            }
            (None, pass @ Verdict::Pass { .. }) => pass,
        };
        Ok(Decided { decisions, by, verdict, slots: answer.slots, began, told, receipts })
    }

    fn tell_shadows(
        &self,
        applying: &[Applying<'_>],
        decisions: &[Option<Decision>],
        request: &View<'_>,
        now: Timestamp,
    ) {
        for (limit, decision) in applying.iter().zip(decisions) {
            if limit.mode == Mode::Enforce {
                continue;
            }
            match decision.map(|decision| decision.outcome) {
                Some(Outcome::Reject { retry_after }) => {
                    self.tell(limit, request, Shown::Shadow { retry_after }, now);
                }
                Some(Outcome::Delay(delay)) => {
                    self.tell(limit, request, Shown::ShadowDelayed { delay }, now);
                }
                Some(Outcome::Allow) | None => {}
            }
        }
    }

    fn tell(&self, limit: &Applying<'_>, request: &View<'_>, decision: Shown, now: Timestamp) {
        let shown = ShownKey { spec: limit.spec, key: &limit.key, display: self.keys };
        let event = ThrottleEvent {
            limit: limit.spec.name.as_str(),
            key: limit.key.as_bytes(),
            shown: &shown,
            route: request.route,
            client: request.client,
            method: request.method.as_str(),
            path: request.path.matching(),
            decision,
        };
        self.log.record(&event, now);
    }
}

struct Decided {
    decisions: PerAsk<Option<Decision>>,
    by: PerAsk<By>,
    verdict: Verdict,
    /// Given back when this is dropped, be it while the request is held.
    slots: Slots,
    /// When the store was asked, which was told the request's time.
    began: Instant,
    told: Vec<Told>,
    receipts: Box<[Receipt]>,
}

impl Decided {
    /// Who decided on the limit at this place, and what they noted.
    fn noted(&self, place: usize) -> (By, Receipt) {
        let receipt = self.receipts.get(place).copied();
        (self.by[place], receipt.unwrap_or(Receipt::NONE))
    }
}

/// A key as the log may show it.
struct ShownKey<'r> {
    spec: &'r LimitSpec,
    key: &'r Key,
    display: KeyDisplay,
}

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.display {
            KeyDisplay::Hashed if self.spec.key.has_secrets() => {
                self.spec.key.hashed(self.key).fmt(f)
            }
            _ => self.key.fmt(f),
        }
    }
}

/// The limits of a route that look at this request and let not everything pass, at this time of day.
fn applying<'p>(
    plan: &'p Plan,
    route: &RouteSpec,
    request: &View<'_>,
    wall: Timestamp,
) -> Result<PerAsk<Applying<'p>>, Refused> {
    let mut applying = PerAsk::new();
    for limit in &route.limits {
        let spec = &plan.limits[*limit];
        match apply(spec, request, wall, &mut applying) {
            Ok(()) => {}
            // A limit in shadow never stops a request.
            Err(_) if spec.mode == Mode::Shadow => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(applying)
}

/// Adds a limit, and its candidate right behind it, if they apply.
fn apply<'p>(
    spec: &'p Arc<LimitSpec>,
    request: &View<'_>,
    wall: Timestamp,
    applying: &mut PerAsk<Applying<'p>>,
) -> Result<(), Refused> {
    if spec.exempt.covers(request) {
        return Ok(());
    }
    let key = match spec.key.key(request).map_err(Refused::Key)? {
        Keyed::Key(key) => key,
        Keyed::Skip => return Ok(()),
    };
    let overridden = spec.overrides.find(&key);
    let terms = overridden.unwrap_or(&spec.figures).at(wall);
    // It is tried in place of the limit's own figures, which an override's are not.
    let candidate = spec.candidate.as_ref().filter(|_| overridden.is_none());
    let candidate = candidate.filter(|candidate| candidate.figures != Figures::Unlimited);
    if terms == Terms::Unlimited && candidate.is_none() {
        return Ok(());
    }
    let limit =
        Applying { spec, key, terms, cost: cost(&spec.cost, request.headers)?, mode: spec.mode };
    let candidate = candidate.map(|candidate| candidate::of(candidate, &limit, wall));
    if terms != Terms::Unlimited {
        applying.push(limit);
    }
    applying.extend(candidate);
    Ok(())
}

/// What a request takes from a bucket.
///
/// # Errors
/// Where its header does not say so as it must.
pub fn cost(spec: &CostSpec, headers: &HeaderMap) -> Result<Cost, Refused> {
    match spec {
        CostSpec::Fixed(cost) | CostSpec::Response { estimate: cost, .. } => Ok(*cost),
        CostSpec::Header { name, default, max } => {
            let mut values = headers.get_all(name).iter();
            let Some(value) = values.next() else { return Ok(*default) };
            value
                .to_str()
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|text| Cost::new(text.parse().ok()?))
                .filter(|cost| cost <= max && values.next().is_none())
                .ok_or_else(|| Refused::Cost { header: name.clone(), max: *max })
        }
    }
}

fn kind(mode: Mode, decision: Option<&Decision>) -> DecisionKind {
    match (decision.map(|decision| decision.outcome), mode) {
        (None, _) => DecisionKind::Error,
        (Some(Outcome::Allow), _) => DecisionKind::Allowed,
        (Some(Outcome::Delay(_)), _) => DecisionKind::Delayed,
        (Some(Outcome::Reject { .. }), Mode::Enforce) => DecisionKind::Rejected,
        (Some(Outcome::Reject { .. }), Mode::Shadow | Mode::Candidate) => DecisionKind::Shadow,
    }
}

fn quotas(applying: &[Applying<'_>], decided: &Decided) -> Quotas {
    applying
        .iter()
        .zip(&decided.decisions)
        .enumerate()
        .filter(|(_, (limit, _))| limit.mode == Mode::Enforce)
        .filter_map(|(place, (limit, decision))| {
            let decision = (*decision)?;
            let told = decided.told.iter().find(|told| told.place == place);
            let (burst, window, unit) = match (told, limit.terms) {
                (Some(told), _) => (told.capacity, Some(told.window_seconds), None),
                (None, Terms::Limited(algorithm)) => {
                    (algorithm.capacity(), algorithm.window_seconds(), unit(&algorithm))
                }
                (None, Terms::Unlimited | Terms::Nothing) => (0, None, None),
            };
            Some(Quota {
                limit: limit.spec.clone(),
                burst,
                window,
                unit,
                remaining: decision.remaining,
                outcome: decision.outcome,
            })
        })
        .collect()
}

/// The quota unit of draft-ietf-httpapi-ratelimit-headers, where it is not the default.
fn unit(algorithm: &Algorithm) -> Option<&'static str> {
    matches!(algorithm, Algorithm::Concurrency(_)).then_some("concurrent-requests")
}

impl Refusing {
    /// The names of the limits that refuse, in the route's order.
    pub fn violated(&self) -> impl Iterator<Item = &Name> {
        self.quotas.iter().filter(|quota| !quota.outcome.passes()).map(|quota| &quota.limit.name)
    }
}
