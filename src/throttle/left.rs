//! What limits leave to the client that asks: the answer of a route with `respond = { usage = […] }`. Nothing is taken.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use super::gather::{NotCounted, applied, read_key};
use super::quota::{Quota, Quotas};
use super::{LimitedRequest, Refused, Throttle};
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::Ask;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::quota::QuotaFigures;
use crate::limit::time::Timestamp;
use crate::observe::millis_up;
use crate::request::key::View;
use crate::settings::{LimitSpec, OnStoreError};
use crate::store::{BucketAsk, BucketKey, BucketLevel};

/// What limits leave, in the members and the order of the answer.
#[derive(Serialize)]
pub(crate) struct Left<'p> {
    limits: Vec<LimitLeft<'p>>,
    /// `Some(false)` if a store that decides on requests did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<bool>,
}

/// What one limit leaves.
#[derive(Serialize)]
struct LimitLeft<'p> {
    name: &'p str,
    limit: Option<u64>,
    remaining: Option<u64>,
    used: u64,
    reset_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    window: Option<u64>,
    unit: &'static str,
    /// The content of the `ratelimit` fields. `None` if everything passes, or if the figures are unknown.
    #[serde(skip)]
    quota: Option<Quota<'p>>,
    /// Whether the answer comes from the store that decides on requests.
    #[serde(skip)]
    is_exact: bool,
}

impl Throttle {
    /// What the limits at these indexes leave to the client of this request. The keys are the keys of the
    /// request. A limit is left out if it does not enforce, or does not count the request. `quotas` gets the same for
    /// the `ratelimit` fields.
    ///
    /// # Errors
    /// If a key cannot be read from the request.
    pub(crate) async fn left<'p>(
        &self,
        LimitedRequest { settings, view, now }: LimitedRequest<'_, 'p>,
        limits: &[u32],
        quotas: &mut Quotas<'p>,
    ) -> Result<Left<'p>, Refused<'p>> {
        // The cost of this request does not matter. So it is not read from the request.
        let view = View { cost: Some(1), ..*view };
        let (clocks, mut asked) = (self.store.both(now), Vec::new());
        let enforces = |limit: &&Arc<LimitSpec>| limit.mode == Mode::Enforce;
        for limit in settings.limits_at(limits).filter(enforces) {
            let read = read_key(limit, &view).and_then(|key| {
                let key = self.store.key(limit, key);
                let running = self.store.running_figures(limit, &key);
                let (rule, of) = (settings.plans.as_deref(), running.as_ref());
                let applied = applied(limit, key.plain(), rule, of, &view, clocks)?;
                let banned = of.and_then(|of| of.banned);
                Ok((applied.spec, key, of_figures(applied.algorithm, banned)))
            });
            match read {
                Ok(limit) => asked.push(limit),
                Err(NotCounted::Refused(refused)) => return Err(refused),
                Err(NotCounted::Exempt | NotCounted::Skipped) => {}
            }
        }
        let left = asked.iter().map(|&(spec, ref key, level)| self.left_in(spec, key, level, now));
        let left = join_all(left).await;
        // A limit may also count this request itself. The fields show it only once.
        quotas.retain(|own| !asked.iter().any(|(spec, ..)| spec.name == own.limit.name));
        quotas.extend(left.iter().filter_map(|left| left.quota));
        let exact = left.iter().any(|left| !left.is_exact).then_some(false);
        Ok(Left { limits: left, exact })
    }

    /// What one limit leaves. `level` is `Some` if no bucket need be asked.
    async fn left_in<'p>(
        &self,
        spec: &'p Arc<LimitSpec>,
        key: &BucketKey,
        (algorithm, level): (Algorithm, Option<BucketLevel>),
        now: Timestamp,
    ) -> LimitLeft<'p> {
        let mut asked = BucketAsk { spec, key, ask: Ask::for_one(algorithm) };
        let mut is_exact = true;
        let level = match level {
            Some(level) => level,
            None => match self.store.level(&asked, false, now).await {
                Ok(level) => level,
                Err(_) => {
                    is_exact = false;
                    match spec.on_store_error {
                        OnStoreError::Local => {
                            asked = self.store.without_redis(&asked);
                            let here = self.store.level(&asked, true, now).await;
                            // A bucket in this process always answers, so this is never reached.
                            here.unwrap_or_else(|_| BucketLevel::without_bucket(Outcome::Allow))
                        }
                        // No bucket decides meanwhile: the limit is as `unlimited`, or as `0/s`.
                        other => {
                            asked.ask = Ask::for_one(Algorithm::Closed);
                            BucketLevel::without_bucket(match other {
                                OnStoreError::Reject => Decision::NEVER.outcome,
                                _ => Outcome::Allow,
                            })
                        }
                    }
                }
            },
        };
        let BucketLevel { remaining, used, at_once, full_after, figures, .. } = level;
        let algorithm = asked.ask.algorithm;
        // A window that is open is full again when it ends.
        let left = full_after.filter(|_| used > 0 && algorithm.has_rolling_windows());
        let (outcome, wall) = (Outcome::Allow, self.store.both(now).wall);
        let said = QuotaFigures::of(&asked.ask, Decision { outcome, remaining }, left, wall);
        let (limit, window, reset) = match figures {
            None => (algorithm.known_capacity(), said.window, said.reset),
            Some(it) => (Some(it.capacity), Some(it.window_seconds()), Some(it.window_seconds())),
        };
        // A capacity of zero means that everything passes, or that nothing does.
        let limit = limit.filter(|limit| *limit > 0 || !at_once.passes());
        let quota = |burst| Quota {
            limit: spec,
            burst,
            window,
            reset,
            unit: said.unit,
            remaining,
            outcome,
        };
        LimitLeft {
            name: spec.name.as_str(),
            limit,
            remaining: limit.map(|_| remaining),
            used,
            reset_ms: full_after.map(millis_up),
            retry_after_ms: level.passes_in().map(millis_up),
            window,
            unit: said.unit.unwrap_or("requests"),
            quota: limit.map(quota),
            is_exact,
        }
    }
}

/// The algorithm of these figures. If it has no buckets, its level follows without a question.
fn of_figures(
    algorithm: Option<Algorithm>,
    banned: Option<Duration>,
) -> (Algorithm, Option<BucketLevel>) {
    let outcome = match algorithm {
        None => Outcome::Allow,
        Some(Algorithm::Closed) => Outcome::Reject { retry_after: banned },
        Some(algorithm) => return (algorithm, None),
    };
    (Algorithm::Closed, Some(BucketLevel::without_bucket(outcome)))
}
