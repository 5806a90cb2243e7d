//! A request as it is written to a server.

use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method};
use http_body::{Body as _, Frame};
use smallvec::SmallVec;
use tokio::io::AsyncWrite;

use super::RequestHead;
use super::body::{BodyFault, RequestBody};
use super::fault::Fault;
use crate::http1::encode::may_trail;

/// A piece of a body is copied behind what is there to be written up to this many bytes together;
/// a larger one is written from where it lies.
const MOST_COPIED: usize = 16 * 1024;

/// What of a request is still to be written, and where more of it comes from.
#[derive(Debug)]
pub(super) struct Upload {
    method: Method,
    /// The head, or the framing and small pieces of the body. A request without a body stays here
    /// whole, so that it can be written once more.
    out: Vec<u8>,
    /// As many bytes of `out` are written.
    written: usize,
    /// Goes behind `out`.
    data: Bytes,
    body: RequestBody,
    coding: Coding,
    /// All of the body is in `out` and `data`, or written.
    ended: bool,
    /// The end of a chunk is to be written behind `out` and `data`.
    in_chunk: bool,
    /// The server takes nothing at the moment.
    blocked: bool,
    untouched: bool,
}

#[derive(Debug)]
enum Coding {
    /// As many bytes are still to come.
    Length(u64),
    /// With trailers of these names.
    Chunked(SmallVec<[HeaderName; 2]>),
}

