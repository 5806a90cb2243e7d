//! Which limits apply to a request, with their keys and what the request takes of them.

use std::sync::Arc;

use http::HeaderMap;

use super::queue::{Place, Waiting};
use super::{Refused, candidate};
use crate::limit::Mode;
use crate::limit::algorithm::{Algorithm, Receipt};
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::key::Key;
use crate::limit::patience::Patience;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::plan::{CostSpec, Figures, LimitSpec, Plan, RouteSpec, Terms};
use crate::request::key::{Keyed, View};
use crate::request::name::has_twin;
use crate::store::{By, Taken};

/// One limit, or the candidate of one, that applies to a request.
pub(super) struct Applying<'p> {
    pub(super) spec: &'p Arc<LimitSpec>,
    pub(super) key: Key,
    pub(super) terms: Terms,
    pub(super) cost: Cost,
    pub(super) mode: Mode,
    /// Where the request may wait for its turn.
    pub(super) place: Option<Place>,
}

impl Applying<'_> {
    /// Lets nothing pass.
    pub(super) fn is_closed(&self) -> bool {
        self.terms == Terms::Nothing
    }

    /// Takes a place among those that wait, where the request may have to be held for this limit.
    pub(super) fn claim(&mut self, waiting: &Waiting) {
        if self.mode == Mode::Enforce
            && self.spec.wait > Patience::NONE
            && matches!(self.terms, Terms::Limited(_))
        {
            self.place = waiting.claim(&self.spec.name, self.spec.max_waiting);
        }
    }

    /// What it has taken of a request, once it has.
    pub(super) fn taken(&self, algorithm: Algorithm, (by, receipt): (By, Receipt)) -> Taken {
        let (spec, key) = (Arc::clone(self.spec), self.key.clone());
        let ask = Ask { algorithm, cost: self.cost, patience: spec.wait, mode: self.mode };
        Taken { spec, key, ask, by, receipt }
    }

    /// The question to the store about these figures.
    pub(super) fn ask(&self, algorithm: Algorithm) -> Ask {
        // Without a place it may not wait. One that is in shadow never does.
        let patience = match self.mode == Mode::Enforce && self.place.is_none() {
            true => Patience::NONE,
            false => self.spec.wait,
        };
        Ask { algorithm, cost: self.cost, patience, mode: self.mode }
    }
}

/// Gathers the limits of a route that look at this request and let not everything pass, at this time
/// of day.
///
/// # Errors
/// Where a key or a cost cannot be read off it.
pub(super) fn gather<'p>(
    plan: &'p Plan,
    route: &RouteSpec,
    request: &View<'_>,
    wall: Timestamp,
    applying: &mut PerAsk<Applying<'p>>,
) -> Result<(), Refused<'p>> {
    for spec in plan.limits_of(route) {
        match apply(spec, request, wall, applying) {
            Ok(()) => {}
            // A limit in shadow never stops a request.
            Err(_) if spec.mode == Mode::Shadow => {}
            Err(refused) => return Err(refused),
        }
    }
    Ok(())
}

/// Adds a limit, and its candidate right behind it, if they apply.
fn apply<'p>(
    spec: &'p Arc<LimitSpec>,
    request: &View<'_>,
    wall: Timestamp,
    applying: &mut PerAsk<Applying<'p>>,
) -> Result<(), Refused<'p>> {
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
    let cost = cost(&spec.cost, request.headers)?;
    let limit = Applying { spec, key, terms, cost, mode: spec.mode, place: None };
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
pub fn cost<'p>(spec: &CostSpec, headers: &HeaderMap) -> Result<Cost, Refused<'p>> {
    match spec {
        CostSpec::Fixed(cost) | CostSpec::Response { estimate: cost, .. } => Ok(*cost),
        CostSpec::Header { name, default, max } => {
            let refused = || Refused::Cost { header: (**name).clone(), max: *max };
            if has_twin(headers, name) {
                return Err(refused());
            }
            let mut values = headers.get_all(&**name).iter();
            let Some(value) = values.next() else { return Ok(*default) };
            value
                .to_str()
                .ok()
                .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|text| Cost::new(text.parse().ok()?))
                .filter(|cost| cost <= max && values.next().is_none())
                .ok_or_else(refused)
        }
    }
}
