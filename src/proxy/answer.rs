//! The answers that tidegate composes itself. [`respond`] is the only place that turns a refusal into an
//! answer.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode};

use super::body::ResponseBody;
use super::grpc;
use super::headers::Seen;
use super::headers::quotas::{whole_seconds, write_quotas};
use super::refusal::Refusal;
use super::rejection::{RejectionContent, Rejections};
use crate::plan::AnswerSpec;
use crate::request::method::MethodCase;
use crate::throttle::{Quota, Refused};
use crate::upstream::UpstreamError;
use crate::upstream::body::BodyFault;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
pub(super) const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A response to a client.
pub(super) type Answer = Response<Box<ResponseBody>>;

/// An answer that tidegate composes itself. `kind` is the media type of its body.
pub(super) fn own(status: StatusCode, kind: Option<HeaderValue>, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(ResponseBody::whole(body));
    *answer.status_mut() = status;
    if let Some(kind) = kind {
        answer.headers_mut().insert(CONTENT_TYPE, kind);
    }
    answer
}

/// Ends an HTTP/1.1 connection with this answer.
pub(super) fn close(answer: &mut Answer) {
    answer.headers_mut().insert(CONNECTION, CLOSE);
}

/// Removes the body of an answer that must not have one: an answer to HEAD, or with status 204 or 304.
/// hyper does this over HTTP/1.1 only. An answer to HEAD still says in `content-length` how long the body
/// would be.
pub(super) fn withhold_body(answer: &mut Answer, method: &Method) {
    let bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&answer.status());
    if !bodiless && *method != Method::HEAD {
        return;
    }
    let length = answer.body_mut().withhold();
    if let (Some(length @ 1..), false) = (length, bodiless) {
        answer.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
}

/// What is known of a request that was refused.
pub(super) struct RefusedRequest<'r> {
    pub(super) protocol: Protocol,
    /// What the limits say to the client.
    pub(super) quotas: &'r [Quota<'r>],
    /// The file's answer to a throttled client.
    pub(super) default: &'r Arc<AnswerSpec>,
    /// The cache of answers to throttled clients.
    pub(super) rejections: &'r Rejections,
}

/// Answers a request that was refused.
pub(super) fn respond(refusal: &Refusal<'_>, asked: &RefusedRequest<'_>) -> Answer {
    match refusal {
        Refusal::Limits(Refused::Throttled { retry_after, answer: spec, .. }) => {
            let retry_after = retry_after.map(whole_seconds);
            let RefusedRequest { protocol, quotas, default, rejections } = *asked;
            rejections.answer(&RejectionContent { protocol, spec, default, retry_after, quotas })
        }
        Refusal::Method(allowed) if asked.protocol == Protocol::Http => not_allowed(allowed),
        _ => {
            let (status, detail) = explain(refusal);
            let mut answer = match asked.protocol {
                Protocol::Http => problem(status, &detail),
                Protocol::Grpc => grpc::trailers_only(grpc::Status::of(refusal), &detail),
            };
            if !matches!(refusal, Refusal::Limits(_)) {
                // If limits were asked, the request has passed them. Its tokens are spent, so the client is
                // told how many are left.
                write_quotas(answer.headers_mut(), asked.quotas, asked.default, None);
            }
            answer
        }
    }
}

/// Status and text of a refusal. The text does not say what failed upstream: that is for the log only.
fn explain(refusal: &Refusal<'_>) -> (StatusCode, String) {
    let bad = |why: &dyn Display| (StatusCode::BAD_REQUEST, why.to_string());
    match refusal {
        Refusal::Host(error) => bad(error),
        Refusal::Path(error) => bad(error),
        Refusal::TransferCoding => bad(&"the only transfer coding taken here is chunked"),
        Refusal::Length => bad(&"content-length must be a whole number"),
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
        Refusal::Deadline => {
            (StatusCode::GATEWAY_TIMEOUT, "no answer before the call's deadline".to_owned())
        }
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
    own(status, Some(PROBLEM_JSON), body)
}

/// 405 with the methods for which there is a route.
fn not_allowed(allowed: &[Method]) -> Answer {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, "no route for this method");
    let methods: Vec<_> = allowed.iter().map(Method::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&methods.join(", ")) {
        answer.headers_mut().insert(ALLOW, value);
    }
    answer
}

/// A JSON string.
fn quoted(text: &str) -> serde_json::Value {
    text.into()
}

/// The protocol of a request: plain HTTP, or gRPC over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc,
}

/// The protocol of a request with these headers.
pub(super) fn protocol(asked: &HeaderMap, seen: Seen) -> Protocol {
    let kind = if seen.has(Seen::TYPE) { asked.get(CONTENT_TYPE) } else { None };
    match kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        true => Protocol::Grpc,
        false => Protocol::Http,
    }
}
