//! Tells what the limits have decided about a request: counts, log lines, keys, bans. `observe` keeps what is told.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::Throttle;
use super::open::OpenDecision;
use super::quota::burst;
use super::rejection::{KeptDecision, RejectedTexts, RejectedWait, Rejection};
use super::request_limit::{RequestLimit, UnreadLimit};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::redisson::{self, Sharing};
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::key::{Key, write_shown};
use crate::limit::name::Name;
use crate::limit::rate::Rate;
use crate::limit::time::{Now, Timestamp};
use crate::limit::waiting::MaxWait;
use crate::observe::metrics::DecisionKind;
use crate::observe::new_uuid;
use crate::observe::throttled::ThrottleEvent;
use crate::observe::trace::{CountedKey, LimitAnswers, LimitDecision};
use crate::request::key::View;
use crate::request::network::client_network;
use crate::settings::FiguresOf;
use crate::store::{Claim, LimiterFigures, stored_text};

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
        self.note_keys(limits, now);
        self.record_shadows(limits, request, now);
        self.record_unread(unread, request, now);
    }

    /// Counts that the store did not decide.
    pub(super) fn tell_failed(&self, open: &OpenDecision<'_>) {
        let failed = open.limits.iter().filter(|limit| !limit.is_decided());
        let failed = failed.map(|limit| (&limit.claim.spec.name, DecisionKind::Error));
        self.metrics.decided(None, failed);
    }

    /// Logs that the limit at the index `by` rejects the request, and counts the rejections by all limits, also towards
    /// bans.
    pub(super) fn tell_rejected(
        &self,
        limits: &[RequestLimit<'_>],
        (by, retry_after): (usize, Option<Duration>),
        rejection: &Rejection,
        request: &View<'_>,
        now: Timestamp,
    ) {
        self.count_others(limits, by, request, now);
        for limit in limits.iter().filter(|limit| limit.rejects()) {
            self.count_for_ban(limit, request, now);
        }
        let outcome = Outcome::Reject { retry_after };
        self.record(&limits[by], request, outcome, Some(rejection), now);
    }

    /// Notes the keys that are rejected.
    fn note_keys(&self, limits: &[RequestLimit<'_>], now: Timestamp) {
        for limit in limits {
            let Claim { spec, key, .. } = &limit.claim;
            let Some(Decision { remaining, outcome }) = limit.claim.decision() else { continue };
            match (outcome, spec.near) {
                (Outcome::Reject { .. }, _) => {
                    self.metrics.top_keys.rejected(&spec.name, limit.label(), now);
                }
                (Outcome::Allow | Outcome::Delay(_), Some(share)) => {
                    let left = (remaining, burst(&limit.claim));
                    self.near.note(&spec.name, key.shown().as_str(), left, share);
                }
                (Outcome::Allow | Outcome::Delay(_), None) => {}
            }
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
                key: reason.as_bytes(),
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

    /// Counts the rejections by the other limits. The log line about the request names only the limit `by`.
    fn count_others(
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
                let event = event(limit, &shown, request, outcome, None);
                self.log.record_beside(&event, now);
            }
        }
    }

    pub(super) fn record(
        &self,
        limit: &RequestLimit<'_>,
        request: &View<'_>,
        outcome: Outcome,
        rejection: Option<&Rejection>,
        now: Timestamp,
    ) {
        let shown = LoggedKey(limit.claim.key.shown());
        self.log.record(&event(limit, &shown, request, outcome, rejection), now);
    }
}

fn event<'e>(
    limit: &'e RequestLimit<'_>,
    shown: &'e LoggedKey<'_>,
    request: &'e View<'_>,
    outcome: Outcome,
    rejection: Option<&Rejection>,
) -> ThrottleEvent<'e> {
    let Claim { spec, key, .. } = &limit.claim;
    ThrottleEvent {
        limit: &spec.name,
        key: key.shown().as_bytes(),
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
        id: rejection.map(|rejection| rejection.id),
        outcome,
        mode: limit.mode(),
    }
}

/// What is kept of a request that the limit at the index `by` of `limits` refuses.
pub(super) fn rejection(
    (limits, by): (&[RequestLimit<'_>], usize),
    wait: RejectedWait,
    status: StatusCode,
    request: &View<'_>,
    now: Now,
) -> Rejection {
    let limit = &limits[by];
    let enforces = |limit: &&RequestLimit<'_>| limit.mode() == Mode::Enforce;
    let index = limits[..by].iter().filter(enforces).count();
    let kept = limits.iter().filter(enforces).filter_map(|limit| kept(&limit.claim));
    let mut kept: PerAsk<_> = kept.collect();
    if kept.iter().all(|it| it.decision.outcome.passes()) {
        // The process ends before those who wait may go.
        let waits = |it: &&mut KeptDecision| matches!(it.decision.outcome, Outcome::Delay(_));
        kept.iter_mut().filter(waits).for_each(|it| {
            it.decision.outcome = Outcome::Reject { retry_after: wait.retry_after };
        });
    }
    let texts = RejectedTexts::of([
        limit.claim.key.shown().as_str(),
        request.method.as_str(),
        request.path.matching(),
        request.route,
        request.id.unwrap_or_default(),
        limit.name().unwrap_or_default(),
    ]);
    let source = match limit.of {
        _ if limit.is_banned => "ban",
        FiguresOf::Limit => "file",
        FiguresOf::Plan(_) => "plan",
        FiguresOf::Override => "override",
    };
    let (id, client) = (new_uuid(now.wall), request.client);
    Rejection { id, now, limits: kept, by: index, wait, status, client, source, texts }
}

/// `None` if nobody has decided.
fn kept(claim: &Claim<'_>) -> Option<KeptDecision> {
    let (decision, by) = (claim.decision()?, claim.decider()?);
    let ask = Ask { algorithm: figures(claim), ..claim.ask };
    // No part of the settings is kept: they would outlive a reload, with all overrides.
    let spec = &**claim.spec;
    Some(KeptDecision {
        limit: spec.name.clone(),
        plan: spec.plan.clone(),
        may_owe: spec.is_settled() || spec.reported || spec.wait > MaxWait::NONE,
        ask,
        decision,
        by,
        is_without_redis: claim.is_without_redis(),
    })
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
        mode: limit.mode(),
        kind: limit.kind(),
        decision: limit.claim.decision(),
    });
    let counted = limits.iter().filter(|limit| limit.mode() != Mode::Candidate).map(|limit| {
        let Claim { spec, key, ask, .. } = &limit.claim;
        let key = stored_text(key.shown()).into_owned();
        CountedKey { limit: spec.name.clone(), key, cost: ask.cost.get() }
    });
    let counted = counted.collect();
    let plan = limits.iter().find_map(|limit| limit.of.plan()).cloned();
    *answers = LimitAnswers { store: took, decisions: decisions.collect(), counted, plan };
}
