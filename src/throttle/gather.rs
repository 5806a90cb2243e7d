//! Gathers the limits that apply to a request, each with its key and cost.
//! [`Throttle::admit`](super::Throttle::admit) begins with this.

use std::sync::Arc;

use http::HeaderMap;

use super::Refused;
use super::request_limit::RequestLimit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::sliding_log::MOST_COST;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::limit::time::Now;
use crate::plan::{CostSpec, Figures, LimitSpec};
use crate::request::key::View;
use crate::request::name::has_ambiguous_alias;
use crate::store::{Claim, Store};

/// Gathers those of `specs` that apply to this request now, unless they let everything pass.
///
/// # Errors
/// Where a key or a cost cannot be read from the request.
pub(super) fn gather<'p>(
    specs: impl Iterator<Item = &'p Arc<LimitSpec>>,
    request: &View<'_>,
    store: &Store,
    now: Now,
    limits: &mut PerAsk<RequestLimit<'p>>,
) -> Result<(), Refused<'p>> {
    for spec in specs {
        match apply(spec, request, store, now, limits) {
            Ok(()) => {}
            // A limit in shadow never stops a request.
            Err(_) if spec.mode == Mode::Shadow => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(())
}

/// Adds a limit and, right behind it, its candidate, where they apply.
fn apply<'p>(
    spec: &'p Arc<LimitSpec>,
    request: &View<'_>,
    store: &Store,
    now: Now,
    limits: &mut PerAsk<RequestLimit<'p>>,
) -> Result<(), Refused<'p>> {
    if spec.exempt.covers(request) {
        return Ok(());
    }
    let key = match limits.last().map(|last| &last.claim) {
        // Most limits of a route count by the same key.
        Some(last) if last.spec.key == spec.key => last.key.clone(),
        _ => {
            let Some(key) = spec.key.key(request).map_err(Refused::Key)? else { return Ok(()) };
            store.key(spec, key)
        }
    };
    let running = store.running_figures(spec, &key);
    let in_file = spec.overrides.find(key.plain());
    let overridden = running.as_ref().or(in_file.map(|it| &it.figures));
    let algorithm = overridden.unwrap_or(&spec.figures).at(now);
    // A candidate is tried in place of the limit's own figures, but not in place of an override's figures.
    let candidate = spec.candidate.as_ref().filter(|_| overridden.is_none());
    let candidate = candidate.filter(|candidate| candidate.figures != Figures::Unlimited);
    if algorithm.is_none() && candidate.is_none() {
        return Ok(());
    }
    let most = || largest_cost(algorithm).max(largest_cost(spec.figures.at(now)));
    let cost = cost(&spec.cost, most, request.headers)?;
    let candidate = candidate.and_then(|candidate| {
        let ask = candidate_ask(candidate, spec.mode, algorithm, cost, now)?;
        let claim = Claim::new(store, candidate, key.clone(), ask);
        Some(RequestLimit { claim, place: None, key_name: None })
    });
    if let Some(algorithm) = algorithm {
        let ask = Ask { algorithm, cost, max_wait: spec.wait, mode: spec.mode };
        let key_name = in_file.and_then(|it| it.name.as_deref());
        limits.push(RequestLimit {
            claim: Claim::new(store, spec, key, ask),
            place: None,
            key_name,
        });
    }
    limits.extend(candidate);
    Ok(())
}

/// The ask of a limit's candidate for the same request. `None` where the candidate lets everything pass.
fn candidate_ask(
    candidate: &LimitSpec,
    mode: Mode,
    algorithm: Option<Algorithm>,
    cost: Cost,
    now: Now,
) -> Option<Ask> {
    let mode = match (algorithm, mode) {
        // A limit that lets everything pass or is in shadow refuses no request: its candidate replaces
        // none.
        (None, _) | (_, Mode::Shadow) => Mode::Shadow,
        (Some(_), _) => Mode::Candidate,
    };
    let algorithm = candidate.figures.at(now)?;
    Some(Ask { algorithm, cost, max_wait: candidate.wait, mode })
}

/// The number of tokens that a request takes, from its headers or by the limit. Where the limit has no `max`,
/// `most` bounds what a header says: see [`largest_cost`].
///
/// # Errors
/// Where the cost's header is not one whole number from 1 to the bound, or has an ambiguous alias.
pub fn cost<'p>(
    spec: &CostSpec,
    most: impl FnOnce() -> Cost,
    headers: &HeaderMap,
) -> Result<Cost, Refused<'p>> {
    match spec {
        CostSpec::Fixed(cost) | CostSpec::Response { estimate: cost, .. } => Ok(*cost),
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

/// The largest cost that figures can ever let pass. Where all passes or nothing does, any cost may be named. Without
/// a `max`, a header may name what the limit's figures or those of the request's key let pass.
pub fn largest_cost(algorithm: Option<Algorithm>) -> Cost {
    let most = match algorithm {
        None | Some(Algorithm::Closed) => u64::MAX,
        Some(log @ Algorithm::SlidingLog(_)) => log.capacity().min(MOST_COST),
        Some(algorithm) => algorithm.capacity(),
    };
    Cost::new(most.min(MAX_TOKENS)).unwrap_or(Cost::ONE)
}
