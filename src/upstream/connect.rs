//! Opens connections to servers: over TCP, a Unix socket or TLS, and speaks HTTP/1.1 or HTTP/2 on them.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_util::either::Either::{Left, Right};

use super::connection::{Connection, ExclusiveConnection, SharedConnection};
use super::error::Cause;
use super::executor::LocalExecutor;
use super::purpose::Purpose;
use super::stream::{ServerStream, ServerTransport, tcp_of};
use super::trailers::{MOST_IN_ANSWER, WatchedFrames, list_bound};
use crate::settings::{Endpoint, Scheme, ServerAddress, UpstreamSpec};
use crate::tls::{self, H2, HTTP_1_1};
use crate::wire::dialer::Dialer;
use crate::wire::streams::{CONNECTION_WINDOW, StreamCosts};

/// Trailers over HTTP/2 of more bytes than this end the connection. Those that are larger than [`MOST_IN_ANSWER`] end
/// their answer.
const MOST_TRAILERS: usize = 4 * MOST_IN_ANSWER;

/// The flow-control window of an HTTP/2 stream in bytes: what a server may send of one response before its client
/// reads. The window of a connection is more than the sum for all streams, so a response that nobody reads never holds
/// back another response.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The most bytes of a request that the kernel holds before it sends them. `response_timeout` runs from the last byte
/// that the kernel took. Without this limit the kernel takes megabytes at once, and a slow server could not read them
/// within that time.
const MOST_UNSENT: u32 = 128 * 1024;

/// After this time in which nothing came from a server, the kernel asks whether the server is there (TCP keep-alive).
/// Without an answer to any of the questions the connection ends. HTTP/2 has pings for this. But a gRPC server ends a
/// connection because of pings that are more frequent than one in five minutes.
const SILENCE: Duration = Duration::from_secs(20);
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(5);
const QUESTIONS: u32 = 2;

/// For this time bytes of an HTTP/2 connection may be on their way, or the server may take none. After this the
/// connection ends: many requests may wait for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// If a client leaves, the stream of its request is reset. The server hears of it later, and sends frames meanwhile.
/// They are no error of the server while the stream is remembered: for this time, and up to this number.
const RESET_MEMORY: Duration = Duration::from_secs(10);
const RESETS_REMEMBERED: usize = 4096;

/// Connects to the servers of one upstream.
#[derive(Clone)]
pub(super) struct Connector {
    dialer: Arc<Dialer>,
    connect_timeout: Duration,
    tls: Option<Tls>,
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    spec: Arc<tls::client::ClientTlsSpec>,
}

impl Connector {
    pub(super) fn new(spec: &UpstreamSpec, dialer: Arc<Dialer>) -> Self {
        // The same certificates were tried when proxy.toml was read, so this does not fail.
        let tls = spec.tls.as_ref().and_then(|spec| {
            let connector = TlsConnector::from(tls::client::config(spec, &[]).ok()?);
            Some(Tls { connector, spec: spec.clone() })
        });
        Self { dialer, connect_timeout: spec.connect_timeout, tls }
    }

    /// Connects to a server, with the protocol that its scheme or the TLS handshake gives.
    pub(super) async fn open(
        &self,
        server: &ServerAddress,
        wanted: Purpose,
    ) -> io::Result<Connection> {
        let (host, port) = match &server.endpoint {
            Endpoint::Unix(path) => {
                return http1(Left(Right(UnixStream::connect(path).await?))).await;
            }
            Endpoint::Tcp { host, port } => (host, *port),
        };
        let stream = self.connect(host, port).await?;
        // A connection of HTTP/2 for one request alone ends by a reset: clients ask for such connections, and each would
        // leave a port unusable for a minute.
        let reset_at_end = |stream: &TcpStream| {
            if wanted != Purpose::Any {
                let _ = stream.set_zero_linger();
            }
        };
        match server.scheme {
            Scheme::Http => http1(Left(Left(stream))).await,
            Scheme::H2c => {
                reset_at_end(&stream);
                http2(Left(Left(stream))).await
            }
            Scheme::Https => {
                let stream = match self.shake_hands(stream, host, wanted).await {
                    // The server speaks HTTP/2 alone. The request is served without the upgrade.
                    Err(error) if wanted == Purpose::Http1 && is_other_protocol(&error) => {
                        let stream = self.connect(host, port).await?;
                        self.shake_hands(stream, host, Purpose::Any).await?
                    }
                    shaken => shaken?,
                };
                let (socket, session) = stream.get_ref();
                match session.alpn_protocol() {
                    Some(H2) => {
                        reset_at_end(socket);
                        http2(Right(Box::new(stream))).await
                    }
                    _ => http1(Right(Box::new(stream))).await,
                }
            }
        }
    }

    async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let stream = self.dialer.connect(host, port, self.connect_timeout).await?;
        let socket = SockRef::from(&stream);
        // Without the options all works, with less exact time-outs.
        let _ = socket.set_tcp_notsent_lowat(MOST_UNSENT);
        let questions = TcpKeepalive::new().with_time(SILENCE);
        let questions = questions.with_interval(BETWEEN_QUESTIONS).with_retries(QUESTIONS);
        let _ = socket.set_tcp_keepalive(&questions);
        Ok(stream)
    }

    async fn shake_hands(
        &self,
        stream: TcpStream,
        host: &str,
        wanted: Purpose,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let tls = self.tls.as_ref().ok_or_else(|| refused("TLS is not set up"))?;
        let name = tls.spec.name_of(host);
        let name = name.ok_or_else(|| refused("no certificate can be for this host"))?;
        let offered: &[&[u8]] = match wanted {
            Purpose::Any => &[H2, HTTP_1_1],
            Purpose::Http1 | Purpose::Own => &[HTTP_1_1],
        };
        let offered = offered.iter().map(|protocol| protocol.to_vec()).collect();
        // If the handshake is given up, the socket is reset: see `ServerStream`. A refusal must still reach the server.
        let _ = stream.set_zero_linger();
        let connector = tls.connector.with_alpn(offered);
        let shaken = connector.connect(name, stream).into_fallible().await;
        let socket = match &shaken {
            Ok(stream) => stream.get_ref().0,
            Err((_, stream)) => stream,
        };
        let _ = SockRef::from(socket).set_linger(None);
        shaken.map_err(|(error, _)| tls::client::handshake_error(error))
    }
}

