//! HTTP/2 from the client's side, by one that keeps to the rules.

pub(crate) mod frames;

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::path::PathBuf;
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
    runtime.block_on(patient).expect("waited too long")
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

    /// Over a Unix socket.
    pub(crate) fn open_unix(path: PathBuf) -> Self {
        Self::over("http", Builder::new(), async move {
            tokio::net::UnixStream::connect(path).await.unwrap()
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
        // A server may answer, and end the stream, before it has the body.
        let _ = exchange.try_send(body);
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

    /// Ends the body. A server that has all that was announced may have answered, and ended it, before.
    pub(crate) fn end(&mut self) {
        let _ = self.body.send_data(Bytes::new(), true);
    }

    /// Ends the body with these fields after it.
    pub(crate) fn end_with(&mut self, trailers: &[(&str, &str)]) {
        let fields =
            trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        self.body.send_trailers(fields.collect()).unwrap();
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
