//! A request's head, kept for a second try.

use http::{HeaderName, HeaderValue, Method, Request, Uri};

use super::body::RequestBody;

/// More than most heads need.
const ROOM: usize = 512;

/// The head of a request without a body. The fields stand in one piece of memory: this costs a third of
/// a copy of the header map, and is seldom read.
pub(super) struct KeptHead {
    method: Method,
    target: Uri,
    /// `name:value` in lines. No line break can stand in either.
    fields: Vec<u8>,
}

impl KeptHead {
    pub(super) fn of(request: &Request<RequestBody>) -> Self {
        let mut fields = Vec::with_capacity(ROOM);
        for (name, value) in request.headers() {
            fields.extend_from_slice(name.as_str().as_bytes());
            fields.push(b':');
            fields.extend_from_slice(value.as_bytes());
            fields.push(b'\n');
        }
        Self { method: request.method().clone(), target: request.uri().clone(), fields }
    }

    /// The request again.
    pub(super) fn into_request(self) -> Request<RequestBody> {
        let mut request = Request::new(RequestBody::empty());
        *request.method_mut() = self.method;
        *request.uri_mut() = self.target;
        for line in self.fields.split(|byte| *byte == b'\n') {
            let colon = line.iter().position(|byte| *byte == b':');
            let Some((name, [_, value @ ..])) = colon.and_then(|at| line.split_at_checked(at))
            else {
                continue;
            };
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
            {
                request.headers_mut().append(name, value);
            }
        }
        request
    }
}

#[cfg(test)]
mod tests {
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
        let again = KeptHead::of(&request).into_request();
        assert_eq!(again.method(), request.method());
        assert_eq!(again.uri(), request.uri());
        assert_eq!(again.headers(), request.headers());
    }
}
