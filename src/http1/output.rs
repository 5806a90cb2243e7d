//! What is on its way to a peer: small things copied into one buffer, a large one beside it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Up to this many bytes a write is put together by copying; what is longer is written from where it
/// lies.
const MOST_COPIED: usize = 16 * 1024;

/// Bytes to be written, in this order: copied ones, a large piece, what ends it.
#[derive(Debug, Default)]
pub(super) struct Output {
    copied: Vec<u8>,
    /// Of `copied`, what was written already.
    written: usize,
    piece: Bytes,
    behind: &'static [u8],
}

impl Output {
    /// Where small things are put. Only while the output is not full.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.copied
    }

    /// Puts a piece of a body behind what is there, and `behind` behind that.
    pub(super) fn push(&mut self, piece: Bytes, behind: &'static [u8]) {
        if self.copied.len() + piece.len() <= MOST_COPIED {
            self.copied.extend_from_slice(&piece);
            self.copied.extend_from_slice(behind);
        } else {
            self.piece = piece;
            self.behind = behind;
        }
    }

    /// Whether it has to be written before anything else is put into it.
    pub(super) fn is_full(&self) -> bool {
        !self.piece.is_empty() || !self.behind.is_empty() || self.copied.len() >= MOST_COPIED
    }

    pub(super) fn is_empty(&self) -> bool {
        self.copied.len() == self.written && self.piece.is_empty() && self.behind.is_empty()
    }

    /// Writes everything.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let copied = self.copied.get(self.written..).unwrap_or_default();
            let stream = Pin::new(&mut *stream);
            let written = if self.piece.is_empty() && self.behind.is_empty() {
                ready!(stream.poll_write(cx, copied))?
            } else {
                let slices = [copied, &self.piece, self.behind].map(IoSlice::new);
                ready!(stream.poll_write_vectored(cx, &slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        self.copied.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut written: usize) {
        let copied = written.min(self.copied.len() - self.written);
        self.written += copied;
        written -= copied;
        let piece = written.min(self.piece.len());
        self.piece.advance(piece);
        written -= piece;
        self.behind = self.behind.get(written..).unwrap_or_default();
        if self.piece.is_empty() {
            // It may be a part of something large that somebody waits to have back.
            self.piece = Bytes::new();
        }
    }
}
