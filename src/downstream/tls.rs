//! The stream below HTTP: plain TCP, or TLS after its handshake.

use std::io;

use tokio::sync::watch::Receiver;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either::{self, Right};

use super::handshake_fault;
use super::watch::in_time;
use crate::exchange::client::Socket;
use crate::tls::H2;
use crate::tls::server::Certificates;
use crate::tls::subject::subject;

/// The stream below HTTP.
pub(super) type ClientTransport = Either<Socket, Box<TlsStream<Socket>>>;

/// Shakes hands with a client, until the time that `due` returns.
///
/// # Errors
/// The reason, if the client sent no handshake, or the two sides could not agree. `None` if the client has left, its time
/// is over, or the process drains.
pub(super) async fn shake_hands(
    socket: Socket,
    certificates: &Certificates,
    due: impl Fn() -> Option<Instant>,
    news: Receiver<bool>,
) -> Result<Box<TlsStream<Socket>>, Option<String>> {
    let accepting = TlsAcceptor::from(certificates.config()).accept(socket);
    match in_time(due, news, accepting).await {
        Some(shaken) => shaken.map(Box::new).map_err(|error| refusal(&error)),
        None => Err(None),
    }
}

/// Why a handshake was refused; `None` if the connection was lost.
fn refusal(error: &io::Error) -> Option<String> {
    error.get_ref()?.downcast_ref().map(handshake_fault::reason)
}

/// Whether the handshake agreed on HTTP/2. Without TLS the client's first bytes show whether it speaks
/// HTTP/2.
pub(super) fn is_http2(transport: &ClientTransport) -> bool {
    matches!(transport, Right(stream) if stream.get_ref().1.alpn_protocol() == Some(H2))
}

/// The subject of the client's certificate, which the handshake has verified.
pub(super) fn client_subject(transport: &ClientTransport) -> Option<String> {
    let Right(stream) = transport else { return None };
    let (_, session) = stream.get_ref();
    subject(session.peer_certificates()?.first()?)
}
