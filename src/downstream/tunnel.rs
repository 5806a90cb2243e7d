//! Connections that have changed to another protocol. Their bytes are copied both ways, unread.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until};

use crate::proxy::Switched;

/// Copies bytes between a client and a server, until both have closed, one side breaks, or no byte has
/// moved for `patience`.
pub(super) async fn join(switched: Switched) {
    let Switched { client, server, patience, slots: _slots, lease: _lease } = switched;
    // Either side may close instead of changing the protocol.
    let Ok((client, server)) = tokio::try_join!(client, server) else { return };
    let moved = Arc::new(Moved { epoch: Instant::now(), at: AtomicU64::new(0) });
    let mut client = ActivityStream { inner: TokioIo::new(client), moved: moved.clone() };
    let mut server = ActivityStream { inner: TokioIo::new(server), moved: moved.clone() };
    let mut copying = pin!(copy_bidirectional(&mut client, &mut server));
    loop {
        let Some(deadline) = moved.last().checked_add(patience) else {
            let _ = copying.await;
            break;
        };
        tokio::select! {
            _ = copying.as_mut() => break,
            () = sleep_until(deadline) => {
                if moved.last().checked_add(patience).is_some_and(|d| d <= Instant::now()) {
                    break;
                }
            }
        }
    }
}

/// When a byte last moved in the tunnel.
struct Moved {
    epoch: Instant,
    /// Microseconds after `epoch`.
    at: AtomicU64,
}

impl Moved {
    fn last(&self) -> Instant {
        self.epoch + Duration::from_micros(self.at.load(Ordering::Relaxed))
    }

    fn now(&self) {
        let micros = u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(0);
        self.at.store(micros, Ordering::Relaxed);
    }
}

/// One side of the tunnel. It notes when bytes move.
struct ActivityStream<T> {
    inner: T,
    moved: Arc<Moved>,
}

impl<T: AsyncRead + Unpin> AsyncRead for ActivityStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        self.moved.now();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ActivityStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        self.moved.now();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
