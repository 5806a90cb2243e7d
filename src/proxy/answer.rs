//! The answers that tidegate composes itself. [`respond`] is the only place that turns a refusal into an
//! answer.

use http::header::{ALLOW, CACHE_CONTROL, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, Method, StatusCode};

use super::active::Active;
use super::headers::change;
use super::headers::quotas::write_quotas;
use super::protocol::{ProblemType, Protocol};
use super::refusal::{Meaning, Refusal};
use super::rejection::RejectionContent;
use super::response::{NO_STORE, OwnResponse, own, trailers_only};
use crate::decide::BadCall;
use crate::limit::decision::whole_seconds;
use crate::plan::RouteSpec;
use crate::request::key::{KeyError, TokenFault};
use crate::throttle::{Quota, Refused};
use crate::upstream::UpstreamError;

/// The challenge for a client whose token does not verify (RFC 6750, 3).
const INVALID_TOKEN: HeaderValue = HeaderValue::from_static("Bearer error=\"invalid_token\"");
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// Answers a request that was refused. `quotas` is what the limits say to the client. The route is `None` if
/// it is not known.
pub(super) fn respond(
    refusal: &Refusal<'_>,
    quotas: &[Quota<'_>],
    active: &Active,
    protocol: Protocol,
    route: Option<&RouteSpec>,
) -> OwnResponse {
    let default = &active.plan.reject;
    let mut answer = match refusal {
        Refusal::Limits(Refused::Throttled { retry_after, answer: spec, .. }) => {
            let content = RejectionContent::new(protocol, spec, default, *retry_after, quotas);
            active.rejections.answer(&content)
        }
        _ => {
            let Meaning { status, grpc, detail } = refusal.meaning();
            let mut answer = match protocol {
                Protocol::Http(kind) => problem(kind, status, &detail),
                Protocol::Grpc(kind) => trailers_only(kind, grpc, &detail),
            };
            match refusal {
                Refusal::Method(allowed) if matches!(protocol, Protocol::Http(_)) => {
                    allow(&mut answer, allowed);
                }
                Refusal::Limits(Refused::Key { error, .. }) => {
                    answer.headers_mut().extend(credentials(error));
                }
                Refusal::Call(BadCall::Method) => allow(&mut answer, &[Method::POST]),
                Refusal::Call(BadCall::Token) => {
                    answer.headers_mut().insert(WWW_AUTHENTICATE, BEARER);
                }
                Refusal::Upstream(UpstreamError::Paused(left)) => {
                    let seconds = whole_seconds(*left);
                    answer.headers_mut().insert(RETRY_AFTER, seconds.into());
                }
                _ => {}
            }
            if !matches!(refusal, Refusal::Limits(_)) {
                // If limits were asked, they let the request pass. Its tokens are spent, so the answer says how many
                // are left.
                write_quotas(answer.headers_mut(), quotas, default, None);
            }
            answer
        }
    };
    if let Some(changes) = route.and_then(|route| route.options().response.as_ref()) {
        change(answer.headers_mut(), changes);
        // A route may let caches keep the answers of its API, but never an error.
        answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    }
    answer
}

/// The field that says what a client with these credentials has to do (RFC 6750, 3).
fn credentials(error: &KeyError) -> Option<(HeaderName, HeaderValue)> {
    match error {
        error if error.is_without_keys() => Some((RETRY_AFTER, HeaderValue::from_static("1"))),
        KeyError::Token(TokenFault::TooMany) => Some((RETRY_AFTER, HeaderValue::from_static("1"))),
        KeyError::Token(_) => Some((WWW_AUTHENTICATE, INVALID_TOKEN)),
        KeyError::Unverified { fault, .. } => {
            let text = format!("Bearer error=\"invalid_token\", error_description=\"{fault}\"");
            Some((WWW_AUTHENTICATE, HeaderValue::try_from(text).unwrap_or(INVALID_TOKEN)))
        }
        error => error.asks_for_credentials().then_some((WWW_AUTHENTICATE, BEARER)),
    }
}

fn problem(kind: ProblemType, status: StatusCode, detail: &str) -> OwnResponse {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = format!(
        r#"{{"type":"about:blank","title":{},"status":{},"detail":{}}}"#,
        quoted(title),
        status.as_u16(),
        quoted(detail)
    );
    own(status, Some(kind.media_type()), body)
}

/// Names the methods for which there is a route.
fn allow(answer: &mut OwnResponse, allowed: &[Method]) {
    let methods: Vec<_> = allowed.iter().map(Method::as_str).collect();
    if let Ok(value) = HeaderValue::from_str(&methods.join(", ")) {
        answer.headers_mut().insert(ALLOW, value);
    }
}

/// A JSON string.
fn quoted(text: &str) -> serde_json::Value {
    text.into()
}
