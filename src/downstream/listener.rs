//! Listening sockets, of TCP and Unix.

use std::io;

use socket2::{Domain, Socket};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::either::Either::{Left, Right};

use crate::exchange::client::AcceptedStream;
use crate::request::client::PeerAddress;

/// A listening socket of either kind, which does not block.
pub(crate) type Listener = Socket;

/// A listening socket in a runtime.
#[derive(Debug)]
pub(crate) enum AsyncListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsyncListener {
    /// The socket in the present runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub(crate) fn new(listener: Listener) -> io::Result<Self> {
        Ok(match listener.domain()? {
            Domain::UNIX => Self::Unix(UnixListener::from_std(listener.into())?),
            _ => Self::Tcp(TcpListener::from_std(listener.into())?),
        })
    }

    /// Waits for a connection.
    pub(crate) async fn accept(&self) -> io::Result<(AcceptedStream, PeerAddress)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Left(stream), PeerAddress::Network(peer.ip())))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Right(stream), PeerAddress::UnixSocket))
            }
        }
    }
}
