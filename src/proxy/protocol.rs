//! Which protocol a request speaks. The protocol decides what a refusal looks like.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::reading::Seen;

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

impl GrpcKind {
    /// The type of an answer to a call of this kind. A gRPC-Web client may take no other kind
    /// (`PROTOCOL-WEB.md` of grpc/grpc). These are the types that Envoy answers with.
    pub(super) fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Native => "application/grpc",
            Self::Web => "application/grpc-web+proto",
            Self::WebText => "application/grpc-web-text+proto",
        })
    }
}

/// The protocol of a request with these headers.
pub(super) fn protocol(asked: &HeaderMap, seen: Seen) -> Protocol {
    let kind = if seen.has(Seen::TYPE) { asked.get(CONTENT_TYPE) } else { None };
    let Some(kind) = kind.map(HeaderValue::as_bytes) else { return Protocol::Http };
    // Upper and lower case are alike in media types (RFC 9110, 8.3.1).
    let begins =
        |begin: &[u8]| kind.get(..begin.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(begin));
    if !begins(b"application/grpc") {
        Protocol::Http
    } else if begins(b"application/grpc-web-text") {
        Protocol::Grpc(GrpcKind::WebText)
    } else if begins(b"application/grpc-web") {
        Protocol::Grpc(GrpcKind::Web)
    } else {
        Protocol::Grpc(GrpcKind::Native)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_names_the_protocol_in_any_case() {
        use GrpcKind::{Native, Web, WebText};
        for (kind, spoken) in [
            ("application/grpc", Protocol::Grpc(Native)),
            ("application/grpc+proto", Protocol::Grpc(Native)),
            ("Application/GRPC+proto", Protocol::Grpc(Native)),
            ("application/grpc-web+proto", Protocol::Grpc(Web)),
            ("application/gRPC-Web", Protocol::Grpc(Web)),
            ("APPLICATION/GRPC-WEB-TEXT", Protocol::Grpc(WebText)),
            ("application/grp", Protocol::Http),
            ("application/json", Protocol::Http),
            ("", Protocol::Http),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            assert_eq!(protocol(&headers, Seen::of(&headers)), spoken, "{kind}");
        }
        assert_eq!(protocol(&HeaderMap::new(), Seen::default()), Protocol::Http);
    }
}
