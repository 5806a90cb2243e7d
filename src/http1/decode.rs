//! Takes a message's body out of what was read: by its length, in chunks, or until the end.
//!
//! What is not exactly as RFC 9112 has it is refused: two readers that differ about where a body
//! ends are how a request is smuggled past one of them.

use std::fmt;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The most bytes of chunk extensions that a body may have, and of space before them. They mean
/// nothing here.
const MOST_EXTENSIONS: usize = 16 * 1024;
/// The most bytes of trailers.
const MOST_TRAILERS: usize = 16 * 1024;
/// The most trailer fields.
const MOST_TRAILER_FIELDS: usize = 100;
/// The most digits of a chunk's size, which are those of a `u64`.
const MOST_DIGITS: u8 = 16;

/// How a body's end is known (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// After this many bytes.
    Length(u64),
    /// By a chunk of size 0.
    Chunked,
    /// By the connection's end.
    UntilClose,
}

/// What is found next in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Some of it, never empty.
    Data(Bytes),
    /// The fields behind it. Only the end comes after them.
    Trailers(HeaderMap),
    /// The end; what else was read belongs to another message.
    End,
    /// More has to be read first.
    More,
}

/// Why a body cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The peer closed the connection first.
    Short,
    /// A chunk's size is no hexadecimal number, or its line does not end as it must.
    ChunkSize,
    /// A chunk's size does not fit 64 bits.
    ChunkTooLarge,
    /// There is more in a chunk than its size says.
    ChunkEnd,
    /// The chunks' extensions are too long.
    Extensions,
    /// The trailers are no header fields.
    Trailers,
    /// The trailers are too long or too many.
    TrailersTooLarge,
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the connection was closed before the body's end",
            Self::ChunkSize => "the size line of a chunk is malformed",
            Self::ChunkTooLarge => "a chunk's size does not fit 64 bits",
            Self::ChunkEnd => "a chunk does not end where its size says",
            Self::Extensions => "the chunk extensions are longer than 16 KiB",
            Self::Trailers => "the trailers are malformed",
            Self::TrailersTooLarge => "the trailers are longer than 16 KiB or more than 100",
        })
    }
}

impl std::error::Error for BodyFault {}

/// How far a body has been read.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    extensions: usize,
    /// The trailers' lines so far.
    trailers: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    UntilClose,
    /// At a chunk's first digit.
    Start,
    /// Behind so many digits of a size.
    Size(u64, u8),
    /// In the space behind a size.
    Space(u64),
    Extension(u64),
    SizeLf(u64),
    /// In a chunk that has so many bytes left, at least one.
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    /// At the beginning of a line behind the last chunk.
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    /// Trailers are there to be handed over.
    TrailersRead,
    Faulty(BodyFault),
    Done,
}

