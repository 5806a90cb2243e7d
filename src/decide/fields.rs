//! The forms that have the request in header fields of the call: `/auth-request` and `/forward-auth`. And the head of a
//! request whose parts are in the body of a call.

use std::mem;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING,
};
use http::{Method, Request, Response, StatusCode, Uri, request};

use super::form::{BadCall, Form, MOST_FIELDS};
use super::{Asked, DecidedRequest, Question};
use crate::request::target::encoded;

/// The status of a refused request, in an answer whose own status cannot say it.
const STATUS: HeaderName = HeaderName::from_static("x-tidegate-status");

/// The ID of a rejection.
const ID: HeaderName = HeaderName::from_static("x-tidegate-id");

/// What the parts of a request are called.
pub(super) struct PartNames {
    method: &'static str,
    path: &'static str,
    host: &'static str,
}

const OF_NGINX: PartNames =
    PartNames { method: "x-original-method", path: "x-original-uri", host: "host" };

/// Caddy uses the same.
const OF_TRAEFIK: PartNames =
    PartNames { method: "x-forwarded-method", path: "x-forwarded-uri", host: "x-forwarded-host" };

pub(super) const OF_BODY: PartNames = PartNames { method: "method", path: "path", host: "host" };

/// What a call of this form asks. `call` is its head. The fields go to the request.
///
/// # Errors
/// Where a field is missing, comes twice or cannot be read.
pub(super) fn question(form: Form, call: &mut request::Parts) -> Result<Asked, BadCall> {
    let mut headers = mem::take(&mut call.headers);
    let names = match form {
        Form::ForwardAuth => OF_TRAEFIK,
        _ => OF_NGINX,
    };
    let method = one(&headers, names.method)?.clone();
    let path = one(&headers, names.path)?.clone();
    // Over HTTP/2 the host may stand in `:authority`.
    let authority = call.uri.authority().filter(|_| !headers.contains_key(HOST));
    if let Some(Ok(host)) = authority.map(|it| HeaderValue::from_str(it.as_str())) {
        headers.insert(HOST, host);
    }
    let host = match form {
        Form::ForwardAuth => Some(one(&headers, names.host)?.clone()),
        _ if !headers.contains_key(HOST) => return Err(BadCall::Missing(names.host)),
        // A second one stays, and is refused as in any request.
        _ => None,
    };
    // The length and the coding are those of the call. The request's body is not here.
    for name in [names.method, names.path, CONTENT_LENGTH.as_str(), TRANSFER_ENCODING.as_str()] {
        headers.remove(name);
    }
    let (method, host) = (Some(method.as_bytes()), host.as_ref().map(HeaderValue::as_bytes));
    match head(&names, method, Some(path.as_bytes()), host, headers) {
        // Proxies pass a `#` on. It is the client's, and is refused as an ambiguous path is.
        (head, fault @ Some(_)) if path.as_bytes().contains(&b'#') => {
            Ok((head, Question { fault, ..Question::default() }))
        }
        (_, Some(fault)) => Err(fault),
        (head, None) => Ok((head, Question::default())),
    }
}

/// The value of a field that must come once. If it comes twice, nobody can tell which value the proxy wrote.
fn one<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<&'h HeaderValue, BadCall> {
    let mut values = headers.get_all(HeaderName::from_static(name)).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(BadCall::Missing(name)),
        (Some(_), Some(_)) => Err(BadCall::Twice(name)),
        (Some(value), None) => Ok(value),
    }
}

/// The answer to a call of this form: the one for the client, as it is, but for nginx. That takes each other status
/// than 403 for a failure, and reads no body.
pub(super) fn answer(form: Form, decided: DecidedRequest<'_>) -> Response<Bytes> {
    let mut answer = decided.answer;
    if form == Form::AuthRequest && decided.refused.is_some() {
        let status = answer.status().as_u16();
        answer.headers_mut().insert(STATUS, status.into());
        let id = decided.rejection.map(|(id, _)| HeaderValue::try_from(id.to_string()));
        answer.headers_mut().extend(id.transpose().ok().flatten().map(|id| (ID, id)));
        answer.headers_mut().remove(CONTENT_TYPE);
        *answer.status_mut() = StatusCode::FORBIDDEN;
        answer = answer.map(|_| Bytes::new());
    }
    answer
}

/// The head of a request that has these parts, and why the request is to be refused. Without a host the request matches
/// routes that name no host.
///
/// A part that cannot be read is the client's fault. Then this request is refused, and the call goes on: it may ask
/// about other requests.
pub(super) fn head(
    names: &PartNames,
    method: Option<&[u8]>,
    path: Option<&[u8]>,
    host: Option<&[u8]>,
    mut headers: HeaderMap,
) -> (request::Parts, Option<BadCall>) {
    let has_too_many = headers.keys_len() > MOST_FIELDS;
    if has_too_many {
        headers.clear();
    }
    let (mut head, ()) = Request::new(()).into_parts();
    let target = path.map_or_else(|| Some(Uri::default()), target);
    let host = host.map(HeaderValue::from_bytes).transpose();
    let method = method.map(Method::from_bytes).transpose();
    let fault = match (&target, &host, &method) {
        (None, _, _) => Some(BadCall::Unreadable(names.path)),
        (_, Err(_), _) => Some(BadCall::Unreadable(names.host)),
        (_, _, Err(_)) => Some(BadCall::Unreadable(names.method)),
        _ if has_too_many => Some(BadCall::TooManyFields),
        _ => None,
    };
    (head.uri, head.headers) = (target.unwrap_or_default(), headers);
    // It is of another connection. The API may get the fields that it names.
    head.headers.remove(CONNECTION);
    if let Ok(Some(method)) = method {
        head.method = method;
    }
    if let Ok(Some(host)) = host {
        head.headers.insert(HOST, host);
    } else if !head.headers.contains_key(HOST) {
        head.headers.insert(HOST, HeaderValue::from_static("localhost"));
    }
    (head, fault)
}

/// A request's target. `None` where it is neither a path nor a whole URI, nor the `*` of OPTIONS.
fn target(text: &[u8]) -> Option<Uri> {
    let target = Uri::try_from(encoded(text)).ok()?;
    (target.authority().is_none() || target.scheme().is_some()).then_some(target)
}
