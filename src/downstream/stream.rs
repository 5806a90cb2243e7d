//! The bytes of a client's connection. Reads and writes change the state of its [`ClientConnection`].

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::task::coop::{has_budget_remaining, unconstrained};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

use super::request_line::{encoded, is_plain, is_unfinished};
use super::tls::ClientTransport;
use super::watch::LINGER;
use crate::exchange::client::{ClientConnection, Socket};
use crate::observe::metrics::WorkerMetrics;
use crate::wire::write::poll_write_pieces;

/// The longest linger of an HTTP/2 connection.
pub(super) const LONGEST_LINGER: Duration = Duration::from_secs(30);

/// So many bytes of one connection are read at most before other connections are served. All of them may be framing, and
/// framing is parsed byte by byte.
const MOST_IN_A_ROW: usize = 32 * 1024;

/// Why a connection is ended that sends framing without end.
pub(super) const TOO_MUCH_OVERHEAD: &str =
    "too many bytes that are neither a request nor data (chunk framing, HTTP/2 control frames)";

/// A client's connection as bytes.
#[derive(Debug)]
pub(super) struct ClientStream {
    client: Rc<ClientConnection>,
    transport: ClientTransport,
    /// Where its bytes are counted.
    metrics: Arc<WorkerMetrics>,
    /// The longest first line that is read as a whole.
    longest_line: usize,
    /// Bytes that were read before. The next reads return them.
    early: Vec<u8>,
    /// hyper has no bytes yet. It first gets a whole line.
    opening: bool,
    /// Bytes that were read since the socket was last empty, or other connections were last served.
    in_a_row: usize,
}

/// Closes a connection so that its client can read the last bytes. If bytes of the client are unread, closing causes a
/// reset. A reset destroys what the client has not read yet. The connection lingers until its client has sent nothing
/// for [`LINGER`], and for at most `longest`.
pub(super) async fn linger(mut socket: Socket, longest: Duration) {
    let end = Instant::now() + longest;
    let mut space = [0; 4096];
    let _ = socket.shutdown().await;
    loop {
        let until = end.min(Instant::now() + LINGER);
        let Ok(Ok(1..)) = timeout_at(until, socket.read(&mut space)).await else { return };
    }
}

impl ClientStream {
    pub(super) fn new(
        client: Rc<ClientConnection>,
        transport: ClientTransport,
        metrics: Arc<WorkerMetrics>,
        longest_line: usize,
    ) -> Self {
        let (early, opening, in_a_row) = (Vec::new(), false, 0);
        Self { client, transport, metrics, longest_line, early, opening, in_a_row }
    }

    /// A new HTTP/1.1 connection of hyper begins.
    pub(super) fn open(&mut self) {
        self.opening = true;
    }

    /// The next reads return these bytes first, which were read before.
    pub(super) fn put_back(&mut self, early: &[u8]) {
        self.early.splice(0..0, early.iter().copied());
    }

    /// Whether bytes that were read before are not used yet.
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    fn watch<T>(&self, written: Poll<T>) -> Poll<T> {
        match written {
            Poll::Ready(_) => self.client.phase.write_moved(),
            Poll::Pending => self.client.phase.write_waits(),
        }
        written
    }

