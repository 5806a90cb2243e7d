//! The bytes of a client's connection. Reads and writes are noted in its [`ClientConnection`].

use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::task::coop::{has_budget_remaining, unconstrained};
use tokio::task::yield_now;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::request_line::RequestLine;
use super::tls::ClientTransport;
use super::watch::LINGER;
use crate::observe::metrics::WorkerMetrics;
use crate::proxy::client::{ClientConnection, Socket};
use crate::wire::budget::spend_on;
use crate::wire::write::poll_write_pieces;

/// The longest linger of an HTTP/2 connection. Each time its client sends something, the connection lingers
/// for [`LINGER`] more.
const LONGEST_LINGER: Duration = Duration::from_secs(30);

/// The first bytes of every HTTP/2 connection (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The most bytes that are read in a row before other connections have their turn.
const MOST_IN_A_ROW: usize = 256 * 1024;

/// The same for a connection whose last bytes were neither requests nor data. 20 such connections then make others
/// wait for some milliseconds.
const MOST_OF_FRAMING: usize = 16 * 1024;

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
    /// Bytes that were read before and are not used yet.
    early: Bytes,
    /// No bytes were handed on yet.
    opening: bool,
    line: RequestLine,
    /// Bytes that were read since the socket was last empty, or others last had their turn.
    in_a_row: usize,
    lingering: Option<Lingering>,
}

/// The time for which a closed connection still reads.
#[derive(Debug)]
struct Lingering {
    timer: Pin<Box<Sleep>>,
    /// The latest end.
    until: Instant,
}

impl Lingering {
    fn begin() -> Self {
        let until = Instant::now() + LONGEST_LINGER;
        Self { timer: Box::pin(sleep(LINGER)), until }
    }

    /// The client has sent something, so it still reads.
    fn renew(&mut self) {
        self.timer.as_mut().reset((Instant::now() + LINGER).min(self.until));
    }
}

/// Closes a connection so that its client can read the last bytes. To close while bytes of the client are unread
/// would cause a reset, and a reset destroys what the client has not read yet.
pub(super) async fn linger(mut socket: Socket) {
    let reading = async {
        let mut space = [0; 1024];
        let _ = socket.shutdown().await;
        while matches!(socket.read(&mut space).await, Ok(1..)) {}
    };
    // A client that stays longer is cut off.
    let _ = timeout(LINGER, reading).await;
}

impl ClientStream {
    pub(super) fn new(
        client: Rc<ClientConnection>,
        transport: ClientTransport,
        metrics: Arc<WorkerMetrics>,
    ) -> Self {
        let (early, line, lingering) = (Bytes::new(), RequestLine::Begin, None);
        Self { client, transport, metrics, early, opening: true, line, in_a_row: 0, lingering }
    }

    /// The same stream for a new connection of hyper, with bytes that were read before. They are returned by the
    /// next reads.
    pub(super) fn after(mut self, early: Bytes) -> Self {
        self.put_back(early);
        (self.opening, self.line) = (false, RequestLine::Begin);
        if let Some(encoded) = self.line.encoded(&self.early) {
            self.early = encoded.into();
        }
        self
    }

    /// The next reads return these bytes, which were read before.
    pub(super) fn put_back(&mut self, early: Bytes) {
        self.early = match self.early.is_empty() {
            true => early,
            false => [&early[..], &self.early].concat().into(),
        };
    }

    /// Whether bytes are held back for a new connection of hyper.
    pub(super) fn holds_back(&self) -> bool {
        self.line == RequestLine::HeldBack
    }

    /// Encodes what hyper does not take in the bytes of `buffer` from `begin` on. What does not fit any more is
    /// returned by the next read.
    fn encode(&mut self, buffer: &mut ReadBuf<'_>, begin: usize) {
        if let Some(encoded) = self.line.encoded(&buffer.filled()[begin..]) {
            buffer.set_filled(begin);
            let mut encoded = Bytes::from(encoded);
            buffer.put_slice(&encoded.split_to(encoded.len().min(buffer.remaining())));
            self.early = encoded;
        }
    }

    fn watch<T>(&self, written: Poll<T>) -> Poll<T> {
        match written {
            Poll::Ready(_) => self.client.phase.write_moved(),
            Poll::Pending => self.client.phase.write_waits(),
        }
        written
    }

