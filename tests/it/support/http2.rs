//! HTTP/2 from the client's side: one that keeps to the rules, and one that says what a test wants.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::PATIENCE;
use super::client::Reply;

/// Waits for what must come.
fn wait<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let patient = async { tokio::time::timeout(PATIENCE, future).await };
    runtime.block_on(patient).expect("waited in vain")
}

/// A connection of a client that keeps to the rules. Dropped, it is cut.
pub(crate) struct Client {
    sender: SendRequest<Bytes>,
    scheme: &'static str,
    ended: Receiver<Result<(), h2::Error>>,
    _cut: oneshot::Sender<()>,
}

impl Client {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::open_with(address, |_| {})
    }

    /// With other settings, as a small window.
    pub(crate) fn open_with(address: SocketAddr, change: impl FnOnce(&mut Builder)) -> Self {
        let mut builder = Builder::new();
        change(&mut builder);
        Self::over("http", builder, async move {
            tokio::net::TcpStream::connect(address).await.unwrap()
        })
    }

    /// By TLS, with a server of this name, which must agree to HTTP/2.
    pub(crate) fn open_tls(address: SocketAddr, config: Arc<ClientConfig>, name: &str) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self::over("https", Builder::new(), async move {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let connecting = tokio_rustls::TlsConnector::from(config).connect(name, stream);
            let stream = connecting.await.unwrap();
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            stream
        })
    }

    fn over<S: AsyncRead + AsyncWrite + Unpin>(
        scheme: &'static str,
        builder: Builder,
        connecting: impl Future<Output = S> + Send + 'static,
    ) -> Self {
        let ((begun, begin), (end, ended)) = (channel(), channel());
        let (cut, is_cut) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let stream = connecting.await;
                let (sender, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
                begun.send(sender).unwrap();
                tokio::select! {
                    outcome = connection => drop(end.send(outcome)),
                    _ = is_cut => {}
                }
            });
        });
        let sender = begin.recv_timeout(PATIENCE).expect("a connection");
        Self { sender, scheme, ended, _cut: cut }
    }

    pub(crate) fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.begin("GET", path, headers).reply()
    }

    /// Sends a request with a body of a length that is not announced and reads the answer.
    pub(crate) fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut exchange = self.upload("POST", path, headers);
        exchange.send(body);
        exchange.end();
        exchange.reply()
    }

    /// Sends a request without a body.
    pub(crate) fn begin(&mut self, method: &str, path: &str, headers: &[(&str, &str)]) -> Exchange {
        self.start(method, path, headers, true)
    }

    /// Sends a request's head, behind which a body follows.
    pub(crate) fn upload(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Exchange {
        self.start(method, path, headers, false)
    }

    fn start(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        whole: bool,
    ) -> Exchange {
        let uri = format!("{}://api.test{path}", self.scheme);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        wait(poll_fn(|cx| self.sender.poll_ready(cx))).expect("the connection is there");
        let (response, body) = self.sender.send_request(request, whole).unwrap();
        Exchange { response: Some(response), body, answer: None }
    }

    /// Waits until the server has ended the connection; without an error where it has said goodbye.
    pub(crate) fn ended(&self) -> Result<(), h2::Error> {
        self.ended.recv_timeout(PATIENCE).expect("the connection ends")
    }
}

/// One request of a [`Client`] and its answer.
pub(crate) struct Exchange {
    response: Option<ResponseFuture>,
    body: SendStream<Bytes>,
    answer: Option<RecvStream>,
}

impl Exchange {
    /// Sends a piece of the body, as fast as the server takes it.
    pub(crate) fn send(&mut self, piece: &[u8]) {
        self.try_send(piece).expect("it is taken");
    }

