//! Who may ask the endpoint: a token, and the rules against pages of other sites in an operator's browser.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, HeaderValue, ORIGIN,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, StatusCode, Uri};

use super::answer::{AdminResponse, problem};
use crate::request::credentials::{bearer, is_secret};

/// In this field a browser says whether the page that sends a request is from the same site (Fetch Metadata Request
/// Headers, section 2.3).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Fields of every answer. An answer that has such a field already keeps it. No field allows cross-origin requests
/// (CORS): no page of another site may read an answer.
const FIELDS: [(HeaderName, HeaderValue); 4] = [
    // Old figures mislead.
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    ),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
];

/// The scheme by which a request must show the token.
pub(super) const BEARER: HeaderValue = HeaderValue::from_static("Bearer");

/// Refuses a request that has no right to an answer. `token` is `admin.token`.
pub(super) fn refuse<B>(request: &Request<B>, token: Option<&str>) -> Option<AdminResponse> {
    match token {
        None if !is_local(request.headers(), request.uri()) => Some(problem(
            StatusCode::FORBIDDEN,
            "the host must be an IP address or localhost, unless admin.token is set",
        )),
        Some(token) if !is_open(request.uri()) && !holds(request.headers(), token) => {
            let detail = match request.headers().contains_key(AUTHORIZATION) {
                true => "the token that was sent is not admin.token",
                false => "a bearer token is needed: `authorization: Bearer` and admin.token",
            };
            let mut refused = problem(StatusCode::UNAUTHORIZED, detail);
            refused.headers_mut().insert(WWW_AUTHENTICATE, BEARER);
            Some(refused)
        }
        _ if changes(request.method()) && is_of_another_site(request.headers(), request.uri()) => {
            let why = "a page of another site may change nothing here";
            Some(problem(StatusCode::FORBIDDEN, why))
        }
        _ => None,
    }
}

/// Whether this path needs no token.
pub(super) fn is_open(uri: &Uri) -> bool {
    matches!(uri.path(), "/healthz" | "/readyz")
}

/// Adds the fields that keep a browser from using an answer for something else.
pub(super) fn protect(answer: &mut AdminResponse) {
    for (name, value) in FIELDS {
        answer.headers_mut().entry(name).or_insert(value);
    }
}

fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Whether a browser says that a page of another site sends the request. Programs other than browsers send
/// none of these fields.
fn is_of_another_site(headers: &HeaderMap, uri: &Uri) -> bool {
    let site = headers.get_all(SEC_FETCH_SITE).iter();
    if site.into_iter().any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        return true;
    }
    let own = authority(headers, uri);
    headers.get_all(ORIGIN).iter().any(|origin| {
        // The scheme is not compared: a proxy in front of the endpoint may speak TLS.
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let named = origin.and_then(|(_, named)| named.parse::<Authority>().ok());
        named.is_none() || named != own
    })
}

/// The host that the request is sent to, with its port.
fn authority(headers: &HeaderMap, uri: &Uri) -> Option<Authority> {
    let host = || Authority::try_from(headers.get(HOST)?.as_bytes()).ok();
    uri.authority().cloned().or_else(host)
}

/// Whether the request's host is an address or localhost. This prevents DNS rebinding: a page in a browser
/// could reach the endpoint only by the page's own host name, if that name resolves to loopback.
fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    if headers.get_all(HOST).iter().count() > 1 {
        return false;
    }
    let Some(authority) = authority(headers, uri) else { return false };
    let name = authority.host();
    name.eq_ignore_ascii_case("localhost")
        || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// Whether the request has the token.
fn holds(headers: &HeaderMap, token: &str) -> bool {
    bearer(headers).is_some_and(|given| is_secret(given.as_bytes(), token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        is_local(&headers, &Uri::from_static("/metrics"))
    }

    #[test]
    fn only_addresses_and_localhost_are_local() {
        for host in ["127.0.0.1", "127.0.0.1:9", "localhost", "LOCALHOST:80", "[::1]:9", "[::1]"] {
            assert!(local(host), "{host}");
        }
        for host in ["evil.example", "evil.example:9", "127.0.0.1.evil.example", "localhost.x", ""]
        {
            assert!(!local(host), "{host}");
        }
        assert!(!is_local(&HeaderMap::new(), &Uri::from_static("/metrics")));
        let mut two = HeaderMap::new();
        two.append(HOST, HeaderValue::from_static("127.0.0.1"));
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!is_local(&two, &Uri::from_static("/metrics")));
    }

    #[test]
    fn a_token_is_held_whole_or_not() {
        let mut headers = HeaderMap::new();
        assert!(!holds(&headers, "secret"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("bearer secret"));
        assert!(holds(&headers, "secret"));
        assert!(!holds(&headers, "secre"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic secret"));
        assert!(!holds(&headers, "secret"));
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let status = |method: Method, fields: &[(&str, &str)]| {
            let mut request = Request::builder().method(method).uri("/api/limits/a/keys/b");
            request = request.header("host", "localhost:9");
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            refuse(&request.body(()).unwrap(), None).map(|refused| refused.status().as_u16())
        };
        for fields in [
            &[][..],
            &[("origin", "http://localhost:9")],
            &[("origin", "https://LOCALHOST:9"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
        ] {
            assert_eq!(status(Method::PUT, fields), None, "{fields:?}");
        }
        for fields in [
            &[("origin", "http://localhost:8")][..],
            &[("origin", "http://evil.example")],
            &[("origin", "null")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
            &[("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")],
        ] {
            assert_eq!(status(Method::DELETE, fields), Some(403), "{fields:?}");
            assert_eq!(status(Method::GET, fields), None, "{fields:?}");
        }
    }
}
