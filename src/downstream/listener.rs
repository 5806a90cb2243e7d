//! Listening sockets, of TCP and Unix.

use std::io;
use std::net;
use std::os::unix::net as unix;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either::{Left, Right};

use crate::proxy::client::AcceptedStream;
use crate::request::client::PeerAddress;

/// A listening socket that does not block.
#[derive(Debug)]
pub enum Listener {
    /// On the network.
    Tcp(net::TcpListener),
    /// On a path of this machine.
    Unix(unix::UnixListener),
}

impl Listener {
    /// The same socket once more. A connection is accepted by one of the two.
    ///
    /// # Errors
    /// If the process has too few descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Unix(listener) => Self::Unix(listener.try_clone()?),
        })
    }

    /// The socket in the present runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub(crate) fn in_runtime(self) -> io::Result<AsyncListener> {
        Ok(match self {
            Self::Tcp(listener) => AsyncListener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(listener) => AsyncListener::Unix(UnixListener::from_std(listener)?),
        })
    }

    /// Accepts a connection that waits already. Otherwise the error is [`io::ErrorKind::WouldBlock`].
    pub(super) fn accept_waiting(&self) -> io::Result<(AcceptedStream, PeerAddress)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Left(TcpStream::from_std(stream)?), PeerAddress::Network(peer.ip())))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Right(UnixStream::from_std(stream)?), PeerAddress::UnixSocket))
            }
        }
    }
}

impl From<net::TcpListener> for Listener {
    fn from(listener: net::TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

/// A listening socket in a runtime.
#[derive(Debug)]
pub(crate) enum AsyncListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsyncListener {
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

    /// The socket without the runtime.
    pub(super) fn into_std(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(listener.into_std()?),
            Self::Unix(listener) => Listener::Unix(listener.into_std()?),
        })
    }
}
