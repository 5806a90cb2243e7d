//! Describes what a limit does with a request.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::explanation::{ExplainedLimit, Explanation};
use crate::limit::algorithm::Algorithm;
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::limit::{Mode, Scope};
use crate::plans::{PlanLine, PlanRule};
use crate::request::key::{View, shown};
use crate::settings::{BanSpec, CostSpec, Figures, FiguresOf, LimitSpec, Settings, StoreLocation};
use crate::store::{BucketKey, limiter_keys, limiter_name, name_in_redis};
use crate::throttle::{self, AppliedLimit, NotCounted};

/// Says whether the limit counts this request, by which figures and in which bucket. A key is shown as in the log, or
/// `plain`.
pub(super) fn describe_limit(
    settings: &Settings,
    spec: &Arc<LimitSpec>,
    view: &View<'_>,
    (now, plain): (Timestamp, bool),
) -> ExplainedLimit {
    let name = &spec.name;
    let read = throttle::read_key(spec, view).and_then(|key| {
        let rule = settings.plans.as_deref();
        let applied = throttle::applied(spec, &key, rule, None, view, now.into())?;
        Ok((key, applied))
    });
    let applied = read.as_ref().ok().map(|(_, applied)| applied);
    let figures = applied.map_or(&spec.figures, |applied| applied.figures);
    let of = applied.map_or(FiguresOf::Limit, |applied| applied.of);
    let algorithm = figures.at(now);
    let cost = applied.and_then(|applied| applied.cost);
    let cost = cost.map(|cost| spec.cost.within(|| throttle::largest_cost(algorithm), cost));
    let facts = json!({
        "name": name.as_str(),
        "applies": applied.is_some(),
        "mode": spec.mode.name(),
        "scope": if spec.scope == Scope::Cluster { "cluster" } else { "node" },
        "key_parts": spec.key.parts_text(),
        "key": null,
        "algorithm": algorithm.map(|it| it.name()),
        "rate": figures.rate(),
        "burst": algorithm.and_then(|it| it.known_capacity()),
        "cost": cost.map(Cost::get),
        "override": matches!(of, FiguresOf::Override(_)),
        "plan": of.plan().map(Name::as_str),
    });
    let mut text = ExplainedLimit { facts, explanation: Vec::new(), refusal: None };
    let (key, AppliedLimit { spec: decides, candidate, .. }) = match read {
        Ok((key, applied)) => (BucketKey::new(spec, key, settings.log.keys), applied),
        Err(why) => {
            let sentence = match (&why, spec.mode) {
                (NotCounted::Refused(refused), Mode::Enforce) => {
                    text.fact("refuses", why.to_string());
                    text.refusal = Some((refused.status(), why.to_string()));
                    format!("{name} refuses it with {}: {why}", refused.status())
                }
                (NotCounted::Refused(_), Mode::Mark) => format!("{name} marks it: {why}"),
                // A limit in shadow that cannot count a request lets it pass.
                (NotCounted::Refused(_), mode) => {
                    format!("{name} ({}) does not count it: {why}", mode.name())
                }
                (_, _) => format!("{name} does not apply: {why}"),
            };
            text.say(sentence);
            return text;
        }
    };
    let logged = if plain { key.plain() } else { key.shown() };
    text.fact("key", shown(logged.as_str()));
    let mode = match spec.mode {
        Mode::Enforce => "",
        Mode::Mark => " (mark: never rejects, and tells the API)",
        Mode::Shadow | Mode::Candidate => " (shadow: never rejects)",
    };
    let source = match of {
        // `explain` knows the file alone, and no override that was set while a proxy runs.
        FiguresOf::Limit | FiguresOf::AllKeys => String::new(),
        FiguresOf::Plan(plan) => format!(", the plan {plan}"),
        FiguresOf::Override(_) => ", an override for this key".to_owned(),
    };
    let counts = match algorithm {
        Some(Algorithm::Closed) => "nothing passes".to_owned(),
        _ => figures.to_string(),
    };
    text.say(format_args!("{name}{mode}: {counts}{source}"));
    if let (Some(algorithm), Some(cost)) = (counting(figures, now), cost) {
        describe_cost(spec, cost, &algorithm, &mut text);
        describe_wait(spec, &mut text);
        if let Some(when) = &spec.count_when {
            text.say(format_args!("given back unless the response's status is {when}"));
        }
        if let Some(share) = spec.near {
            text.say(format_args!("logs once that the key has used {share} % of its bucket"));
        }
        if let Some(BanSpec { rejections, lasts, .. }) = spec.ban.as_deref()
            && !matches!(of, FiguresOf::Override(_))
        {
            let rate = rejections.rate().unwrap_or_default();
            text.say(format_args!("bans the key for {lasts:?} where it rejects {rate}"));
        }
        describe_key(spec, &key, logged, &mut text);
        describe_bucket(settings, decides, &key, &algorithm, &mut text);
    }
    if let Some(candidate) = candidate {
        text.say(format_args!("tries {} in shadow", candidate.figures));
        if let Some(algorithm) = counting(&candidate.figures, now) {
            describe_bucket(settings, candidate, &key, &algorithm, &mut text);
        }
    }
    text
}

