//! A request's head: from bytes to its parts, or to the answer that a malformed one gets.
//!
//! What two readers could take for two things is refused here or read in the one way that is left;
//! what is merely odd is for whoever routes the request.

use std::fmt;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, StatusCode, Uri, Version, request};
use httparse::Status;

use super::decode::Framing;
pub use super::head::MOST_FIELDS;
use super::head::{Line, Place, Places};
use super::tokens::{has_token, is_last_token, whole_number};
use super::usual;

/// The most bytes of a target: no more fit into a [`Uri`].
const LONGEST_TARGET: usize = 65_534;

/// What a request's head says about its body and its connection.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// How the body's end is known.
    pub framing: Framing,
    /// Whether the client may send another request afterwards.
    pub keeps_alive: bool,
    /// Whether the client waits for a `100 Continue` before it sends the body.
    pub awaits_continue: bool,
    /// Whether the client takes trailers.
    pub takes_trailers: bool,
}

/// Why a head is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// It is no HTTP/1, or can be read in two ways.
    Malformed,
    /// Its target is longer than a URI may be here.
    TargetTooLong,
    /// It is longer than allowed, or has more than [`MOST_FIELDS`] fields.
    TooLarge,
}

impl HeadFault {
    /// The status that it is answered with.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::TooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }
}

impl fmt::Display for HeadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the request's head is malformed",
            Self::TargetTooLong => "the request's target is too long",
            Self::TooLarge => "the request's head is too large",
        })
    }
}

impl std::error::Error for HeadFault {}

/// Reads heads that come in pieces.
#[derive(Debug)]
pub struct HeadReader {
    /// The most bytes of a head.
    most: usize,
    /// Bytes that were looked at before, in which there was no end of a head.
    seen: usize,
    /// Bytes of empty lines before it.
    skipped: usize,
}

impl HeadReader {
    /// For heads of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { most, seen: 0, skipped: 0 }
    }

    /// Takes a head out of what was read, if all of it is there. Its method, target, version and
    /// fields are put into `parts`, in place of what is there; they share `buffer`'s memory. A length
    /// beside a transfer coding is left out.
    ///
    /// # Errors
    /// Where it is none. Nothing can be read off the connection any more then.
    pub fn next(
        &mut self,
        buffer: &mut BytesMut,
        parts: &mut request::Parts,
    ) -> Result<Option<Head>, HeadFault> {
        if self.seen == 0 {
            let before = buffer.len();
            skip_empty_lines(buffer);
            // Whoever sends nothing else, and fast, leaves nobody the time to look at the time.
            self.skipped += before - buffer.len();
            if self.skipped > self.most {
                return Err(HeadFault::TooLarge);
            }
        }
        if buffer.is_empty() {
            return Ok(None);
        }
        // The first piece is mostly all of it; later ones are parsed once they bring an end.
        if self.seen == 0 || has_end(buffer.get(self.seen.saturating_sub(3)..).unwrap_or_default())
        {
            let parsed = parse(buffer, parts, self.most)?;
            if parsed.is_some() {
                (self.seen, self.skipped) = (0, 0);
                return Ok(parsed);
            }
        }
        if buffer.len() >= self.most {
            return Err(HeadFault::TooLarge);
        }
        self.seen = buffer.len();
        Ok(None)
    }
}

/// RFC 9112, 2.2: before a request there may be empty lines.
fn skip_empty_lines(buffer: &mut BytesMut) {
    loop {
        match **buffer {
            [b'\r', b'\n', ..] => buffer.advance(2),
            [b'\n', ..] => buffer.advance(1),
            _ => return,
        }
    }
}

/// Whether an empty line may stand in there.
fn has_end(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().any(|(at, byte)| {
        *byte == b'\n' && matches!(bytes.get(at + 1..), Some([b'\n', ..] | [b'\r', b'\n', ..]))
    })
}

fn parse(
    buffer: &mut BytesMut,
    parts: &mut request::Parts,
    most: usize,
) -> Result<Option<Head>, HeadFault> {
    let mut places = Places::new();
    let line = match usual::read_request(buffer, &mut places) {
        Some(line) => line,
        None => match read_any(buffer, &mut places)? {
            Some(line) => line,
            None => return Ok(None),
        },
    };
    let Line { method, target, version, length } = line;
    if length > most {
        return Err(HeadFault::TooLarge);
    }
    if target.len() > LONGEST_TARGET {
        return Err(HeadFault::TargetTooLong);
    }
    let bytes = buffer.split_to(length).freeze();
    let uri = Uri::from_maybe_shared(bytes.slice(target)).map_err(|_| HeadFault::Malformed)?;
    if !parts.headers.is_empty() {
        parts.headers.clear();
    }
    let said = read_fields(&bytes, &places, version, &mut parts.headers)?;
    parts.method = method;
    parts.uri = uri;
    parts.version = version;
    let framing = said.framing();
    let awaits_continue = said.expects && version == Version::HTTP_11 && framing != Framing::None;
    Ok(Some(Head {
        framing,
        keeps_alive: said.keeps_alive,
        awaits_continue,
        takes_trailers: said.takes_trailers,
    }))
}