    /// The same, of a request that may be over.
    pub(crate) fn try_send(&mut self, piece: &[u8]) -> Result<(), h2::Error> {
        let mut left = Bytes::copy_from_slice(piece);
        while !left.is_empty() {
            self.body.reserve_capacity(left.len());
            let Some(room) = wait(poll_fn(|cx| self.body.poll_capacity(cx))) else {
                return Err(Reason::CANCEL.into());
            };
            let piece = left.split_to(room?.min(left.len()));
            self.body.send_data(piece, false)?;
        }
        Ok(())
    }

    /// Ends the body.
    pub(crate) fn end(&mut self) {
        self.body.send_data(Bytes::new(), true).unwrap();
    }

    /// Ends the body with this field behind it.
    pub(crate) fn end_with(&mut self, name: &'static str, value: &str) {
        let trailers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
        self.body.send_trailers(trailers).unwrap();
    }

    /// Calls the request off.
    pub(crate) fn reset(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }

    /// The head of the answer, once.
    pub(crate) fn head(&mut self) -> Result<Response<()>, h2::Error> {
        let response = self.response.take().expect("the head was not read before");
        let (head, body) = wait(response)?.into_parts();
        self.answer = Some(body);
        Ok(Response::from_parts(head, ()))
    }

    /// The next piece of the answer's body; `None` at its end.
    pub(crate) fn piece(&mut self) -> Option<Result<Bytes, h2::Error>> {
        let body = self.answer.as_mut().expect("the head was read before");
        let piece = wait(body.data());
        if let Some(Ok(piece)) = &piece {
            let _ = body.flow_control().release_capacity(piece.len());
        }
        piece
    }

    /// The whole answer, or how it broke off.
    pub(crate) fn outcome(&mut self) -> Result<Reply, h2::Error> {
        let head = self.head()?;
        let mut body = Vec::new();
        while let Some(piece) = self.piece() {
            body.extend_from_slice(&piece?);
        }
        let trailers = wait(self.answer.as_mut().unwrap().trailers())?.unwrap_or_default();
        let (status, headers) = (head.status().as_u16(), texts(head.headers()));
        Ok(Reply { status, headers, body, trailers: texts(&trailers) })
    }

    pub(crate) fn reply(&mut self) -> Reply {
        self.outcome().expect("an answer")
    }
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

/// What a connection begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame as it came.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered with this status, to the end.
    Status(u16),
    /// Reset with this code, whatever came before.
    Reset(u32),
    /// The connection ended, with this code where it was told one.
    Closed(Option<u32>),
}

/// A connection on which every frame is written by hand.
pub(crate) struct Frames {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Frames {
    /// Says hello with these settings.
    pub(crate) fn open(address: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut frames = Self::silent(address);
        frames.send(PREFACE);
        let pairs = settings.iter().flat_map(|(name, value)| {
            name.to_be_bytes().into_iter().chain(value.to_be_bytes()).collect::<Vec<_>>()
        });
        frames.send(frame(SETTINGS, 0, 0, &pairs.collect::<Vec<_>>()));
        frames
    }

    /// Says nothing yet.
    pub(crate) fn silent(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        assert!(self.try_send(bytes), "it is listened to");
    }

