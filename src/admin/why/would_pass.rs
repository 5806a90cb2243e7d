//! What would have let a rejected request pass.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::limit::algorithm::recalled::RecalledBucket;
use crate::limit::algorithm::{Algorithm, Want};
use crate::limit::name::Name;
use crate::observe::millis_up;
use crate::settings::{LimitSpec, Settings};
use crate::throttle::rejection::{KeptDecision, Rejection};

/// The smallest change of each kind that alone would have let the request pass.
pub(super) fn would_pass(settings: &Settings, rejection: &Rejection) -> Vec<Value> {
    let refusing = &rejection.limits;
    let is_slot = |it: &KeptDecision| matches!(it.ask.algorithm, Algorithm::Concurrency(_));
    // When a slot is free, nobody knows.
    let wait = rejection.wait.retry_after.filter(|_| !refusing.iter().any(is_slot));
    let mut changes: Vec<_> =
        wait.map(|wait| json!({ "wait_ms": millis_up(wait) })).into_iter().collect();
    if rejection.source == "ban" {
        return changes;
    }
    let recalled: Option<Vec<_>> = refusing.iter().map(|it| recall(it, rejection)).collect();
    let Some(recalled) = recalled else { return changes };
    let alone = match recalled.as_slice() {
        [bucket] => Some(bucket),
        _ => None,
    };
    let burst = alone.and_then(RecalledBucket::burst).map(|burst| json!({ "burst": burst }));
    let plan = plan(settings, &recalled, rejection).map(|plan| json!({ "plan": plan }));
    let cost = alone.and_then(RecalledBucket::cost).map(|cost| json!({ "cost": cost }));
    changes.extend([burst, plan, cost].into_iter().flatten());
    changes
}

fn recall(kept: &KeptDecision, rejection: &Rejection) -> Option<RecalledBucket> {
    let KeptDecision { may_owe, ask, decision, .. } = kept;
    let want = Want { cost: ask.cost, max_wait: ask.max_wait };
    RecalledBucket::new(ask.algorithm, want, *decision, *may_owe, rejection.now)
}

/// Several limits may have refused the request. This is the plan with the lowest rate that all of them would have let
/// pass.
fn plan<'s>(
    settings: &'s Settings,
    recalled: &[RecalledBucket],
    rejection: &Rejection,
) -> Option<&'s str> {
    if rejection.source == "override" {
        return None;
    }
    let now = rejection.now;
    // A limit without plans has the same figures under each.
    let passes_under = |(kept, bucket): (&KeptDecision, &RecalledBucket), plan: &Name| {
        let limit = limit_of(settings, kept)?;
        let spec = limit.of_plan(plan)?;
        // A window of another length has its own bucket.
        let decided = kept.plan.as_ref().and_then(|plan| limit.of_plan(plan)).unwrap_or(limit);
        let is_same_bucket = spec.window == decided.window;
        let figures = spec.figures.at(now);
        Some(figures.is_none_or(|figures| is_same_bucket && bucket.passes_under(figures)))
    };
    let passes = |plan: &Name| {
        let mut limits = rejection.limits.iter().zip(recalled);
        limits.all(|limit| passes_under(limit, plan) == Some(true))
    };
    let found = limit_of(settings, rejection.limits.first()?)?.plans.iter();
    let found = found.filter(|spec| spec.plan.as_ref().is_some_and(passes));
    let rate = |spec: &LimitSpec| {
        spec.figures.at(now).map_or(f64::INFINITY, |it| it.per_second().unwrap_or_default())
    };
    let least = found.min_by(|one, other| rate(one).total_cmp(&rate(other)))?;
    least.plan.as_ref().map(Name::as_str)
}

/// The limit as it is now. `None` if the file has it no more.
pub(super) fn limit_of<'s>(
    settings: &'s Settings,
    kept: &KeptDecision,
) -> Option<&'s Arc<LimitSpec>> {
    settings.limits.iter().find(|limit| limit.name == kept.limit)
}