    fn watch_written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.metrics.sent(*bytes);
        }
        self.watch(written)
    }

    /// Reads more. Ready with 0 if the client has closed.
    fn poll_transport(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let (phase, overhead) = (&self.client.phase, &self.client.overhead);
        let most = if overhead.is_suspect() { MOST_OF_FRAMING } else { MOST_IN_A_ROW };
        if self.in_a_row >= most {
            self.in_a_row = 0;
            // tokio looks for input of others before it wakes a task that has yielded.
            let _ = pin!(yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let mut limited = (&mut self.transport).take((most - self.in_a_row) as u64);
        let Poll::Ready(came) = Pin::new(&mut limited).poll_read(cx, buffer) else {
            self.in_a_row = 0;
            return Poll::Pending;
        };
        came?;
        let read = buffer.filled().len() - before;
        self.in_a_row += read;
        if read > 0 {
            let is_between = self.line == RequestLine::Elsewhere && phase.is_settled();
            if is_between && RequestLine::is_odd(&buffer.filled()[before..]) {
                self.early = Bytes::copy_from_slice(&buffer.filled()[before..]);
                buffer.set_filled(before);
                self.line = RequestLine::HeldBack;
                self.metrics.received(read);
                phase.parks.set(true);
                return Poll::Pending;
            }
            phase.bytes_came();
            self.metrics.received(read);
            if !phase.switched.get() {
                overhead.came(read);
                if overhead.is_used_up() {
                    let kind = io::ErrorKind::InvalidData;
                    return Poll::Ready(Err(io::Error::new(kind, TOO_MUCH_OVERHEAD)));
                }
            }
        }
        Poll::Ready(Ok(read))
    }

    /// Reads the first bytes of a connection. A part of HTTP/2's preface is held back until the rest has
    /// come: hyper would take the part for a malformed HTTP/1.1 request.
    fn poll_opening(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begin = buffer.filled().len();
        buffer.put_slice(&mem::take(&mut self.early));
        loop {
            match self.poll_transport(cx, buffer)? {
                Poll::Pending => {
                    self.early = Bytes::copy_from_slice(&buffer.filled()[begin..]);
                    buffer.set_filled(begin);
                    return Poll::Pending;
                }
                Poll::Ready(0) => break,
                Poll::Ready(_) => {}
            }
            let came = &buffer.filled()[begin..];
            if came.len() >= PREFACE.len() || !PREFACE.starts_with(came) {
                break;
            }
        }
        self.opening = false;
        if let Some(first) = buffer.filled().get(begin) {
            // A TLS record with a handshake message (RFC 8446, 5.1).
            self.client.said_hello.set(*first == 22);
        }
        self.encode(buffer, begin);
        Poll::Ready(Ok(()))
    }

    /// Reads everything that has come and throws it away. Returns whether the client has closed, and
    /// whether there was any data.
    fn discard(&mut self, cx: &mut Context<'_>) -> (bool, bool) {
        let (mut space, mut came) = ([0; 16 * 1024], false);
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut self.client.socket.clone()).poll_read(cx, &mut buffer) {
                Poll::Pending => return (false, came),
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    spend_on(buffer.filled().len(), cx);
                    self.client.phase.lingers.set(true);
                    came = true;
                }
                Poll::Ready(_) => return (true, came),
            }
        }
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
        if self.holds_back() {
            // The connection's timer wakes the task.
            return Poll::Pending;
        }
        if !self.early.is_empty() {
            let length = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early[..length]);
            self.early.advance(length);
            // Over HTTP/2 these bytes were noted when they were read first.
            if !self.client.phase.is_multiplexed() {
                self.client.phase.bytes_came();
            }
            return Poll::Ready(Ok(()));
        }
        let begin = buffer.filled().len();
        ready!(self.poll_transport(cx, buffer))?;
        self.encode(buffer, begin);
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
        self.client.phase.unsettled.set(true);
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.transport).poll_shutdown(cx))?;
        }
        // After a head that is malformed, `downstream::serve` calls `linger`, because the request is counted first.
        if self.client.phase.switched.get() || self.client.phase.is_in_head() {
            return Poll::Ready(Ok(()));
        }
        // More requests, sent after the last one, may lie unread in the socket.
        let (end, came) = self.discard(cx);
        if end {
            return Poll::Ready(Ok(()));
        }
        // An HTTP/2 client sends WINDOW_UPDATE frames while it reads. On a closed socket these would cause
        // a reset.
        let multiplexed = self.client.phase.is_multiplexed();
        if !multiplexed && !self.client.phase.must_linger() {
            return Poll::Ready(Ok(()));
        }
        let lingering = self.lingering.get_or_insert_with(Lingering::begin);
        if multiplexed && came {
            lingering.renew();
        }
        // Polled without tokio's budget: a client that sends all the time uses the budget up, and the timer
        // would never fire.
        pin!(unconstrained(lingering.timer.as_mut())).poll(cx).map(Ok)
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
        // A client that sends all the time uses tokio's budget up in each turn, before anything is written. Its
        // answer would never be written, and no timeout would end the connection.
        let written = match has_budget_remaining() {
            true => Pin::new(&mut writing).poll(cx),
            false => pin!(unconstrained(writing)).poll(cx),
        };
        self.watch_written(written)
    }
}
