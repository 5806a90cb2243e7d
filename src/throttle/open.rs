//! The limits of one request, from the beginning of their decision to its end. Nothing here waits, so that `admit` and
//! the rehearsal share this file. Each of them asks the store in its way, and only `admit` sleeps.

use std::net::IpAddr;
use std::time::Duration;

use http::HeaderValue;
use smallvec::SmallVec;

use super::permit::Permit;
pub(crate) use super::request_limit::OpenDecision;
use super::request_limit::RequestLimit;
use super::waiting::Waiting;
use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Outcome, Verdict};
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::observe::metrics::DecisionKind;
use crate::request::network::client_network;
use crate::store::{self, Claim, Store};

impl<'p> OpenDecision<'p> {
    /// Prepares the question to the store. A request gets its permit to wait before the store decides: without a permit
    /// it must not get a place in a bucket's queue.
    pub(super) fn prepare(
        &mut self,
        client: IpAddr,
        store: &Store,
        waiting: &Waiting,
        now: Timestamp,
    ) {
        leave_closed(&mut [self], store, now);
        self.limits.iter_mut().for_each(|limit| take_permit(limit, waiting, client));
    }

    /// The claims about which the store must be asked.
    pub(super) fn claims(&mut self) -> PerAsk<&mut Claim<'p>> {
        let open = self.limits.iter_mut().filter(|limit| !limit.is_decided());
        let mut claims: PerAsk<_> = open.map(|limit| &mut limit.claim).collect();
        claims.extend(self.beside.iter_mut().filter(|claim| claim.decision().is_none()));
        claims
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

    /// The number of limits that decide.
    pub(crate) fn asked(&self) -> usize {
        self.limits.len()
    }

    /// Whether something may go back when the request has ended.
    pub(crate) fn is_held_to_the_end(&self) -> bool {
        let mut claims = self.limits.iter().map(|limit| &limit.claim);
        claims.any(Claim::is_held_to_the_end)
    }

    /// Whether no limit has anything to say about the request.
    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.unread.is_empty()
    }

    /// The common decision of all limits about a request that passes without a wait and without a mark.
    pub(super) fn decision_at_once(&self) -> DecisionKind {
        let is_there = |wanted| self.limits.iter().any(|limit| limit.kind() == wanted);
        let other = [DecisionKind::Shadow, DecisionKind::Error];
        match self.unread.is_empty() {
            true => other.into_iter().find(|kind| is_there(*kind)).unwrap_or_default(),
            false => DecisionKind::Shadow,
        }
    }

    /// The names of the limits with `mode = "mark"` that would refuse the request, in the route's order, joined by
    /// commas.
    pub(super) fn over(&self) -> Option<HeaderValue> {
        let Self { limits, unread, .. } = self;
        let is_over = |limit: &RequestLimit<'_>| limit.kind() == DecisionKind::Marked;
        if unread.is_empty() && !limits.iter().any(is_over) {
            return None;
        }
        let marks = limits.iter().enumerate().filter(|(_, limit)| is_over(limit));
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

    /// What a request that passes holds until its response has ended. Everything else that it took is spent.
    pub(super) fn permit(&mut self) -> Permit {
        let claims = self.limits.iter_mut().map(|limit| &mut limit.claim);
        claims.chain(&mut self.beside).filter_map(Claim::take_held).collect()
    }
}

/// If an enforcing limit is closed, it refuses the requests. Of their other limits only candidates take. Limits with
/// buckets in this process are asked what they would say. Limits in Redis are left out: a flood that is refused anyway
/// must not cost Redis anything.
pub(super) fn leave_closed(requests: &mut [&mut OpenDecision<'_>], store: &Store, now: Timestamp) {
    let is_closed = |limit: &RequestLimit<'_>| limit.is_closed() && limit.mode() == Mode::Enforce;
    if !requests.iter().flat_map(|open| &open.limits).any(is_closed) {
        return;
    }
    for OpenDecision { limits, beside, .. } in requests {
        beside.clear();
        limits.retain(|limit| {
            let stays = limit.is_decided() || limit.mode() == Mode::Candidate;
            stays || store.decide_by_look(&mut limit.claim, now)
        });
    }
}

/// If an enforcing limit has refused already, the other limits take nothing, except candidates. They are asked what they
/// would say.
pub(super) fn only_peek_after_refusal(requests: &mut [&mut OpenDecision<'_>]) {
    let mut limits = requests.iter().flat_map(|open| &open.limits);
    if limits.any(RequestLimit::rejects) {
        let claims = requests.iter_mut().flat_map(|open| open.claims());
        claims.filter(|claim| claim.ask.mode != Mode::Candidate).for_each(only_peek);
    }
}

/// The claim takes nothing.
pub(super) fn only_peek(claim: &mut Claim<'_>) {
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
