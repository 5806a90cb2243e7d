//! `/check` and `/settle`, for any code. Their bodies are JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, request};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::{BadCall, DecideCall, DecidedRequest, Form, fields};
use crate::limit::decision::{Outcome, whole_milliseconds};
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::observe::metrics::{DecisionKind, OUTCOMES};

/// The most requests of one call.
const MOST: usize = 1_000;

/// A request that is asked about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a request, or a list of them")]
struct CheckQuestion {
    method: Option<String>,
    host: Option<String>,
    path: String,
    /// Who sent it to the caller.
    ip: Option<IpAddr>,
    #[serde(default)]
    headers: BTreeMap<String, Values>,
    cost: Option<u64>,
}

/// The values of a field.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a header's text, or a list of texts")]
enum Values {
    One(String),
    Several(Vec<String>),
}

/// How a request ended that was allowed before.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with an `id`")]
pub(crate) struct RequestEnd {
    pub(crate) id: String,
    status: Option<u16>,
    /// The tokens that its response used.
    pub(crate) used: Option<u64>,
}

/// What a call of `/check` asks.
pub(crate) struct Questions {
    /// Each with its head.
    pub(crate) asked: Vec<(request::Parts, DecideCall)>,
    /// Whether the call has a list, and its answer is one.
    pub(crate) is_list: bool,
}

impl Questions {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// Where it is not JSON of this form.
    pub(crate) fn read(body: &[u8]) -> Result<Self, BadCall> {
        let is_list = body.trim_ascii_start().starts_with(b"[");
        let all: serde_json::Result<Vec<CheckQuestion>> = match is_list {
            true => serde_json::from_slice(body),
            false => serde_json::from_slice(body).map(|one| vec![one]),
        };
        let all = all.map_err(unreadable)?;
        if all.len() > MOST {
            return Err(BadCall::Body(format!("a call has at most {MOST} requests")));
        }
        let asked = all.into_iter().enumerate().map(|(index, one)| {
            question(one).map_err(|fault| match is_list {
                true => BadCall::Body(format!("request {} of the list: {fault}", index + 1)),
                false => fault,
            })
        });
        Ok(Self { asked: asked.collect::<Result<_, _>>()?, is_list })
    }
}

/// The head of a request, and the call that asks about it alone.
fn question(asked: CheckQuestion) -> Result<(request::Parts, DecideCall), BadCall> {
    let CheckQuestion { method, host, path, ip, headers, cost } = asked;
    let mut fields = HeaderMap::new();
    for (name, values) in headers {
        let values = match values {
            Values::One(value) => vec![value],
            Values::Several(values) => values,
        };
        for value in values {
            let wrong = || BadCall::Unreadable("headers");
            let field = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            let value = HeaderValue::from_str(&value).map_err(|_| wrong())?;
            fields.try_append(field, value).map_err(|_| BadCall::TooManyFields)?;
        }
    }
    let (method, host) = (method.as_deref().map(str::as_bytes), host.as_deref().map(str::as_bytes));
    let (head, fault) = fields::head(method, Some(path.as_bytes()), host, fields)?;
    if cost.is_some_and(|cost| Cost::new(cost).is_none()) {
        let says = format!("`cost` must be a whole number from 1 to {MAX_TOKENS}");
        return Err(BadCall::Body(says));
    }
    Ok((head, DecideCall { fault, ip, cost, ..DecideCall::of(Form::Check) }))
}

impl RequestEnd {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// Where it is not JSON of this form.
    pub(crate) fn read(body: &[u8]) -> Result<Self, BadCall> {
        let settlement: Self = serde_json::from_slice(body).map_err(unreadable)?;
        if settlement.status.is_some() && settlement.status().is_none() {
            return Err(BadCall::Body("`status` must be from 100 to 999".to_owned()));
        }
        Ok(settlement)
    }

    /// The status of the response.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.status?).ok()
    }
}

fn unreadable(error: serde_json::Error) -> BadCall {
    BadCall::Body(error.to_string())
}

impl DecidedRequest<'_> {
    /// The answer of `/check` about the request.
    pub(crate) fn json(&self) -> Json {
        let limits = self.quotas.iter().map(|quota| {
            let mut limit =
                json!({ "name": quota.limit.name.as_str(), "remaining": quota.remaining });
            if let Outcome::Reject { retry_after } = quota.outcome {
                // Nothing will ever pass where there is no time.
                limit["retry_after_ms"] = retry_after.map(whole_milliseconds).into();
            }
            limit
        });
        // The body is not among what the caller gets.
        let headers = self.answer.headers().iter().filter(|(name, _)| *name != CONTENT_TYPE);
        let headers = headers
            .filter_map(|(name, value)| Some((name.to_string(), Json::from(value.to_str().ok()?))));
        let decision = match (&self.refused, self.decision) {
            (None, kind) | (Some(_), kind @ (DecisionKind::Rejected | DecisionKind::Error)) => {
                OUTCOMES[kind as usize]
            }
            // Not the limits refuse it.
            (Some(_), _) => "refused",
        };
        let mut answer = json!({
            "allowed": self.refused.is_none(),
            "decision": decision,
            "limits": limits.collect::<Vec<_>>(),
            "headers": headers.collect::<Map<_, _>>(),
        });
        if let Some(reason) = &self.refused {
            answer["status"] = self.answer.status().as_u16().into();
            answer["reason"] = (**reason).into();
        }
        if let Some(id) = &self.id {
            answer["id"] = id.as_str().into();
        }
        answer
    }
}
