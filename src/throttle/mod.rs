//! Where a request meets its limits: keys, one question to the store, one verdict, and perhaps a wait.

mod applying;
mod candidate;
mod permit;
mod queue;
mod usage;

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::applying::Applying;
pub use self::applying::cost;
use self::permit::{Due, Held};
pub use self::permit::{Permit, most_of};
use self::queue::NoTurn;
pub use self::queue::Waiting;
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, Receipt};
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::observe::metrics::{DecisionKind, WorkerMetrics};
use crate::observe::throttled::{Shown, ThrottleEvent, Throttled};
use crate::plan::{AnswerSpec, KeyDisplay, LimitSpec, Plan, RouteSpec, Terms};
use crate::request::key::{KeyError, View};
pub use crate::store::Slots;
use crate::store::{Answer, BucketAsk, By, Store, Told, Unavailable};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota<'p> {
    /// The limit.
    pub limit: &'p Arc<LimitSpec>,
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
pub type Quotas<'p> = PerAsk<Quota<'p>>;

/// Why the limits do not let a request pass.
#[derive(Debug)]
pub enum Refused<'p> {
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
    Throttled {
        /// When all of them would allow it; `None` is never.
        retry_after: Option<Duration>,
        /// The answer of the limit that decides.
        answer: &'p Arc<AnswerSpec>,
    },
    /// A limit that rejects without its store cannot ask it.
    StoreUnavailable,
}

