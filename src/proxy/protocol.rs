//! Which protocol a request speaks. The protocol decides what a refusal looks like.

use http::header::{CONTENT_TYPE, HeaderMap};

use super::headers::Seen;

/// The protocol of a request: plain HTTP, or gRPC over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Grpc,
}

/// The protocol of a request with these headers.
pub(super) fn protocol(asked: &HeaderMap, seen: Seen) -> Protocol {
    let kind = if seen.has(Seen::TYPE) { asked.get(CONTENT_TYPE) } else { None };
    match kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        true => Protocol::Grpc,
        false => Protocol::Http,
    }
}
