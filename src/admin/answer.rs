//! The answers of the endpoint: texts, JSON, and problems in JSON (RFC 9457).

use std::convert::Infallible;

use http::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};

/// A whole body, or the events of a stream.
pub(super) type AdminBody = UnsyncBoxBody<Bytes, Infallible>;

pub(super) type AdminResponse = Response<AdminBody>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> AdminResponse {
    answer(status, TEXT, body.into())
}

pub(super) fn json(value: &Value) -> AdminResponse {
    answer(StatusCode::OK, JSON, format!("{value}\n").into())
}

/// The answer to a request that was carried out. It has no content.
pub(super) fn done() -> AdminResponse {
    let mut answer = Response::new(whole(Bytes::new()));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// An error. `detail` speaks to the operator.
pub(super) fn problem(status: StatusCode, detail: &str) -> AdminResponse {
    let title = status.canonical_reason().unwrap_or("Error");
    let problem = json!({
        "type": "about:blank",
        "title": title,
        "status": status.as_u16(),
        "detail": detail,
    });
    answer(status, PROBLEM, format!("{problem}\n").into())
}

/// What `read` answers to GET and HEAD. The path has no other methods.
pub(super) fn read_only(method: &Method, read: impl FnOnce() -> AdminResponse) -> AdminResponse {
    match *method {
        Method::GET | Method::HEAD => read(),
        _ => only("GET, HEAD"),
    }
}

/// The path has only these methods.
pub(super) fn only(methods: &'static str) -> AdminResponse {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, &format!("only {methods}"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

/// An answer with a body of this media type.
pub(super) fn answer(status: StatusCode, kind: HeaderValue, body: Bytes) -> AdminResponse {
    let mut answer = Response::new(whole(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn whole(body: Bytes) -> AdminBody {
    Full::new(body).boxed_unsync()
}
