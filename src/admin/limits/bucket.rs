//! Reads a bucket, and resets it.

use serde_json::{Value, json};

use super::key::AskedKey;
use super::{AdminResponse, ApiProblem, plans};
use crate::admin::Admin;
use crate::admin::answer::done;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::Ask;
use crate::limit::decision::Outcome;
use crate::limit::name::Name;
use crate::limit::waiting::MaxWait;
use crate::observe::{events, millis_up};
use crate::redis::CallError;
use crate::request::key::ALL_KEYS;
use crate::request::overrides::KeyOverrides;
use crate::settings::{
    ChosenFigures, Figures, FiguresOf, LimitInPlan, LimitSpec, OnStoreError, Settings,
};
use crate::store::{BucketAsk, BucketKey, ListedOverride};

/// The figures of a key.
pub(in crate::admin) struct FoundFigures<'p> {
    pub(in crate::admin) figures: Figures,
    pub(in crate::admin) of: FiguresOf<'p>,
    /// What is said if requests of this key may have other figures.
    pub(in crate::admin) note: Option<&'static str>,
    /// The override that was set for the key, or that of all keys if it has the figures.
    pub(in crate::admin) running: Option<ListedOverride>,
}

/// What is said of a bucket whose requests may have any plan.
const NO_PLAN: &str =
    "the key does not tell the plan: these are the figures without one, and a plan has others";

impl Admin {
    /// The tokens that a bucket has left, its figures, and when it is full again.
    pub(super) async fn bucket(
        &self,
        settings: &Settings,
        spec: &LimitSpec,
        key: &AskedKey,
    ) -> Result<Value, ApiProblem> {
        let bucket = key_of(settings, spec, key)?;
        let found = self.figures(spec, key, plan_of(settings, spec, key));
        self.bucket_under(found, spec, key, &bucket).await
    }

    /// The same under these figures.
    pub(in crate::admin) async fn bucket_under(
        &self,
        FoundFigures { figures, of, note, running }: FoundFigures<'_>,
        spec: &LimitSpec,
        key: &AskedKey,
        bucket: &BucketKey,
    ) -> Result<Value, ApiProblem> {
        let mut algorithm = figures.at(self.clocks());
        let (mut remaining, mut retry, mut held, mut reset) = (None, None, None, None);
        let mut is_here = false;
        match &mut algorithm {
            None => {}
            Some(Algorithm::Closed) => {
                let ban = running.as_ref().filter(|running| running.entry.is_ban);
                (remaining, retry) = (Some(0), ban.and_then(|ban| ban.left).map(millis_up));
            }
            Some(algorithm) => {
                let in_plan = of.plan().and_then(|plan| spec.of_plan(plan));
                let mut ask = ask(in_plan.map_or(spec, |plan| plan), bucket, *algorithm);
                let (store, now) = (self.store().await, self.process.clock.now());
                let level = match store.level(&ask, false, now).await {
                    Err(CallError::Away | CallError::NotConnected | CallError::TimedOut)
                        if spec.on_store_error == OnStoreError::Local =>
                    {
                        is_here = true;
                        ask = store.without_redis(&ask);
                        *algorithm = ask.ask.algorithm;
                        store.level(&ask, true, now).await?
                    }
                    asked => asked?,
                };
                (remaining, retry) = (Some(level.remaining), level.passes_in().map(millis_up));
                held = held_for(level.held).filter(|_| spec.wait > MaxWait::NONE);
                reset = level.full_after.map(millis_up);
            }
        }
        Ok(json!({
            "limit": spec.name.as_str(),
            "key": key.text,
            "algorithm": algorithm.map(|it| it.name()),
            "rate": figures.rate(),
            "burst": algorithm.and_then(|it| it.known_capacity()),
            "plan": of.plan().map(Name::as_str),
            "note": note,
            "plans": plans(spec),
            "remaining": remaining,
            "retry_after_ms": retry,
            "held_ms": held,
            "reset_ms": reset,
            "here": is_here,
            "override": running.map(|running| self.overridden(&running)),
        }))
    }

