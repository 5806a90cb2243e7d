//! A response as bytes: its head, and the frame around its body.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, HOST, HeaderName, MAX_FORWARDS, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING,
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
        (Framing::None, Size::Known(length)) if allows_length(head.status) => {
            write_length(out, length);
        }
        (Framing::None, Size::Empty)
            if allows_length(head.status) && asked.method != Method::HEAD =>
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

fn allows_body(status: StatusCode) -> bool {
    !(status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED))
}

/// A length beside one of the others would be that of another response.
fn allows_length(status: StatusCode) -> bool {
    allows_body(status)
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
    const NEVER: [HeaderName; 13] = [
        AUTHORIZATION,
        CACHE_CONTROL,
        CONNECTION,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
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
mod tests {
    use http::HeaderValue;
    use http::header::DATE;
    use proptest::prelude::*;

    use super::super::decode::{Decoder, Piece};
    use super::*;

    const DATE_VALUE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";

    fn asked(method: Method, version: Version) -> Asked {
        Asked { method, version, takes_trailers: true }
    }

    /// The head's lines but its date, and what was decided.
    fn written(
        (status, fields, size): (u16, &[(&str, &'static str)], Size),
        asked: &Asked,
        wanted: Persistence,
    ) -> (Vec<String>, BodyFrame, Persistence) {
        let mut put_in = Fields::default();
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            put_in.append(&name, &HeaderValue::from_static(value));
        }
        let status = StatusCode::from_u16(status).unwrap();
        let fields = &put_in;
        let head = ResponseHead { status, reason: None, fields, size, date: DATE_VALUE };
        let mut out = Vec::new();
        let (frame, persistence) = write_head(&mut out, &head, asked, wanted);
        let text = String::from_utf8(out).unwrap();
        let head = text.strip_suffix("\r\n\r\n").unwrap();
        let lines = head.split("\r\n").filter(|line| !line.starts_with("date: "));
        (lines.map(str::to_owned).collect(), frame, persistence)
    }

    #[test]
    fn a_body_is_framed_by_its_size_and_its_reader() {
        use Framing::{Chunked, Length, None as Nothing, UntilClose};
        use Size::{Empty, Known, Unknown};
        let length: &[_] = &[("content-length", "9")];
        let (new, old) = (Version::HTTP_11, Version::HTTP_10);
        for (name, status, fields, size, method, version, framing, line) in [
            ("a length", 200, &[][..], Known(5), "GET", new, Length(5), "content-length: 5"),
            (
                "a length said before",
                200,
                length,
                Known(9),
                "GET",
                new,
                Length(9),
                "content-length: 9",
            ),
            ("no body", 200, &[], Empty, "GET", new, Nothing, "content-length: 0"),
            (
                "a length without a body",
                200,
                length,
                Empty,
                "GET",
                new,
                Nothing,
                "content-length: 0",
            ),
            ("no length", 200, &[], Unknown, "GET", new, Chunked, "transfer-encoding: chunked"),
            (
                "a length that nobody knows",
                200,
                length,
                Unknown,
                "GET",
                new,
                Chunked,
                "transfer-encoding: chunked",
            ),
            ("no length, HTTP/1.0", 200, &[], Unknown, "GET", old, UntilClose, ""),
            ("HEAD", 200, &[], Known(5), "HEAD", new, Nothing, "content-length: 5"),
            ("HEAD, passed on", 200, length, Empty, "HEAD", new, Nothing, "content-length: 9"),
            ("HEAD, without a length", 200, &[], Empty, "HEAD", new, Nothing, ""),
            ("HEAD, nobody knows", 200, &[], Unknown, "HEAD", new, Nothing, ""),
            ("204", 204, length, Empty, "GET", new, Nothing, ""),
            ("204 with a body", 204, &[], Known(5), "GET", new, Nothing, ""),
            ("304", 304, length, Empty, "GET", new, Nothing, ""),
            ("101", 101, &[], Empty, "GET", new, Nothing, ""),
        ] {
            let asked = asked(method.parse().unwrap(), version);
            let (lines, frame, _) = written((status, fields, size), &asked, Persistence::Keep);
            assert_eq!(frame.framing, framing, "{name}");
            let framed: Vec<_> = lines
                .iter()
                .filter(|l| l.starts_with("content-length") || l.starts_with("transfer"))
                .collect();
            let expected: Vec<_> = Some(line).filter(|line| !line.is_empty()).into_iter().collect();
            assert_eq!(framed, expected, "{name}");
        }
    }

    #[test]
    fn who_keeps_the_connection_is_told_where_it_does_not_go_without_saying() {
        use Persistence::{Close, Keep};
        let (new, old) = (Version::HTTP_11, Version::HTTP_10);
        let close: &[_] = &[("connection", "close")];
        for (name, version, wanted, fields, size, expected, line) in [
            ("kept", new, Keep, &[][..], Size::Empty, Keep, None),
            ("not kept", new, Close, &[], Size::Empty, Close, Some("connection: close")),
            (
                "ended by the response",
                new,
                Keep,
                close,
                Size::Empty,
                Close,
                Some("connection: close"),
            ),
            ("old and kept", old, Keep, &[], Size::Empty, Keep, Some("connection: keep-alive")),
            ("old and not kept", old, Close, &[], Size::Empty, Close, None),
            ("old, until the end", old, Keep, &[], Size::Unknown, Close, None),
        ] {
            let asked = asked(Method::GET, version);
            let (lines, _, persistence) = written((200, fields, size), &asked, wanted);
            assert_eq!(persistence, expected, "{name}");
            let said = lines.iter().find(|said| said.starts_with("connection"));
            assert_eq!(said.map(String::as_str), line, "{name}");
            let version = if version == old { "HTTP/1.0" } else { "HTTP/1.1" };
            assert_eq!(lines[0], format!("{version} 200 OK"), "{name}");
        }
    }

    #[test]
    fn trailers_are_those_that_were_announced() {
        let asked = asked(Method::GET, Version::HTTP_11);
        let fields = [("trailer", "X-Sum, content-length"), ("trailer", "x-other")];
        let response = (200, &fields[..], Size::Unknown);
        let (_, frame, _) = written(response, &asked, Persistence::Keep);
        let mut trailers = HeaderMap::new();
        for name in ["x-sum", "x-more", "content-length"] {
            trailers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        let last = |frame: &BodyFrame| {
            let mut out = Vec::new();
            write_last_chunk(&mut out, frame, Some(&trailers));
            String::from_utf8(out).unwrap()
        };
        assert_eq!(last(&frame), "0\r\nx-sum: 1\r\n\r\n");
        let asked = Asked { takes_trailers: false, ..asked };
        let (lines, frame, _) = written(response, &asked, Persistence::Keep);
        assert_eq!(last(&frame), "0\r\n\r\n");
        assert_eq!(lines.iter().filter(|line| line.starts_with("trailer")).count(), 2);
        let (lines, ..) = written((200, &fields, Size::Known(1)), &asked, Persistence::Keep);
        assert!(!lines.iter().any(|line| line.starts_with("trailer")), "{lines:?}");
    }

    #[test]
    fn the_date_and_unusual_words_are_kept() {
        let mut fields = Fields::default();
        let asked = asked(Method::GET, Version::HTTP_11);
        let text = |fields: &Fields| {
            let (status, reason) = (StatusCode::from_u16(299).unwrap(), Some(&b"Fine"[..]));
            let head = ResponseHead { status, reason, fields, size: Size::Empty, date: DATE_VALUE };
            let mut out = Vec::new();
            write_head(&mut out, &head, &asked, Persistence::Keep);
            String::from_utf8(out).unwrap()
        };
        let own = text(&fields);
        assert!(own.starts_with("HTTP/1.1 299 Fine\r\n"), "{own}");
        assert!(own.ends_with("\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"), "{own}");
        fields.insert(&DATE, &HeaderValue::from_static("another"));
        assert_eq!(text(&fields).matches("date: ").count(), 1);
    }

    proptest! {
        #[test]
        fn chunks_are_read_as_they_were_written(sizes in prop::collection::vec(1..70_000_usize, 0..6)) {
            let mut out = Vec::new();
            let mut data = Vec::new();
            for size in sizes {
                write_chunk_size(&mut out, size);
                out.extend(std::iter::repeat_n(b'x', size));
                out.extend_from_slice(CHUNK_END);
                data.extend(std::iter::repeat_n(b'x', size));
            }
            let frame = BodyFrame { framing: Framing::Chunked, trailers: SmallVec::new() };
            write_last_chunk(&mut out, &frame, None);
            let (mut decoder, mut buffer) = (Decoder::new(Framing::Chunked), bytes::BytesMut::from(&*out));
            let mut read = Vec::new();
            while let Ok(Piece::Data(some)) = decoder.next(&mut buffer) {
                read.extend_from_slice(&some);
            }
            prop_assert!(decoder.is_done() && buffer.is_empty());
            prop_assert_eq!(read, data);
        }
    }
}
