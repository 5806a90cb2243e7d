//! A client's connection as it is read and written; its [`Phase`] is told what moves.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::phase::Phase;

/// How long a connection that is closed with unread input goes on reading, so that the client
/// gets to read the answer before a reset destroys it.
const LINGER: Duration = Duration::from_secs(2);

/// A client's socket as those see it who do not read from it.
#[derive(Clone, Debug)]
pub(super) struct Socket(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    // Touched by one worker's thread alone, so the lock is never waited for.
    stream: Mutex<TcpStream>,
    /// The runtime has not waited for the socket yet, and so was not told of its state.
    unseen: AtomicBool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(Shared { stream: Mutex::new(stream), unseen: AtomicBool::new(true) }))
    }

    /// Whether the client has closed its side, also behind bytes that nobody has read yet.
    pub(super) fn has_left(&self) -> bool {
        let stream = self.locked();
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
    pub(super) async fn readable(&self) {
        // An error is found again by the one who reads.
        let _ = poll_fn(|cx| self.locked().poll_read_ready(cx)).await;
    }

    /// Makes the connection's end a reset.
    pub(super) fn reset_at_close(&self) {
        // Where it cannot be set the connection is gone already.
        let _ = socket2::SockRef::from(&*self.locked()).set_linger(Some(Duration::ZERO));
    }

    fn locked(&self) -> MutexGuard<'_, TcpStream> {
        self.0.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client's socket.
#[derive(Debug)]
pub(super) struct ClientStream {
    socket: Socket,
    phase: Arc<Phase>,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl ClientStream {
    pub(super) fn new(socket: Socket, phase: Arc<Phase>) -> Self {
        Self { socket, phase, lingering: None }
    }

    fn watch<T>(&self, written: Poll<T>) -> Poll<T> {
        match written {
            Poll::Ready(_) => self.phase.write_moved(),
            Poll::Pending => self.phase.write_waits(),
        }
        written
    }

    /// Reads and throws away until the client closes or has had its time.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut space = [0; 16 * 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut *self.socket.locked()).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut *self.socket.locked()).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.phase.bytes_came();
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
        let written = Pin::new(&mut *self.socket.locked()).poll_write(cx, bytes);
        self.watch(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.socket.locked()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.phase.unsettle();
        if self.lingering.is_none() {
            ready!(Pin::new(&mut *self.socket.locked()).poll_shutdown(cx))?;
        }
        if self.phase.must_linger() {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.locked().is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.socket.locked()).poll_write_vectored(cx, slices);
        self.watch(written)
    }
}
