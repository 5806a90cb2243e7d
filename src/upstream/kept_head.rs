//! A request's head, kept for a second try. The body is kept by `progress`.

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request};

use super::body::RequestBody;

/// The head of a request as HTTP/1.1 writes it. To copy the header map would cost several times as much, and the copy
/// is seldom used.
#[derive(Clone, Debug, Default)]
pub(super) struct KeptHead(Vec<u8>);

/// A buffer of more bytes than this is not kept for the next head.
const LONG: usize = 4096;

impl KeptHead {
    /// The head of a request that is not sent over HTTP/1.1.
    pub(super) fn of(request: &Request<RequestBody>) -> Self {
        let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        let mut head = Self::default();
        head.push(&[request.method().as_str(), " ", target, " HTTP/1.1\r\n"].map(str::as_bytes));
        for (name, value) in request.headers() {
            head.push(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        head.push(&[b"\r\n"]);
        head
    }

    /// Appends bytes that hyper has written.
    pub(super) fn push(&mut self, pieces: &[&[u8]]) {
        pieces.iter().for_each(|piece| self.0.extend_from_slice(piece));
    }

    /// Forgets the head.
    pub(super) fn clear(&mut self) {
        self.0.clear();
        self.0.shrink_to(LONG);
    }

    /// The request again, with this body. `None` if the head is not complete.
    pub(super) fn request(&self, body: RequestBody) -> Option<Request<RequestBody>> {
        let text = self.0.strip_suffix(b"\r\n\r\n")?;
        // No part of a head has a line feed.
        let mut lines = text.split(|byte| *byte == b'\n');
        let mut words = lines.next()?.split(|byte| *byte == b' ');
        let mut request = Request::new(body);
        *request.method_mut() = Method::from_bytes(words.next()?).ok()?;
        *request.uri_mut() = PathAndQuery::try_from(words.next()?).ok()?.into();
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = (line.get(..colon)?, line.get(colon + 2..)?);
            let (name, value) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
            request.headers_mut().append(name.ok()?, value.ok()?);
        }
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use http::Uri;
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

    fn assert_same(kept: &KeptHead) {
        let (again, sent) = (kept.request(RequestBody::empty()).unwrap(), request());
        assert_eq!(again.method(), sent.method());
        assert_eq!(again.uri(), sent.uri());
        assert_eq!(again.headers(), sent.headers());
    }

    #[test]
    fn a_head_is_the_same_again() {
        assert_same(&KeptHead::of(&request()));
        assert!(KeptHead::default().request(RequestBody::empty()).is_none(), "nothing was sent");
    }

    #[tokio::test(flavor = "local")]
    async fn hyper_writes_the_same_head() {
        let (ours, mut theirs) = duplex(1024);
        let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.unwrap();
        let (mut kept, mut written) = (KeptHead::default(), [0; 1024]);
        tokio::select! {
            _ = sender.send_request(request()) => unreachable!("there is no answer"),
            _ = connection => unreachable!("the connection stays"),
            length = theirs.read(&mut written) => kept.push(&[&written[..length.unwrap()]]),
        }
        assert_same(&kept);
    }
}
