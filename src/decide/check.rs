//! `/check` and `/settle`, for any code. Their bodies are JSON.

use std::collections::BTreeMap;
use std::fmt;

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json, json};

use super::fields::{self, OF_BODY};
use super::form::BadCall;
use super::{Asked, DecidedRequest, Question};
use crate::limit::decision::{Outcome, whole_milliseconds};
use crate::limit::rate::{Cost, MAX_TOKENS};
use crate::observe::metrics::{DecisionKind, OUTCOMES};

/// The most requests of one call.
const MOST: usize = 1_000;

/// A request that is asked about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a request, or a list of them")]
struct CheckQuestion {
    method: Option<ClientText>,
    host: Option<ClientText>,
    path: ClientText,
    /// Who sent it to the caller.
    ip: Option<ClientText>,
    #[serde(default)]
    headers: BTreeMap<ClientText, Values>,
    body: Option<ClientText>,
    cost: Option<u64>,
}

/// A text that a client may have written. It need not be UTF-8: many languages have other texts too, and their JSON has
/// such bytes as they are, or as half of a surrogate pair.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ClientText(Vec<u8>);

/// The values of a field.
struct Values(Vec<ClientText>);

/// Reads a text, or a list of texts if `takes_lists`.
struct ValuesVisitor {
    takes_lists: bool,
}

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Values;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.takes_lists { "a header's text, or a list of texts" } else { "a text" })
    }

    fn visit_bytes<E>(self, text: &[u8]) -> Result<Values, E> {
        Ok(Values(vec![ClientText(text.to_vec())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
        if !self.takes_lists {
            return Err(A::Error::custom("expected a text, and no list"));
        }
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Values(values))
    }
}

impl<'de> Deserialize<'de> for ClientText {
    fn deserialize<D: Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
        let mut one = text.deserialize_bytes(ValuesVisitor { takes_lists: false })?;
        one.0.pop().ok_or_else(|| D::Error::custom("expected a text"))
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(values: D) -> Result<Self, D::Error> {
        values.deserialize_bytes(ValuesVisitor { takes_lists: true })
    }
}

/// How a request ended that was allowed before.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with an `id`")]
pub(super) struct RequestEnd {
    pub(super) id: String,
    /// The status of its response.
    #[serde(default, deserialize_with = "status")]
    pub(super) status: Option<StatusCode>,
    /// The tokens that its response used.
    pub(super) used: Option<u64>,
}

/// What a call of `/check` asks.
///
/// # Errors
/// Where the body is not JSON of this form.
pub(super) fn questions(body: &[u8]) -> Result<Vec<Asked>, BadCall> {
    let all: serde_json::Result<Vec<CheckQuestion>> = match is_list(body) {
        true => serde_json::from_slice(body),
        false => serde_json::from_slice(body).map(|one| vec![one]),
    };
    let all = all.map_err(unreadable)?;
    if all.len() > MOST {
        return Err(BadCall::Body(format!("a call has at most {MOST} requests")));
    }
    let asked = all.into_iter().enumerate().map(|(index, one)| {
        question(one).map_err(|fault| match is_list(body) {
            true => BadCall::Body(format!("request {} of the list: {fault}", index + 1)),
            false => fault,
        })
    });
    asked.collect()
}

/// Whether the call has a list, and its answer is one.
fn is_list(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"[")
}

fn question(asked: CheckQuestion) -> Result<Asked, BadCall> {
    let CheckQuestion { method, host, path, ip, headers, body, cost } = asked;
    let (mut fields, mut fault) = (HeaderMap::new(), None);
    for (ClientText(name), Values(values)) in headers {
        for ClientText(value) in values {
            let (name, value) = (HeaderName::from_bytes(&name), HeaderValue::from_bytes(&value));
            let (Ok(name), Ok(value)) = (name, value) else {
                // As an odd path, this is the client's fault and not the caller's.
                fault = Some(BadCall::Unreadable("headers"));
                continue;
            };
            if fields.try_append(name, value).is_err() {
                fault = Some(BadCall::TooManyFields);
            }
        }
    }
    let bytes = |text: &Option<ClientText>| text.as_ref().map(|text| text.0.clone());
    let (method, host) = (bytes(&method), bytes(&host));
    let path = Some(&path.0[..]);
    let (head, of_head) = fields::head(&OF_BODY, method.as_deref(), path, host.as_deref(), fields);
    let address = ip.as_ref().map(|ip| std::str::from_utf8(&ip.0).ok()?.parse().ok());
    let is_odd_address = address == Some(None);
    let fault = of_head.or(fault).or(is_odd_address.then_some(BadCall::Unreadable("ip")));
    let ip = address.flatten();
    if cost.is_some_and(|cost| Cost::new(cost).is_none()) {
        let says = format!("`cost` must be a whole number from 1 to {MAX_TOKENS}");
        return Err(BadCall::Body(says));
    }
    let body = body.map(|body| body.0).unwrap_or_default();
    Ok((head, Question { fault, ip, cost, body, ..Question::default() }))
}

impl RequestEnd {
    /// Reads the body of a call.
    ///
    /// # Errors
    /// Where it is not JSON of this form.
    pub(super) fn read(body: &[u8]) -> Result<Self, BadCall> {
        serde_json::from_slice(body).map_err(unreadable)
    }
}

fn status<'de, D: Deserializer<'de>>(status: D) -> Result<Option<StatusCode>, D::Error> {
    let status = Option::<u16>::deserialize(status)?.map(StatusCode::from_u16).transpose();
    status.map_err(|_| D::Error::custom("`status` must be from 100 to 999"))
}

fn unreadable(error: serde_json::Error) -> BadCall {
    BadCall::Body(error.to_string())
}

/// The body of the answer to a call with this body.
pub(super) fn answer(decided: Vec<DecidedRequest<'_>>, body: &[u8]) -> String {
    let mut answers = decided.into_iter().map(DecidedRequest::json);
    match answers.next() {
        Some(answer) if !is_list(body) => answer.to_string(),
        first => first.into_iter().chain(answers).collect::<Json>().to_string(),
    }
}

impl DecidedRequest<'_> {
    /// The answer about the request.
    fn json(self) -> Json {
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
        if let Some((id, detail)) = &self.rejection {
            answer["rejection"] = json!({ "id": id.to_string(), "detail": detail });
        }
        if let Some(lease) = self.lease {
            answer["id"] = lease.tell().into();
        }
        answer
    }
}
