//! What a client is answered, and the one place that turns a refusal into an answer.

use std::fmt::Display;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};

use super::body::ResponseBody;
use super::headers::quotas;
use super::refusal::Refusal;
use crate::http1::fields::{Fields, Kind};
use crate::http1::response::Reason;
use crate::plan::{AnswerBody, AnswerSpec};
use crate::throttle::{Refused, Refusing};
use crate::upstream::UpstreamError;
use crate::upstream::body::BodyFault;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// `RESOURCE_EXHAUSTED`.
const GRPC_EXHAUSTED: HeaderValue = HeaderValue::from_static("8");

/// The problem type of draft-ietf-httpapi-ratelimit-headers-11, section 5.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

const QUOTA_EXCEEDED_TITLE: &str =
    "Request cannot be satisfied as assigned quota has been exceeded";

/// An answer on its way to a client.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Words for it other than the usual ones.
    pub(super) reason: Option<Reason>,
    pub(super) fields: Fields,
    /// Until all of it was handed over.
    pub(super) body: Option<ResponseBody>,
}

impl Answer {
    /// An answer of our own, without fields.
    pub(super) fn new(status: StatusCode, body: ResponseBody) -> Self {
        Self { status, reason: None, fields: Fields::default(), body: Some(body) }
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

/// Answers a request that was refused. `asked` is the request's headers, `default` the file's
/// answer to a throttled client.
pub(super) fn respond(refusal: &Refusal, asked: &HeaderMap, default: &AnswerSpec) -> Answer {
    let mut answer = match refusal {
        Refusal::Limits(Refused::Throttled(refusing)) => throttled(refusing, asked, default),
        Refusal::Method(allowed) => not_allowed(allowed),
        _ => {
            let (status, detail) = explain(refusal);
            problem(status, &detail)
        }
    };
    if refusal.closes() {
        answer.close();
    }
    answer
}

/// Status and words of a refusal. What broke behind this proxy stands in its log, not here.
fn explain(refusal: &Refusal) -> (StatusCode, String) {
    let bad = |why: &dyn Display| (StatusCode::BAD_REQUEST, why.to_string());
    match refusal {
        Refusal::Host(error) => bad(error),
        Refusal::Path(error) => bad(error),
        Refusal::TransferCoding => bad(&"the only transfer coding taken here is chunked"),
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

fn problem(status: StatusCode, detail: &str) -> Answer {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = format!(
        r#"{{"type":"about:blank","title":{},"status":{},"detail":{}}}"#,
        quoted(title),
        status.as_u16(),
        quoted(detail)
    );
    with_body(status, Some(PROBLEM_JSON), body)
}

fn with_body(status: StatusCode, kind: Option<HeaderValue>, body: impl Into<Bytes>) -> Answer {
    let mut answer = Answer::new(status, ResponseBody::whole(body));
    if let Some(kind) = kind {
        answer.fields.append(&CONTENT_TYPE, &kind);
    }
    answer
}

/// 405 with the methods that a route is there for.
fn not_allowed(allowed: &[Method]) -> Answer {
    let (status, detail) = (StatusCode::METHOD_NOT_ALLOWED, "no route for this method");
    let mut answer = problem(status, detail);
    let methods: Vec<_> = allowed.iter().map(Method::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&methods.join(", ")) {
        answer.fields.append(&ALLOW, &value);
    }
    answer
}

/// The answer to a throttled client: plain HTTP or gRPC, with the same fields.
fn throttled(refusing: &Refusing, asked: &HeaderMap, default: &AnswerSpec) -> Answer {
    let spec = &*refusing.answer;
    let mut answer = if is_grpc(asked) {
        let mut answer = with_body(StatusCode::OK, Some(GRPC), Bytes::new());
        answer.fields.append(&GRPC_STATUS, &GRPC_EXHAUSTED);
        answer.fields.append(&GRPC_MESSAGE, &HeaderValue::from_static("rate limit exceeded"));
        answer
    } else {
        let status = spec.status;
        match &spec.body {
            AnswerBody::Problem => {
                with_body(status, Some(PROBLEM_JSON), quota_exceeded(status, refusing))
            }
            AnswerBody::Text => with_body(status, Some(TEXT), say(refusing)),
            AnswerBody::Empty => with_body(status, None, Bytes::new()),
            AnswerBody::Custom(body) => with_body(status, Some(TEXT), body.clone()),
        }
    };
    if let (true, Some(wait)) = (spec.retry_after, refusing.retry_after) {
        quotas::write_retry_after(&mut answer.fields, wait);
    }
    quotas::write_quotas(&mut answer.fields, &refusing.quotas, default, refusing.retry_after);
    answer
}

fn quota_exceeded(status: StatusCode, refusing: &Refusing) -> String {
    const NEVER: &str = r#","detail":"no such request will ever be let through""#;
    let detail = if refusing.retry_after.is_some() { "" } else { NEVER };
    // Piece by piece, because a crowd that is rejected must cost little, and the formatting
    // machinery costs ten times as much. Names need no escapes.
    let mut body = String::with_capacity(320);
    for piece in [
        r#"{"type":""#,
        QUOTA_EXCEEDED,
        r#"","title":""#,
        QUOTA_EXCEEDED_TITLE,
        r#"","status":"#,
        status.as_str(),
        detail,
        r#","violated-policies":["#,
    ] {
        body.push_str(piece);
    }
    for (place, name) in refusing.violated().enumerate() {
        body.push_str(if place == 0 { "\"" } else { ",\"" });
        body.push_str(name.as_str());
        body.push('"');
    }
    body.push_str("]}");
    body
}

/// A JSON string.
fn quoted(text: &str) -> serde_json::Value {
    text.into()
}

fn say(refusing: &Refusing) -> String {
    match refusing.retry_after {
        Some(wait) => format!("too many requests, try again in {}\n", Seconds(wait)),
        None => "no such request will ever be let through\n".to_owned(),
    }
}

struct Seconds(std::time::Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64().ceil().max(1.0))
    }
}

fn is_grpc(asked: &HeaderMap) -> bool {
    asked.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