/// Reads a head that may be written in any way that HTTP allows, if all of it is there.
fn read_any(buffer: &[u8], places: &mut Places) -> Result<Option<Line>, HeadFault> {
    places.clear();
    let mut space = [const { std::mem::MaybeUninit::uninit() }; MOST_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    let length = match parsed.parse_with_uninit_headers(buffer, &mut space) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadFault::TooLarge),
        Err(_) => return Err(HeadFault::Malformed),
    };
    let place = |part: &[u8]| {
        let start = part.as_ptr().addr() - buffer.as_ptr().addr();
        start..start + part.len()
    };
    let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(HeadFault::Malformed);
    };
    for field in parsed.headers.iter() {
        places.push((place(field.name.as_bytes()), place(field.value)));
    }
    Ok(Some(Line {
        method: Method::from_bytes(method.as_bytes()).map_err(|_| HeadFault::Malformed)?,
        target: place(target.as_bytes()),
        version: if minor == 1 { Version::HTTP_11 } else { Version::HTTP_10 },
        length,
    }))
}

/// What a head's fields say about the message and its connection.
struct Said {
    length: Option<u64>,
    coding: Coding,
    keeps_alive: bool,
    closes: bool,
    expects: bool,
    takes_trailers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    None,
    Chunked,
    /// One whose end nobody knows.
    Other,
}

impl Said {
    fn framing(&self) -> Framing {
        match (self.coding, self.length) {
            (Coding::None, None | Some(0)) => Framing::None,
            (Coding::None, Some(length)) => Framing::Length(length),
            (Coding::Chunked | Coding::Other, _) => Framing::Chunked,
        }
    }
}

fn read_fields(
    bytes: &Bytes,
    places: &[Place],
    version: Version,
    fields: &mut HeaderMap,
) -> Result<Said, HeadFault> {
    let mut said = Said {
        length: None,
        coding: Coding::None,
        keeps_alive: version == Version::HTTP_11,
        closes: false,
        expects: false,
        takes_trailers: false,
    };
    let mut has_length = false;
    fields.reserve(places.len());
    for place in places {
        let (name, value) = place.clone();
        let name = match bytes.get(name).unwrap_or_default() {
            b"host" => HOST,
            name => HeaderName::from_bytes(name).map_err(|_| HeadFault::Malformed)?,
        };
        let value =
            HeaderValue::from_maybe_shared(bytes.slice(value)).map_err(|_| HeadFault::Malformed)?;
        match name {
            CONTENT_LENGTH => {
                let length = whole_number(value.as_bytes()).ok_or(HeadFault::Malformed)?;
                has_length = true;
                match said.length.replace(length) {
                    None => {}
                    // Said once, it is enough.
                    Some(earlier) if earlier == length => continue,
                    Some(_) => return Err(HeadFault::Malformed),
                }
            }
            TRANSFER_ENCODING => {
                // HTTP/1.0 has no codings: whoever reads it as such sees another message.
                if version < Version::HTTP_11 {
                    return Err(HeadFault::Malformed);
                }
                said.coding = match is_last_token(value.as_bytes(), b"chunked") {
                    true => Coding::Chunked,
                    false => Coding::Other,
                };
            }
            CONNECTION => {
                let value = value.as_bytes();
                said.closes |= has_token(value, b"close");
                said.keeps_alive |= has_token(value, b"keep-alive");
            }
            EXPECT => said.expects = value.as_bytes().eq_ignore_ascii_case(b"100-continue"),
            TE => said.takes_trailers |= has_token(value.as_bytes(), b"trailers"),
            _ => {}
        }
        fields.append(name, value);
    }
    said.keeps_alive &= !said.closes;
    if said.coding == Coding::Other {
        // Where the last coding is not chunked nobody knows the end (RFC 9112, 6.3).
        return Err(HeadFault::Malformed);
    }
    if said.coding == Coding::Chunked && has_length {
        fields.remove(CONTENT_LENGTH);
        // Whoever sent it on may have read it by its length.
        said.keeps_alive = false;
    }
    Ok(said)
}

#[cfg(test)]
mod tests;
