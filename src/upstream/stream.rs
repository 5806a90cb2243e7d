//! The bytes of a connection to a server.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::wire::budget::spend_on;
use crate::wire::write::poll_write_pieces;

/// The most bytes that are read before a response's head is complete. Interim responses (RFC 9110, 15.2)
/// count too, since a server could send them without end.
const MOST_BEFORE_HEAD: usize = 1024 * 1024;

/// The stream below HTTP.
pub(super) type ServerTransport = Either<Either<TcpStream, UnixStream>, Box<TlsStream<TcpStream>>>;

/// A socket, read and written by the task that drives its connection.
#[derive(Debug)]
pub(super) struct ServerStream {
    transport: ServerTransport,
    /// Bytes that were read before. The next reads return them.
    early: Bytes,
    state: Rc<SocketState>,
}

/// What the request's task knows of a socket that the connection's own task reads and writes.
#[derive(Debug, Default)]
pub(super) struct SocketState {
    /// A write has failed: the server takes no more data.
    write_failed: Cell<bool>,
    /// The connection carries another protocol than HTTP.
    switched: Cell<bool>,
    /// The connection must not be used for another request.
    pub(super) ends_soon: Cell<bool>,
    /// Bytes that were read since the last request was sent.
    read: Cell<usize>,
    /// The head of the response has come.
    pub(super) answered: Cell<bool>,
    /// An exchange is under way. If it is called off, the socket is reset.
    busy: Cell<bool>,
}

impl SocketState {
    /// A request is sent: its answer's head is awaited.
    pub(super) fn await_head(&self) {
        self.read.set(0);
        self.answered.set(false);
        self.busy.set(true);
    }

    /// The exchange has come to its end.
    pub(super) fn finish(&self) {
        self.busy.set(false);
    }

    /// What the connection carries has broken: nothing more has to arrive.
    pub(super) fn abandon(&self) {
        self.busy.set(true);
    }

    /// Whether any byte was read since a head was last awaited.
    pub(super) fn has_heard(&self) -> bool {
        self.read.get() > 0
    }

    /// From now on the connection carries another protocol, and a failed write ends the connection. What was written
    /// must arrive, also after the end.
    pub(super) fn switch(&self) {
        self.finish();
        self.switched.set(true);
    }

    /// Whether the connection must not be used for another request. This is also the case after a failed
    /// write.
    pub(super) fn is_unusable(&self) -> bool {
        self.ends_soon.get() || self.write_failed.get()
    }
}

impl ServerStream {
    pub(super) fn new(transport: ServerTransport) -> Self {
        Self { transport, early: Bytes::new(), state: Rc::default() }
    }

    /// The same stream, with bytes that were read before.
    pub(super) fn after(mut self, early: Bytes) -> Self {
        self.early = early;
        self
    }

    pub(super) fn state(&self) -> Rc<SocketState> {
        self.state.clone()
    }
}

impl Drop for ServerStream {
    /// Resets the socket if its exchange was called off. Otherwise each client that hangs up would leave a port of this
    /// machine unusable for a minute (TIME_WAIT).
    fn drop(&mut self) {
        let socket = match &self.transport {
            Either::Left(Either::Left(socket)) => socket,
            Either::Left(Either::Right(_unix)) => return,
            Either::Right(tls) => tls.get_ref().0,
        };
        if self.state.busy.get() {
            let _ = socket.set_zero_linger();
        }
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.early.is_empty() {
            let length = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early.split_to(length));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.transport).poll_read(cx, buffer))?;
        let came = buffer.filled().len() - before;
        spend_on(came, cx);
        let state = &self.state;
        if !state.answered.get() {
            state.read.set(state.read.get() + came);
            if state.read.get() > MOST_BEFORE_HEAD {
                let error = "too much was sent before an answer's head";
                return Poll::Ready(Err(io::Error::other(error)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.finish();
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    /// Hides a failed write. A server may answer and close while the request's body is still being sent.
    /// hyper would drop that answer because of the failed write. Therefore the rest of the request is thrown
    /// away, and the connection ends when all of the server's bytes were read.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        if self.state.write_failed.get() {
            return Poll::Ready(Ok(length));
        }
        match poll_write_pieces(&mut self.transport, cx, slices) {
            Poll::Ready(Err(_)) if !self.state.switched.get() => {
                self.state.write_failed.set(true);
                Poll::Ready(Ok(length))
            }
            written => written,
        }
    }
}
