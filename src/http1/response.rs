//! Reads a response's head, and what it says about its body and its connection.

use std::fmt;
use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, Version};

use super::decode::Framing;
use super::fields::{Fields, Kind, Place};
pub use super::head::MOST_FIELDS;
use super::head::Parsed;
use super::tokens::whole_number;
use super::usual;

/// The most bytes of a head, and of the interim ones before it together.
pub const MOST_HEAD: usize = 408 * 1024;

/// A response's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Never an interim one other than 101.
    pub status: StatusCode,
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// The words behind the status where they are not the usual ones.
    pub reason: Option<Reason>,
    /// How the body's end is known.
    pub framing: Framing,
    /// Whether the connection may be used again behind the body.
    pub keeps: bool,
    /// Its fields.
    pub fields: Fields,
}

/// The words behind a status, where they are not the usual ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(pub Bytes);

/// Why a head is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// It is no HTTP/1.
    Malformed(httparse::Error),
    /// It has no end within `MOST_HEAD` bytes.
    TooLarge,
    /// The length is no number, or there are several that differ.
    Length,
    /// Transfer codings, which HTTP/1.0 does not have.
    Coding,
}

impl fmt::Display for HeadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(httparse::Error::TooManyHeaders) => {
                write!(f, "the answer's head has more than {MOST_FIELDS} fields")
            }
            Self::Malformed(error) => write!(f, "the answer's head is no HTTP/1: {error}"),
            Self::TooLarge => {
                write!(f, "the answer's head is larger than {} KiB", MOST_HEAD / 1024)
            }
            Self::Length => {
                f.write_str("the answer's content-length is no number or not always the same")
            }
            Self::Coding => f.write_str("the answer has a transfer-encoding in HTTP/1.0"),
        }
    }
}

impl std::error::Error for HeadFault {}

/// Finds the head of a response in what is read bit by bit.
#[derive(Clone, Debug, Default)]
pub struct HeadReader {
    /// As much of the buffer has been looked at in vain.
    looked: usize,
    /// Bytes of interim responses that were passed over.
    passed: usize,
}

impl HeadReader {
    /// Takes the head out of what was read. `None` where more has to be read. Interim responses
    /// other than 101 are passed over.
    ///
    /// `asked` is the request's method, which decides whether there is a body.
    ///
    /// # Errors
    /// Where it is no head, too large, or does not say where its body ends.
    pub fn next(
        &mut self,
        buffer: &mut BytesMut,
        asked: &Method,
    ) -> Result<Option<ResponseHead>, HeadFault> {
        loop {
            // A head becomes whole with the end of a line only.
            let news = buffer.get(self.looked..).unwrap_or_default();
            if news.is_empty() || (self.looked > 0 && !news.contains(&b'\n')) {
                return self.wait(buffer);
            }
            let before = buffer.len();
            match read(buffer, asked)? {
                None => return self.wait(buffer),
                Some(head) if is_interim(head.status) => {
                    self.looked = 0;
                    // Without an end to them nobody would ever look at the time: there is always
                    // something to read.
                    self.passed += before - buffer.len();
                    if self.passed > MOST_HEAD {
                        return Err(HeadFault::TooLarge);
                    }
                }
                Some(head) => return Ok(Some(head)),
            }
        }
    }

    fn wait(&mut self, buffer: &BytesMut) -> Result<Option<ResponseHead>, HeadFault> {
        self.looked = buffer.len();
        if buffer.len() > MOST_HEAD { Err(HeadFault::TooLarge) } else { Ok(None) }
    }
}

fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

fn read(buffer: &mut BytesMut, asked: &Method) -> Result<Option<ResponseHead>, HeadFault> {
    let parsed = match usual::read(buffer) {
        Some(parsed) => Some(parsed),
        None => parse(buffer)?,
    };
    let Some(Parsed { version, status, reason, places, length }) = parsed else { return Ok(None) };
    if length > MOST_HEAD {
        return Err(HeadFault::TooLarge);
    }
    let head = buffer.split_to(length).freeze();
    let reason = reason.map(|place| Reason(head.slice(place)));
    let fields = Fields::of(head, places);
    let said = Said::by(&fields);
    let framing = said.framing(status, version, asked)?;
    let keeps = said.keeps(version)
        && !(status == StatusCode::NO_CONTENT && said.announces_body())
        && framing != Framing::UntilClose
        && status != StatusCode::SWITCHING_PROTOCOLS;
    Ok(Some(ResponseHead { status, version, reason, framing, keeps, fields }))
}

