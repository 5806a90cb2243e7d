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
mod tests;
