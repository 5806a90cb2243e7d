//! An API that speaks HTTP/2 or HTTP/1.1, in clear text, by TLS or on a Unix socket.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{CONNECTION, TE, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version, request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tidegate::tls::subject::subject;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::TlsAcceptor;

/// A request's head as the API got it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    /// On which connection it came, from 0.
    pub(crate) connection: usize,
    /// The name that was asked for in the TLS handshake.
    pub(crate) server_name: Option<String>,
    /// The subject of the certificate that was shown.
    pub(crate) cert: Option<String>,
}

/// What an HTTP/2 request is answered by, on a task of its own.
type Handler =
    Arc<dyn Fn(Request<RecvStream>, SendResponse<Bytes>) -> Answering + Send + Sync + 'static>;
type Answering = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server of its own on loopback.
pub(crate) struct Api {
    pub(crate) url: String,
    pub(crate) address: Option<SocketAddr>,
    state: Arc<State>,
}

struct State {
    calls: Mutex<Vec<Call>>,
    connections: AtomicUsize,
    handler: Handler,
}

/// More than the proxy ever uses.
const MOST_STREAMS: u32 = 1000;

/// What is known of one connection.
#[derive(Clone, Default)]
struct Caller {
    /// Its number, which it gets with its first request: the proxy also looks whether somebody is there.
    connection: Arc<OnceLock<usize>>,
    server_name: Option<String>,
    cert: Option<String>,
}

impl Api {
    /// HTTP/2 in clear text: says every body and its trailers again, and the path where there is none.
    pub(crate) fn h2c() -> Self {
        Self::answering_h2c(echo)
    }

    /// HTTP/2 in clear text, with an answer of the test's own.
    pub(crate) fn answering_h2c<A: Future<Output = ()> + Send + 'static>(
        answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self {
        Self::with_streams(MOST_STREAMS, answer)
    }

    /// The same on this socket.
    pub(crate) fn h2c_on<A: Future<Output = ()> + Send + 'static>(
        listener: std::net::TcpListener,
        answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self {
        Self::serve_h2c(listener, MOST_STREAMS, answer)
    }

    /// The same with so many streams at once on a connection.
    pub(crate) fn with_streams<A: Future<Output = ()> + Send + 'static>(
        most: u32,
        answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self {
        Self::serve_h2c(loopback(), most, answer)
    }

    fn serve_h2c<A: Future<Output = ()> + Send + 'static>(
        listener: std::net::TcpListener,
        most: u32,
        answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self {
        let state =
            State::new(Arc::new(move |request, respond| Box::pin(answer(request, respond))));
        Self::on(listener, "h2c", state, move |stream, state, caller| {
            http2(stream, most, state, caller)
        })
    }

    /// HTTP/1.1 in clear text on this socket. As all that speak HTTP/1.1, it says every body again (the
    /// path where there is none), and takes every offer to change the protocol except at `/declined`: everything
    /// is said again then, too.
    pub(crate) fn http1_on(listener: std::net::TcpListener) -> Self {
        Self::on(listener, "http", State::echoing(), http1)
    }

    /// Serves each connection to this socket by `serve`.
    fn on<S: Future<Output = ()> + Send + 'static>(
        listener: std::net::TcpListener,
        scheme: &str,
        state: Arc<State>,
        serve: impl Fn(TcpStream, Arc<State>, Caller) -> S + Send + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = state.clone();
        run(async move {
            let listener = from_std(listener);
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, shared.clone(), Caller::default()));
            }
        });
        Self { url: format!("{scheme}://{address}"), address: Some(address), state }
    }

    pub(crate) fn http1() -> Self {
        Self::http1_on(loopback())
    }

    /// HTTP/1.1 on a Unix socket.
    pub(crate) fn unix(path: &Path) -> Self {
        let state = State::echoing();
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let shared = state.clone();
        run(async move {
            let listener = UnixListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(http1(stream, shared.clone(), Caller::default()));
            }
        });
        Self { url: format!("unix:{}", path.display()), address: None, state }
    }

    /// By TLS, what ALPN agrees on.
    pub(crate) fn tls(config: Arc<ServerConfig>) -> Self {
        Self::answering_tls(config, echo)
    }

    /// The same, with an answer of the test's own over HTTP/2.
    pub(crate) fn answering_tls<A: Future<Output = ()> + Send + 'static>(
        config: Arc<ServerConfig>,
        answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> A + Send + Sync + 'static,
    ) -> Self {
        let state =
            State::new(Arc::new(move |request, respond| Box::pin(answer(request, respond))));
        Self::on(loopback(), "https", state, move |stream, state, mut caller| {
            let accepting = TlsAcceptor::from(config.clone()).accept(stream);
            async move {
                let Ok(stream) = accepting.await else { return };
                let (_, session) = stream.get_ref();
                caller.server_name = session.server_name().map(str::to_owned);
                caller.cert = session.peer_certificates().and_then(|chain| subject(chain.first()?));
                match session.alpn_protocol() {
                    Some(b"h2") => http2(stream, MOST_STREAMS, state, caller).await,
                    _ => http1(stream, state, caller).await,
                }
            }
        })
    }

    /// The same by a name, which must be one of loopback.
    pub(crate) fn url_by(&self, host: &str) -> String {
        let (scheme, _) = self.url.split_once(':').unwrap();
        format!("{scheme}://{host}:{}", self.address.unwrap().port())
    }

    /// The requests so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.calls.lock().unwrap().clone()
    }

    /// The last request so far.
    pub(crate) fn last(&self) -> Call {
        self.calls().pop().expect("the API got no request")
    }

    /// The connections with requests so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl From<&Api> for String {
    fn from(server: &Api) -> Self {
        server.url.clone()
    }
}

