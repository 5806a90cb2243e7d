//! A request's head, kept for a second try. The body is kept by `body`.

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request};

use super::body::RequestBody;

/// The first allocation in bytes: more than most heads need.
const ROOM: usize = 512;

/// The head of a request, as text in one piece of memory. To copy the header map would take
/// three times as long, and the copy is seldom used.
///
/// The text has a line each for the method, the target, and then the name and the value of each field. None
/// of these can contain a line break.
pub(super) struct KeptHead(Vec<u8>);

impl KeptHead {
    pub(super) fn of(request: &Request<RequestBody>) -> Self {
        let mut lines = Vec::with_capacity(ROOM);
        let mut push = |line: &[u8]| {
            lines.extend_from_slice(line);
            lines.push(b'\n');
        };
        push(request.method().as_str().as_bytes());
        push(request.uri().path_and_query().map_or("/", PathAndQuery::as_str).as_bytes());
        for (name, value) in request.headers() {
            push(name.as_str().as_bytes());
            push(value.as_bytes());
        }
        Self(lines)
    }

    /// The request again, with this body.
    pub(super) fn into_request(self, body: RequestBody) -> Option<Request<RequestBody>> {
        let mut lines = self.0.split(|byte| *byte == b'\n');
        let mut request = Request::new(body);
        *request.method_mut() = Method::from_bytes(lines.next()?).ok()?;
        *request.uri_mut() = PathAndQuery::try_from(lines.next()?).ok()?.into();
        while let (Some(name), Some(value)) = (lines.next(), lines.next()) {
            let (name, value) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
            request.headers_mut().append(name.ok()?, value.ok()?);
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use http::Uri;

    use super::*;

    #[test]
    fn a_head_is_the_same_again() {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = Method::DELETE;
        *request.uri_mut() = Uri::from_static("/a?b=:c");
        for (name, value) in [
            ("host", &b"a:8080"[..]),
            ("cookie", b"a=1"),
            ("cookie", b"b=2"),
            ("x-empty", b""),
            ("x-colons", b": :a:\t:"),
            ("x-bytes", b"\x80\xff"),
        ] {
            let value = HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append(HeaderName::from_static(name), value);
        }
        let again = KeptHead::of(&request).into_request(RequestBody::empty()).unwrap();
        assert_eq!(again.method(), request.method());
        assert_eq!(again.uri(), request.uri());
        assert_eq!(again.headers(), request.headers());
    }
}