impl Decoder {
    /// At the beginning of a body.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Start,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, extensions: 0, trailers: BytesMut::new() }
    }

    /// Takes the next piece out of what was read. Body data is not copied: it shares `buffer`'s
    /// memory.
    ///
    /// # Errors
    /// Where the framing is broken. Nothing can be read off the connection any more then, and every
    /// further call says the same.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, BodyFault> {
        self.skip_framing(buffer);
        match self.state {
            State::Done => Ok(Piece::End),
            State::Faulty(fault) => Err(fault),
            State::TrailersRead => {
                let trailers = parse_trailers(&self.trailers);
                self.trailers = BytesMut::new();
                self.state = trailers.as_ref().map_or_else(|f| State::Faulty(*f), |_| State::Done);
                trailers.map(Piece::Trailers)
            }
            _ if buffer.is_empty() => Ok(Piece::More),
            State::Length(left) => {
                let (data, left) = split(buffer, left);
                self.state = if left == 0 { State::Done } else { State::Length(left) };
                Ok(Piece::Data(data))
            }
            State::Chunk(left) => {
                let (data, left) = split(buffer, left);
                self.state = if left == 0 { State::ChunkCr } else { State::Chunk(left) };
                // So that whoever asks knows of an end that is there already.
                self.skip_framing(buffer);
                Ok(Piece::Data(data))
            }
            State::UntilClose => Ok(Piece::Data(buffer.split().freeze())),
            // Between chunks all that was read has been taken.
            _ => Ok(Piece::More),
        }
    }

    /// The peer has closed the connection, and all that it sent has been taken.
    ///
    /// # Errors
    /// Where that is not the body's end.
    pub fn end_of_stream(&mut self) -> Result<(), BodyFault> {
        match self.state {
            State::Done | State::UntilClose => {
                self.state = State::Done;
                Ok(())
            }
            State::Faulty(fault) => Err(fault),
            // Those that are there are all.
            State::TrailersRead => Ok(()),
            _ => {
                self.state = State::Faulty(BodyFault::Short);
                Err(BodyFault::Short)
            }
        }
    }

    /// Whether the end was reached and all pieces have been taken.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The bytes of data that are still to come, where that is known.
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            State::Length(left) => Some(left),
            State::Done | State::TrailersRead => Some(0),
            _ => None,
        }
    }

    /// Reads what stands between data: up to the next data, the end, or the end of what is there.
    fn skip_framing(&mut self, buffer: &mut BytesMut) {
        let mut read = 0;
        while self.is_framing() {
            let Some(byte) = buffer.get(read) else { break };
            read += 1;
            self.state = self.step(*byte).unwrap_or_else(State::Faulty);
        }
        buffer.advance(read);
    }

    fn is_framing(&self) -> bool {
        match self.state {
            State::Length(_)
            | State::UntilClose
            | State::Chunk(_)
            | State::TrailersRead
            | State::Faulty(_)
            | State::Done => false,
            State::Start
            | State::Size(..)
            | State::Space(_)
            | State::Extension(_)
            | State::SizeLf(_)
            | State::ChunkCr
            | State::ChunkLf
            | State::TrailerStart
            | State::Trailer
            | State::TrailerLf
            | State::EndLf => true,
        }
    }

    /// Where one byte of framing leads.
    fn step(&mut self, byte: u8) -> Result<State, BodyFault> {
        match (self.state, byte) {
            (State::Start, _) => {
                let digit = digit(byte).ok_or(BodyFault::ChunkSize)?;
                Ok(State::Size(digit, 1))
            }
            (State::Size(size, digits), _) => match digit(byte) {
                Some(_) if digits == MOST_DIGITS => Err(BodyFault::ChunkTooLarge),
                Some(digit) => Ok(State::Size(size << 4 | digit, digits + 1)),
                None => self.behind_size(size, byte),
            },
            (State::Space(size), _) => self.behind_size(size, byte),
            (State::Extension(size), b'\r') => Ok(State::SizeLf(size)),
            (State::Extension(_), b'\n') => Err(BodyFault::ChunkSize),
            (State::Extension(size), _) => {
                self.count_extension()?;
                Ok(State::Extension(size))
            }
            (State::SizeLf(0), b'\n') => Ok(State::TrailerStart),
            (State::SizeLf(size), b'\n') => Ok(State::Chunk(size)),
            (State::SizeLf(_), _) => Err(BodyFault::ChunkSize),
            (State::ChunkCr, b'\r') => Ok(State::ChunkLf),
            (State::ChunkLf, b'\n') => Ok(State::Start),
            (State::ChunkCr | State::ChunkLf, _) => Err(BodyFault::ChunkEnd),
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::TrailerStart | State::Trailer, b'\n') => Err(BodyFault::Trailers),
            (State::TrailerStart | State::Trailer, _) => {
                self.keep_trailer(byte)?;
                Ok(if byte == b'\r' { State::TrailerLf } else { State::Trailer })
            }
            (State::TrailerLf, b'\n') => {
                self.keep_trailer(byte)?;
                Ok(State::TrailerStart)
            }
            (State::EndLf, b'\n') if self.trailers.is_empty() => Ok(State::Done),
            (State::EndLf, b'\n') => Ok(State::TrailersRead),
            (State::TrailerLf | State::EndLf, _) => Err(BodyFault::Trailers),
            (state, _) => Ok(state),
        }
    }

    fn behind_size(&mut self, size: u64, byte: u8) -> Result<State, BodyFault> {
        match byte {
            b' ' | b'\t' => {
                self.count_extension()?;
                Ok(State::Space(size))
            }
            b';' => Ok(State::Extension(size)),
            b'\r' => Ok(State::SizeLf(size)),
            _ => Err(BodyFault::ChunkSize),
        }
    }

    fn count_extension(&mut self) -> Result<(), BodyFault> {
        self.extensions += 1;
        if self.extensions > MOST_EXTENSIONS { Err(BodyFault::Extensions) } else { Ok(()) }
    }

    fn keep_trailer(&mut self, byte: u8) -> Result<(), BodyFault> {
        if self.trailers.len() >= MOST_TRAILERS {
            return Err(BodyFault::TrailersTooLarge);
        }
        self.trailers.extend_from_slice(&[byte]);
        Ok(())
    }
}