/// Says which plan the request has by this rule. A plan that cannot be read is not described here: the limits say why
/// they refuse the request.
pub(super) fn describe_plan(
    rule: Option<&PlanRule>,
    view: &View<'_>,
    plain: bool,
    text: &mut Explanation,
) {
    let Some(rule) = rule else { return };
    let Ok(key) = rule.key(view) else { return };
    let (plan, sources) = (rule.of_key(key.as_ref()), rule.by.parts_text().join(""));
    let value = key.map(|key| match plain {
        true => shown(key.as_str()),
        false => shown(rule.by.hashed(&key).as_str()),
    });
    let name = plan.name.map(Name::as_str);
    let lead = match name {
        Some(name) if plan.is_default => format!("{name}, the default"),
        name => name.unwrap_or("none").to_owned(),
    };
    let is_said = name.is_some() && !plan.is_default;
    let file = rule.file.as_ref().map(|file| file.path().display());
    let why = match (value.as_deref(), file, &plan.line) {
        (None, ..) => format!("the request has no {sources}"),
        (Some(_), None, _) if is_said => format!("from {sources}"),
        (Some(_), None, _) => format!("no limit names the plan in {sources}"),
        (Some(value), Some(file), None) => format!("{file} has no line for {sources} {value}"),
        (Some(value), Some(file), Some(line)) => match line.name() {
            _ if !is_said => {
                format!(
                    "no limit names the plan {}, which {file} gives to {sources} {value}",
                    line.plan()
                )
            }
            Some(name) => format!("from {file}, for {sources} {value} ({name})"),
            None => format!("from {file}, for {sources} {value}"),
        },
    };
    text.line("plan", format_args!("{lead}: {why}"));
    let customer = plan.line.as_ref().and_then(PlanLine::name);
    text.plan = Some(
        json!({ "name": name, "default": plan.is_default, "of": value, "customer": customer }),
    );
}

/// Says what is different if another proxy asks about the request: it may not learn how the request ends.
pub(super) fn describe_calls<'p>(
    limits: impl Iterator<Item = &'p Arc<LimitSpec>>,
    has_no_route: bool,
    text: &mut Explanation,
) {
    let settled = limits.filter(|limit| limit.awaits_end()).map(|limit| limit.name.as_str());
    let settled = settled.collect::<Vec<_>>().join(", ");
    let alone = if settled.is_empty() { "" } else { "; /check alone meets " };
    let goes = if has_no_route { "; without a route it may go" } else { "" };
    text.line("calls", format_args!("meet the same limits{alone}{settled}{goes}"));
}

/// The algorithm that counts requests. `None` if everything passes, or if nothing passes.
fn counting(figures: &Figures, now: Timestamp) -> Option<Algorithm> {
    figures.at(now).filter(|algorithm| *algorithm != Algorithm::Closed)
}

fn describe_cost(spec: &LimitSpec, cost: Cost, algorithm: &Algorithm, text: &mut ExplainedLimit) {
    if cost.get() > algorithm.capacity() {
        text.say(format_args!("costs {cost}, which never passes"));
    } else if let CostSpec::Response { source, estimate, max, .. } = &spec.cost {
        let most = max.unwrap_or_else(|| throttle::most_of(algorithm));
        let how = estimate.per_byte.map_or(String::new(), |_| format!(" ({estimate})"));
        text.say(format_args!(
            "takes {cost} before{how}, and in the end what {source} says, up to {most}"
        ));
    } else if cost.get() > 1 {
        text.say(format_args!("costs {cost}"));
    }
}

/// Says by which key the request is counted. `logged` is the key as it is shown.
fn describe_key(spec: &LimitSpec, key: &BucketKey, logged: &Key, text: &mut ExplainedLimit) {
    let parts = spec.key.parts_text().join(" and ");
    let hashed = if logged == key.plain() { "" } else { " (hashed)" };
    text.say(match parts.is_empty() {
        true => "one bucket for all requests".to_owned(),
        false => format!("counted by {parts}: {}{hashed}", shown(logged.as_str())),
    });
    let mut parts = spec.key.sources.iter().zip(key.plain().values());
    if let Some((part, _)) = parts.find(|(_, value)| value.is_none()) {
        text.say(format_args!("without {part} it shares that bucket with all such requests"));
    }
}

fn describe_wait(spec: &LimitSpec, text: &mut ExplainedLimit) {
    let most = spec.max_waiting;
    match (spec.mode, spec.wait) {
        (_, MaxWait::NONE) => {}
        (Mode::Shadow | Mode::Mark | Mode::Candidate, _) => text.say("it holds no request"),
        (Mode::Enforce, MaxWait::ENDLESS) => {
            text.say(format_args!("holds requests until their turn comes, {most} at once"));
        }
        (Mode::Enforce, wait) => {
            let wait = Duration::from_micros(wait.as_micros());
            text.say(format_args!("holds requests for up to {wait:?}, {most} at once"));
        }
    }
}

fn describe_bucket(
    settings: &Settings,
    spec: &LimitSpec,
    key: &BucketKey,
    algorithm: &Algorithm,
    text: &mut ExplainedLimit,
) {
    if let Some(begin) = &spec.limiter {
        let key = Some(key.plain()).filter(|_| !spec.key.sources.is_empty());
        let keys = limiter_keys(&limiter_name(begin, key), "CLIENT");
        let [name, value, permits, ..] = keys.each_ref().map(|key| String::from_utf8_lossy(key));
        return text
            .say(format_args!("in Redis as the limiter {name}, with {value} and {permits}"));
    }
    match (&settings.store.location, spec.scope) {
        (StoreLocation::Redis(_), Scope::Cluster) => {
            let name = name_in_redis(&settings.store.prefix, spec, key, algorithm);
            text.say(format_args!("in Redis as {name}"));
            if !spec.name.is_of_candidate() {
                text.fact("redis_key", name.to_string());
            }
        }
        (StoreLocation::Redis(_), Scope::Node) => text.say("in each process by itself"),
        (StoreLocation::Memory, _) => {}
    }
}
