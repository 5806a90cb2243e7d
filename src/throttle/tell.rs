//! Tells what the limits have decided about a request: counts, log lines, keys, bans. `observe` keeps what is told.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::open::OpenDecision;
use super::quota::{burst, figures};
use super::rejection::RejectedRequest;
use super::request_limit::{RequestLimit, UnreadLimit};
use super::{LimitedRequest, Throttle};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decision::Outcome;
use crate::limit::key::{Key, write_shown};
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::observe::key_hash;
use crate::observe::metrics::DecisionKind;
use crate::observe::throttled::ThrottleEvent;
use crate::observe::trace::{LimitAnswers, LimitDecision};
use crate::request::key::View;
use crate::request::network::client_network;
use crate::store::{Claim, stored_text};

impl Throttle {
    /// Counts the decisions of all limits, and notes the keys. `took` is the time that the store needed, if it is
    /// measured.
    pub(super) fn tell(
        &self,
        open: &OpenDecision<'_>,
        took: Option<Duration>,
        request: &View<'_>,
        now: Timestamp,
    ) {
        let OpenDecision { limits, unread, .. } = open;
        let not_read = unread.iter().map(|limit| (&limit.spec.name, limit.kind()));
        let decided = limits.iter().map(|limit| (&limit.claim.spec.name, limit.kind()));
        self.metrics.decided(took, decided.chain(not_read));
        self.note_near(limits);
        self.record_shadows(limits, request, now);
        self.record_unread(unread, request, now);
    }

    /// Counts that the store did not decide.
    pub(super) fn tell_failed(&self, open: &OpenDecision<'_>) {
        let failed = open.limits.iter().filter(|limit| !limit.is_decided());
        let failed = failed.map(|limit| (&limit.claim.spec.name, DecisionKind::Error));
        self.metrics.decided(None, failed);
    }

    /// Logs the rejection by one limit. Counts the rejections by all limits, also for bans.
    pub(super) fn tell_rejected(&self, rejected: &RejectedRequest<'_, '_, '_>) {
        let RejectedRequest { limits, by, id, wait, request, .. } = *rejected;
        let LimitedRequest { view, now, .. } = request;
        for (index, limit) in limits.iter().enumerate().filter(|(_, limit)| limit.rejects()) {
            // The log line names only the limit `by`.
            if index != by
                && let Some(outcome) = limit.outcome()
            {
                let shown = LoggedKey(limit.claim.key.shown());
                let event = event(limit, &shown, view, outcome, None);
                self.count_key(limit, &event, now);
                self.log.record_beside(&event, now);
            }
            self.count_for_ban(limit, view, now);
        }
        let outcome = Outcome::Reject { retry_after: wait.retry_after };
        self.record(&limits[by], view, outcome, Some(id), now);
    }

    /// Notes the keys that are near a limit.
    fn note_near(&self, limits: &[RequestLimit<'_>]) {
        for RequestLimit { claim, .. } in limits {
            if let Some((share, decision)) = claim.spec.near.zip(claim.decision())
                && decision.outcome.passes()
            {
                let left = (decision.remaining, burst(claim));
                self.near.note(&claim.spec.name, claim.key.shown().as_str(), left, share);
            }
        }
    }

    /// Counts that this key is rejected.
    fn count_key(&self, limit: &RequestLimit<'_>, event: &ThrottleEvent<'_>, now: Timestamp) {
        if let Outcome::Reject { .. } = event.outcome {
            self.metrics.top_keys.rejected(event.limit, event.key, limit.label(), now);
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

    /// Records what limits that do not enforce would have done.
    fn record_shadows(&self, limits: &[RequestLimit<'_>], request: &View<'_>, now: Timestamp) {
        for limit in limits.iter().filter(|limit| limit.mode() != Mode::Enforce) {
            if let Some(outcome @ (Outcome::Reject { .. } | Outcome::Delay(_))) = limit.outcome() {
                self.record(limit, request, outcome, None, now);
            }
        }
    }

    /// Records that these limits would refuse a request whose key or cost they cannot read. It has no key.
    fn record_unread(&self, unread: &[UnreadLimit<'_>], request: &View<'_>, now: Timestamp) {
        // The first limit would answer, and the others would not be asked.
        if let Some(first) = unread.iter().find(|limit| limit.spec.mode == Mode::Shadow) {
            self.metrics.would_refuse(first.refused.in_words());
        }
        for UnreadLimit { spec, refused, .. } in unread {
            let reason = refused.reason();
            let figures = spec.figures.at(self.store.both(now)).unwrap_or(Algorithm::Closed);
            let event = ThrottleEvent {
                limit: &spec.name,
                // Each reason is counted apart.
                key: key_hash(reason.as_bytes()),
                shown: &"-",
                reason: Some(reason),
                name: None,
                plan: None,
                figures,
                route: request.route,
                client: request.client,
                method: request.method.as_str(),
                path: request.path.matching(),
                request_id: request.id,
                id: None,
                outcome: Outcome::Reject { retry_after: None },
                mode: spec.mode,
            };
            self.log.record(&event, now);
        }
    }

    pub(super) fn record(
        &self,
        limit: &RequestLimit<'_>,
        request: &View<'_>,
        outcome: Outcome,
        id: Option<Uuid>,
        now: Timestamp,
    ) {
        let shown = LoggedKey(limit.claim.key.shown());
        let event = event(limit, &shown, request, outcome, id);
        self.count_key(limit, &event, now);
        self.log.record(&event, now);
    }
}

fn event<'e>(
    limit: &'e RequestLimit<'_>,
    shown: &'e LoggedKey<'_>,
    request: &'e View<'_>,
    outcome: Outcome,
    id: Option<Uuid>,
) -> ThrottleEvent<'e> {
    let Claim { spec, key, .. } = &limit.claim;
    ThrottleEvent {
        limit: &spec.name,
        key: key_hash(key.shown().as_bytes()),
        shown,
        reason: None,
        name: limit.name(),
        plan: limit.of.plan().map(Name::as_str),
        figures: figures(&limit.claim),
        route: request.route,
        client: request.client,
        method: request.method.as_str(),
        path: request.path.matching(),
        request_id: request.id,
        id,
        outcome,
        mode: limit.mode(),
    }
}

/// A key in the log's form.
struct LoggedKey<'r>(&'r Key);

impl fmt::Display for LoggedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shown(self.0.as_str(), f)
    }
}

/// Notes what the limits said, if the request is traced or has an access line. `took` is the time that the store needed.
pub(super) fn trace(
    limits: &[RequestLimit<'_>],
    took: Option<Duration>,
    traced: Option<&mut LimitAnswers>,
) {
    let Some(answers) = traced else { return };
    let at = Instant::now();
    let decisions = limits.iter().map(|limit| LimitDecision {
        at,
        limit: limit.claim.spec.name.clone(),
        key: stored_text(limit.claim.key.shown()).into_owned(),
        cost: limit.claim.ask.cost.get(),
        mode: limit.mode(),
        kind: limit.kind(),
        decision: limit.claim.decision(),
    });
    let plan = limits.iter().find_map(|limit| limit.of.plan()).cloned();
    *answers = LimitAnswers { store: took, decisions: decisions.collect(), plan };
}
