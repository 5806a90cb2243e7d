//! Gathers the limits that apply to a request, each with its key and cost.
//! [`Throttle::admit`](super::Throttle::admit) begins with this.

use std::sync::Arc;

use http::HeaderMap;

use super::Refused;
use super::request_limit::{KeyName, OpenDecision, RequestLimit, UnreadLimit};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::sliding_log::MOST_COST;
use crate::limit::decide::Ask;
use crate::limit::key::Key;
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::limit::time::Now;
use crate::limit::waiting::MaxWait;
use crate::plans::{PlanRule, RequestPlan};
use crate::request::body_length;
use crate::request::key::{KeyError, View};
use crate::request::name::has_ambiguous_alias;
use crate::settings::{ChosenFigures, CostSpec, Figures, FiguresOf, LimitSpec, RunningFigures};
use crate::store::{BucketKey, Claim, Store};

/// Gathers the limits of `specs` that apply to this request now. A limit whose figures let everything pass is left out.
/// The first limit with `plans` reads the plan of the request by `rule`. Without a rule the request has no plan.
/// Limits that do not enforce, and cannot read the key or the cost of the request, go to `open.unread`.
///
/// # Errors
/// If a key or a cost cannot be read from the request.
pub(super) fn gather<'p>(
    specs: impl Iterator<Item = &'p Arc<LimitSpec>>,
    request: &View<'_>,
    rule: Option<&'p PlanRule>,
    store: &Store,
    now: Now,
    open: &mut OpenDecision<'p>,
) -> Result<(), Refused<'p>> {
    let mut plan = None;
    for spec in specs {
        // A request that takes nothing changes nothing for a limit in shadow.
        let is_look_in_shadow = request.cost == Some(0) && spec.mode != Mode::Enforce;
        if !request.has_end && spec.awaits_end() || is_look_in_shadow {
            continue;
        }
        match apply(spec, request, (rule, &mut plan), store, now, open) {
            // Only an enforcing limit stops a request.
            Err(NotCounted::Refused(refused)) if spec.mode == Mode::Enforce => return Err(refused),
            Err(NotCounted::Refused(refused)) => {
                open.unread.push(UnreadLimit { spec, before: open.limits.len(), refused });
            }
            Ok(()) | Err(NotCounted::Exempt | NotCounted::Skipped) => {}
        }
    }
    Ok(())
}

/// Why a limit does not count a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCounted<'p> {
    /// The limit exempts the request.
    #[error("the request is exempt")]
    Exempt,
    /// The request lacks a part of the key.
    #[error("a part of its key is missing, and `missing` is \"skip\"")]
    Skipped,
    /// A key or a cost cannot be read from the request. An enforcing limit refuses the request, and one in the mode
    /// `mark` marks it.
    #[error("{0}")]
    Refused(Refused<'p>),
}

/// How a limit counts a request.
pub(crate) struct AppliedLimit<'f, 'p> {
    /// The limit, or that of the request's plan if the plan has the figures.
    pub(crate) spec: &'p Arc<LimitSpec>,
    pub(crate) figures: &'f Figures,
    /// What the figures are now. `None` if they let everything pass.
    pub(crate) algorithm: Option<Algorithm>,
    /// Where the figures come from: the limit, a plan or an override.
    pub(crate) of: FiguresOf<'p>,
    /// The limit's candidate. `None` if an override or a plan has the figures: a candidate is only tried instead of
    /// the limit's own figures.
    pub(crate) candidate: Option<&'p Arc<LimitSpec>>,
    /// The name of the key's owner, if the file or a plans file has one.
    key_name: Option<KeyName<'p>>,
    /// What the request costs. `None` if neither the limit nor its candidate counts it. Then the cost is not read.
    pub(crate) cost: Option<Cost>,
}

