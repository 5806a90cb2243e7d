//! `/api/limits`: the limits, their buckets, and the overrides that are set while the process runs.
//!
//! `key` reads the key of a path, `bucket` looks at a bucket and resets it, `overrides` sets and ends an
//! override.

mod bucket;
mod key;
mod overrides;

use std::sync::Arc;

use http::request::Parts;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};

pub(super) use self::bucket::{FoundFigures, key_of, plan_of};
use self::key::AskedKey;
use super::answer::{AdminResponse, json as answer_json, only, read_only};
use super::{Admin, PATHS};
use crate::config::{self, Spelled as _};
use crate::observe::events::date_and_time;
use crate::observe::millis;
use crate::redis::CallError;
use crate::request::key::ALL_KEYS;
use crate::settings::{LimitSpec, Settings};
use crate::store::ListedOverride;

/// Why a request fails: the status and the detail of the problem that answers it.
pub(super) struct ApiProblem(pub(super) StatusCode, pub(super) String);

impl ApiProblem {
    /// The request can be read, but makes no sense.
    fn nonsense(detail: impl Into<String>) -> Self {
        Self(StatusCode::UNPROCESSABLE_ENTITY, detail.into())
    }
}

impl From<CallError> for ApiProblem {
    fn from(error: CallError) -> Self {
        let status = match error {
            CallError::UnusableKey(_) => StatusCode::CONFLICT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let is_lost = match &error {
            CallError::Redis(error) => error.code().is_none(),
            error => matches!(error, CallError::TimedOut),
        };
        let detail = match error {
            CallError::Away | CallError::NotConnected => {
                "Redis is out of reach, so nothing was done: ask again when it is back".to_owned()
            }
            _ if is_lost => format!(
                "it is not known whether this was done, because Redis did not answer ({error}): ask again"
            ),
            _ => format!("nothing was done, because Redis refused: {error}"),
        };
        Self(status, detail)
    }
}

impl Admin {
    /// Answers a request for a path below `/api/limits`. `path` has the parts after `/api/limits`, percent-encoded.
    pub(super) async fn limits(
        &self,
        path: &[&str],
        query: Option<&str>,
        request: Request<Incoming>,
    ) -> Result<AdminResponse, ApiProblem> {
        let settings = Arc::clone(&self.published.borrow().settings);
        let (Parts { method, headers, .. }, body) = request.into_parts();
        match (path, &method) {
            ([], _) => Ok(read_only(&method, || self.list(&settings))),
            ([limit, "keys", key], &(Method::GET | Method::HEAD)) => {
                let (spec, key) = self.asked(&settings, limit, key, query)?;
                Ok(answer_json(&self.bucket(&settings, spec, &key).await?))
            }
            ([limit, "keys", key], &Method::DELETE) => {
                let (spec, key) = self.asked(&settings, limit, key, query)?;
                self.forget(&settings, spec, &key).await
            }
            ([_, "keys", _], _) => Ok(only("GET, HEAD, DELETE")),
            ([limit, "keys", key, "override"], &Method::PUT) => {
                let (spec, key) = self.asked(&settings, limit, key, query)?;
                self.set(spec, &key.text, &headers, body).await
            }
            ([limit, "keys", key, "override"], &Method::DELETE) => {
                let key = self.text_of_override(&settings, limit, key, query)?;
                self.end(&settings, limit, &key).await
            }
            ([limit, "override"], &Method::PUT) => {
                let spec = named(&settings, limit)?;
                self.set(spec, ALL_KEYS, &headers, body).await
            }
            ([limit, "override"], &Method::DELETE) => self.end(&settings, limit, ALL_KEYS).await,
            ([_, "override"] | [_, "keys", _, "override"], _) => Ok(only("PUT, DELETE")),
            _ => Err(ApiProblem(StatusCode::NOT_FOUND, PATHS.to_owned())),
        }
    }

    /// The limit and the key that a path names.
    pub(super) fn asked<'p>(
        &self,
        settings: &'p Settings,
        limit: &str,
        key: &str,
        query: Option<&str>,
    ) -> Result<(&'p LimitSpec, AskedKey), ApiProblem> {
        let spec = named(settings, limit)?;
        let (is_plain, loose_paths) = (key::is_plain(query), settings.server.loose_paths);
        Ok((spec, AskedKey::read(spec, key, is_plain, self.process.keys, loose_paths)?))
    }

    fn list(&self, settings: &Settings) -> AdminResponse {
        let running = self.process.store.overrides();
        let limits: Vec<_> = settings.limits.iter().map(|spec| self.limit(spec)).collect();
        let overrides: Vec<_> = running.iter().map(|one| self.overridden(one)).collect();
        answer_json(&json!({ "limits": limits, "overrides": overrides }))
    }

    /// A limit as JSON.
    pub(super) fn limit(&self, spec: &LimitSpec) -> Value {
        let algorithm = spec.figures.at(self.clocks());
        json!({
            "name": spec.name.as_str(),
            "key": spec.key.parts_text(),
            "hashed": self.process.keys.hides(spec),
            "algorithm": algorithm.map(|it| it.name()),
            "rate": spec.figures.rate(),
            "burst": algorithm.and_then(|it| it.known_capacity()),
            "mode": spec.mode.name(),
            "scope": spec.scope.spelling(),
        })
    }

    /// The override of all keys of a limit, as JSON.
    pub(super) fn override_of_all(&self, limit: &str) -> Option<Value> {
        self.listed(limit, ALL_KEYS).map(|listed| self.overridden(&listed))
    }

    /// An override as JSON.
    fn overridden(&self, listed: &ListedOverride) -> Value {
        let ListedOverride { entry, running, left } = listed;
        let algorithm = running.as_ref().and_then(|it| it.figures.at(self.clocks()));
        let until = left.map(|left| self.wall().plus(left));
        json!({
            "limit": entry.limit,
            "key": entry.one_key(),
            "rate": entry.wanted.rate,
            "burst": algorithm.map(|it| it.capacity()),
            "queue": entry.wanted.queue,
            "reason": entry.reason,
            "until": entry.ends.or(until).map(date_and_time),
            "ends_in_ms": left.map(millis),
            "in_force": running.is_some(),
        })
    }
}

/// The limit with this name.
fn named<'p>(settings: &'p Settings, limit: &str) -> Result<&'p LimitSpec, ApiProblem> {
    let spec = settings.limits.iter().find(|spec| spec.name.as_str() == limit);
    spec.map(|spec| &**spec).ok_or_else(|| {
        let is_off = settings.off.iter().any(|name| name.as_str() == limit);
        let names = settings.limits.iter().map(|spec| spec.name.as_str());
        let why = match is_off {
            true => "it has `mode = \"off\"`".to_owned(),
            false => format!("there are {}", config::enumerate(names, "and")),
        };
        let detail = format!("there is no limit `{limit}`: {why}");
        ApiProblem(StatusCode::NOT_FOUND, detail)
    })
}

/// The rate of each plan that a limit names, or the slots. Null if it names none.
pub(super) fn plans(spec: &LimitSpec) -> Value {
    if spec.plans.is_empty() {
        return Value::Null;
    }
    let plans = spec.plans.iter().filter_map(|of| {
        let rate = of.figures.rate().unwrap_or_else(|| of.figures.to_string());
        Some((of.plan.as_ref()?.as_str().to_owned(), rate.into()))
    });
    Value::Object(plans.collect::<Map<_, _>>())
}
