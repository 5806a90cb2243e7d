//! Splits a stream into lines. The length of a line and the memory are bounded.

use std::io::{self, Read};
use std::ops::Range;

/// The longest line in bytes. Longer lines are not kept.
pub(super) const LONGEST_LINE: usize = 1 << 20;

/// This many bytes are asked for at once.
const CHUNK: usize = 1 << 16;

/// What a stream has next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextLine {
    /// A line. Its place in [`LineStream::bytes`], without the line feed.
    Line(Range<usize>),
    /// A line that is longer than [`LONGEST_LINE`] and was skipped.
    TooLong,
    /// The stream has ended.
    End,
}

/// Splits a stream at its line feeds. The last line may be without one.
#[derive(Debug)]
pub(super) struct LineStream<R> {
    source: R,
    buffer: Vec<u8>,
    /// Where the next line begins.
    begin: usize,
    /// How far the buffer has been searched for a line feed.
    searched: usize,
    /// How far the buffer is filled.
    filled: usize,
}

impl<R: Read> LineStream<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, buffer: vec![0; CHUNK], begin: 0, searched: 0, filled: 0 }
    }

    /// The bytes in which the last line is.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    pub(super) fn next_line(&mut self) -> io::Result<NextLine> {
        let mut is_too_long = false;
        loop {
            let new = &self.buffer[self.searched..self.filled];
            let end = memchr::memchr(b'\n', new).map(|at| self.searched + at);
            let line = self.begin..end.unwrap_or(self.filled);
            is_too_long |= line.len() > LONGEST_LINE;
            if let Some(end) = end {
                self.begin = end + 1;
                self.searched = self.begin;
                return Ok(if is_too_long { NextLine::TooLong } else { NextLine::Line(line) });
            }
            self.searched = self.filled;
            if is_too_long {
                // Only the end of a long line is looked for. Its bytes are not kept.
                self.begin = self.filled;
            }
            if self.fill()? == 0 {
                let line = self.begin..self.filled;
                self.begin = self.filled;
                return Ok(match is_too_long {
                    true => NextLine::TooLong,
                    false if line.is_empty() => NextLine::End,
                    false => NextLine::Line(line),
                });
            }
        }
    }

    /// Reads more bytes of the present line. Returns their number, which is 0 at the stream's end.
    fn fill(&mut self) -> io::Result<usize> {
        if self.begin > 0 {
            self.buffer.copy_within(self.begin..self.filled, 0);
            self.filled -= self.begin;
            self.searched -= self.begin;
            self.begin = 0;
        }
        // This is at most the longest line and one chunk, because longer lines are not kept.
        self.buffer.resize(self.buffer.len().max(self.filled + CHUNK), 0);
        loop {
            match self.source.read(&mut self.buffer[self.filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let read = read?;
                    self.filled += read;
                    return Ok(read);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gives its bytes in pieces of this length.
    struct Pieces<'b>(&'b [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(into.len());
            let (now, later) = self.0.split_at(length);
            into[..length].copy_from_slice(now);
            self.0 = later;
            Ok(length)
        }
    }

    /// All lines, `None` for each that is too long.
    fn lines(bytes: &[u8], piece: usize) -> (Vec<Option<Vec<u8>>>, usize) {
        let mut stream = LineStream::new(Pieces(bytes, piece));
        let mut lines = Vec::new();
        loop {
            match stream.next_line().unwrap() {
                NextLine::Line(range) => lines.push(Some(stream.bytes()[range].to_vec())),
                NextLine::TooLong => lines.push(None),
                NextLine::End => return (lines, stream.buffer.len()),
            }
        }
    }

    #[test]
    fn a_long_line_is_skipped_without_keeping_it() {
        for (length, kept) in [(LONGEST_LINE, true), (LONGEST_LINE + 1, false), (40 << 20, false)] {
            for piece in [CHUNK, 100_000] {
                let bytes = [&vec![b'x'; length][..], b"\nnext\n"].concat();
                let (lines, memory) = lines(&bytes, piece);
                assert_eq!(lines.len(), 2);
                assert_eq!(lines[0].is_some(), kept, "{length}");
                assert_eq!(lines[1].as_deref(), Some(&b"next"[..]));
                assert!(memory <= LONGEST_LINE + 2 * CHUNK, "{memory}");
            }
        }
    }

    #[test]
    fn a_long_line_may_be_the_last() {
        assert_eq!(lines(&vec![b'x'; 3 << 20], 70_000).0, [None]);
    }

    #[test]
    fn an_interrupted_read_is_tried_again() {
        struct Interrupted(bool);
        impl Read for Interrupted {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.0 = !self.0;
                if self.0 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                into[0] = b'\n';
                Ok(1)
            }
        }
        let mut stream = LineStream::new(Interrupted(false));
        assert_eq!(stream.next_line().unwrap(), NextLine::Line(0..0));
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_whole(bytes in "[ab\n\r]{0,60}", piece in 1_usize..9) {
            let mut whole: Vec<_> = bytes.split('\n').map(|line| Some(line.as_bytes().to_vec())).collect();
            if whole.last().is_some_and(|last| last.as_ref().is_some_and(Vec::is_empty)) {
                whole.pop();
            }
            prop_assert_eq!(lines(bytes.as_bytes(), piece).0, whole);
        }
    }
}