    /// Whether the server, which may have closed the connection, still listens.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        match self.stream.write_all(bytes.as_ref()) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nobody reads"),
            Err(_) => false,
        }
    }

    /// The next frame, a ping once it is answered; `None` where the connection has ended.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let head: [u8; 9] = self.exactly(9)?.try_into().unwrap();
        let [a, b, c, kind, flags, stream @ ..] = head;
        let payload = self.exactly(u32::from_be_bytes([0, a, b, c]) as usize)?;
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        if (kind, flags & ACK) == (PING, 0) {
            self.try_send(frame(PING, ACK, 0, &payload));
        }
        Some(Frame { kind, flags, stream, payload })
    }

    /// Waits for a frame that fits; `None` where the connection ends before.
    pub(crate) fn find(&mut self, fits: impl Fn(&Frame) -> bool) -> Option<Frame> {
        std::iter::from_fn(|| self.next()).find(fits)
    }

    /// Waits for the connection's end. The code that its client was told, where there was one.
    pub(crate) fn end(&mut self) -> Option<u32> {
        std::iter::from_fn(|| self.next()).filter_map(|frame| frame.goodbye()).last()
    }

    /// Sends a request without a body and waits for what becomes of it.
    pub(crate) fn ask(&mut self, stream: u32, fields: &[(&str, &[u8])]) -> Outcome {
        self.send(request(stream, END_STREAM, fields));
        self.outcome(stream)
    }

    /// What becomes of a stream.
    pub(crate) fn outcome(&mut self, stream: u32) -> Outcome {
        let (mut status, mut goodbye) = (None, None);
        while let Some(frame) = self.next() {
            goodbye = frame.goodbye().or(goodbye);
            if frame.stream != stream {
                continue;
            }
            match frame.kind {
                HEADERS if status.is_none() => status = Some(frame.status()),
                RST_STREAM => return Outcome::Reset(code(&frame.payload)),
                _ => {}
            }
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM > 0 {
                return Outcome::Status(status.expect("a head"));
            }
        }
        Outcome::Closed(goodbye)
    }

    fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut space = [0; 64 * 1024];
        while self.buffer.len() < length {
            match self.stream.read(&mut space) {
                Ok(read @ 1..) => self.buffer.extend_from_slice(&space[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
                _ => return None,
            }
        }
        Some(self.buffer.drain(..length).collect())
    }
}

impl Frame {
    /// The code of a GOAWAY.
    fn goodbye(&self) -> Option<u32> {
        (self.kind == GOAWAY).then(|| code(&self.payload[4..]))
    }

    /// The status that a response's head begins with (RFC 7541, A): one of the table, or digits in
    /// Huffman's code (B), of which those below 3 have five bits and the others six.
    pub(crate) fn status(&self) -> u16 {
        let block =
            &self.payload[self.payload.iter().take_while(|byte| **byte >> 5 == 1).count()..];
        match block {
            [indexed @ 0x88..=0x8e, ..] => {
                [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)]
            }
            [0x08 | 0x48, length, text @ ..] if length & 0x80 == 0 => {
                std::str::from_utf8(&text[..usize::from(*length)]).unwrap().parse().unwrap()
            }
            [0x08 | 0x48, _, a, b, c, ..] => {
                let (bits, mut at) = (u32::from_be_bytes([*a, *b, *c, 0]), 0);
                (0..3).fold(0, |status, _| {
                    let five = (bits << at) >> 27;
                    let (digit, length) = match five {
                        0..=2 => (five, 5),
                        _ => (((bits << at) >> 26) - 0b011001 + 3, 6),
                    };
                    at += length;
                    status * 10 + u16::try_from(digit).unwrap()
                })
            }
            other => panic!("no status: {other:x?}"),
        }
    }
}

fn code(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// A frame's bytes.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length.to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A request's head in one frame.
pub(crate) fn request(stream: u32, flags: u8, fields: &[(&str, &[u8])]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

/// Fields as literals that nobody indexes (RFC 7541, 6.2.2).
pub(crate) fn block(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name.as_bytes(), value] {
            match text.len() {
                short @ 0..127 => bytes.push(u8::try_from(short).unwrap()),
                long => {
                    bytes.push(127);
                    let mut rest = long - 127;
                    while rest >= 128 {
                        bytes.push(u8::try_from(rest % 128).unwrap() | 0x80);
                        rest /= 128;
                    }
                    bytes.push(u8::try_from(rest).unwrap());
                }
            }
            bytes.extend_from_slice(text);
        }
    }
    bytes
}

/// The pseudo-headers of a plain request.
pub(crate) fn asking<'f>(method: &'f str, path: &'f str) -> [(&'f str, &'f [u8]); 4] {
    [
        (":method", method.as_bytes()),
        (":scheme", b"http"),
        (":authority", b"api.test"),
        (":path", path.as_bytes()),
    ]
}
