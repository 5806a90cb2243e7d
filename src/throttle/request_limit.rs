//! A limit on its way through `throttle`: its claim, and the request's place among those that wait for it.
//! `gather` makes the list of a request's limits.

use std::net::IpAddr;
use std::time::Duration;

use super::queue::{Waiting, WaitingPlace};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::PerAsk;
use crate::limit::decision::Outcome;
use crate::limit::time::Now;
use crate::limit::waiting::MaxWait;
use crate::observe::top_keys::KeyLabel;
use crate::request::network::client_network;
use crate::store::{Claim, Store};

/// A limit that applies to a request, or the candidate of one.
pub(super) struct RequestLimit<'p> {
    pub(super) claim: Claim<'p>,
    /// The request's place among those that wait for this limit.
    pub(super) place: Option<WaitingPlace>,
    /// Who the key is, as an override of the file says.
    pub(super) key_name: Option<&'p str>,
}

impl RequestLimit<'_> {
    pub(super) fn mode(&self) -> Mode {
        self.claim.ask.mode
    }

    /// How people are shown the request's key.
    pub(super) fn label(&self) -> KeyLabel<'_> {
        KeyLabel { text: self.claim.key.shown().as_str(), name: self.key_name }
    }

    /// Whether the limit lets nothing pass, ever.
    fn is_closed(&self) -> bool {
        self.claim.ask.algorithm == Algorithm::Closed
    }

    /// Whether the store need not be asked.
    pub(super) fn is_decided(&self) -> bool {
        self.claim.decision().is_some()
    }

    /// Takes a place among the requests that wait for this limit, where the limit may hold requests.
    /// Without a place the request may not wait. A limit in shadow holds no request, and needs no place.
    pub(super) fn claim_place(&mut self, waiting: &Waiting, client: IpAddr) {
        let spec = self.claim.spec;
        if self.mode() != Mode::Enforce || spec.wait == MaxWait::NONE || self.is_decided() {
            return;
        }
        let client = client_network(client, spec.key.ipv6_prefix);
        self.place = waiting.claim(&spec.name, spec.max_waiting, client);
        if self.place.is_none() {
            self.claim.ask.max_wait = MaxWait::NONE;
        }
    }
}

/// Where an enforcing limit is closed, the other limits take nothing. The only exception is the candidate of that
/// limit, if no other limit is closed. The limits with buckets in this process are asked what they would say. The
/// limits in Redis are left out: a flood that is refused anyway is to cost Redis nothing.
pub(super) fn leave_closed(limits: &mut PerAsk<RequestLimit<'_>>, store: &Store, now: Now) {
    let mut closed = limits
        .iter()
        .enumerate()
        .filter(|(_, limit)| limit.is_closed() && limit.mode() == Mode::Enforce)
        .map(|(place, _)| place);
    let Some(first) = closed.next() else { return };
    let is_only_one = closed.next().is_none();
    let mut place = 0;
    limits.retain(|limit| {
        let is_tried = is_only_one && place == first + 1 && limit.mode() == Mode::Candidate;
        place += 1;
        if is_tried {
            limit.claim.ask.mode = Mode::Shadow;
        }
        is_tried || limit.is_closed() || store.look_here(&mut limit.claim, now)
    });
}

/// The limits that do not delay a request give their places back at once.
pub(super) fn leave_places(limits: &mut [RequestLimit<'_>]) {
    for limit in limits {
        if !limit.claim.decision().is_some_and(|it| matches!(it.outcome, Outcome::Delay(_))) {
            limit.place = None;
        }
    }
}

/// The index of the enforcing limit that delays the request by `wait`.
pub(super) fn slowest(limits: &[RequestLimit<'_>], wait: Duration) -> usize {
    let slowest = limits.iter().position(|limit| {
        let outcome = limit.claim.decision().map(|decision| decision.outcome);
        limit.mode() == Mode::Enforce && outcome == Some(Outcome::Delay(wait))
    });
    slowest.unwrap_or_default()
}