impl Upload {
    /// Encodes a request in origin form.
    pub(super) fn new(head: RequestHead<'_>, body: RequestBody) -> Self {
        let RequestHead { method, target, headers, more } = head;
        let fields = headers.len() + more.len();
        let mut out = Vec::with_capacity(64 + target.len() + 48 * fields);
        for part in [method.as_str(), " ", target, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        let mut had_length = false;
        for (name, value) in headers {
            if *name == CONTENT_LENGTH {
                had_length = true;
            } else if *name != TRANSFER_ENCODING {
                put_field(&mut out, name, value.as_bytes());
            }
        }
        for (name, value) in more {
            put_field(&mut out, name, value.as_bytes());
        }
        let coding = match body.size_hint().exact() {
            Some(length) => Coding::Length(length),
            None => Coding::Chunked(announced(headers)),
        };
        // The length that is counted is the one to be said; none where there is no body and the
        // client did not say so.
        match &coding {
            Coding::Length(0) if !had_length => {}
            Coding::Length(length) => {
                out.extend_from_slice(b"content-length: ");
                out.extend_from_slice(itoa::Buffer::new().format(*length).as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Coding::Chunked(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
        out.extend_from_slice(b"\r\n");
        Self {
            method: method.clone(),
            out,
            written: 0,
            data: Bytes::new(),
            ended: body.is_empty(),
            body,
            coding,
            in_chunk: false,
            blocked: false,
            untouched: true,
        }
    }

    /// The request's method.
    pub(super) fn method(&self) -> &Method {
        &self.method
    }

    /// The request's body.
    pub(super) fn body(&self) -> &RequestBody {
        &self.body
    }

    /// Whether no server was sent any of it.
    pub(super) fn is_untouched(&self) -> bool {
        self.untouched
    }

    /// Whether all of it was written.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.is_written()
    }

    /// What is still to be written, if anything is.
    pub(super) fn take_rest(&mut self) -> Option<Self> {
        if self.is_done() {
            return None;
        }
        Some(Self {
            method: std::mem::take(&mut self.method),
            out: std::mem::take(&mut self.out),
            data: std::mem::take(&mut self.data),
            body: std::mem::replace(&mut self.body, RequestBody::empty()),
            coding: std::mem::replace(&mut self.coding, Coding::Length(0)),
            ..*self
        })
    }

    /// Begins anew, on another connection. Only for a request that is untouched or has no body.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
        self.blocked = false;
        self.untouched = true;
    }

    /// Writes what there is. Ready once all of the request is written.
    pub(super) fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        server: &mut S,
    ) -> Poll<Result<(), Fault>> {
        loop {
            // What the server does not take is not asked of the client.
            if !self.blocked
                && let Err(fault) = self.fill(cx)
            {
                return Poll::Ready(Err(Fault::Request(fault)));
            }
            if self.is_written() {
                return if self.ended { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            match self.poll_write(cx, server) {
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(Fault::Broken(io::ErrorKind::WriteZero.into())));
                }
                Poll::Ready(Ok(taken)) => self.taken(taken),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Fault::Broken(error))),
                Poll::Pending => {
                    if !self.blocked {
                        self.blocked = true;
                        self.body.hold();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn is_written(&self) -> bool {
        self.written == self.out.len() && self.data.is_empty()
    }

    fn poll_write<S: AsyncWrite + Unpin>(
        &self,
        cx: &mut Context<'_>,
        server: &mut S,
    ) -> Poll<io::Result<usize>> {
        let out = &self.out[self.written..];
        let server = Pin::new(server);
        if self.data.is_empty() {
            server.poll_write(cx, out)
        } else if out.is_empty() {
            server.poll_write(cx, &self.data)
        } else {
            server.poll_write_vectored(cx, &[IoSlice::new(out), IoSlice::new(&self.data)])
        }
    }

    fn taken(&mut self, taken: usize) {
        self.blocked = false;
        self.untouched = false;
        let of_out = taken.min(self.out.len() - self.written);
        self.written += of_out;
        self.data.advance(taken - of_out);
        if self.is_written() && !self.body.is_empty() {
            self.out.clear();
            self.written = 0;
        }
    }

    /// Takes over what the client has sent, as far as there is room.
    fn fill(&mut self, cx: &mut Context<'_>) -> Result<(), BodyFault> {
        while !self.ended && self.data.is_empty() && self.out.len() < MOST_COPIED {
            if std::mem::take(&mut self.in_chunk) {
                self.out.extend_from_slice(b"\r\n");
            }
            if self.body.is_end_stream() {
                return self.end(None);
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(frame)) => self.push(frame?)?,
                Poll::Ready(None) => self.end(None)?,
            }
        }
        Ok(())
    }

    fn push(&mut self, frame: Frame<Bytes>) -> Result<(), BodyFault> {
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => return self.end(frame.into_trailers().ok()),
        };
        if data.is_empty() {
            return Ok(());
        }
        match &mut self.coding {
            Coding::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(BodyFault::Broken)?;
            }
            Coding::Chunked(_) => {
                // Writing to memory does not fail.
                let _ = write!(self.out, "{:x}\r\n", data.len());
                self.in_chunk = true;
            }
        }
        if self.out.len() + data.len() <= MOST_COPIED {
            self.out.extend_from_slice(&data);
        } else {
            self.data = data;
        }
        Ok(())
    }

    fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), BodyFault> {
        self.ended = true;
        match &self.coding {
            Coding::Length(0) => {}
            Coding::Length(_) => return Err(BodyFault::Broken),
            Coding::Chunked(names) => {
                self.out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.iter().flatten() {
                    if names.contains(name) && may_trail(name) {
                        put_field(&mut self.out, name, value.as_bytes());
                    }
                }
                self.out.extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }
}

fn put_field(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// The trailers that a request's head announces.
fn announced(headers: &HeaderMap) -> SmallVec<[HeaderName; 2]> {
    headers
        .get_all(TRAILER)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http::HeaderValue;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// The upload of a request without a body.
    fn upload(method: Method, target: &str, fields: &[(&'static str, &'static str)]) -> Upload {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let head = RequestHead { method: &method, target, headers: &headers, more: &[] };
        Upload::new(head, RequestBody::empty())
    }

    fn get() -> Upload {
        upload(Method::GET, "/a?b=c", &[("host", "a"), ("x", "1"), ("x", "2")])
    }

    const HEAD: &str = "GET /a?b=c HTTP/1.1\r\nhost: a\r\nx: 1\r\nx: 2\r\n\r\n";

    #[tokio::test]
    async fn a_head_that_is_taken_bit_by_bit_is_sent_whole_and_again() {
        let mut upload = get();
        for _ in 0..2 {
            assert!(upload.is_untouched() && !upload.is_done());
            let (mut near, mut far) = tokio::io::duplex(7);
            let writing = async {
                poll_fn(|cx| upload.poll(cx, &mut near)).await.unwrap();
                drop(near);
            };
            let mut sent = String::new();
            let (_, read) = tokio::join!(writing, far.read_to_string(&mut sent));
            read.unwrap();
            assert_eq!(sent, HEAD);
            assert!(upload.is_done() && !upload.is_untouched());
            upload.rewind();
        }
    }

    #[tokio::test]
    async fn what_nobody_takes_is_untouched() {
        let mut upload = get();
        let (mut near, far) = tokio::io::duplex(64);
        drop(far);
        let written = poll_fn(|cx| upload.poll(cx, &mut near)).await;
        assert!(matches!(written, Err(Fault::Broken(_))));
        assert!(upload.is_untouched());
    }

    #[test]
    fn a_length_is_said_where_there_is_one_to_say() {
        for (said, sent) in [
            (None, ""),
            (Some("0"), "content-length: 0\r\n"),
            (Some("00"), "content-length: 0\r\n"),
        ] {
            let mut fields = vec![("host", "a")];
            fields.extend(said.map(|length| ("content-length", length)));
            let upload = upload(Method::POST, "/", &fields);
            let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{sent}\r\n");
            assert_eq!(String::from_utf8(upload.out).unwrap(), head);
        }
    }
}
