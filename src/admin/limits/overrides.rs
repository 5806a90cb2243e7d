//! An override that is set while the process runs: its JSON, setting it and ending it.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::key::is_plain;
use super::{AdminResponse, ApiProblem, answer_json, named};
use crate::admin::Admin;
use crate::admin::answer::done;
use crate::config::{self, DurationError};
use crate::request::key::{ALL_KEYS, BodyKind};
use crate::settings::{CostSpec, LimitSpec, Settings, WantedFigures};
use crate::store::{ListedOverride, MOST_RUNNING, RunningOverride};
use crate::text::misleads;

/// The most bytes of a body. An override has far fewer.
const MOST_BODY: usize = 16 * 1024;

/// The timeout for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The most characters of a reason.
const LONGEST_REASON: usize = 200;

/// The fields of an override.
const FIELDS: [&str; 6] = ["rate", "limit", "burst", "queue", "for", "reason"];

const RATE_OR_LIMIT: &str = "expected `rate`, as in \"1000/s\", or `limit`, as in 20, for a limit with `algorithm = \"concurrency\"`";

impl Admin {
    /// Sets an override for the key with this text.
    pub(super) async fn set(
        &self,
        spec: &LimitSpec,
        key: &str,
        headers: &HeaderMap,
        body: Incoming,
    ) -> Result<AdminResponse, ApiProblem> {
        // No form of another site can send this type.
        if BodyKind::of(headers) != Some(BodyKind::Json) {
            let detail = "expected `content-type: application/json`".to_owned();
            return Err(ApiProblem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let given = WantedOverride::parse(&read(body).await?)?;
        given.check(spec)?;
        let entry = RunningOverride {
            limit: spec.name.as_str().to_owned(),
            key: key.to_owned(),
            sources: spec.key.parts_text(),
            wanted: given.wanted,
            reason: given.reason,
            ends: None,
            is_ban: false,
        };
        let store = self.store().await;
        if !store.set_override(entry, given.lasts, self.wall()).await? {
            let detail = format!(
                "there are {MOST_RUNNING} overrides already: write those that are to stay into proxy.toml"
            );
            return Err(ApiProblem(StatusCode::CONFLICT, detail));
        }
        let listed = self.listed(spec.name.as_str(), key);
        let gone = "the override was set, and has ended already";
        let listed = listed.ok_or_else(|| ApiProblem(StatusCode::CONFLICT, gone.to_owned()))?;
        Ok(answer_json(&self.overridden(&listed)))
    }

    /// The text of a key whose override is to end. Its limit may be gone.
    pub(super) fn text_of_override(
        &self,
        settings: &Settings,
        limit: &str,
        key: &str,
        query: Option<&str>,
    ) -> Result<String, ApiProblem> {
        let listed = std::str::from_utf8(&crate::percent::decode(key))
            .ok()
            .filter(|_| !is_plain(query))
            .and_then(|key| self.listed(limit, key));
        Ok(match listed {
            Some(listed) => listed.entry.key.clone(),
            None => self.asked(settings, limit, key, query)?.1.text,
        })
    }

    /// Ends the override of the key with this text.
    pub(super) async fn end(
        &self,
        settings: &Settings,
        limit: &str,
        key: &str,
    ) -> Result<AdminResponse, ApiProblem> {
        if self.store().await.end_override(limit, key).await? {
            return Ok(done());
        }
        named(settings, limit)?;
        let keys = if key == ALL_KEYS { "all keys".to_owned() } else { format!("the key `{key}`") };
        let detail = format!("no override was set for {keys} of the limit `{limit}`");
        Err(ApiProblem(StatusCode::NOT_FOUND, detail))
    }

    /// The override of a limit for the key with this text.
    pub(in crate::admin) fn listed(&self, limit: &str, key: &str) -> Option<ListedOverride> {
        self.process.store.override_of(limit, key)
    }
}

/// An override, as it was sent.
#[derive(Debug, PartialEq, Eq)]
struct WantedOverride {
    wanted: WantedFigures,
    lasts: Option<Duration>,
    reason: Option<String>,
}

impl WantedOverride {
    fn parse(body: &[u8]) -> Result<Self, ApiProblem> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            ApiProblem(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}"))
        })?;
        let Value::Object(fields) = value else {
            let detail = "expected an object such as { \"rate\": \"1000/s\" }";
            return Err(ApiProblem::nonsense(detail));
        };
        if let Some(unknown) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            let fields = FIELDS.map(|field| format!("`{field}`")).join(", ");
            return Err(ApiProblem::nonsense(format!("`{unknown}` is none of {fields}")));
        }
        let string =
            |name| field(&fields, name, "a text", |value| value.as_str().map(str::to_owned));
        let whole = |name| field(&fields, name, "a whole number", Value::as_u64);
        let rate = match (string("rate")?, whole("limit")?) {
            (Some(rate), None) => rate,
            (None, Some(slots)) => format!("{slots} at once"),
            _ => return Err(ApiProblem::nonsense(RATE_OR_LIMIT)),
        };
        let wanted = WantedFigures { rate, burst: whole("burst")?, queue: whole("queue")? };
        let lasts = string("for")?.map(|text| time(&text)).transpose()?;
        let reason = string("reason")?;
        if let Some(reason) = &reason {
            check_reason(reason)?;
        }
        Ok(Self { wanted, lasts, reason })
    }

    /// Checks the figures against the limit.
    fn check(&self, spec: &LimitSpec) -> Result<(), ApiProblem> {
        let Some(counting) = &spec.counting else {
            let why = "a Redisson limiter has its figures in Redis: `tidegate redisson set`";
            return Err(ApiProblem::nonsense(why));
        };
        let figures = counting.figures(&self.wanted);
        let figures = figures.map_err(|error| ApiProblem::nonsense(error.to_string()))?;
        let Some(dearest) = spec.costs().max_by_key(|cost| cost.default_cost()) else {
            return Ok(());
        };
        let cost = dearest.default_cost();
        let Some(capacity) = figures.capacity().filter(|capacity| *capacity < cost.get()) else {
            return Ok(());
        };
        let request = match dearest {
            CostSpec::Header { name, .. } => format!("a request without the header `{name}`"),
            _ => "a request".to_owned(),
        };
        Err(ApiProblem::nonsense(format!(
            "{request} takes {cost} tokens, and the bucket would hold {capacity}: it would never pass. Give it \
             {cost} or more, or the rate \"0/s\" if nothing is to pass"
        )))
    }
}

