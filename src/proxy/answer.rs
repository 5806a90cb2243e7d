//! The answers that tidegate composes itself. [`respond`] is the only place that turns a refusal into an
//! answer.

use std::fmt::Display;
use std::sync::Arc;

use http::header::{ALLOW, HeaderValue};
use http::{Method, StatusCode};

use super::grpc;
use super::headers::quotas::{whole_seconds, write_quotas};
use super::protocol::Protocol;
use super::refusal::{Refusal, client_gone};
use super::rejection::{RejectionContent, Rejections};
use super::response::{OwnResponse, PROBLEM_JSON, own, trailers_only};
use crate::plan::AnswerSpec;
use crate::request::method::MethodCase;
use crate::throttle::{Quota, Refused};
use crate::upstream::UpstreamError;
use crate::upstream::body::BodyFault;

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
pub(super) fn respond(refusal: &Refusal<'_>, asked: &RefusedRequest<'_>) -> OwnResponse {
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
                Protocol::Grpc => trailers_only(grpc::Status::of(refusal), &detail),
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
        Refusal::ClientLeft => (client_gone(), "the client has left".to_owned()),
        Refusal::Method(_) => {
            (StatusCode::METHOD_NOT_ALLOWED, "no route for this method".to_owned())
        }
    }
}

fn problem(status: StatusCode, detail: &str) -> OwnResponse {
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
fn not_allowed(allowed: &[Method]) -> OwnResponse {
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