impl Throttle {
    /// Lets a request pass, perhaps after a wait, or refuses it, with one question to the store at most.
    /// What its client is told of the limits is put into `quotas`, either way.
    ///
    /// Dropped while the request waits, it gives back what was taken for it. Once it has let the request
    /// pass that is spent, whatever becomes of the request then. What is returned then is to be held
    /// until the response has ended.
    ///
    /// # Errors
    /// Where it may not pass.
    pub async fn admit<'p>(
        &self,
        (plan, route): (&'p Plan, &RouteSpec),
        request: &View<'_>,
        now: Timestamp,
        quotas: &mut Quotas<'p>,
    ) -> Result<Permit, Refused<'p>> {
        let mut applying = PerAsk::new();
        applying::gather(plan, route, request, self.store.wall(now), &mut applying)?;
        candidate::leave_closed(&mut applying);
        if applying.is_empty() {
            return Ok(Permit::default());
        }
        // Before the store is asked, so that nobody has a turn there who may not wait for it.
        applying.iter_mut().for_each(|limit| limit.claim(&self.waiting));
        let asks = asks(&applying);
        let began = Instant::now();
        // Buckets in this process are asked without an await: each await copies the answer.
        let answer = match self.store.alone() {
            _ if asks.is_empty() => Answer::to_none(),
            Some(shared) => shared.decide(&asks, now),
            None => match self.store.decide(&asks, now).await {
                Ok(answer) => answer,
                Err(Unavailable { .. }) => {
                    let failed = asks.iter().map(|ask| (&ask.spec.name, DecisionKind::Error));
                    self.metrics.decided(Some(began.elapsed()), failed);
                    return Err(Refused::StoreUnavailable);
                }
            },
        };
        drop(asks);
        let mut decided = self.decided(&applying, answer, began);
        self.tell_shadows(&applying, &decided.decisions, request, now);
        quotas.extend(said(&applying, &decided));
        match decided.verdict {
            Verdict::Pass { wait } if wait.is_zero() => {
                Ok(self.permit(&applying, &mut decided, now))
            }
            Verdict::Pass { wait } => {
                let by = queue::slowest(&applying, &decided.decisions, wait);
                self.tell(&applying[by], request, Shown::Delayed { delay: wait }, now);
                // Few requests wait, and none of the others is to make room for it.
                let held = Box::pin(self.hold(wait, &mut applying, &mut decided, now));
                match held.await {
                    Ok(()) => Ok(self.permit(&applying, &mut decided, now)),
                    Err(NoTurn { left }) => {
                        let limit = &applying[by];
                        self.metrics.decision(&limit.spec.name, DecisionKind::Rejected);
                        queue::without_turn(quotas, left);
                        Err(self.refuse(plan, limit, request, Some(left), now))
                    }
                }
            }
            Verdict::Refuse { by, retry_after } => {
                Err(self.refuse(plan, &applying[by], request, retry_after, now))
            }
        }
    }

    fn refuse<'p>(
        &self,
        plan: &'p Plan,
        limit: &Applying<'p>,
        request: &View<'_>,
        retry_after: Option<Duration>,
        now: Timestamp,
    ) -> Refused<'p> {
        self.tell(limit, request, Shown::Rejected { retry_after }, now);
        Refused::Throttled {
            retry_after,
            answer: limit.spec.reject.as_ref().unwrap_or(&plan.reject),
        }
    }

    /// What is to be settled or given back when the response has ended.
    fn permit(&self, applying: &[Applying<'_>], decided: &mut Decided, now: Timestamp) -> Permit {
        let Decided { answer, began } = decided;
        // Most limits have nothing of the kind, and then nothing is made here.
        if answer.slots.is_empty() && !applying.iter().any(|limit| limit.spec.is_settled()) {
            return Permit::default();
        }
        let mut dues = Vec::new();
        for (place, limit) in applying.iter().enumerate() {
            let took = answer.decisions[place].is_some_and(|decision| decision.outcome.passes());
            if let Terms::Limited(algorithm) = limit.terms
                && took
                && limit.spec.is_settled()
            {
                dues.push(Due::new(limit.taken(algorithm, answer.noted(place))));
            }
        }
        let (store, slots) = (self.store.clone(), mem::take(&mut answer.slots));
        Permit::holding(Held { store, now, began: *began, dues, slots })
    }

    /// Joins the store's answer with the limits that need no store, and counts the decisions.
    fn decided(&self, applying: &[Applying<'_>], answer: Answer, began: Instant) -> Decided {
        let took = (!answer.decisions.is_empty()).then(|| began.elapsed());
        let answer = match answer.decisions.len() == applying.len() {
            true => answer,
            false => with_closed(answer, applying),
        };
        let said = applying
            .iter()
            .zip(&answer.decisions)
            .map(|(limit, decision)| (&limit.spec.name, kind(limit.mode, decision.as_ref())));
        self.metrics.decided(took, said);
        Decided { answer, began }
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
            limit: &limit.spec.name,
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
    /// Its slots and entries are given back when this is dropped, be it while the request is held.
    answer: Answer,
    /// When the store was asked, which was told the request's time.
    began: Instant,
}

impl Deref for Decided {
    type Target = Answer;

    fn deref(&self) -> &Answer {
        &self.answer
    }
}

/// The questions to the store, of the limits that need one.
fn asks<'r>(applying: &'r [Applying<'_>]) -> PerAsk<BucketAsk<'r>> {
    let mut asks = PerAsk::new();
    for limit in applying {
        if let Terms::Limited(algorithm) = limit.terms {
            asks.push(BucketAsk { spec: limit.spec, key: &limit.key, ask: limit.ask(algorithm) });
        }
    }
    asks
}

/// An answer to all but those that let nothing pass, with these among the others.
fn with_closed(answer: Answer, applying: &[Applying<'_>]) -> Answer {
    let places: PerAsk<usize> =
        (0..applying.len()).filter(|place| !applying[*place].is_closed()).collect();
    let told = answer.told.into_iter();
    let told = told.map(|told| Told { place: places[told.place], ..told }).collect();
    let mut decisions: PerAsk<_> =
        applying.iter().map(|limit| limit.is_closed().then_some(Decision::NEVER)).collect();
    let mut by: PerAsk<By> = decisions.iter().map(|_| By::Nobody).collect();
    for (place, (decision, who)) in places.iter().zip(answer.decisions.into_iter().zip(answer.by)) {
        (decisions[*place], by[*place]) = (decision, who);
    }
    let closed = |limit: &Applying<'_>| limit.is_closed() && limit.mode == Mode::Enforce;
    let mut receipts: Box<[Receipt]> = by.iter().map(|_| Receipt::NONE).collect();
    for (place, receipt) in places.iter().zip(answer.receipts) {
        receipts[*place] = receipt;
    }
    let verdict = match (applying.iter().position(closed), answer.verdict) {
        (Some(by), _) => Verdict::Refuse { by, retry_after: None },
        (None, Verdict::Refuse { by, retry_after }) => {
            Verdict::Refuse { by: places[by], retry_after }
        }
        (None, pass @ Verdict::Pass { .. }) => pass,
    };
    let Answer { slots, entries, .. } = answer;
    Answer { decisions, by, verdict, told, slots, entries, receipts }
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

fn kind(mode: Mode, decision: Option<&Decision>) -> DecisionKind {
    match (decision.map(|decision| decision.outcome), mode) {
        (None, _) => DecisionKind::Error,
        (Some(Outcome::Allow), _) => DecisionKind::Allowed,
        (Some(Outcome::Delay(_)), _) => DecisionKind::Delayed,
        (Some(Outcome::Reject { .. }), Mode::Enforce) => DecisionKind::Rejected,
        (Some(Outcome::Reject { .. }), Mode::Shadow | Mode::Candidate) => DecisionKind::Shadow,
    }
}

/// What the limits that enforce say of what they decided.
fn said<'p>(applying: &[Applying<'p>], decided: &Answer) -> impl Iterator<Item = Quota<'p>> {
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
            let Decision { remaining, outcome } = decision;
            Some(Quota { limit: limit.spec, burst, window, unit, remaining, outcome })
        })
}

/// The quota unit of draft-ietf-httpapi-ratelimit-headers, where it is not the default.
fn unit(algorithm: &Algorithm) -> Option<&'static str> {
    matches!(algorithm, Algorithm::Concurrency(_)).then_some("concurrent-requests")
}

/// The names of the limits that refuse, in the route's order.
pub fn violated<'q>(quotas: &'q [Quota<'_>]) -> impl Iterator<Item = &'q Name> {
    quotas.iter().filter(|quota| !quota.outcome.passes()).map(|quota| &quota.limit.name)
}
