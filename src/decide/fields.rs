//! The forms that have the request in header fields of the call: `/auth-request` and `/forward-auth`. And the head of a
//! request whose parts are in the body of a call.

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Uri, request};

use super::BadCall;
use crate::request::target::encoded;

/// The fields that have the parts of a request.
pub(super) struct FieldNames {
    method: &'static str,
    uri: &'static str,
    /// `None` is `host` itself.
    host: Option<&'static str>,
}

pub(super) const NGINX: FieldNames =
    FieldNames { method: "x-original-method", uri: "x-original-uri", host: None };

/// Caddy uses the same.
pub(super) const TRAEFIK: FieldNames = FieldNames {
    method: "x-forwarded-method",
    uri: "x-forwarded-uri",
    host: Some("x-forwarded-host"),
};

/// Makes `head` that of the request that the call asks about. Its other fields, and those that name the client, stay.
///
/// # Errors
/// Where a field is missing, comes twice or cannot be read.
pub(super) fn read(names: &FieldNames, head: &mut request::Parts) -> Result<(), BadCall> {
    let FieldNames { method, uri, host } = *names;
    let headers = &head.headers;
    let asked_method = Method::from_bytes(one(headers, method)?.as_bytes())
        .map_err(|_| BadCall::Unreadable(method))?;
    let target = target(one(headers, uri)?.as_bytes()).ok_or(BadCall::Unreadable(uri))?;
    let asked_host = match host {
        Some(name) => one(headers, name)?.clone(),
        // Over HTTP/2 the host may stand in `:authority`.
        None => {
            let authority = head.uri.authority();
            let authority = authority.and_then(|it| HeaderValue::from_str(it.as_str()).ok());
            headers.get(HOST).cloned().or(authority).ok_or(BadCall::Missing("host"))?
        }
    };
    for name in [method, uri] {
        head.headers.remove(name);
    }
    // A second `host` stays, and is refused as in any request.
    if host.is_some() || !head.headers.contains_key(HOST) {
        head.headers.insert(HOST, asked_host);
    }
    (head.method, head.uri) = (asked_method, target);
    Ok(())
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

/// The most different fields of a request in a body. There is room in the map for those that are added on its way.
pub(super) const MOST: usize = 1_000;

/// The head of a request that has these parts, and why the request is to be refused. Code that asks about no host has
/// routes without one. Clients write paths, and none must get past its limits, or spoil a call about others, by one that
/// cannot be read. So the call goes on.
///
/// # Errors
/// Where another part cannot be read.
pub(super) fn head(
    method: Option<&[u8]>,
    path: Option<&[u8]>,
    host: Option<&[u8]>,
    headers: HeaderMap,
) -> Result<(request::Parts, Option<BadCall>), BadCall> {
    if headers.keys_len() > MOST {
        return Err(BadCall::TooManyFields);
    }
    let (mut head, ()) = Request::new(()).into_parts();
    let target = path.map_or_else(|| Some(Uri::default()), target);
    let fault = target.is_none().then_some(BadCall::Unreadable("path"));
    (head.uri, head.headers) = (target.unwrap_or_default(), headers);
    if let Some(method) = method {
        head.method = Method::from_bytes(method).map_err(|_| BadCall::Unreadable("method"))?;
    }
    if let Some(host) = host {
        let host = HeaderValue::from_bytes(host).map_err(|_| BadCall::Unreadable("host"))?;
        head.headers.insert(HOST, host);
    } else if !head.headers.contains_key(HOST) {
        head.headers.insert(HOST, HeaderValue::from_static("localhost"));
    }
    Ok((head, fault))
}

/// A request's target. `None` where it is neither a path nor a whole URI, nor the `*` of OPTIONS.
fn target(text: &[u8]) -> Option<Uri> {
    let target = Uri::try_from(encoded(text)).ok()?;
    (target.authority().is_none() || target.scheme().is_some()).then_some(target)
}
