//! A client's socket. One task reads and writes it; others look at its state or set options.

use std::cell::{Cell, Ref, RefCell};
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send};
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
pub(crate) struct Socket(Rc<SharedSocket>);

#[derive(Debug)]
struct SharedSocket {
    stream: RefCell<AcceptedStream>,
    /// The runtime has not waited for the socket yet, so it does not know the socket's state.
    unseen: Cell<bool>,
    /// See [`Socket::try_full`].
    trial: Cell<WriteTrial>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteTrial {
    /// No write is to be tried, or the trial has failed.
    None,
    /// The next write is to be tried.
    Next,
    /// A trial has written something.
    Moved,
}

impl SharedSocket {
    /// Writes to a socket that the runtime takes for full, if this is to be tried.
    fn write_full(&self, stream: &AcceptedStream, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.trial.get() != WriteTrial::Next || bytes.is_empty() {
            return Poll::Pending;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = either!(stream, s => send(s, bytes, flags));
        self.trial.set(if sent.is_ok() { WriteTrial::Moved } else { WriteTrial::None });
        // The runtime notices by itself that a connection is broken.
        sent.map_or(Poll::Pending, |length| Poll::Ready(Ok(length)))
    }
}

impl Socket {
    /// A socket that was just accepted.
    pub(crate) fn new(stream: AcceptedStream) -> Self {
        let (stream, unseen) = (RefCell::new(stream), Cell::new(true));
        Self(Rc::new(SharedSocket { stream, unseen, trial: Cell::new(WriteTrial::None) }))
    }

    /// Borrowed only inside a poll, so no two borrows meet.
    fn stream(&self) -> Ref<'_, AcceptedStream> {
        self.0.stream.borrow()
    }

    /// Whether the client has closed its side. This also shows while bytes before the end are unread.
    pub(crate) fn has_left(&self) -> bool {
        let stream = self.stream();
        // Mostly the socket is not readable. This check is cheaper than the check of what is readable.
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
        let unseen = self.0.unseen.replace(false);
        left || unseen && matches!(reference(&stream).peek(&mut [MaybeUninit::uninit()]), Ok(0))
    }

    /// The next write is tried although the runtime takes the socket for full. The kernel reports room only when a
    /// third of the buffer is free. The buffer may have 4 MB: for a slow reader this takes minutes.
    pub(crate) fn try_full(&self) {
        self.0.trial.set(WriteTrial::Next);
    }

    /// Whether the last trial has written something.
    pub(crate) fn has_moved(&self) -> bool {
        self.0.trial.get() == WriteTrial::Moved
    }

    /// Waits until there is something to read. The connection's end counts too.
    pub(crate) async fn readable(&self) {
        // The next read returns the error again.
        let _ = poll_fn(|cx| either!(&*self.stream(), s => s.poll_read_ready(cx))).await;
    }

    /// Waits until bytes have come, and copies them into `space` without taking them from the socket. Returns
    /// their number. 0 is the connection's end.
    pub(crate) async fn peek(&self, space: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| {
            let stream = self.stream();
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
        let _ = reference(&self.stream()).set_linger(Some(Duration::ZERO));
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
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.0.stream.borrow_mut();
        match Pin::new(&mut *stream).poll_write(cx, bytes) {
            Poll::Pending => self.0.write_full(&stream, bytes),
            written => written,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.stream.borrow_mut()).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream().is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.0.stream.borrow_mut();
        match Pin::new(&mut *stream).poll_write_vectored(cx, slices) {
            Poll::Pending => {
                let first = slices.iter().find(|slice| !slice.is_empty());
                self.0.write_full(&stream, first.map_or(&[], |slice| slice))
            }
            written => written,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A regression: a reader of 30,000 bytes a second was cut off, because the socket was not writable within 30 s.
    #[tokio::test]
    async fn a_full_socket_is_written_where_its_peer_has_read_a_little() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut socket = Socket::new(Right(ours));
        let mut write = move || {
            let mut cx = Context::from_waker(Waker::noop());
            let written = Pin::new(&mut socket).poll_write(&mut cx, &[0; 8 * 1024]);
            (written, socket.clone())
        };
        let full = loop {
            if let (Poll::Pending, socket) = write() {
                break socket;
            }
        };
        full.try_full();
        assert!(write().0.is_pending() && !full.has_moved(), "nothing was read");
        theirs.read_exact(&mut [0; 32 * 1024]).await.unwrap();
        assert!(write().0.is_pending(), "it is tried only when that is wanted");
        full.try_full();
        assert!(matches!(write().0, Poll::Ready(Ok(1..))));
        assert!(full.has_moved());
        assert!(write().0.is_pending(), "once");
    }
}