impl<'f, 'p: 'f> AppliedLimit<'f, 'p> {
    /// How `limit` counts a request with this key and this plan. `running` are the figures of an override that was set
    /// while the process runs.
    ///
    /// # Errors
    /// If the cost cannot be read from the request.
    fn of(
        limit: &'p Arc<LimitSpec>,
        key: &Key,
        plan: Option<&RequestPlan<'p>>,
        running: Option<&'f RunningFigures>,
        request: &View<'_>,
        now: Now,
    ) -> Result<Self, NotCounted<'p>> {
        let in_plan = plan.and_then(|plan| limit.in_plan(plan.name?, plan.is_default));
        let ChosenFigures { figures, of, key_name } = limit.choose(key, in_plan, running);
        let algorithm = figures.at(now);
        let candidate = limit.candidate.as_ref().filter(|_| of == FiguresOf::Limit);
        let is_tried = candidate.is_some_and(|it| it.figures != Figures::Unlimited);
        let most = || largest_cost(algorithm).max(largest_cost(limit.figures.at(now)));
        let asked = request.cost.map(|cost| Cost::new(cost).unwrap_or(Cost::ONE));
        let counted = || Cost::new(request.counted?.of(limit.name.as_str())?.cost?);
        let is_slot = matches!(algorithm, Some(Algorithm::Concurrency(_)));
        let own = || cost(&limit.cost, most, request.headers).map_err(NotCounted::Refused);
        let cost = match (algorithm.is_some() || is_tried, asked.filter(|_| !is_slot)) {
            (true, Some(hits)) if limit.is_cost_of_route => {
                Cost::new(own()?.get().saturating_mul(hits.get()).min(MAX_TOKENS))
            }
            (true, Some(asked)) => Some(asked),
            (true, None) => Some(counted().filter(|_| !is_slot).map_or_else(own, Ok)?),
            (false, _) => None,
        };
        let key_name = key_name.map(KeyName::Override);
        let key_name = key_name.or_else(|| KeyName::of_line(limit, plan?));
        let spec = in_plan.filter(|_| of.plan().is_some()).map_or(limit, |it| it.spec);
        Ok(Self { spec, figures, algorithm, of, candidate, cost, key_name })
    }
}

/// How a limit counts a request with this key. `running` are the figures of an override that was set while the process
/// runs. `tidegate explain` and `left` call this.
///
/// # Errors
/// If the plan or the cost cannot be read from the request.
pub(crate) fn applied<'f, 'p: 'f>(
    spec: &'p Arc<LimitSpec>,
    key: &Key,
    rule: Option<&'p PlanRule>,
    running: Option<&'f RunningFigures>,
    request: &View<'_>,
    now: Now,
) -> Result<AppliedLimit<'f, 'p>, NotCounted<'p>> {
    let mut read = None;
    let plan = read_plan(spec, request, (rule, &mut read))?;
    AppliedLimit::of(spec, key, plan, running, request, now)
}

/// The key by which a limit counts a request.
///
/// # Errors
/// If the limit does not count the request.
pub(crate) fn read_key<'p>(spec: &'p LimitSpec, request: &View<'_>) -> Result<Key, NotCounted<'p>> {
    if spec.exempt.covers(request) {
        return Err(NotCounted::Exempt);
    }
    let key = spec.key.key(request).map_err(|error| unreadable(spec, error))?;
    key.ok_or(NotCounted::Skipped)
}

fn unreadable<'p>(spec: &'p LimitSpec, error: KeyError) -> NotCounted<'p> {
    NotCounted::Refused(Refused::Key { limit: &spec.name, error })
}

/// How the request's plan is found, and the plan once it has been read.
type ReadPlan<'t, 'p> = (Option<&'p PlanRule>, &'t mut Option<RequestPlan<'p>>);

/// The request's plan. It is read only for a limit that has plans, and once for all of them.
fn read_plan<'t, 'p>(
    spec: &'p LimitSpec,
    request: &View<'_>,
    (rule, read): ReadPlan<'t, 'p>,
) -> Result<Option<&'t RequestPlan<'p>>, NotCounted<'p>> {
    let Some(rule) = rule.filter(|_| !spec.plans.is_empty()) else { return Ok(None) };
    if read.is_none() {
        let plan = match request.counted.and_then(|counted| counted.plan.as_ref()) {
            Some(name) => rule.named(name.as_deref()),
            None => rule.plan(request).map_err(|error| unreadable(spec, error))?,
        };
        *read = Some(plan);
    }
    Ok(read.as_ref())
}

