//! What the log gets about requests that limits reject or delay.

use std::fmt;

use super::Throttle;
use super::request_limit::RequestLimit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::redisson::{self, Sharing};
use crate::limit::decision::Outcome;
use crate::limit::key::{Key, write_shown};
use crate::limit::rate::Rate;
use crate::limit::time::Timestamp;
use crate::observe::throttled::{Shown, ThrottleEvent};
use crate::request::key::View;
use crate::store::{Claim, LimiterFigures};

impl Throttle {
    pub(super) fn tell_shadows(
        &self,
        limits: &[RequestLimit<'_>],
        request: &View<'_>,
        now: Timestamp,
    ) {
        for limit in limits.iter().filter(|limit| limit.mode() != Mode::Enforce) {
            match limit.claim.decision().map(|decision| decision.outcome) {
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

    /// Counts the rejections of the other limits that refuse the request. The line about the request
    /// names `by` alone.
    pub(super) fn count_beside(
        &self,
        limits: &[RequestLimit<'_>],
        by: usize,
        request: &View<'_>,
        now: Timestamp,
    ) {
        for (place, limit) in limits.iter().enumerate() {
            if let Some(Outcome::Reject { retry_after }) =
                limit.claim.decision().map(|it| it.outcome)
                && place != by
                && limit.mode() == Mode::Enforce
            {
                let decision = Shown::Rejected { retry_after };
                self.with_event(limit, request, decision, |event| {
                    self.log.record_beside(event, now)
                });
            }
        }
    }

    pub(super) fn tell(
        &self,
        limit: &RequestLimit<'_>,
        request: &View<'_>,
        decision: Shown,
        now: Timestamp,
    ) {
        self.with_event(limit, request, decision, |event| self.log.record(event, now));
    }

    fn with_event(
        &self,
        limit: &RequestLimit<'_>,
        request: &View<'_>,
        decision: Shown,
        record: impl FnOnce(&ThrottleEvent<'_>),
    ) {
        let Claim { spec, key, .. } = &limit.claim;
        let shown = LoggedKey(key.shown());
        let event = ThrottleEvent {
            limit: &spec.name,
            key: key.shown().as_bytes(),
            shown: &shown,
            name: limit.key_name,
            figures: figures(&limit.claim),
            route: request.route,
            client: request.client,
            method: request.method.as_str(),
            path: request.path.matching(),
            request_id: request.id,
            decision,
        };
        record(&event);
    }
}

/// The figures that decided. Those of a Redisson limiter are what Redis reports.
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
