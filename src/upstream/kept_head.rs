//! A request's head as hyper has written it over HTTP/1.1, for a second try. The body is kept by `progress`.

use std::io::IoSlice;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Request};

use super::body::RequestBody;

/// The bytes of a head. To copy the fields would cost several times as much, and the copy is seldom used.
#[derive(Debug, Default)]
pub(super) struct KeptHead(Vec<u8>);

/// A buffer of more bytes than this is not kept for the next head.
const LONG: usize = 4096;

impl KeptHead {
    /// Appends the first `length` bytes of what hyper has written.
    pub(super) fn push(&mut self, slices: &[IoSlice<'_>], length: usize) {
        let end = self.0.len() + length;
        slices.iter().for_each(|slice| self.0.extend_from_slice(slice));
        self.0.truncate(end);
    }

    /// Forgets the head.
    pub(super) fn clear(&mut self) {
        self.0.clear();
        self.0.shrink_to(LONG);
    }

    /// The request again, with this body. `None` if the head is not complete.
    pub(super) fn request(&self, body: RequestBody) -> Option<Request<RequestBody>> {
        let lines = self.0.iter().filter(|byte| **byte == b'\n').count();
        let mut fields = vec![httparse::EMPTY_HEADER; lines];
        let mut head = httparse::Request::new(&mut fields);
        head.parse(&self.0).ok().filter(httparse::Status::is_complete)?;
        let mut request = Request::new(body);
        *request.method_mut() = head.method?.parse().ok()?;
        *request.uri_mut() = PathAndQuery::try_from(head.path?).ok()?.into();
        for field in head.headers {
            let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
            request.headers_mut().append(name, HeaderValue::from_bytes(field.value).ok()?);
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    fn request() -> Request<RequestBody> {
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
        request
    }

    #[tokio::test(flavor = "local")]
    async fn a_head_is_the_same_again() {
        let (ours, mut theirs) = duplex(1024);
        let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.unwrap();
        let (mut kept, mut written) = (KeptHead::default(), [0; 1024]);
        assert!(kept.request(RequestBody::empty()).is_none(), "nothing was sent");
        tokio::select! {
            _ = sender.send_request(request()) => unreachable!("there is no answer"),
            _ = connection => unreachable!("the connection stays"),
            length = theirs.read(&mut written) => {
                kept.push(&[IoSlice::new(&written)], length.unwrap());
            }
        }
        let (again, sent) = (kept.request(RequestBody::empty()).unwrap(), request());
        assert_eq!(again.method(), sent.method());
        assert_eq!(again.uri(), sent.uri());
        assert_eq!(again.headers(), sent.headers());
    }
}