/// Parses whatever may be a head. `None` where more has to be read.
fn parse(buffer: &mut [u8]) -> Result<Option<Parsed>, HeadFault> {
    let mut space = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        buffer,
        &mut space,
    );
    let length = match parsed.map_err(HeadFault::Malformed)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial => return Ok(None),
    };
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(HeadFault::Malformed(httparse::Error::Status))?;
    let version = if response.version == Some(1) { Version::HTTP_11 } else { Version::HTTP_10 };
    let begin = buffer.as_ptr().addr();
    // What is empty may stand outside the buffer: a reason that was left out is a constant.
    let place = |bytes: &[u8]| match bytes {
        [] => 0..0,
        bytes => {
            let from = bytes.as_ptr().addr() - begin;
            from..from + bytes.len()
        }
    };
    let reason = response.reason.filter(|reason| Some(*reason) != status.canonical_reason());
    let reason = reason.map(|reason| place(reason.as_bytes()));
    let fields = response.headers.iter();
    let fields: Vec<_> =
        fields.map(|field| (place(field.name.as_bytes()), place(field.value))).collect();
    let mut places = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        if let Some(name) = buffer.get_mut(name.clone()) {
            name.make_ascii_lowercase();
        }
        places.push(Place::of(buffer, name, value));
    }
    Ok(Some(Parsed { version, status, reason, places, length }))
}

/// What fields say about the body and the connection.
#[derive(Default)]
struct Said {
    close: bool,
    keep_alive: bool,
    length: Length,
    /// Whether the last coding is `chunked`, where there are codings.
    chunked: Option<bool>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Length {
    #[default]
    Unsaid,
    Bytes(u64),
    Faulty,
}

impl Said {
    fn by(fields: &Fields) -> Self {
        let mut said = Self::default();
        for field in fields.iter() {
            said.note(field.kind(), field.value());
        }
        said
    }

    fn note(&mut self, kind: Kind, value: &[u8]) {
        let tokens = || value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        match kind {
            Kind::Length => {
                for token in tokens() {
                    self.length = match (self.length, whole_number(token)) {
                        (Length::Unsaid, Some(length)) => Length::Bytes(length),
                        (Length::Bytes(before), Some(length)) if before == length => self.length,
                        _ => Length::Faulty,
                    };
                }
            }
            Kind::Connection => {
                for token in tokens() {
                    self.close |= token.eq_ignore_ascii_case(b"close");
                    self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
                }
            }
            Kind::Coding => {
                let last = tokens().next_back();
                self.chunked = last.map(|coding| coding.eq_ignore_ascii_case(b"chunked"));
            }
            Kind::Trailer | Kind::Date | Kind::Hop | Kind::Other => {}
        }
    }

    /// RFC 9112, 6.3.
    fn framing(
        &self,
        status: StatusCode,
        version: Version,
        asked: &Method,
    ) -> Result<Framing, HeadFault> {
        let bodiless = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
            || *asked == Method::HEAD;
        match (self.chunked, self.length) {
            _ if bodiless => Ok(Framing::None),
            (Some(_), _) if version == Version::HTTP_10 => Err(HeadFault::Coding),
            (Some(true), _) => Ok(Framing::Chunked),
            (Some(false), _) | (None, Length::Unsaid) => Ok(Framing::UntilClose),
            (None, Length::Bytes(length)) => Ok(Framing::Length(length)),
            (None, Length::Faulty) => Err(HeadFault::Length),
        }
    }

    /// Whether a body is to be expected, be one allowed or not. One that comes after all must not be
    /// taken for the next answer.
    fn announces_body(&self) -> bool {
        self.chunked.is_some() || !matches!(self.length, Length::Unsaid | Length::Bytes(0))
    }

    fn keeps(&self, version: Version) -> bool {
        // Two opinions about the body's end: nothing behind it is to be believed.
        let doubtful = self.chunked.is_some() && self.length != Length::Unsaid;
        !self.close && !doubtful && (version == Version::HTTP_11 || self.keep_alive)
    }
}

#[cfg(test)]
mod tests;
