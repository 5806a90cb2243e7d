//! A response as bytes: its head, and the frame around its body.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, HOST, HeaderName, MAX_FORWARDS, SET_COOKIE, TE, TRAILER,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, StatusCode, Version};
use smallvec::SmallVec;

use super::decode::Framing;
use super::fields::{Fields, Kind, Lines, write_line};
use super::tokens::has_token;

/// The answer to a client that waits before it sends a body.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The end of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// The end of a chunk, and the last chunk behind it, without trailers.
pub const LAST_CHUNK_END: &[u8] = b"\r\n0\r\n\r\n";

/// What is known of a body before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// There is none.
    Empty,
    /// So many bytes.
    Known(u64),
    /// It ends when it ends.
    Unknown,
}

/// A response's head, and what decides about its frame.
#[derive(Debug)]
pub struct ResponseHead<'r> {
    /// The status.
    pub status: StatusCode,
    /// Words for it other than the usual ones.
    pub reason: Option<&'r [u8]>,
    /// The fields. What frames the body is taken from `size`, not from here.
    pub fields: &'r Fields,
    /// How much body there is.
    pub size: Size,
    /// The time for the `date` field, where `fields` have none (RFC 9110, 5.6.7).
    pub date: &'r [u8; 29],
}

/// What the request that is answered was like.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Its method: `HEAD` gets no body.
    pub method: Method,
    /// Its version: HTTP/1.0 knows no chunks.
    pub version: Version,
    /// Whether its client takes trailers.
    pub takes_trailers: bool,
}

/// How a body is written behind its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyFrame {
    /// How the client knows its end.
    pub framing: Framing,
    /// The trailers that the head has announced and the client takes.
    pub trailers: SmallVec<[HeaderName; 2]>,
}

/// Whether the connection goes on after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// It is kept for another request.
    Keep,
    /// It ends.
    Close,
}

/// Writes a head, and says how its body is to be framed and whether the connection goes on:
/// `wanted`, unless the response itself ends it.
pub fn write_head(
    out: &mut Vec<u8>,
    head: &ResponseHead<'_>,
    asked: &Asked,
    wanted: Persistence,
) -> (BodyFrame, Persistence) {
    out.reserve(128 + head.fields.len() * 48);
    write_status_line(out, head, asked.version);
    let framing = framing(head, asked);
    let chunked = framing == Framing::Chunked;
    let mut persistence = match framing {
        Framing::UntilClose => Persistence::Close,
        _ => wanted,
    };
    let mut trailers = SmallVec::new();
    let (mut has_date, mut has_connection) = (false, false);
    let mut lines = Lines::default();
    for field in head.fields.iter() {
        match field.kind() {
            // A response to HEAD says what the one to GET would.
            Kind::Length if head.size == Size::Empty && asked.method == Method::HEAD => {}
            Kind::Length | Kind::Coding => continue,
            Kind::Trailer if !chunked => continue,
            Kind::Trailer if asked.takes_trailers => {
                let names = field.value().split(|byte| *byte == b',');
                trailers.extend(
                    names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()),
                );
            }
            Kind::Connection => {
                has_connection = true;
                if has_token(field.value(), b"close") {
                    persistence = Persistence::Close;
                }
            }
            Kind::Date => has_date = true,
            Kind::Trailer | Kind::Hop | Kind::Other => {}
        }
        lines.write(field, out);
    }
    lines.end(out);
    match (framing, head.size) {
        (Framing::Chunked, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        (Framing::Length(_), Size::Known(length)) => write_length(out, length),
        (Framing::None, Size::Known(length)) if allows_body(head.status) => {
            write_length(out, length);
        }
        (Framing::None, Size::Empty)
            if allows_body(head.status) && asked.method != Method::HEAD =>
        {
            write_length(out, 0);
        }
        _ => {}
    }
    if !has_connection {
        match (persistence, asked.version) {
            (Persistence::Close, Version::HTTP_11) => {
                out.extend_from_slice(b"connection: close\r\n")
            }
            (Persistence::Keep, Version::HTTP_10) => {
                out.extend_from_slice(b"connection: keep-alive\r\n");
            }
            // What goes without saying.
            _ => {}
        }
    }
    if !has_date {
        let mut line = *b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
        line[6..35].copy_from_slice(head.date);
        out.extend_from_slice(&line);
    }
    out.extend_from_slice(b"\r\n");
    (BodyFrame { framing, trailers }, persistence)
}

fn write_status_line(out: &mut Vec<u8>, head: &ResponseHead<'_>, version: Version) {
    if head.status == StatusCode::OK && head.reason.is_none() && version == Version::HTTP_11 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.push(b' ');
    let usual = || head.status.canonical_reason().unwrap_or("Unnamed").as_bytes();
    out.extend_from_slice(head.reason.unwrap_or_else(usual));
    out.extend_from_slice(b"\r\n");
}

fn write_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// RFC 9112, 6.3.
fn framing(head: &ResponseHead<'_>, asked: &Asked) -> Framing {
    if asked.method == Method::HEAD || !allows_body(head.status) {
        return Framing::None;
    }
    match head.size {
        Size::Empty | Size::Known(0) => Framing::None,
        Size::Known(length) => Framing::Length(length),
        Size::Unknown if asked.version == Version::HTTP_10 => Framing::UntilClose,
        Size::Unknown => Framing::Chunked,
    }
}

/// Without a body there is no length either: beside a 304 it would be that of another response.
fn allows_body(status: StatusCode) -> bool {
    !(status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED))
}

/// Writes the size line of a chunk that is not empty. Behind the chunk goes [`CHUNK_END`].
pub fn write_chunk_size(out: &mut Vec<u8>, size: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(DIGITS[size >> (4 * place) & 15]);
    }
    out.extend_from_slice(CHUNK_END);
}

/// Writes the last chunk, and those trailers that the frame lets pass.
pub fn write_last_chunk(out: &mut Vec<u8>, frame: &BodyFrame, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        if frame.trailers.contains(name) && may_trail(name) {
            let value = |out: &mut Vec<u8>| out.extend_from_slice(value.as_bytes());
            write_line(out, name.as_str().as_bytes(), value);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether a field means the same behind a body (RFC 9110, 6.5.1): one that says what a message is or
/// where it goes does not.
pub fn may_trail(name: &HeaderName) -> bool {
    const NEVER: [HeaderName; 14] = [
        AUTHORIZATION,
        CACHE_CONTROL,
        CONNECTION,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        COOKIE,
        HOST,
        MAX_FORWARDS,
        SET_COOKIE,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
    ];
    !NEVER.contains(name)
}

#[cfg(test)]
mod tests;
