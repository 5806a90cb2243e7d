//! The wait that a refused client is told while a `ramp` lowers the figures.
//!
//! A decision is by the figures of its moment. When the client comes again, the figures may be lower, and what has come
//! back since the bucket's last request is then counted by them. Therefore such a client is told the wait by the
//! figures at the end of the ramp, which no figures on the way fall below. The store is asked for it.

use std::time::Duration;

use super::Throttle;
use super::request_limit::RequestLimit;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::time::{Now, Timestamp};
use crate::limit::{Mode, Scope};
use crate::store::{self, BucketAsk, Party};

/// A client that comes back this much later than it was told must still be let in: waits are told in whole seconds.
const LATE: Duration = Duration::from_secs(2);

impl RequestLimit<'_> {
    /// The figures at the end of the limit's ramp. `None` where the figures stay what they are for this time.
    fn lowered_within(&self, time: Duration, now: Now) -> Option<Algorithm> {
        let lowered = self.ramp?.lowered_within(time, now)?;
        // The wait for a slot is a guess in any case.
        let is_promise = !matches!(lowered, Algorithm::Concurrency(_));
        (is_promise && self.mode() == Mode::Enforce).then_some(lowered)
    }
}

/// The time in which a refused client comes again. `None` if the request passes, and where it is never to come again.
fn time_to_retry(limits: &[RequestLimit<'_>]) -> Option<Duration> {
    match store::verdict(limits.iter().map(|limit| &limit.claim)) {
        // A jitter adds at most as much again.
        Verdict::Refuse { retry_after: Some(wait), .. } => Some(wait.saturating_mul(2) + LATE),
        Verdict::Refuse { .. } | Verdict::Pass { .. } => None,
    }
}

/// Whether the request is refused, and a limit has lower figures at the time at which the client may come again.
pub(super) fn are_lower_at_retry(limits: &[RequestLimit<'_>], now: Now) -> bool {
    limits.iter().any(|limit| limit.ramp.is_some())
        && time_to_retry(limits)
            .is_some_and(|time| limits.iter().any(|it| it.lowered_within(time, now).is_some()))
}

impl Throttle {
    /// Lengthens the waits of the limits that refuse. Returns the longest wait of the limits that let the request pass
    /// now and will not when the client comes again.
    pub(super) async fn lengthen_waits(
        &self,
        limits: &mut [RequestLimit<'_>],
        clocks: Now,
        now: Timestamp,
    ) -> Duration {
        let mut of_others = Duration::ZERO;
        let Some(time) = time_to_retry(limits) else { return of_others };
        for limit in limits.iter_mut() {
            let Some(algorithm) = limit.lowered_within(time, clocks) else { continue };
            let claim = &mut limit.claim;
            // A refusal that is known here must cost Redis nothing. While Redis is away, this process decides with its
            // share by the figures of the moment.
            let is_here = self.store.is_local() || claim.spec.scope == Scope::Node;
            if !is_here && claim.party != Party::Redis {
                continue;
            }
            let ask = Ask { algorithm, ..claim.ask };
            let asked = BucketAsk { spec: claim.spec, key: &claim.key, ask };
            let Ok(then) = self.store.peek(&asked, now).await else { continue };
            let Outcome::Reject { retry_after: longer } = then.outcome else { continue };
            match &mut claim.decision {
                Some(Decision { outcome: Outcome::Reject { retry_after }, .. }) => {
                    *retry_after = retry_after.zip(longer).map(|(wait, longer)| wait.max(longer));
                }
                _ => of_others = of_others.max(longer.unwrap_or_default()),
            }
        }
        of_others
    }
}

#[cfg(test)]
mod tests;
