//! What a client is answered, and the one place that turns a refusal into an answer.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode};

use super::body::ResponseBody;
use super::headers::Seen;
use super::headers::quotas::{whole_seconds, write_quotas};
use super::refusal::Refusal;
use super::rejection::{Rejections, Telling};
use crate::http1::fields::{Fields, Kind};
use crate::http1::response::Reason;
use crate::plan::AnswerSpec;
use crate::request::method::MethodCase;
use crate::throttle::{Quota, Refused};
use crate::upstream::UpstreamError;
use crate::upstream::body::BodyFault;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
pub(super) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// An answer on its way to a client. A connection has one, which each request fills anew.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Words for it other than the usual ones.
    pub(super) reason: Option<Reason>,
    pub(super) fields: Fields,
    /// Until all of it was handed over.
    pub(super) body: Option<ResponseBody>,
}

impl Answer {
    /// The beginning of an answer of our own, without fields.
    pub(super) fn begin(&mut self, status: StatusCode, body: impl Into<Bytes>) {
        self.clear();
        self.status = status;
        self.body = Some(ResponseBody::whole(body));
    }

    /// Leaves nothing but the memory for fields.
    pub(super) fn clear(&mut self) {
        self.reason = None;
        self.fields.clear();
        self.body = None;
    }

    /// The connection ends with it.
    pub(super) fn close(&mut self) {
        self.fields.insert(&CONNECTION, &CLOSE);
    }

    /// Whether the connection ends with it.
    pub(super) fn closes(&self) -> bool {
        self.fields.values_of(Kind::Connection).any(|option| option == CLOSE.as_bytes())
    }
}

/// What is known of a request that was refused.
pub(super) struct Asked<'r> {
    pub(super) protocol: Protocol,
    /// What its limits said.
    pub(super) quotas: &'r [Quota<'r>],
    /// The file's answer to a throttled client.
    pub(super) default: &'r Arc<AnswerSpec>,
    /// Those that were given before.
    pub(super) rejections: &'r Rejections,
}

/// Answers a request that was refused.
pub(super) fn respond(answer: &mut Answer, refusal: &Refusal<'_>, asked: &Asked<'_>) {
    match refusal {
        Refusal::Limits(Refused::Throttled { retry_after, answer: spec }) => {
            let retry_after = retry_after.map(whole_seconds);
            let Asked { protocol, quotas, default, rejections } = *asked;
            let telling = Telling { protocol, spec, default, retry_after, quotas };
            rejections.write(answer, &telling);
        }
        Refusal::Method(allowed) => not_allowed(answer, allowed),
        _ => {
            let (status, detail) = explain(refusal);
            problem(answer, status, &detail);
            if !matches!(refusal, Refusal::Limits(_)) {
                // It has passed its limits, where there are any: what they gave is gone all the same.
                write_quotas(&mut answer.fields, asked.quotas, asked.default, None);
            }
        }
    }
    if refusal.closes() {
        answer.close();
    }
}

/// Status and words of a refusal. What broke behind this proxy stands in its log, not here.
fn explain(refusal: &Refusal<'_>) -> (StatusCode, String) {
    let bad = |why: &dyn Display| (StatusCode::BAD_REQUEST, why.to_string());
    match refusal {
        Refusal::Host(error) => bad(error),
        Refusal::Path(error) => bad(error),
        Refusal::TransferCoding => bad(&"the only transfer coding taken here is chunked"),
        Refusal::MethodCase => bad(&MethodCase),
        Refusal::Limits(Refused::Key(error)) => bad(error),
        Refusal::Limits(Refused::Cost { header, max }) => {
            bad(&format_args!("header `{header}` must hold one whole number from 1 to {max}"))
        }
        Refusal::NotFound => (StatusCode::NOT_FOUND, "no route for this request".to_owned()),
        Refusal::TargetTooLong => {
            (StatusCode::URI_TOO_LONG, "the path is too long once it is rewritten".to_owned())
        }
        Refusal::TooLarge | Refusal::Body(BodyFault::TooLarge) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than allowed".to_owned())
        }
        Refusal::Body(BodyFault::Stalled) => {
            (StatusCode::REQUEST_TIMEOUT, "the body did not come in time".to_owned())
        }
        Refusal::Body(fault @ BodyFault::Broken) => bad(fault),
        Refusal::Limits(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the limits of this request cannot be checked at the moment".to_owned(),
        ),
        Refusal::Upstream(
            UpstreamError::ConnectTimeout { .. } | UpstreamError::ResponseTimeout { .. },
        ) => (StatusCode::GATEWAY_TIMEOUT, "the API did not answer in time".to_owned()),
        Refusal::Upstream(_) => {
            (StatusCode::BAD_GATEWAY, "the API could not be reached or broke off".to_owned())
        }
        Refusal::ClientLeft => (super::client_gone(), "the client has left".to_owned()),
        Refusal::Method(_) => {
            (StatusCode::METHOD_NOT_ALLOWED, "no route for this method".to_owned())
        }
    }
}

fn problem(answer: &mut Answer, status: StatusCode, detail: &str) {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = format!(
        r#"{{"type":"about:blank","title":{},"status":{},"detail":{}}}"#,
        quoted(title),
        status.as_u16(),
        quoted(detail)
    );
    answer.begin(status, body);
    answer.fields.append(&CONTENT_TYPE, &PROBLEM_JSON);
}

/// 405 with the methods that a route is there for.
fn not_allowed(answer: &mut Answer, allowed: &[Method]) {
    let (status, detail) = (StatusCode::METHOD_NOT_ALLOWED, "no route for this method");
    problem(answer, status, detail);
    let methods: Vec<_> = allowed.iter().map(Method::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&methods.join(", ")) {
        answer.fields.append(&ALLOW, &value);
    }
}

/// A JSON string.
fn quoted(text: &str) -> serde_json::Value {
    text.into()
}

/// What a request speaks over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc,
}

/// What a request with these headers speaks.
pub(super) fn protocol(asked: &HeaderMap, seen: Seen) -> Protocol {
    let kind = if seen.has(Seen::TYPE) { asked.get(CONTENT_TYPE) } else { None };
    match kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        true => Protocol::Grpc,
        false => Protocol::Http,
    }
}