/// Reads the time for which an override lasts.
fn time(text: &str) -> Result<Duration, ApiProblem> {
    let why = match config::duration(text) {
        Ok(Duration::ZERO) => {
            "would end at once: give a time as in \"30m\". Without `for` the override lasts until it is reset"
                .to_owned()
        }
        Ok(lasts) => return Ok(lasts),
        Err(DurationError::Syntax) => "is no time as in \"30m\", \"2h\" or \"1d\"".to_owned(),
        Err(DurationError::TooLong) => format!("is too long: expected {}", DurationError::AT_MOST),
    };
    Err(ApiProblem::nonsense(format!("`{text}` {why}")))
}

/// Checks that a reason fits into one line of a terminal, and looks there as it was meant.
fn check_reason(reason: &str) -> Result<(), ApiProblem> {
    let length = reason.chars().count();
    if length > LONGEST_REASON {
        return Err(ApiProblem::nonsense(format!(
            "`reason` has {length} characters: expected at most {LONGEST_REASON} characters"
        )));
    }
    match reason.chars().find(|character| misleads(*character)) {
        Some(found) => Err(ApiProblem::nonsense(format!(
            "`reason` has the character U+{:04X}, which breaks a line or hides text: expected one line of \
             plain text",
            u32::from(found)
        ))),
        None => Ok(()),
    }
}

async fn read(body: Incoming) -> Result<Vec<u8>, ApiProblem> {
    let collecting = timeout(BODY_TIMEOUT, Limited::new(body, MOST_BODY).collect());
    match collecting.await {
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let detail = format!("the body has more than {MOST_BODY} bytes");
            Err(ApiProblem(StatusCode::PAYLOAD_TOO_LARGE, detail))
        }
        Ok(Err(error)) => Err(ApiProblem(StatusCode::BAD_REQUEST, error.to_string())),
        Err(_) => {
            Err(ApiProblem(StatusCode::REQUEST_TIMEOUT, "the body did not come in time".to_owned()))
        }
    }
}

/// A field of an override, if it is there. `is` says what the field must be.
fn field<T>(
    fields: &Map<String, Value>,
    name: &str,
    is: &str,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>, ApiProblem> {
    let value = fields.get(name).filter(|value| !value.is_null());
    let wrong = || ApiProblem::nonsense(format!("`{name}` must be {is}"));
    value.map(|value| read(value).ok_or_else(wrong)).transpose()
}
