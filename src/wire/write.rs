//! Writes messages that hyper hands over in several pieces, to clients and to servers.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncWrite, ReadBuf};

/// The longest message, in bytes, that is copied into one piece. Up to this length the copy costs less than
/// a system call with several pieces.
const SHORT: usize = 4096;

/// Writes the pieces in one system call, as far as the socket takes them. A short message is copied into one
/// piece first. A long message is not copied.
///
/// hyper can copy too, with `writev(false)`. It then copies long messages as well. Its buffer belongs to the
/// connection and is seldom in the processor's cache. The buffer here is on the stack.
pub(crate) fn poll_write_pieces<W: AsyncWrite + Unpin>(
    out: &mut W,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let out = Pin::new(out);
    if let [piece] = pieces {
        return out.poll_write(cx, piece);
    }
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() > SHORT {
        return out.poll_write_vectored(cx, pieces);
    }
    let mut space = [MaybeUninit::uninit(); SHORT];
    let mut whole = ReadBuf::uninit(&mut space);
    for piece in pieces {
        whole.put_slice(piece);
    }
    out.poll_write(cx, whole.filled())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn pieces_arrive_whole_and_in_order() {
        for lengths in [&[][..], &[3], &[5000], &[100, 0, 200], &[100, 1000, 3000, 1], &[9, 90_000]]
        {
            let letters = lengths.iter().zip(b'a'..);
            let pieces: Vec<_> = letters.map(|(length, letter)| vec![letter; *length]).collect();
            let (mut here, mut there) = UnixStream::pair().unwrap();
            let reading = tokio::spawn(async move {
                let mut read = Vec::new();
                there.read_to_end(&mut read).await.unwrap();
                read
            });
            let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut left = &mut slices[..];
            while left.iter().any(|slice| !slice.is_empty()) {
                let written = poll_fn(|cx| poll_write_pieces(&mut here, cx, left)).await.unwrap();
                IoSlice::advance_slices(&mut left, written);
            }
            here.shutdown().await.unwrap();
            assert_eq!(reading.await.unwrap(), pieces.concat(), "{lengths:?}");
        }
    }
}
