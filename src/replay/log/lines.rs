//! Splits a stream into lines. The length of a line and the memory are bounded.

use std::io::{self, BufRead, Read as _};

/// The longest line in bytes. Longer lines are not kept.
pub(super) const LONGEST_LINE: u64 = 1 << 20;

/// What a stream has next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextLine {
    /// A line.
    Line,
    /// A line that is longer than [`LONGEST_LINE`] and was skipped.
    TooLong,
    /// The stream has ended.
    End,
}

/// Reads the next line of a stream into `line`, without its line feed. The last line may be without one.
pub(super) fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<NextLine> {
    line.clear();
    let read = source.take(LONGEST_LINE + 1).read_until(b'\n', line)?;
    Ok(match line.pop_if(|last| *last == b'\n') {
        None if read == 0 => NextLine::End,
        None if line.len() as u64 > LONGEST_LINE => {
            source.skip_until(b'\n')?;
            NextLine::TooLong
        }
        Some(_) | None => NextLine::Line,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::super::input::CHUNK;
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
        let mut stream = BufReader::with_capacity(CHUNK, Pieces(bytes, piece));
        let (mut lines, mut line) = (Vec::new(), Vec::new());
        loop {
            match next_line(&mut stream, &mut line).unwrap() {
                NextLine::Line => lines.push(Some(line.clone())),
                NextLine::TooLong => lines.push(None),
                NextLine::End => return (lines, line.capacity()),
            }
        }
    }

    #[test]
    fn a_long_line_is_skipped_without_keeping_it() {
        let longest = usize::try_from(LONGEST_LINE).unwrap();
        for (length, kept) in [(longest, true), (longest + 1, false), (40 << 20, false)] {
            for piece in [CHUNK, 100_000] {
                let bytes = [&vec![b'x'; length][..], b"\nnext\n"].concat();
                let (lines, memory) = lines(&bytes, piece);
                assert_eq!(lines.len(), 2);
                assert_eq!(lines[0].is_some(), kept, "{length}");
                assert_eq!(lines[1].as_deref(), Some(&b"next"[..]));
                assert!(memory <= 2 * longest, "{memory}");
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
        let (mut stream, mut line) = (BufReader::new(Interrupted(false)), b"before".to_vec());
        assert_eq!(next_line(&mut stream, &mut line).unwrap(), NextLine::Line);
        assert_eq!(line, b"");
    }
}
