//! The events of a request that limits reject or delay. `observe::throttled` logs and counts them.

use std::fmt;

use super::Throttle;
use super::request_limit::{RequestLimit, UnreadLimit};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::redisson::{self, Sharing};
use crate::limit::decision::Outcome;
use crate::limit::key::{Key, write_shown};
use crate::limit::name::Name;
use crate::limit::rate::Rate;
use crate::limit::time::Timestamp;
use crate::observe::throttled::ThrottleEvent;
use crate::request::key::View;
use crate::store::{Claim, LimiterFigures};

impl Throttle {
    /// Records what limits that do not enforce would have done.
    pub(super) fn record_shadows(
        &self,
        limits: &[RequestLimit<'_>],
        request: &View<'_>,
        now: Timestamp,
    ) {
        for limit in limits.iter().filter(|limit| limit.mode() != Mode::Enforce) {
            if let Some(outcome @ (Outcome::Reject { .. } | Outcome::Delay(_))) = limit.outcome() {
                self.record(limit, request, outcome, now);
            }
        }
    }

    /// Records that these limits would refuse a request whose key or cost they cannot read. It has no key.
    pub(super) fn record_unread(
        &self,
        unread: &[UnreadLimit<'_>],
        request: &View<'_>,
        now: Timestamp,
    ) {
        for UnreadLimit { spec, refused, .. } in unread {
            if spec.mode == Mode::Shadow {
                self.metrics.would_refuse(refused.in_words());
            }
            let reason = refused.reason();
            let figures = spec.figures.at(self.store.both(now)).unwrap_or(Algorithm::Closed);
            let event = ThrottleEvent {
                limit: &spec.name,
                // Each reason is counted apart.
                key: reason.as_bytes(),
                shown: &"-",
                reason: Some(reason),
                name: None,
                tier: None,
                figures,
                route: request.route,
                client: request.client,
                method: request.method.as_str(),
                path: request.path.matching(),
                request_id: request.id,
                outcome: Outcome::Reject { retry_after: None },
                mode: spec.mode,
            };
            self.log.record(&event, now);
        }
    }

    /// Counts the rejections by the other limits. The log line about the request names only the limit `by`.
    pub(super) fn count_others(
        &self,
        limits: &[RequestLimit<'_>],
        by: usize,
        request: &View<'_>,
        now: Timestamp,
    ) {
        let others = limits.iter().enumerate().filter(|(index, _)| *index != by);
        for (_, limit) in others.filter(|(_, limit)| limit.mode() == Mode::Enforce) {
            if let Some(outcome @ Outcome::Reject { .. }) = limit.outcome() {
                let shown = LoggedKey(limit.claim.key.shown());
                let event = event(limit, &shown, request, outcome);
                self.log.record_beside(&event, now);
            }
        }
    }

    pub(super) fn record(
        &self,
        limit: &RequestLimit<'_>,
        request: &View<'_>,
        outcome: Outcome,
        now: Timestamp,
    ) {
        let shown = LoggedKey(limit.claim.key.shown());
        self.log.record(&event(limit, &shown, request, outcome), now);
    }
}

fn event<'e>(
    limit: &'e RequestLimit<'_>,
    shown: &'e LoggedKey<'_>,
    request: &'e View<'_>,
    outcome: Outcome,
) -> ThrottleEvent<'e> {
    let Claim { spec, key, .. } = &limit.claim;
    ThrottleEvent {
        limit: &spec.name,
        key: key.shown().as_bytes(),
        shown,
        reason: None,
        name: limit.name(),
        tier: limit.of.plan().map(Name::as_str),
        figures: figures(&limit.claim),
        route: request.route,
        client: request.client,
        method: request.method.as_str(),
        path: request.path.matching(),
        request_id: request.id,
        outcome,
        mode: limit.mode(),
    }
}

/// The figures that decided. For a Redisson limiter, the figures that Redis reports.
fn figures(claim: &Claim<'_>) -> Algorithm {
    let reported = claim.figures().and_then(|LimiterFigures { capacity, interval_ms }| {
        let rate = Rate::new(capacity, interval_ms.saturating_mul(1_000)).ok()?;
        redisson::Params::new(Some(rate), Sharing::default())
    });
    reported.map_or(claim.ask.algorithm, Algorithm::Redisson)
}

/// A key in the log's form.
struct LoggedKey<'r>(&'r Key);

impl fmt::Display for LoggedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shown(self.0.as_str(), f)
    }
}
