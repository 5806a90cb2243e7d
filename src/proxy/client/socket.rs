//! A client's socket. One task reads and writes it; others look at its state or set options.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A client's socket, shared by who reads and writes it and who only looks at it.
#[derive(Clone, Debug)]
pub struct Socket(Arc<TcpState>);

#[derive(Debug)]
struct TcpState {
    // Touched by one worker's thread alone, so the lock is never waited for.
    stream: Mutex<TcpStream>,
    /// The runtime has not waited for the socket yet, and so was not told of its state.
    unseen: AtomicBool,
}

impl Socket {
    /// A socket that was just accepted.
    pub fn new(stream: TcpStream) -> Self {
        Self(Arc::new(TcpState { stream: Mutex::new(stream), unseen: AtomicBool::new(true) }))
    }

    /// Whether the client has closed its side, also behind bytes that nobody has read yet.
    pub fn has_left(&self) -> bool {
        let stream = self.0.stream.lock();
        // Mostly there is nothing, which is cheaper to tell than what there is.
        let has_news = stream.try_io(Interest::READABLE, || Ok(())).is_ok();
        let left = has_news && {
            let ready = pin!(stream.ready(Interest::READABLE));
            match ready.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(ready)) => ready.is_read_closed(),
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            }
        };
        // A client that gave up while it waited to be accepted.
        let unseen = self.0.unseen.swap(false, Ordering::Relaxed);
        left || unseen
            && matches!(socket2::SockRef::from(&*stream).peek(&mut [MaybeUninit::uninit()]), Ok(0))
    }

    /// Waits for something to read, be it the connection's end.
    pub async fn readable(&self) {
        // An error is found again by the one who reads.
        let _ = poll_fn(|cx| self.0.stream.lock().poll_read_ready(cx)).await;
    }

    /// Makes the connection's end a reset.
    pub fn reset_at_close(&self) {
        // Where it cannot be set the connection is gone already.
        let _ = socket2::SockRef::from(&*self.0.stream.lock()).set_linger(Some(Duration::ZERO));
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.lock()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.stream.lock()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.lock()).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.stream.lock().is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.stream.lock()).poll_write_vectored(cx, slices)
    }
}
