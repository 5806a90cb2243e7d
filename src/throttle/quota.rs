//! What limits say to a client: what is left, and when more comes.

use std::sync::Arc;
use std::time::Duration;

use super::request_limit::RequestLimit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::redisson::{self, Sharing};
use crate::limit::decide::PerAsk;
use crate::limit::decision::Outcome;
use crate::limit::name::Name;
use crate::limit::quota::QuotaFigures;
use crate::limit::rate::Rate;
use crate::limit::time::Timestamp;
use crate::settings::{Figures, LimitSpec};
use crate::store::{Claim, LimiterFigures};

/// What an enforcing limit says to a client, for the `ratelimit` fields (`answer/quotas.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota<'p> {
    pub(crate) limit: &'p Arc<LimitSpec>,
    /// The bucket's size. 0 if nothing passes.
    pub(crate) burst: u64,
    /// The whole seconds in which the bucket refills, rounded up. `None` if time does not refill it.
    pub(crate) window: Option<u64>,
    /// The whole seconds, rounded up, after which the bucket is full again if no other request comes. It is less than
    /// `window` only for windows that are open. `None` if time does not refill the bucket.
    pub(crate) reset: Option<u64>,
    /// The unit that is counted, if it is not requests.
    pub(crate) unit: Option<&'static str>,
    /// Whole tokens left after this request.
    pub(crate) remaining: u64,
    /// Whether this limit refuses, and when it would allow.
    pub(crate) outcome: Outcome,
}

impl Quota<'_> {
    /// What this limit says, without its name.
    pub(crate) fn figures(&self) -> QuotaFigures {
        let Self { burst, window, reset, unit, remaining, .. } = *self;
        QuotaFigures { burst, window, reset, unit, remaining }
    }

    /// The time after which the bucket is full again at the latest, if no other request comes. `None` if time does
    /// not refill the bucket.
    pub(crate) fn full_after(&self) -> Option<Duration> {
        let window = Duration::from_secs(self.reset?);
        let missing = self.burst.saturating_sub(self.remaining);
        match self.limit.figures {
            Figures::Limited(Algorithm::TokenBucket(_) | Algorithm::LeakyBucket(_)) => {
                let micros = window.as_micros() * u128::from(missing);
                let micros = micros.div_ceil(u128::from(self.burst.max(1)));
                Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
            }
            _ if missing == 0 => Some(Duration::ZERO),
            _ => Some(window),
        }
    }
}

/// What the enforcing limits that were asked say to a request, one entry for each, in the route's order.
pub(crate) type Quotas<'p> = PerAsk<Quota<'p>>;

/// What an enforcing limit says to the client. `goes` is the time of day at which the request goes or is refused.
/// `None` for other limits, and if the limit did not decide.
pub(super) fn quota<'p>(limit: &RequestLimit<'p>, goes: Timestamp) -> Option<Quota<'p>> {
    let Claim { spec, ask, window_left, .. } = &limit.claim;
    let decision = limit.claim.decision().filter(|_| ask.mode == Mode::Enforce)?;
    let said = QuotaFigures::of(ask, decision, *window_left, goes);
    let QuotaFigures { burst, window, reset, unit, remaining } = match limit.claim.figures() {
        None => said,
        Some(figures) => {
            let (burst, window) = (figures.capacity, Some(figures.window_seconds()));
            QuotaFigures { burst, window, reset: window, ..said }
        }
    };
    Some(Quota { limit: spec, burst, window, reset, unit, remaining, outcome: decision.outcome })
}

/// The size of a claim's bucket.
pub(super) fn burst(claim: &Claim<'_>) -> u64 {
    claim.figures().map_or_else(|| claim.ask.algorithm.capacity(), |figures| figures.capacity)
}

/// The figures that decided. For a Redisson limiter, the figures that Redis reports.
pub(super) fn figures(claim: &Claim<'_>) -> Algorithm {
    let reported = match claim.ask.algorithm {
        Algorithm::Redisson(_) => claim.figures(),
        _ => None,
    };
    let reported = reported.and_then(|LimiterFigures { capacity, interval_ms }| {
        let rate = Rate::new(capacity, interval_ms.saturating_mul(1_000)).ok()?;
        redisson::Params::new(Some(rate), Sharing::default())
    });
    reported.map_or(claim.ask.algorithm, Algorithm::Redisson)
}

/// Turns delays into rejections, for a request whose turn would come after the end of the process.
pub(super) fn reject_delayed(quotas: &mut [Quota<'_>], left: Duration) {
    for quota in quotas {
        if matches!(quota.outcome, Outcome::Delay(_)) {
            quota.outcome = Outcome::Reject { retry_after: Some(left) };
        }
    }
}

/// The names of the limits that refuse, in the route's order.
pub(crate) fn violated<'q>(quotas: &'q [Quota<'_>]) -> impl Iterator<Item = &'q Name> {
    quotas.iter().filter(|quota| !quota.outcome.passes()).map(|quota| &quota.limit.name)
}
