//! Which protocol a request speaks. The protocol decides what a refusal looks like.

use http::header::{CONTENT_TYPE, HeaderMap};

use super::headers::Seen;

/// The protocol of a request: plain HTTP, or gRPC over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc(GrpcKind),
}

/// The kinds of gRPC. All have the same answer without messages, each with a type of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcKind {
    /// gRPC over HTTP/2.
    Native,
    /// gRPC-Web, which browsers speak.
    Web,
    /// gRPC-Web in base64.
    WebText,
}

/// The protocol of a request with these headers.
pub(super) fn protocol(asked: &HeaderMap, seen: Seen) -> Protocol {
    let kind = if seen.has(Seen::TYPE) { asked.get(CONTENT_TYPE) } else { None };
    match kind.and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc")) {
        None => Protocol::Http,
        Some(rest) if rest.starts_with(b"-web-text") => Protocol::Grpc(GrpcKind::WebText),
        Some(rest) if rest.starts_with(b"-web") => Protocol::Grpc(GrpcKind::Web),
        Some(_) => Protocol::Grpc(GrpcKind::Native),
    }
}