    /// Reads more. Ready with 0 if the client has closed.
    fn poll_transport(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let (phase, overhead) = (&self.client.phase, &self.client.overhead);
        if self.in_a_row >= MOST_IN_A_ROW {
            self.in_a_row = 0;
            // tokio looks for input of others before it wakes a task that has yielded.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let (transport, room) = (Pin::new(&mut self.transport), MOST_IN_A_ROW - self.in_a_row);
        let came = match buffer.remaining() <= room {
            true => transport.poll_read(cx, buffer),
            false => pin!(transport.take(room as u64)).poll_read(cx, buffer),
        };
        let Poll::Ready(came) = came else {
            self.in_a_row = 0;
            return Poll::Pending;
        };
        came?;
        let read = buffer.filled().len() - before;
        self.in_a_row += read;
        if read > 0 {
            let is_between = !self.opening && phase.is_settled();
            if is_between && !is_plain(&buffer.filled()[before..]) {
                // The line must be read as a whole. A new connection of hyper begins with it.
                self.early.extend_from_slice(&buffer.filled()[before..]);
                buffer.set_filled(before);
                self.metrics.received(read);
                phase.parks.set(true);
                return Poll::Pending;
            }
            phase.bytes_came();
            self.metrics.received(read);
            if !phase.is_switched() {
                overhead.came(read);
                if overhead.is_used_up() {
                    let kind = io::ErrorKind::InvalidData;
                    return Poll::Ready(Err(io::Error::new(kind, TOO_MUCH_OVERHEAD)));
                }
            }
        }
        Poll::Ready(Ok(read))
    }

    /// Reads the first line of a request, or HTTP/2's preface, as a whole. Then hyper gets it.
    fn poll_opening(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begin = buffer.filled().len();
        if self.has_early() {
            self.client.phase.bytes_came();
        }
        while self.early.len() <= self.longest_line && is_unfinished(&self.early) {
            let read = ready!(self.poll_transport(cx, buffer))?;
            let came = &buffer.filled()[begin..];
            if self.early.is_empty() && is_plain(came) {
                // Nearly all lines come whole and plain.
                self.opening = false;
                return Poll::Ready(Ok(()));
            }
            self.early.extend_from_slice(came);
            buffer.set_filled(begin);
            if read == 0 {
                break;
            }
        }
        self.opening = false;
        // A TLS record with a handshake message (RFC 8446, 5.1).
        let is_hello = self.early.first() == Some(&22);
        self.client.head_fault.set(is_hello.then_some("a TLS handshake on a port for plain HTTP"));
        self.early = encoded(&self.early);
        self.return_early(buffer);
        Poll::Ready(Ok(()))
    }

    /// Returns bytes that were read before.
    fn return_early(&mut self, buffer: &mut ReadBuf<'_>) {
        let rest = self.early.split_off(self.early.len().min(buffer.remaining()));
        buffer.put_slice(&self.early);
        self.early = rest;
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.opening {
            return self.poll_opening(cx, buffer);
        }
        if self.client.phase.parks.get() {
            // The connection's timer wakes the task.
            return Poll::Pending;
        }
        match self.has_early() {
            true => self.return_early(buffer),
            false => drop(ready!(self.poll_transport(cx, buffer))?),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        self.watch(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let phase = &self.client.phase;
        phase.unsettled.set(true);
        // More requests, sent after the last one, may lie unread in the socket. An HTTP/2 client sends WINDOW_UPDATE
        // frames while it reads.
        let has_more = pin!(unconstrained(self.client.socket.readable())).poll(cx).is_ready();
        if !phase.is_switched() && (phase.is_multiplexed() || has_more) {
            phase.lingers.set(true);
        }
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let transport = &mut self.transport;
        let mut writing = poll_fn(|cx| poll_write_pieces(transport, cx, slices));
        // Reads from a client that sends all the time use up tokio's budget each time the task runs. Then its answer
        // would never be written, and no time-out would end the connection.
        let written = match has_budget_remaining() {
            true => Pin::new(&mut writing).poll(cx),
            false => pin!(unconstrained(writing)).poll(cx),
        };
        if let Poll::Ready(Ok(bytes)) = &written {
            self.metrics.sent(*bytes);
        }
        self.watch(written)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;
    use tokio::task::coop::poll_proceed;
    use tokio_util::either::Either::{Left, Right};

    use super::*;
    use crate::exchange::client::{Idleness, Phase};
    use crate::exchange::peer::Peer;
    use crate::observe::metrics::Metrics;
    use crate::request::client::PeerAddress;
    use crate::upstream::times::testing::{IDLE, times_with};
    use crate::wire::overhead::Overhead;

    /// A client that sends many requests uses up tokio's budget. This must not destroy its last answer.
    #[tokio::test]
    async fn a_connection_with_unread_input_lingers_without_a_budget() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (socket, phase) =
            (Socket::new(Right(ours)), Phase::new(times_with(IDLE), Arc::new(Idleness::new())));
        let peer = Peer::new(PeerAddress::UnixSocket, false);
        let (ours, tasks) = (socket.clone(), Rc::default());
        let client = ClientConnection::new(peer, phase, Overhead::new(0), ours, None, tasks);
        let (client, metrics) = (Rc::new(client), Metrics::new(1).worker(0));
        let mut stream = ClientStream::new(client.clone(), Left(socket), metrics, 0);
        theirs.write_all(b"more").await.unwrap();
        client.socket.readable().await;
        poll_fn(|cx| {
            while let Poll::Ready(unit) = poll_proceed(cx) {
                unit.made_progress();
            }
            Pin::new(&mut stream).poll_shutdown(cx)
        })
        .await
        .unwrap();
        assert!(client.phase.must_linger());
    }
}
