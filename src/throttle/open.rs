//! The limits of one request, from the beginning of their decision to its end. Nothing here waits, so that `admit` and
//! the rehearsal share this file. Each of them asks the store in its way, and only `admit` sleeps.

use std::net::IpAddr;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::Refused;
use super::gather::gather;
use super::permit::Permit;
pub(super) use super::request_limit::Open;
use super::request_limit::RequestLimit;
use super::waiting::Waiting;
use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Outcome, Verdict};
use crate::limit::time::Now;
use crate::limit::waiting::MaxWait;
use crate::plan::LimitSpec;
use crate::request::key::View;
use crate::request::network::client_network;
use crate::store::{self, Claim, Store};
use crate::tier::TierRule;

impl<'p> Open<'p> {
    /// Begins with the limits of `specs` that apply. A request gets its permit to wait before the store decides:
    /// without a permit it must not get a place in a bucket's queue. `rule` says how the plan of the request is found.
    ///
    /// # Errors
    /// If a key or a cost cannot be read from the request.
    pub(super) fn begin(
        &mut self,
        specs: impl Iterator<Item = &'p Arc<LimitSpec>>,
        request: &View<'_>,
        rule: Option<&'p TierRule>,
        store: &Store,
        waiting: &Waiting,
        now: Now,
    ) -> Result<(), Refused<'p>> {
        gather(specs, request, rule, store, now, self)?;
        leave_closed(slice::from_mut(self), store, now);
        self.limits.iter_mut().for_each(|limit| take_permit(limit, waiting, request.client));
        Ok(())
    }

    /// The claims about which the store must be asked.
    pub(super) fn claims(&mut self) -> PerAsk<&mut Claim<'p>> {
        let open = self.limits.iter_mut().filter(|limit| !limit.is_decided());
        open.map(|limit| &mut limit.claim).chain(&mut self.beside).collect()
    }

    /// What all enforcing limits decided together. The request keeps its permits to wait only for limits that delay it.
    pub(super) fn finish(&mut self) -> Verdict {
        let verdict = store::verdict(self.limits.iter().map(|limit| &limit.claim));
        let passes = matches!(verdict, Verdict::Pass { .. });
        for limit in &mut self.limits {
            let delays = matches!(limit.outcome(), Some(Outcome::Delay(_)));
            if !passes || !delays {
                limit.waiting = None;
            }
        }
        verdict
    }

    /// What a request that passes holds until its response has ended. Everything else that it took is spent.
    pub(super) fn permit(&mut self) -> Permit {
        let claims = self.limits.iter_mut().map(|limit| &mut limit.claim);
        claims.chain(&mut self.beside).filter_map(Claim::take_held).collect()
    }
}

/// If an enforcing limit is closed, the requests are refused, and the other limits take nothing. The only exception is
/// the candidate of the closed limit, if no other limit is closed. Limits with buckets in this process are asked what
/// they would say. Limits in Redis are left out: a flood that is refused anyway must not cost Redis anything.
pub(super) fn leave_closed(requests: &mut [Open<'_>], store: &Store, now: Now) {
    let is_closed = |limit: &RequestLimit<'_>| limit.is_closed() && limit.mode() == Mode::Enforce;
    let limits = requests.iter().flat_map(|open| &open.limits);
    let mut closed = limits.filter(|limit| is_closed(limit));
    if closed.next().is_none() {
        return;
    }
    let is_only_one = closed.next().is_none();
    for Open { limits, beside, .. } in requests {
        beside.clear();
        let mut is_after_closed = false;
        limits.retain(|limit| {
            let is_tried = is_only_one && is_after_closed && limit.mode() == Mode::Candidate;
            is_after_closed = is_closed(limit);
            if is_tried {
                limit.claim.ask.mode = Mode::Shadow;
            }
            is_tried || limit.is_closed() || store.look_here(&mut limit.claim, now)
        });
    }
}

/// If an enforcing limit has refused already, the other limits take nothing. They are asked what they would say.
pub(super) fn only_look_after_refusal(requests: &mut [Open<'_>]) {
    let mut limits = requests.iter().flat_map(|open| &open.limits);
    if limits.any(RequestLimit::rejects) {
        requests.iter_mut().flat_map(Open::claims).for_each(only_look);
    }
}

/// The claim takes nothing.
pub(super) fn only_look(claim: &mut Claim<'_>) {
    (claim.ask.takes, claim.ask.max_wait) = (false, MaxWait::NONE);
}

/// Takes a permit to wait for this limit, if the limit may hold requests. Without a permit the request may not
/// wait. A limit in shadow holds no request, and needs no permit.
fn take_permit(limit: &mut RequestLimit<'_>, waiting: &Waiting, client: IpAddr) {
    let spec = limit.claim.spec;
    let may_wait = limit.claim.ask.max_wait > MaxWait::NONE;
    if limit.mode() != Mode::Enforce || !may_wait || limit.is_decided() {
        return;
    }
    let client = client_network(client, spec.key.prefixes);
    limit.waiting = waiting.permit(&spec.name, spec.max_waiting, client);
    if limit.waiting.is_none() {
        limit.lacks_permit = true;
        limit.claim.ask.max_wait = MaxWait::NONE;
    }
}

/// The index of the enforcing limit that delays the request by `wait`.
pub(super) fn slowest(limits: &[RequestLimit<'_>], wait: Duration) -> usize {
    let slowest = limits.iter().position(|limit| {
        limit.mode() == Mode::Enforce && limit.outcome() == Some(Outcome::Delay(wait))
    });
    slowest.unwrap_or_default()
}
