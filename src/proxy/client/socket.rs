//! A client's socket. One task reads and writes it; others look at its state or set options.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either::{self, Left, Right};

/// A connection of either kind that was just accepted.
pub(crate) type AcceptedStream = Either<TcpStream, UnixStream>;

/// Calls the same method of either kind of stream.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Left($inner) => $call,
            Right($inner) => $call,
        }
    };
}

/// A client's socket. All clones are the same socket.
#[derive(Clone, Debug)]
pub(crate) struct Socket(Arc<SharedSocket>);

#[derive(Debug)]
struct SharedSocket {
    // Only one worker's thread uses the lock, so no thread waits for it.
    stream: Mutex<AcceptedStream>,
    /// The runtime has not waited for the socket yet, so it does not know the socket's state.
    unseen: AtomicBool,
}

impl Socket {
    /// A socket that was just accepted.
    pub(crate) fn new(stream: AcceptedStream) -> Self {
        Self(Arc::new(SharedSocket { stream: Mutex::new(stream), unseen: AtomicBool::new(true) }))
    }

    /// Whether the client has closed its side. This also shows while bytes before the end are unread.
    pub(crate) fn has_left(&self) -> bool {
        let stream = self.0.stream.lock();
        // Mostly the socket is not readable. To ask that is cheaper than to ask what is readable.
        let has_news = either!(&*stream, s => s.try_io(Interest::READABLE, || Ok(()))).is_ok();
        let left = has_news && {
            let mut cx = Context::from_waker(Waker::noop());
            match either!(&*stream, s => pin!(s.ready(Interest::READABLE)).poll(&mut cx)) {
                Poll::Ready(Ok(ready)) => ready.is_read_closed(),
                Poll::Ready(Err(_)) => true,
                Poll::Pending => false,
            }
        };
        // The client may have closed while it waited to be accepted.
        let unseen = self.0.unseen.swap(false, Ordering::Relaxed);
        left || unseen && matches!(reference(&stream).peek(&mut [MaybeUninit::uninit()]), Ok(0))
    }

    /// Waits until there is something to read. The connection's end counts too.
    pub(crate) async fn readable(&self) {
        // The next read returns the error again.
        let _ = poll_fn(|cx| either!(&*self.0.stream.lock(), s => s.poll_read_ready(cx))).await;
    }

    /// Waits until bytes have come, and copies them into `space` without taking them from the socket. Returns
    /// their number. 0 is the connection's end.
    pub(crate) async fn peek(&self, space: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| {
            let stream = self.0.stream.lock();
            loop {
                ready!(either!(&*stream, s => s.poll_read_ready(cx)))?;
                let space = &mut *space;
                match either!(&*stream, s => s.try_io(Interest::READABLE, || {
                    Ok(recv(s, space, RecvFlags::PEEK)?)
                })) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    peeked => return Poll::Ready(peeked.map(|(_, length)| length)),
                }
            }
        })
        .await
    }

    /// Makes the connection end with a reset when it is closed.
    pub(crate) fn reset_at_close(&self) {
        // If the option cannot be set, the connection is gone already.
        let _ = reference(&self.0.stream.lock()).set_linger(Some(Duration::ZERO));
    }
}

/// The socket of a stream, for its options.
fn reference(stream: &AcceptedStream) -> SockRef<'_> {
    either!(stream, s => SockRef::from(s))
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
