//! A client's connection as bytes: its [`ClientConnection`] is told what moves.

use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep};

use super::tls::ClientTransport;
use crate::proxy::client::ClientConnection;
use crate::upstream::budget::spend_on;

/// How long a connection that is closed with unread input goes on reading, so that the client
/// gets to read the answer before a reset destroys it.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// The same of an HTTP/2 connection whose client shows in each of these times that it goes on reading.
const LONGEST_LINGER: Duration = Duration::from_secs(30);

/// What a connection begins with that speaks HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's connection as bytes.
#[derive(Debug)]
pub(super) struct ClientStream {
    client: Arc<ClientConnection>,
    transport: ClientTransport,
    /// Read before, and not used yet.
    early: Bytes,
    /// Nothing was handed on yet.
    opening: bool,
    lingering: Option<Lingering>,
}

/// A connection that is closed, and whose client may not have read all of it.
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

    /// The client shows that it goes on reading.
    fn renew(&mut self) {
        self.timer.as_mut().reset((Instant::now() + LINGER).min(self.until));
    }
}

impl ClientStream {
    pub(super) fn new(client: Arc<ClientConnection>, transport: ClientTransport) -> Self {
        // ALPN says what comes, or nobody does.
        Self { client, transport, early: Bytes::new(), opening: true, lingering: None }
    }

    /// The same, of which `early` is to be read first.
    pub(super) fn after(mut self, early: Bytes) -> Self {
        (self.early, self.opening) = (early, false);
        self
    }

    fn watch<T>(&self, written: Poll<T>) -> Poll<T> {
        match written {
            Poll::Ready(_) => self.client.phase.write_moved(),
            Poll::Pending => self.client.phase.write_waits(),
        }
        written
    }

    /// Reads more. Ready with 0 at the client's end.
    fn poll_transport(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.transport).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        if read > 0 {
            self.client.phase.bytes_came();
            spend_on(read, cx);
        }
        Poll::Ready(Ok(read))
    }

    /// Reads what a connection begins with: HTTP/2's preface only as a whole, since its beginning alone
    /// would be taken for a request of HTTP/1.1 that is malformed.
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
            self.client.begins_with(*first);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads and throws away what came until now. Says whether that was the client's end, and whether
    /// anything came before.
    fn discard(&mut self, cx: &mut Context<'_>) -> (bool, bool) {
        let (mut space, mut came) = ([0; 16 * 1024], false);
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut self.client.socket.clone()).poll_read(cx, &mut buffer) {
                Poll::Pending => return (false, came),
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.client.phase.linger();
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
        if !self.early.is_empty() {
            let length = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early[..length]);
            self.early.advance(length);
            // Of what HTTP/2 begins with this was told when it came.
            if !self.client.phase.is_multiplexed() {
                self.client.phase.bytes_came();
            }
            return Poll::Ready(Ok(()));
        }
        self.poll_transport(cx, buffer).map_ok(|_| ())
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.transport).poll_write(cx, bytes);
        self.watch(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.transport).poll_flush(cx);
        self.watch(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.client.phase.unsettle();
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.transport).poll_shutdown(cx))?;
        }
        if self.client.phase.has_switched() {
            return Poll::Ready(Ok(()));
        }
        // Of what was sent behind the last request more may lie unread in the socket.
        let (end, came) = self.discard(cx);
        if end {
            return Poll::Ready(Ok(()));
        }
        // While a client of HTTP/2 reads, it says how far it has come: to be closed to that would be a
        // reset, which destroys what it has not read.
        let multiplexed = self.client.phase.is_multiplexed();
        if !multiplexed && !self.client.phase.must_linger() {
            return Poll::Ready(Ok(()));
        }
        let lingering = self.lingering.get_or_insert_with(Lingering::begin);
        if multiplexed && came {
            lingering.renew();
        }
        // A client that sends faster than is read here spends the runtime's budget, without which no timer
        // is looked at.
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
        let written = Pin::new(&mut self.transport).poll_write_vectored(cx, slices);
        self.watch(written)
    }
}
