//! A client's connection as bytes: its [`Client`] is told what moves.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::proxy::client::Client;

/// How long a connection that is closed with unread input goes on reading, so that the client
/// gets to read the answer before a reset destroys it.
const LINGER: Duration = Duration::from_secs(2);

/// A client's connection as bytes.
#[derive(Debug)]
pub(super) struct ClientStream {
    client: Arc<Client>,
    /// Read before, and not used yet.
    early: Bytes,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl ClientStream {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self { client, early: Bytes::new(), lingering: None }
    }

    /// The same, of which `early` is to be read first.
    pub(super) fn after(mut self, early: Bytes) -> Self {
        self.early = early;
        self
    }

    fn watch<T>(&self, written: Poll<T>) -> Poll<T> {
        match written {
            Poll::Ready(_) => self.client.phase.write_moved(),
            Poll::Pending => self.client.phase.write_waits(),
        }
        written
    }

    /// Reads and throws away what came until now. Ready at the client's end.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut space = [0; 16 * 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut *self.client.socket.locked()).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => self.client.phase.linger(),
                _ => return Poll::Ready(()),
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
        if !self.early.is_empty() {
            let length = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early[..length]);
            self.early.advance(length);
            self.client.phase.bytes_came();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut *self.client.socket.locked()).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.client.phase.bytes_came();
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
        let written = Pin::new(&mut *self.client.socket.locked()).poll_write(cx, bytes);
        self.watch(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.client.socket.locked()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.client.phase.unsettle();
        if self.lingering.is_none() {
            ready!(Pin::new(&mut *self.client.socket.locked()).poll_shutdown(cx))?;
        }
        // Of what was sent behind the last request more may lie unread in the socket.
        if self.poll_discard(cx).is_ready() || !self.client.phase.must_linger() {
            return Poll::Ready(Ok(()));
        }
        let timer = self.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        timer.as_mut().poll(cx).map(Ok)
    }

    fn is_write_vectored(&self) -> bool {
        self.client.socket.locked().is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.client.socket.locked()).poll_write_vectored(cx, slices);
        self.watch(written)
    }
}
