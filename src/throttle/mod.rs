//! Where a request meets its limits: keys, one question to the store, one verdict.

pub mod permit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use self::permit::{AtEnd, Permit};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::patience::Patience;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::observe::metrics::{DecisionKind, WorkerMetrics};
use crate::observe::throttled::{Shown, ThrottleEvent, Throttled};
use crate::plan::{AnswerSpec, CostSpec, Figures, KeyDisplay, LimitSpec, Plan, RouteSpec};
use crate::request::key::{KeyError, Keyed, View};
use crate::store::{BucketAsk, Slots, Store};

/// One worker's way to the limits.
pub struct Throttle {
    /// Where the buckets are.
    pub store: Store,
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

/// What a request that may pass takes with it.
#[derive(Debug, Default)]
pub struct Admitted {
    /// What the limits say to its client.
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

/// One limit that applies to a request.
struct Applying<'p> {
    spec: &'p Arc<LimitSpec>,
    key: Key,
    figures: Figures,
    cost: Cost,
}

impl Applying<'_> {
    fn is_closed(&self) -> bool {
        self.figures == Figures::Nothing
    }
}

impl Throttle {
    /// Lets a request pass or refuses it, with one question to the store at most.
    ///
    /// # Errors
    /// Where it may not pass.
    pub async fn admit(
        &self,
        plan: &Plan,
        route: &RouteSpec,
        request: &View<'_>,
        now: Timestamp,
    ) -> Result<Admitted, Refused> {
        let mut applying = applying(plan, route, request)?;
        if applying.iter().any(|limit| limit.is_closed() && limit.spec.mode == Mode::Enforce) {
            // Nothing will ever pass, so the other limits take nothing and need not be asked.
            applying.retain(|limit| limit.is_closed());
        }
        if applying.is_empty() {
            return Ok(Admitted::default());
        }
        let decided = self.decide(&applying, now).await?;
        for (limit, decision) in applying.iter().zip(&decided.decisions) {
            self.metrics
                .decision(limit.spec.name.as_str(), kind(limit.spec.mode, decision.as_ref()));
        }
        self.tell_shadows(&applying, &decided.decisions, request, now);
        let quotas = quotas(&applying, &decided.decisions);
        match decided.verdict {
            Verdict::Pass { .. } => {
                let mut permit = Permit::default();
                if !decided.slots.is_empty() {
                    permit.add(AtEnd::Release(decided.slots));
                }
                Ok(Admitted { quotas, permit })
            }
            Verdict::Refuse { by, retry_after } => {
                let limit = &applying[by];
                self.tell(limit, request, Shown::Rejected { retry_after }, now);
                let answer = limit.spec.reject.as_ref().unwrap_or(&plan.reject).clone();
                Err(Refused::Throttled(Box::new(Refusing { retry_after, quotas, answer })))
            }
        }
    }

    /// Asks the store about the limits that need one, and joins what needs none.
    async fn decide(&self, applying: &[Applying<'_>], now: Timestamp) -> Result<Decided, Refused> {
        let mut places: PerAsk<usize> = PerAsk::new();
        let mut asks: PerAsk<BucketAsk<'_>> = PerAsk::new();
        for (place, limit) in applying.iter().enumerate() {
            if let Figures::Limited(algorithm) = limit.figures {
                let patience = match algorithm.holds() {
                    true => Patience::ENDLESS,
                    false => Patience::NONE,
                };
                let ask = Ask { algorithm, cost: limit.cost, patience, mode: limit.spec.mode };
                places.push(place);
                asks.push(BucketAsk { spec: limit.spec, key: &limit.key, ask });
            }
        }
        let mut decisions: PerAsk<_> =
            applying.iter().map(|limit| limit.is_closed().then_some(Decision::NEVER)).collect();
        if asks.is_empty() {
            let closed = applying.iter().position(|limit| limit.spec.mode == Mode::Enforce);
            let verdict = match closed {
                Some(by) => Verdict::Refuse { by, retry_after: None },
                None => Verdict::PASS,
            };
            return Ok(Decided { decisions, verdict, slots: Slots::default() });
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
        for (place, decision) in places.iter().zip(answer.decisions) {
            decisions[*place] = decision;
        }
        let verdict = match answer.verdict {
            Verdict::Refuse { by, retry_after } => Verdict::Refuse { by: places[by], retry_after },
            pass @ Verdict::Pass { .. } => pass,
        };
        Ok(Decided { decisions, verdict, slots: answer.slots })
    }

    fn tell_shadows(
        &self,
        applying: &[Applying<'_>],
        decisions: &[Option<Decision>],
        request: &View<'_>,
        now: Timestamp,
    ) {
        for (limit, decision) in applying.iter().zip(decisions) {
            if let (Mode::Shadow, Some(Decision { outcome: Outcome::Reject { retry_after }, .. })) =
                (limit.spec.mode, decision)
            {
                self.tell(limit, request, Shown::Shadow { retry_after: *retry_after }, now);
            }
        }
    }

    fn tell(&self, limit: &Applying<'_>, request: &View<'_>, decision: Shown, now: Timestamp) {
        let shown = ShownKey { spec: limit.spec, key: &limit.key, display: self.keys };
        let event = ThrottleEvent {
            limit: limit.spec.name.as_str(),
            key: limit.key.as_str(),
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
    verdict: Verdict,
    slots: Slots,
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

/// The limits of a route that look at this request and let not everything pass.
fn applying<'p>(
    plan: &'p Plan,
    route: &RouteSpec,
    request: &View<'_>,
) -> Result<PerAsk<Applying<'p>>, Refused> {
    let mut applying = PerAsk::new();
    for limit in &route.limits {
        let spec = &plan.limits[*limit];
        match apply(spec, request) {
            Ok(Some(limit)) => applying.push(limit),
            Ok(None) => {}
            // A limit in shadow never stops a request.
            Err(_) if spec.mode == Mode::Shadow => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(applying)
}

fn apply<'p>(
    spec: &'p Arc<LimitSpec>,
    request: &View<'_>,
) -> Result<Option<Applying<'p>>, Refused> {
    if spec.exempt.covers(request) {
        return Ok(None);
    }
    let key = match spec.key.key(request).map_err(Refused::Key)? {
        Keyed::Key(key) => key,
        Keyed::Skip => return Ok(None),
    };
    let figures = *spec.overrides.find(&key).unwrap_or(&spec.figures);
    if figures == Figures::Unlimited {
        return Ok(None);
    }
    let cost = cost(&spec.cost, request.headers)?;
    Ok(Some(Applying { spec, key, figures, cost }))
}

/// What a request takes from a bucket.
///
/// # Errors
/// Where its header does not say so as it must.
pub fn cost(spec: &CostSpec, headers: &HeaderMap) -> Result<Cost, Refused> {
    match spec {
        CostSpec::Fixed(cost) => Ok(*cost),
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
        (Some(Outcome::Reject { .. }), Mode::Shadow) => DecisionKind::Shadow,
    }
}

fn quotas(applying: &[Applying<'_>], decisions: &[Option<Decision>]) -> Quotas {
    applying
        .iter()
        .zip(decisions)
        .filter(|(limit, _)| limit.spec.mode == Mode::Enforce)
        .filter_map(|(limit, decision)| {
            let decision = (*decision)?;
            let (burst, window, unit) = match limit.figures {
                Figures::Limited(algorithm) => {
                    (algorithm.capacity(), algorithm.window_seconds(), unit(&algorithm))
                }
                Figures::Unlimited | Figures::Nothing => (0, None, None),
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