fn digit(byte: u8) -> Option<u64> {
    char::from(byte).to_digit(16).map(u64::from)
}

/// At most `most` bytes of what was read, and what is missing then.
fn split(buffer: &mut BytesMut, most: u64) -> (Bytes, u64) {
    let length = usize::try_from(most).map_or(buffer.len(), |most| most.min(buffer.len()));
    (buffer.split_to(length).freeze(), most - length as u64)
}

fn parse_trailers(lines: &[u8]) -> Result<HeaderMap, BodyFault> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_TRAILER_FIELDS];
    // The empty line that ends them was left away.
    let whole = [lines, b"\r\n"].concat();
    let fields = match httparse::parse_headers(&whole, &mut fields) {
        Ok(httparse::Status::Complete((_, fields))) => fields,
        Err(httparse::Error::TooManyHeaders) => return Err(BodyFault::TrailersTooLarge),
        Ok(httparse::Status::Partial) | Err(_) => return Err(BodyFault::Trailers),
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_bytes(field.value);
        let (Ok(name), Ok(value)) = (name, value) else { return Err(BodyFault::Trailers) };
        trailers.append(name, value);
    }
    Ok(trailers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All of a body: its data in one, its trailers, what is left behind it, or its fault.
    type Read = Result<(Vec<u8>, Option<HeaderMap>, Vec<u8>), BodyFault>;

    /// Reads a body that comes in these pieces, up to its end or that of the connection.
    fn read<'p>(framing: Framing, pieces: impl IntoIterator<Item = &'p [u8]>) -> Read {
        let (mut decoder, mut buffer) = (Decoder::new(framing), BytesMut::new());
        let (mut data, mut trailers) = (Vec::new(), None);
        let mut pieces = pieces.into_iter();
        loop {
            match decoder.next(&mut buffer) {
                Ok(Piece::Data(some)) => {
                    assert!(!some.is_empty());
                    data.extend_from_slice(&some);
                }
                Ok(Piece::Trailers(map)) => trailers = Some(map),
                Ok(Piece::End) => {
                    assert!(decoder.is_done());
                    assert_eq!(decoder.remaining(), Some(0));
                    for piece in pieces {
                        buffer.extend_from_slice(piece);
                    }
                    return Ok((data, trailers, buffer.to_vec()));
                }
                Ok(Piece::More) => match pieces.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None => decoder.end_of_stream()?,
                },
                Err(fault) => {
                    assert_eq!(decoder.next(&mut buffer), Err(fault), "it is for good");
                    return Err(fault);
                }
            }
        }
    }

    fn whole(framing: Framing, text: &str) -> Read {
        read(framing, [text.as_bytes()])
    }

    fn bodies() -> Vec<(&'static str, Framing, String)> {
        let chunked = |text: &str| (Framing::Chunked, text.to_owned());
        [
            ("no body", (Framing::None, "next".to_owned())),
            ("a length", (Framing::Length(5), "hellonext".to_owned())),
            ("a short one", (Framing::Length(5), "hell".to_owned())),
            ("until the end", (Framing::UntilClose, "hello".to_owned())),
            ("chunks", chunked("5\r\nhello\r\n1\r\n!\r\n0\r\n\r\nnext")),
            ("extensions", chunked("5;a=\"b\"\r\nhello\r\n0 ; c\r\n\r\n")),
            ("trailers", chunked("1\r\nx\r\n0\r\na: b\r\na:c\r\nd:\r\n\r\nnext")),
            ("a bad size", chunked("1\r\nx\r\nz\r\n")),
            ("a bad end", chunked("1\r\nxx\r\n0\r\n\r\n")),
            ("a bad trailer", chunked("0\r\na b: c\r\n\r\n")),
            ("cut off", chunked("1\r\nx\r\n")),
        ]
        .map(|(name, (framing, text))| (name, framing, text))
        .into()
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        let said = |name: &str| {
            let (_, framing, text) =
                bodies().into_iter().find(|(other, ..)| *other == name).unwrap();
            whole(framing, &text).map(|(data, trailers, rest)| {
                let trailers = trailers.map(|trailers| trailers.len());
                (String::from_utf8(data).unwrap(), trailers, String::from_utf8(rest).unwrap())
            })
        };
        let ok =
            |data: &str, trailers, rest: &str| Ok((data.to_owned(), trailers, rest.to_owned()));
        assert_eq!(said("no body"), ok("", None, "next"));
        assert_eq!(said("a length"), ok("hello", None, "next"));
        assert_eq!(said("a short one"), Err(BodyFault::Short));
        assert_eq!(said("until the end"), ok("hello", None, ""));
        assert_eq!(said("chunks"), ok("hello!", None, "next"));
        assert_eq!(said("extensions"), ok("hello", None, ""));
        assert_eq!(said("trailers"), ok("x", Some(3), "next"));
        assert_eq!(said("cut off"), Err(BodyFault::Short));
    }

    #[test]
    fn what_is_not_exactly_chunks_is_refused() {
        let long = "x".repeat(MOST_EXTENSIONS + 1);
        let fields = "a: b\r\n".repeat(MOST_TRAILER_FIELDS + 1);
        for (text, fault) in [
            ("\r\n", BodyFault::ChunkSize),
            (" 1\r\nx\r\n", BodyFault::ChunkSize),
            ("-1\r\nx\r\n", BodyFault::ChunkSize),
            ("+1\r\nx\r\n", BodyFault::ChunkSize),
            ("0x1\r\nx\r\n", BodyFault::ChunkSize),
            ("1_0\r\nx\r\n", BodyFault::ChunkSize),
            ("1 1\r\nx\r\n", BodyFault::ChunkSize),
            ("1\nx\r\n", BodyFault::ChunkSize),
            ("1\r\rx\r\n", BodyFault::ChunkSize),
            ("1;a\nx\r\n", BodyFault::ChunkSize),
            ("1;a\rx\r\n", BodyFault::ChunkSize),
            ("1 \nx\r\n", BodyFault::ChunkSize),
            ("1\r\nx\n0\r\n\r\n", BodyFault::ChunkEnd),
            ("1\r\nx\r0\r\n\r\n", BodyFault::ChunkEnd),
            ("10000000000000000\r\n", BodyFault::ChunkTooLarge),
            ("00000000000000001\r\n", BodyFault::ChunkTooLarge),
            (&format!("1;{long}"), BodyFault::Extensions),
            (&format!("1{}", long.replace('x', " ")), BodyFault::Extensions),
            ("0\r\n\n", BodyFault::Trailers),
            ("0\r\n\rx", BodyFault::Trailers),
            ("0\r\na: b\n\r\n", BodyFault::Trailers),
            ("0\r\na: b\rc: d\r\n\r\n", BodyFault::Trailers),
            ("0\r\n a: b\r\n\r\n", BodyFault::Trailers),
            ("0\r\na: b\r\n c\r\n\r\n", BodyFault::Trailers),
            ("0\r\na\r\n\r\n", BodyFault::Trailers),
            ("0\r\na : b\r\n\r\n", BodyFault::Trailers),
            ("0\r\na: \0\r\n\r\n", BodyFault::Trailers),
            (&format!("0\r\na: {long}\r\n\r\n"), BodyFault::TrailersTooLarge),
            (&format!("0\r\n{fields}\r\n"), BodyFault::TrailersTooLarge),
        ] {
            assert_eq!(whole(Framing::Chunked, text), Err(fault), "{text:.60}");
        }
    }

    #[test]
    fn the_extensions_of_all_chunks_together_are_bounded() {
        let chunk = format!("1;{}\r\nx\r\n", "y".repeat(1000));
        let text = format!("{}0\r\n\r\n", chunk.repeat(16));
        assert!(whole(Framing::Chunked, &text).is_ok());
        let text = format!("{}0\r\n\r\n", chunk.repeat(17));
        assert_eq!(whole(Framing::Chunked, &text), Err(BodyFault::Extensions));
    }

    #[test]
    fn the_largest_chunk_is_taken_as_far_as_it_comes() {
        let mut buffer = BytesMut::from(&b"ffffFFFFffffFFFF\r\nx"[..]);
        let mut decoder = Decoder::new(Framing::Chunked);
        assert_eq!(decoder.next(&mut buffer), Ok(Piece::Data(Bytes::from_static(b"x"))));
        assert_eq!(decoder.state, State::Chunk(u64::MAX - 1));
        assert_eq!(decoder.next(&mut buffer), Ok(Piece::More));
    }

    #[test]
    fn an_end_that_is_there_is_known_with_the_last_data() {
        for (framing, text) in
            [(Framing::Length(1), "xnext"), (Framing::Chunked, "1\r\nx\r\n0\r\n\r\nnext")]
        {
            let mut buffer = BytesMut::from(text.as_bytes());
            let mut decoder = Decoder::new(framing);
            assert!(!decoder.is_done());
            assert_eq!(decoder.next(&mut buffer), Ok(Piece::Data(Bytes::from_static(b"x"))));
            assert!(decoder.is_done(), "{framing:?}");
            assert_eq!(buffer, "next");
        }
    }

    #[test]
    fn data_is_not_copied() {
        let mut buffer = BytesMut::from(&b"5\r\nhello\r\n"[..]);
        let place = buffer[3..].as_ptr();
        let Ok(Piece::Data(data)) = Decoder::new(Framing::Chunked).next(&mut buffer) else {
            panic!("no data")
        };
        assert_eq!(data.as_ptr(), place);
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_a_body_comes_in(which in 0..11usize, cuts in prop::collection::vec(0..80usize, 0..8)) {
            let (name, framing, text) = bodies().swap_remove(which);
            let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut < text.len()).collect();
            cuts.sort_unstable();
            let bytes = text.as_bytes();
            let ends = cuts.iter().copied().chain([bytes.len()]);
            let begins = [0].into_iter().chain(cuts.iter().copied());
            let pieces = begins.zip(ends).map(|(begin, end)| &bytes[begin..end]);
            prop_assert_eq!(read(framing, pieces), whole(framing, &text), "{}", name);
            prop_assert_eq!(read(framing, bytes.chunks(1)), whole(framing, &text), "{}", name);
        }

        #[test]
        fn what_was_written_in_chunks_is_read_again(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8)) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(read(Framing::Chunked, [&*bytes]), Ok((chunks.concat(), None, Vec::new())));
        }

        #[test]
        fn garbage_is_read_to_an_end(text in "[0-9a-f;: \r\n\\x00-\\xff]{0,200}", length in any::<u64>()) {
            for framing in [Framing::None, Framing::Length(length), Framing::Chunked, Framing::UntilClose] {
                let all = whole(framing, &text);
                prop_assert_eq!(read(framing, text.as_bytes().chunks(1)), all);
            }
        }
    }
}