fn loopback() -> std::net::TcpListener {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap()
}

impl State {
    fn new(handler: Handler) -> Arc<Self> {
        let (calls, connections) = (Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { calls, connections, handler })
    }

    fn echoing() -> Arc<Self> {
        Self::new(Arc::new(|request, respond| Box::pin(echo(request, respond))))
    }

    fn note(&self, head: &request::Parts, caller: &Caller) {
        let Caller { connection, server_name, cert } = caller.clone();
        let next = || self.connections.fetch_add(1, Ordering::SeqCst);
        let connection = *connection.get_or_init(next);
        self.calls.lock().unwrap().push(Call {
            method: head.method.clone(),
            uri: head.uri.clone(),
            version: head.version,
            headers: head.headers.clone(),
            connection,
            server_name,
            cert,
        });
    }
}

/// Runs a server until the end of the tests.
fn run(server: impl Future<Output = ()> + Send + 'static) {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(server);
    });
}

fn from_std(listener: std::net::TcpListener) -> TcpListener {
    listener.set_nonblocking(true).unwrap();
    TcpListener::from_std(listener).unwrap()
}

async fn http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    most: u32,
    state: Arc<State>,
    caller: Caller,
) {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(most)
        .initial_window_size(1 << 20)
        .initial_connection_window_size(1 << 20);
    let Ok(mut connection) = builder.handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (head, body) = request.into_parts();
        state.note(&head, &caller);
        tokio::spawn((state.handler)(Request::from_parts(head, body), respond));
    }
}

/// Says a body again while it comes, and its trailers.
pub(crate) async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (head, mut body) = request.into_parts();
    let mut response = Response::builder();
    if head.headers.contains_key(TE) {
        response = response.header("trailer", "x-sum");
    }
    let Ok(mut answer) = respond.send_response(response.body(()).unwrap(), false) else { return };
    if body.is_end_stream() {
        let _ = answer.send_data(head.uri.path().to_owned().into(), true);
        return;
    }
    while let Some(piece) = body.data().await {
        let Ok(piece) = piece else { return };
        let _ = body.flow_control().release_capacity(piece.len());
        if answer.send_data(piece, false).is_err() {
            return;
        }
    }
    let _ = match body.trailers().await {
        Ok(Some(trailers)) => answer.send_trailers(trailers),
        Ok(None) => answer.send_data(Bytes::new(), true),
        Err(_) => return,
    };
}

async fn http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    state: Arc<State>,
    caller: Caller,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        state.note(&head, &caller);
        answer(Request::from_parts(head, body))
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let _ = connection.await;
}

async fn answer(mut request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    let declines = request.uri().path() == "/declined";
    if let Some(protocol) = request.headers().get(UPGRADE).filter(|_| !declines).cloned() {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(upgraded) = upgraded.await else { return };
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
        });
        let mut switched = Response::new(Full::default());
        *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        switched.headers_mut().insert(CONNECTION, "upgrade".parse().unwrap());
        switched.headers_mut().insert(UPGRADE, protocol);
        return Ok(switched);
    }
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    let body = if body.is_empty() { path.into() } else { body };
    Ok(Response::new(Full::new(body)))
}
