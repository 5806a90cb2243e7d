//! Who may ask the endpoint: a token, and the rules against pages of other sites in an operator's browser.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Method, Request, StatusCode, Uri};

use super::answer::{AdminResponse, problem};
use crate::request::credentials::{bearer, is_secret};
use crate::request::site::{is_local, is_of_another_site};

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

/// Whether the request has the token.
fn holds(headers: &HeaderMap, token: &str) -> bool {
    bearer(headers).is_some_and(|given| is_secret(given.as_bytes(), token))
}

#[cfg(test)]
mod tests {
    use super::*;

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