/// Adds a limit and, right after it, its candidate, if they apply.
fn apply<'p>(
    limit: &'p Arc<LimitSpec>,
    request: &View<'_>,
    plan: ReadPlan<'_, 'p>,
    store: &Store,
    now: Now,
    OpenDecision { limits, beside, .. }: &mut OpenDecision<'p>,
) -> Result<(), NotCounted<'p>> {
    let spec = limit;
    let counted = request.counted.and_then(|counted| counted.of(spec.name.as_str()));
    let key = match limits.last().map(|last| &last.claim) {
        _ if let Some(counted) = counted => BucketKey::from(counted.key.clone()),
        // Most limits of a route have the same key. Then it is not built again.
        Some(last) if last.spec.key == spec.key => match spec.exempt.covers(request) {
            true => return Err(NotCounted::Exempt),
            false => last.key.clone(),
        },
        _ => store.key(spec, read_key(spec, request)?),
    };
    let running = store.running_figures(spec, &key);
    let plan = read_plan(spec, request, plan)?;
    let applied = AppliedLimit::of(spec, key.plain(), plan, running.as_ref(), request, now)?;
    let AppliedLimit { spec, algorithm, of, candidate, cost: Some(cost), key_name, .. } = applied
    else {
        return Ok(());
    };
    let takes = request.cost != Some(0);
    let candidate = candidate.filter(|_| takes).and_then(|candidate| {
        let ask = ask(candidate, candidate.figures.at(now)?, cost, request);
        let claim = Claim::new(store, candidate, key.clone(), Ask { mode: Mode::Candidate, ..ask });
        Some(RequestLimit::of(claim))
    });
    if let Some(algorithm) = algorithm {
        for other in limit.windows_beside(spec).filter(|_| takes) {
            let Some(algorithm) = other.figures.at(now) else { continue };
            let ask = ask(other, algorithm, cost, request);
            let ask = Ask { mode: Mode::Shadow, max_wait: MaxWait::NONE, ..ask };
            beside.push(Claim::new(store, other, key.clone(), ask));
        }
        let ask = Ask { takes, ..ask(spec, algorithm, cost, request) };
        limits.push(RequestLimit::of(Claim::new(store, spec, key, ask)));
        if let Some(limit) = limits.last_mut() {
            (limit.key_name, limit.of) = (key_name, of);
            if let Some(banned) = running.and_then(|running| running.banned) {
                limit.is_banned = true;
                limit.claim.refuse(Some(banned));
            }
        }
    }
    // `extend` would copy the bytes of an empty `Option` too.
    if let Some(candidate) = candidate {
        limits.push(candidate);
    }
    Ok(())
}

/// What a request of this cost asks of a limit.
fn ask(spec: &LimitSpec, algorithm: Algorithm, cost: Cost, request: &View<'_>) -> Ask {
    let cost = spec.cost.within(|| largest_cost(Some(algorithm)), cost);
    let max_wait = if request.may_wait { spec.wait } else { MaxWait::NONE };
    Ask { algorithm, cost, max_wait, mode: spec.mode, takes: true }
}

/// The number of tokens that a request takes, from its headers or by the limit. If the limit has no `max`,
/// `most` bounds what a header says: see [`largest_cost`]. An estimate may still be more than the bucket can hold: see
/// [`CostSpec::within`].
///
/// # Errors
/// If the cost's header is not one whole number from 1 to the bound, or has an ambiguous alias.
pub fn cost<'p>(
    spec: &CostSpec,
    most: impl FnOnce() -> Cost,
    headers: &HeaderMap,
) -> Result<Cost, Refused<'p>> {
    match spec {
        CostSpec::Fixed(cost) => Ok(*cost),
        CostSpec::Response { estimate, max, .. } => {
            let cost = estimate.of(|| body_length(headers));
            Ok(max.and_then(Cost::new).map_or(cost, |max| cost.min(max)))
        }
        CostSpec::Header { name, default, max } => {
            let max = max.unwrap_or_else(most);
            let refused = || Refused::Cost { header: (**name).clone(), max };
            if has_ambiguous_alias(headers, name) {
                return Err(refused());
            }
            let mut values = headers.get_all(&**name).iter();
            let Some(value) = values.next() else { return Ok(*default) };
            value
                .to_str()
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|text| Cost::new(text.parse().ok()?))
                .filter(|cost| *cost <= max && values.next().is_none())
                .ok_or_else(refused)
        }
    }
}

/// The largest cost that these figures can ever let pass. It is not bounded if they let everything or nothing
/// pass. Without a `max`, a header may name what the limit's figures or those of the request's key let pass.
pub fn largest_cost(algorithm: Option<Algorithm>) -> Cost {
    let most = match algorithm {
        None | Some(Algorithm::Closed) => u64::MAX,
        Some(log @ Algorithm::SlidingLog(_)) => log.capacity().min(MOST_COST),
        Some(algorithm) => algorithm.capacity(),
    };
    Cost::new(most.min(MAX_TOKENS)).unwrap_or(Cost::ONE)
}
