//! Sends together what an HTTP/2 connection writes in one poll of its task.
//!
//! h2 flushes after each frame with data. Without the batch, each response would cost a system call and a TLS record.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most bytes that are kept. A TLS record has as many.
const MOST_KEPT: usize = 16 * 1024;

/// The longest write in bytes that is kept. A longer one is not copied.
const LONGEST_KEPT: usize = 4 * 1024;

/// A stream whose writes are kept until [`Self::send`]. hyper writes to one clone. The code that polls hyper calls
/// `send` on another clone.
#[derive(Debug)]
pub(super) struct WriteBatch<S>(Rc<RefCell<Batch<S>>>);

impl<S> Clone for WriteBatch<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Batch<S> {
    stream: S,
    kept: Vec<u8>,
    /// `stream` has taken something since it was last flushed. A flush while a write waits would look as if the client
    /// had read something.
    is_flushing: bool,
    /// Why `send` failed. The next flush returns it.
    failed: Option<io::Error>,
}

impl<S: AsyncWrite + Unpin> WriteBatch<S> {
    pub(super) fn new(stream: S) -> Self {
        let (kept, is_flushing, failed) = (Vec::new(), false, None);
        Self(Rc::new(RefCell::new(Batch { stream, kept, is_flushing, failed })))
    }

    /// Ends a poll: sends what is kept, as far as the stream takes it. Returns whether this failed. Then the next
    /// flush fails, too.
    pub(super) fn send(&self, cx: &mut Context<'_>) -> bool {
        let mut batch = self.0.borrow_mut();
        if batch.failed.is_none()
            && let Poll::Ready(Err(error)) = batch.poll_send(cx)
        {
            batch.failed = Some(error);
            return true;
        }
        false
    }
}

impl<S: AsyncWrite + Unpin> Batch<S> {
    /// Sends what is kept.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.kept.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.kept))?;
            self.is_flushing = true;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.kept.drain(..written);
        }
        // An idle connection keeps no memory for this.
        self.kept = Vec::new();
        if self.is_flushing {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.is_flushing = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let is_long = length > LONGEST_KEPT;
        if is_long || self.kept.len() + length > MOST_KEPT {
            ready!(self.poll_send(cx))?;
        }
        if is_long {
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, pieces));
            self.is_flushing = true;
            return Poll::Ready(written);
        }
        if self.kept.capacity() == 0 {
            self.kept.reserve_exact(MOST_KEPT);
        }
        pieces.iter().for_each(|piece| self.kept.extend_from_slice(piece));
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteBatch<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteBatch<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, &[IoSlice::new(bytes)])
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, pieces)
    }

    /// [`Self::send`] flushes, at the end of the poll.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.borrow_mut().failed.take().map_or(Ok(()), Err))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut batch = self.0.borrow_mut();
        ready!(batch.poll_send(cx))?;
        Pin::new(&mut batch.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    async fn send(batch: &WriteBatch<DuplexStream>) -> bool {
        poll_fn(|cx| Poll::Ready(batch.send(cx))).await
    }

    /// Reads what has arrived.
    fn arrived(stream: &mut DuplexStream) -> Vec<u8> {
        let mut bytes = vec![0; 1024 * 1024];
        let length = stream.read(&mut bytes).now_or_never().map_or(0, Result::unwrap);
        bytes.truncate(length);
        bytes
    }

    #[tokio::test]
    async fn writes_of_one_poll_arrive_together_at_its_end() {
        let (here, mut there) = duplex(1024 * 1024);
        let mut batch = WriteBatch::new(here);
        for _ in 0..3 {
            for piece in [b"first ", b"second"] {
                batch.write_all(piece).await.unwrap();
                batch.flush().await.unwrap();
                assert_eq!(arrived(&mut there), b"");
            }
            assert!(!send(&batch.clone()).await);
            assert_eq!(arrived(&mut there), b"first second");
        }
    }

    #[tokio::test]
    async fn all_bytes_arrive_in_order_through_a_small_socket() {
        let lengths = [1, 4096, 5000, 0, 100, 16 * 1024, 4096, 4096, 4096, 4095, 2, 90_000, 7];
        let letters = lengths.iter().zip(b'a'..);
        let pieces: Vec<_> = letters.map(|(length, letter)| vec![letter; *length]).collect();
        let (here, mut there) = duplex(1000);
        let mut batch = WriteBatch::new(here);
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            there.read_to_end(&mut read).await.unwrap();
            read
        });
        for piece in &pieces {
            batch.write_all(piece).await.unwrap();
            batch.flush().await.unwrap();
        }
        batch.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap(), pieces.concat());
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_holds_back_writes() {
        let (here, mut there) = duplex(1);
        let mut batch = WriteBatch::new(here);
        let mut taken = 0;
        while let Some(written) = batch.write(&[0; 1000]).now_or_never() {
            taken += written.unwrap();
            assert!(!send(&batch).await);
        }
        assert!(taken <= MOST_KEPT, "{taken}");
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while there.read_u8().await.is_ok() {
                read += 1;
            }
            read
        });
        batch.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap(), taken);
    }

    /// Takes nothing. A flush would count as if the client had read something, and its time would begin again.
    struct BlockedStream;

    impl AsyncWrite for BlockedStream {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            panic!("nothing was written")
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_stream_that_takes_nothing_is_not_flushed() {
        for length in [1, LONGEST_KEPT + 1] {
            let mut batch = WriteBatch::new(BlockedStream);
            assert_eq!(batch.write(&vec![0; length]).now_or_never().is_some(), length == 1);
            poll_fn(|cx| Poll::Ready(batch.send(cx))).await;
        }
    }

    #[tokio::test]
    async fn a_failure_is_returned_by_the_next_flush() {
        let (here, there) = duplex(1024);
        let mut batch = WriteBatch::new(here);
        drop(there);
        batch.write_all(b"lost").await.unwrap();
        batch.flush().await.unwrap();
        assert!(send(&batch).await && !send(&batch).await);
        assert!(batch.flush().await.is_err());
    }
}
