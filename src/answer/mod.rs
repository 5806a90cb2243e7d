//! What tidegate says by itself: the answers to requests that are refused, and the fields about limits.
//!
//! A [`Refusal`] is the reason why tidegate answers in place of the API. `refusal` says what each reason means.
//! [`Answers::respond`] is the only place that turns a refusal into a response. `rejection` writes the responses to
//! throttled clients, and `quotas` writes the `ratelimit` fields. `cors` lets pages of other origins read the answers.
//! `protocol` and `grpc` know the form of an answer in each protocol.

pub(crate) mod cors;
pub(crate) mod grpc;
pub(crate) mod protocol;
mod quotas;
pub(crate) mod refusal;
mod rejection;
pub(crate) mod response;

use std::sync::Arc;

use http::header::{ALLOW, CACHE_CONTROL, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, Method, StatusCode};
use uuid::Uuid;

use self::protocol::{ProblemType, Protocol};
use self::quotas::{QuotaFields, write_quotas};
use self::refusal::{Meaning, Refusal};
use self::rejection::{GRPC_RETRY_PUSHBACK_MS, RejectionContent, Rejections};
use self::response::{NO_STORE, OwnResponse, own, trailers_only};
use crate::limit::decision::{whole_milliseconds, whole_seconds};
use crate::request::key::{KeyError, TokenFault};
use crate::settings::{RouteSpec, Settings};
use crate::throttle::{Quota, Refused, ToldRejection};
use crate::upstream::{QueueError, TIDEGATE_OVERLOAD, UpstreamError};

/// The challenge for a client whose token does not verify (RFC 6750, 3).
const INVALID_TOKEN: HeaderValue = HeaderValue::from_static("Bearer error=\"invalid_token\"");

/// The problem type of draft-ietf-httpapi-ratelimit-headers-11, section 5, and its title.
const REDUCED_CAPACITY: [&str; 2] = [
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    "Request cannot be satisfied due to temporary server capacity constraints",
];
pub(crate) const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// One worker's own answers under the same settings, with what is kept of them.
#[derive(Debug)]
pub(crate) struct Answers {
    settings: Arc<Settings>,
    rejections: Rejections,
    fields: QuotaFields,
}

impl Answers {
    /// Nothing was answered yet.
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self { settings, rejections: Rejections::new(), fields: QuotaFields::new() }
    }

    /// Writes the `ratelimit` fields for a request that passes. Returns the names of the fields that tidegate wrote.
    pub(crate) fn write_quotas(
        &self,
        headers: &mut HeaderMap,
        quotas: &[Quota<'_>],
    ) -> &'static [HeaderName] {
        if quotas.is_empty() {
            return &[];
        }
        self.fields.write(headers, quotas, &self.settings.reject)
    }

    /// The ID of a rejection, and what its answer says in words. `None` if no limit rejects the request.
    pub(crate) fn in_words(
        &self,
        refusal: &Refusal<'_>,
        quotas: &[Quota<'_>],
        protocol: Protocol,
    ) -> Option<(Uuid, String)> {
        let (content, id) = self.rejected(refusal, quotas, protocol)?;
        Some((id, content.detail()))
    }

    /// The content of the answer to a request that a limit rejects, and its ID.
    fn rejected<'r>(
        &'r self,
        refusal: &'r Refusal<'_>,
        quotas: &'r [Quota<'r>],
        protocol: Protocol,
    ) -> Option<(RejectionContent<'r>, Uuid)> {
        let Refusal::Limits(Refused::Throttled { answer, retry_after, rejection, .. }) = refusal
        else {
            return None;
        };
        let specs = [answer, &self.settings.reject];
        let ToldRejection { id, figures } = **rejection;
        Some((RejectionContent::new(protocol, specs, *retry_after, figures, quotas), id))
    }

    /// Answers a request that was refused. `quotas` is what the limits say to the client. The route is `None` if
    /// it is not known. `origin` is as in [`Self::open`].
    pub(crate) fn respond(
        &self,
        refusal: &Refusal<'_>,
        quotas: &[Quota<'_>],
        protocol: Protocol,
        route: Option<&RouteSpec>,
        origin: Option<&HeaderValue>,
    ) -> OwnResponse {
        let mut answer = match self.rejected(refusal, quotas, protocol) {
            Some((content, id)) => self.rejections.answer(&content, id),
            None => {
                let mut answer = explain(refusal, protocol);
                if !matches!(refusal, Refusal::Limits(_)) {
                    // If limits were asked, they let the request pass. Its tokens are spent, so the answer says how
                    // many are left.
                    write_quotas(answer.headers_mut(), quotas, &self.settings.reject, None);
                }
                answer
            }
        };
        if let Some(changes) = route.and_then(|route| route.options().response.as_ref()) {
            changes.apply(answer.headers_mut());
            // A route may let caches keep the answers of its API, but never an error.
            answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        }
        self.open(answer.headers_mut(), origin);
        answer
    }
}

/// The answer to a request that no limit rejects.
fn explain(refusal: &Refusal<'_>, protocol: Protocol) -> OwnResponse {
    let Meaning { status, grpc, detail } = refusal.meaning();
    let is_overload = matches!(refusal, Refusal::Overload(_));
    let title = status.canonical_reason().unwrap_or("Error");
    let of_type = if is_overload { REDUCED_CAPACITY } else { ["about:blank", title] };
    let mut answer = match protocol {
        Protocol::Http(kind) => problem(kind, of_type, status, &detail),
        Protocol::Grpc(kind) => trailers_only(kind, grpc, &detail),
    };
    let field = match refusal {
        Refusal::Method(allowed) if matches!(protocol, Protocol::Http(_)) => {
            listing(allowed).map(|methods| (ALLOW, methods))
        }
        Refusal::Limits(Refused::Key { error, .. }) => credentials(error),
        Refusal::Call(fault) => fault.field.clone(),
        Refusal::Upstream(UpstreamError::Paused(left)) => {
            Some((RETRY_AFTER, whole_seconds(*left).into()))
        }
        Refusal::Overload(QueueError { retry_after, .. }) => {
            answer.headers_mut().insert(TIDEGATE_OVERLOAD, HeaderValue::from_static("1"));
            if let Protocol::Grpc(_) = protocol {
                let wait = whole_milliseconds(*retry_after);
                answer.headers_mut().insert(GRPC_RETRY_PUSHBACK_MS, wait.into());
            }
            Some((RETRY_AFTER, whole_seconds(*retry_after).into()))
        }
        _ => None,
    };
    answer.headers_mut().extend(field);
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

fn problem(
    kind: ProblemType,
    [of_type, title]: [&str; 2],
    status: StatusCode,
    detail: &str,
) -> OwnResponse {
    let body = format!(
        r#"{{"type":{},"title":{},"status":{},"detail":{}}}"#,
        quoted(of_type),
        quoted(title),
        status.as_u16(),
        quoted(detail)
    );
    own(status, Some(kind.media_type()), body)
}

/// The methods as the value of a field.
fn listing(methods: &[Method]) -> Option<HeaderValue> {
    let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
    HeaderValue::from_str(&methods.join(", ")).ok()
}

/// A JSON string.
fn quoted(text: &str) -> serde_json::Value {
    text.into()
}
