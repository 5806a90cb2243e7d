//! A response on its way out.

use bytes::Bytes;
use http_body::Frame;

use crate::http1::decode::Framing;
use crate::http1::encode::{
    BodyFrame, CHUNK_END, LAST_CHUNK_END, write_chunk_size, write_last_chunk,
};
use crate::http1::output::Output;

/// A response on its way out.
#[derive(Debug)]
pub(super) enum Download {
    /// Its head was not written yet.
    Awaited,
    /// This much of its body is still to come, where that is known.
    Body { frame: BodyFrame, left: u64 },
    /// Only what is in the output is left.
    Ending,
}

/// How far a response's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    More,
    /// All of it is in the output.
    End,
    /// It has ended before its announced length.
    Short,
}

/// Puts a body's next frame into the output, and the body's end where it is the last.
pub(super) fn push(
    output: &mut Output,
    body: &BodyFrame,
    left: &mut u64,
    (next, is_last): (Option<Frame<Bytes>>, bool),
) -> Pushed {
    let (mut data, trailers) = match next.map(Frame::into_data) {
        None => (Bytes::new(), None),
        Some(Ok(data)) => (data, None),
        Some(Err(frame)) => (Bytes::new(), frame.into_trailers().ok()),
    };
    let is_last = is_last || trailers.is_some();
    if body.framing == Framing::Chunked {
        if !data.is_empty() {
            write_chunk_size(output.buffer(), data.len());
            output.push(data, if is_last { LAST_CHUNK_END } else { CHUNK_END });
        } else if is_last {
            write_last_chunk(output.buffer(), body, trailers.as_ref());
        }
        return if is_last { Pushed::End } else { Pushed::More };
    }
    // No more than was announced, whatever the body says.
    data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
    *left -= data.len() as u64;
    output.push(data, b"");
    match is_last {
        _ if *left == 0 => Pushed::End,
        true if body.framing == Framing::UntilClose => Pushed::End,
        true => Pushed::Short,
        false => Pushed::More,
    }
}
