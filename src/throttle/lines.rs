//! What the log gets about requests that limits reject or delay.

use std::fmt;

use super::Throttle;
use super::request_limit::RequestLimit;
use crate::limit::Mode;
use crate::limit::decision::Outcome;
use crate::limit::key::{Key, write_shown};
use crate::limit::time::Timestamp;
use crate::observe::throttled::{Shown, ThrottleEvent};
use crate::request::key::View;
use crate::store::Claim;

impl Throttle {
    pub(super) fn tell_shadows(
        &self,
        limits: &[RequestLimit<'_>],
        request: &View<'_>,
        now: Timestamp,
    ) {
        for limit in limits.iter().filter(|limit| limit.mode() != Mode::Enforce) {
            match limit.claim.decision.map(|decision| decision.outcome) {
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
            if let Some(Outcome::Reject { retry_after }) = limit.claim.decision.map(|it| it.outcome)
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

/// A key in the log's form.
struct LoggedKey<'r>(&'r Key);

impl fmt::Display for LoggedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_shown(self.0.as_str(), f)
    }
}
