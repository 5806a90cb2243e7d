//! The parts of responses that tidegate composes itself. `answer` and `rejection` put them together.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode, Version};

use super::grpc;
use super::protocol::GrpcKind;

const CLOSE: HeaderValue = HeaderValue::from_static("close");
pub(crate) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// A response that tidegate composes itself, with its whole body.
pub(crate) type OwnResponse = Response<Bytes>;

/// A response with this status and body. `kind` is the media type of the body.
///
/// No cache may keep it: it was made for one moment and one client, and the next one would get it from the cache.
pub(crate) fn own(
    status: StatusCode,
    kind: Option<HeaderValue>,
    body: impl Into<Bytes>,
) -> OwnResponse {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    if let Some(kind) = kind {
        answer.headers_mut().insert(CONTENT_TYPE, kind);
    }
    answer
}

/// Ends an HTTP/1 connection with this response. `version` is the request's.
pub(crate) fn close<B>(answer: &mut Response<B>, version: Version) {
    // An answer that names protocols in `upgrade` has a `connection` already.
    answer.headers_mut().append(CONNECTION, CLOSE);
    if version < Version::HTTP_11 {
        // hyper tells an HTTP/1.0 client of a later answer that the connection is kept as well.
        *answer.version_mut() = version;
    }
}

/// An answer without messages (Trailers-Only): status and message are fields of the head.
pub(crate) fn trailers_only(kind: GrpcKind, status: grpc::Status, message: &str) -> OwnResponse {
    let mut answer = own(StatusCode::OK, Some(kind.media_type()), Bytes::new());
    answer.headers_mut().extend(grpc::trailers(status, message));
    answer
}