    /// Resets a bucket.
    pub(super) async fn forget(
        &self,
        settings: &Settings,
        spec: &LimitSpec,
        key: &AskedKey,
    ) -> Result<AdminResponse, ApiProblem> {
        let bucket = &key_of(settings, spec, key)?;
        let found = self.figures(spec, key, plan_of(settings, spec, key));
        let figures = [&found.figures, &spec.figures];
        let mut algorithms = figures.into_iter().filter_map(|figures| figures.at(self.clocks()));
        if let Some(algorithm) = algorithms.find(|algorithm| *algorithm != Algorithm::Closed) {
            let store = self.store().await;
            store.forget(&ask(spec, bucket, algorithm)).await?;
            for other in spec.windows_beside(spec) {
                if let Some(algorithm) = other.figures.at(self.clocks()) {
                    store.forget(&ask(other, bucket, algorithm)).await?;
                }
            }
            events::bucket_reset(spec.name.as_str(), &key.text);
        }
        Ok(done())
    }

    /// The figures that are in force for a key now. `plan` is the plan of its requests, or `None` if nobody knows it.
    pub(in crate::admin) fn figures<'p>(
        &self,
        spec: &'p LimitSpec,
        key: &AskedKey,
        plan: Option<Option<LimitInPlan<'p>>>,
    ) -> FoundFigures<'p> {
        let [of_key, for_all] =
            [&key.text, ALL_KEYS].map(|text| self.listed(spec.name.as_str(), text));
        let running = [&of_key, &for_all].into_iter().find_map(|it| it.as_ref()?.running.clone());
        let plain = key.plain.as_ref().unwrap_or(&key.shown);
        let ChosenFigures { figures, of, .. } =
            spec.choose(plain, plan.flatten(), running.as_ref());
        let is_unknown = plan.is_none() && !matches!(of, FiguresOf::Override(_));
        let note = is_unknown.then_some(NO_PLAN);
        let running = of_key.or(for_all.filter(|_| of == FiguresOf::AllKeys));
        FoundFigures { figures: figures.clone(), of, note, running }
    }
}

/// The limit in the plan of the requests with this key. `None` if the key does not tell the plan.
pub(in crate::admin) fn plan_of<'p>(
    settings: &Settings,
    spec: &'p LimitSpec,
    key: &AskedKey,
) -> Option<Option<LimitInPlan<'p>>> {
    let rule = settings.plans.as_ref().filter(|_| !spec.plans.is_empty());
    let Some(rule) = rule else { return Some(None) };
    // A hash says no plan.
    let plain = key.plain.as_ref().or((!rule.by.has_secrets()).then_some(&key.shown))?;
    let plan = rule.of_limit_key(&spec.key, plain)?;
    Some(plan.name.and_then(|name| spec.in_plan(name, plan.is_default)))
}

/// The key of the bucket. The name of a Redisson limiter has the plain values. The overrides in proxy.toml have plain
/// values, too.
pub(in crate::admin) fn key_of(
    settings: &Settings,
    spec: &LimitSpec,
    key: &AskedKey,
) -> Result<BucketKey, ApiProblem> {
    let says_plan = settings.plans.as_ref().is_some_and(|it| it.by.sources == spec.key.sources);
    match &key.plain {
        Some(plain) if spec.limiter.is_some() => Ok(plain.clone().into()),
        None if spec.limiter.is_some()
            || spec.overrides != KeyOverrides::default()
            || !spec.plans.is_empty() && says_plan =>
        {
            Err(ApiProblem::nonsense(
                "the bucket, its override in proxy.toml or its plan can be found only by the plain values of the key: give these with `?plain`",
            ))
        }
        _ => Ok(key.shown.clone().into()),
    }
}

fn ask<'r>(spec: &'r LimitSpec, key: &'r BucketKey, algorithm: Algorithm) -> BucketAsk<'r> {
    BucketAsk { spec, key, ask: Ask::for_one(algorithm) }
}

/// The milliseconds for which a request with this outcome is held. `None` if it is rejected.
fn held_for(outcome: Outcome) -> Option<u64> {
    match outcome {
        Outcome::Allow => Some(0),
        Outcome::Delay(wait) => Some(millis_up(wait)),
        Outcome::Reject { .. } => None,
    }
}
