//! What flows through without being looked at: upgraded connections, and bodies nobody wants.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until, timeout};

use crate::http1::incoming::Incoming;
use crate::throttle::Slots;
use crate::upstream::connection::Upgraded;

/// Reads a body of up to `most` bytes within `patience` and throws it away. Says whether it reached
/// its end.
pub(super) async fn drain(mut body: Incoming, most: u64, patience: Duration) -> bool {
    let reading = async {
        let mut left = most;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return false,
            }
        }
        true
    };
    timeout(patience, reading).await.unwrap_or(false)
}

/// A server's side of a connection that has changed to another protocol.
#[derive(Debug)]
pub(super) struct Switched {
    pub(super) server: Upgraded,
    /// How long nothing may move.
    pub(super) patience: Duration,
    /// What its request holds for as long as it lives.
    pub(super) slots: Slots,
}

/// Joins a client with such a server until either closes, breaks, or nothing has moved for too
/// long. `early` was read from the client before.
pub(super) async fn join<S>(client: S, early: Bytes, switched: Switched)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Switched { server, patience, slots: _slots } = switched;
    let moved = Arc::new(Moved { epoch: Instant::now(), at: AtomicU64::new(0) });
    let mut client = Watched { inner: client, early, moved: moved.clone() };
    let mut server = Watched { inner: server, early: Bytes::new(), moved: moved.clone() };
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

/// When something last moved.
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

/// A connection that notes when something moves on it.
struct Watched<T> {
    inner: T,
    /// Read before, and not handed on yet.
    early: Bytes,
    moved: Arc<Moved>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        } else {
            let length = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early.split_to(length));
        }
        self.moved.now();
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
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