/// Whether a server understands none of the protocols that it was offered (RFC 7301, 3.2).
fn is_other_protocol(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    let alert = rustls::AlertDescription::NoApplicationProtocol;
    error == Some(&rustls::Error::AlertReceived(alert))
}

pub(super) async fn http1(transport: ServerTransport) -> io::Result<Connection> {
    let stream = ServerStream::new(transport);
    let socket = stream.state();
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MOST_IN_ANSWER)
        // hyper takes this as the bound of trailers too.
        .max_header_size(MOST_IN_ANSWER)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    Ok(Connection::Http1(Box::new(ExclusiveConnection::start(sender, connection, socket))))
}

/// Opens an HTTP/2 connection, and waits for the server's settings (RFC 9113, 3.4). They say how many
/// requests the server takes at once. The server refuses requests above this limit. While the limit is zero, this
/// function waits.
pub(super) async fn http2(transport: ServerTransport) -> io::Result<Connection> {
    if let Some(socket) = tcp_of(&transport) {
        // Without the option a dead server is noticed later.
        let _ = SockRef::from(socket).set_tcp_user_timeout(Some(PATIENCE));
    }
    let costs = Rc::<StreamCosts>::default();
    let (sender, mut connection) = http2::Builder::new(LocalExecutor)
        .initial_max_send_streams(0)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .reset_stream_duration(RESET_MEMORY)
        .max_concurrent_reset_streams(RESETS_REMEMBERED)
        // Frames that come later still would count for the life of the connection, and end it for all its requests.
        .max_local_error_reset_streams(None)
        .max_header_list_size(list_bound(MOST_TRAILERS))
        .handshake(TokioIo::new(WatchedFrames::new(transport, MOST_TRAILERS, 0, costs.clone())))
        .await
        .map_err(io::Error::other)?;
    while connection.current_max_send_streams() == 0 {
        tokio::select! {
            ended = &mut connection => {
                let silent = "the server sent no HTTP/2 settings".to_owned();
                let why = ended.err().map(|error| format!("{silent}: {}", Cause(&error)));
                return Err(io::Error::other(why.unwrap_or(silent)));
            }
            () = costs.heard.notified() => {}
        }
    }
    Ok(Connection::Http2(SharedConnection::start(sender, connection, costs)))
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::body::RequestBody;
    use super::*;

    /// A regression: the kernel took 2.6 MB of an upload at once, and the time for the answer began to run.
    #[tokio::test]
    async fn the_kernel_holds_little_of_a_request() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let spec =
            UpstreamSpec { connect_timeout: Duration::from_secs(10), ..UpstreamSpec::default() };
        let connector = Connector::new(&spec, Arc::default());
        let stream = connector.connect("127.0.0.1", port).await.unwrap();
        let mut held = 0;
        while let Ok(written) = stream.try_write(&[0; 8 * 1024]) {
            held += written;
        }
        assert!(held < 1_000_000, "{held}");
    }

    /// A regression: pings every 20 seconds made gRPC servers end the connection ("too many pings").
    #[tokio::test(flavor = "local", start_paused = true)]
    async fn a_call_that_is_quiet_for_long_brings_no_pings() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        // The server's settings (RFC 9113, 6.5), without any value.
        theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let mut connection = http2(Left(Right(ours))).await.unwrap();
        let (url, endpoint) = ("h2c://a".to_owned(), Endpoint::Unix("a".into()));
        let server = ServerAddress { url, endpoint, scheme: Scheme::H2c };
        let limit = Duration::from_secs(600);
        let answer = connection.send(Request::new(RequestBody::empty()), false, &server, limit);
        assert!(answer.await.is_err(), "there is no answer");
        drop(connection);
        let mut said = Vec::new();
        theirs.read_to_end(&mut said).await.unwrap();
        let mut frames = &said[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len()..];
        let mut kinds = Vec::new();
        while let [_, a, b, kind, _, _, _, _, _, rest @ ..] = frames {
            kinds.push(*kind);
            frames = &rest[usize::from(u16::from_be_bytes([*a, *b]))..];
        }
        let (headers, ping) = (1, 6);
        assert!(kinds.contains(&headers) && !kinds.contains(&ping), "{kinds:?}");
    }

    #[tokio::test(flavor = "local")]
    async fn the_kernel_notices_that_a_server_is_dead() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let spec =
            UpstreamSpec { connect_timeout: Duration::from_secs(10), ..UpstreamSpec::default() };
        let connector = Connector::new(&spec, Arc::default());
        let stream = connector.connect("127.0.0.1", port).await.unwrap();
        let socket = SockRef::from(&stream).try_clone().unwrap();
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), SILENCE);
        assert_eq!(socket.tcp_user_timeout().unwrap(), None, "a server may stop reading for long");
        let (mut theirs, _) = listener.accept().await.unwrap();
        theirs.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let _connection = http2(Left(Left(stream))).await.unwrap();
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(PATIENCE));
    }
}
