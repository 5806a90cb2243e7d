//! Listening sockets, of TCP and Unix.

use std::io;
use std::net;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Socket};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::either::Either::{Left, Right};

use crate::exchange::client::AcceptedStream;
use crate::request::client::PeerAddress;

/// A listening socket of either kind, which does not block.
#[derive(Debug)]
pub struct Listener(Socket);

impl Listener {
    /// The same socket once more. A connection is accepted by one of the two.
    ///
    /// # Errors
    /// If the process has too few descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// The socket in the present runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub(crate) fn in_runtime(self) -> io::Result<AsyncListener> {
        Ok(match self.0.domain()? {
            Domain::UNIX => AsyncListener::Unix(UnixListener::from_std(self.0.into())?),
            _ => AsyncListener::Tcp(TcpListener::from_std(self.0.into())?),
        })
    }
}

impl From<Socket> for Listener {
    fn from(socket: Socket) -> Self {
        Self(socket)
    }
}

impl From<net::TcpListener> for Listener {
    fn from(listener: net::TcpListener) -> Self {
        Self(listener.into())
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> Self {
        listener.0.into()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
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
}
