//! What a client is answered, and the one place that turns a refusal into an answer.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};

use super::body::ResponseBody;
use super::headers::{Seen, quotas};
use super::refusal::Refusal;
use crate::http1::fields::{Fields, Kind};
use crate::http1::response::Reason;
use crate::plan::{AnswerBody, AnswerSpec};
use crate::throttle::{Quota, Refused, violated};
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
    pub(super) default: &'r AnswerSpec,
}

/// Answers a request that was refused.
pub(super) fn respond(answer: &mut Answer, refusal: &Refusal<'_>, asked: &Asked<'_>) {
    match refusal {
        Refusal::Limits(Refused::Throttled { retry_after, answer: spec }) => {
            let refusing = Refusing { quotas: asked.quotas, retry_after: *retry_after };
            throttled(answer, spec, &refusing, asked);
        }
        Refusal::Method(allowed) => not_allowed(answer, allowed),
        _ => {
            let (status, detail) = explain(refusal);
            problem(answer, status, &detail);
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

/// What the limits that refuse say together.
struct Refusing<'r> {
    quotas: &'r [Quota<'r>],
    retry_after: Option<Duration>,
}

/// The answer to a throttled client: plain HTTP or gRPC, with the same fields.
fn throttled(answer: &mut Answer, spec: &AnswerSpec, refusing: &Refusing<'_>, asked: &Asked<'_>) {
    let (status, kind, body) = match (asked.protocol, &spec.body) {
        (Protocol::Grpc, _) => (StatusCode::OK, Some(GRPC), Bytes::new()),
        (Protocol::Http, AnswerBody::Problem) => {
            (spec.status, Some(PROBLEM_JSON), quota_exceeded(spec.status, refusing).into())
        }
        (Protocol::Http, AnswerBody::Text) => (spec.status, Some(TEXT), say(refusing).into()),
        (Protocol::Http, AnswerBody::Empty) => (spec.status, None, Bytes::new()),
        (Protocol::Http, AnswerBody::Custom(body)) => (spec.status, Some(TEXT), body.clone()),
    };
    answer.begin(status, body);
    let fields = &mut answer.fields;
    if let Some(kind) = kind {
        fields.append(&CONTENT_TYPE, &kind);
    }
    if asked.protocol == Protocol::Grpc {
        fields.append(&GRPC_STATUS, &GRPC_EXHAUSTED);
        fields.append(&GRPC_MESSAGE, &HeaderValue::from_static("rate limit exceeded"));
    }
    if let (true, Some(wait)) = (spec.retry_after, refusing.retry_after) {
        quotas::write_retry_after(fields, wait);
    }
    quotas::write_quotas(fields, refusing.quotas, asked.default, refusing.retry_after);
}

fn quota_exceeded(status: StatusCode, refusing: &Refusing<'_>) -> String {
    const NEVER: &str = r#","detail":"no such request will ever be let through""#;
    let detail = if refusing.retry_after.is_some() { "" } else { NEVER };
    // Piece by piece, because a crowd that is rejected must cost little, and the formatting
    // machinery costs ten times as much. Names need no escapes.
    let pieces = [
        r#"{"type":""#,
        QUOTA_EXCEEDED,
        r#"","title":""#,
        QUOTA_EXCEEDED_TITLE,
        r#"","status":"#,
        status.as_str(),
        detail,
        r#","violated-policies":["#,
    ];
    let names = violated(refusing.quotas).map(|name| name.as_str().len() + 3).sum::<usize>();
    // Exactly its length, so that it becomes the body's bytes as it is.
    let length = pieces.iter().map(|piece| piece.len()).sum::<usize>() + names.max(1) - 1 + 2;
    let mut body = String::with_capacity(length);
    for piece in pieces {
        body.push_str(piece);
    }
    for (place, name) in violated(refusing.quotas).enumerate() {
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

fn say(refusing: &Refusing<'_>) -> String {
    match refusing.retry_after {
        Some(wait) => format!("too many requests, try again in {}\n", Seconds(wait)),
        None => "no such request will ever be let through\n".to_owned(),
    }
}

struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64().ceil().max(1.0))
    }
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
