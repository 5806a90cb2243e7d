//! A request's head: from bytes to its parts, or to the answer that a malformed one gets.
//!
//! What two readers could take for two things is refused here or read in the one way that is left;
//! what is merely odd is for whoever routes the request.

use std::fmt;
use std::ops::Range;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, StatusCode, Uri, Version, request};
use httparse::Status;
use smallvec::SmallVec;

use super::decode::Framing;
use super::tokens::{has_token, is_last_token, whole_number};
use super::usual;

/// The most header fields of a request.
pub const MOST_FIELDS: usize = 100;

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

/// Where the parts of a head stand.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) method: Method,
    pub(super) target: Range<usize>,
    pub(super) version: Version,
    /// Bytes of the whole head.
    pub(super) length: usize,
}

/// Where a field stands in a head: name and value.
pub(super) type Place = (Range<usize>, Range<usize>);

/// The places of a head's fields: most heads have fewer.
pub(super) type Places = SmallVec<[Place; 32]>;

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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 8 * 1024;

    /// A head with its parts.
    #[derive(Debug)]
    struct Whole {
        parts: request::Parts,
        head: Head,
    }

    impl std::ops::Deref for Whole {
        type Target = Head;

        fn deref(&self) -> &Head {
            &self.head
        }
    }

    fn no_parts() -> request::Parts {
        http::Request::new(()).into_parts().0
    }

    /// All heads of requests without bodies that come in these pieces, and how it ended.
    fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (Vec<Whole>, Result<(), HeadFault>) {
        let (mut reader, mut buffer) = (HeadReader::new(MOST), BytesMut::new());
        let mut heads = Vec::new();
        for piece in pieces {
            buffer.extend_from_slice(piece);
            loop {
                let mut parts = no_parts();
                match reader.next(&mut buffer, &mut parts) {
                    Ok(Some(head)) => heads.push(Whole { parts, head }),
                    Ok(None) => break,
                    Err(fault) => return (heads, Err(fault)),
                }
            }
        }
        (heads, Ok(()))
    }

    fn one(text: &str) -> Result<Whole, HeadFault> {
        let (mut heads, end) = read([text.as_bytes()]);
        end?;
        assert_eq!(heads.len(), 1, "{text}");
        Ok(heads.remove(0))
    }

    fn with(fields: &str) -> Result<Whole, HeadFault> {
        one(&format!("POST /a?b HTTP/1.1\r\nhost: a\r\n{fields}\r\n"))
    }

    #[test]
    fn a_head_is_read_in_full() {
        let head = with("X-Name:  a value \r\nx-name: another\r\nempty:\r\n").unwrap();
        let parts = &head.parts;
        assert_eq!((&parts.method, parts.version), (&Method::POST, Version::HTTP_11));
        assert_eq!(parts.uri.path_and_query().unwrap(), "/a?b");
        let fields: Vec<_> =
            parts.headers.iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
        assert_eq!(
            fields,
            [("host", &b"a"[..]), ("x-name", b"a value"), ("x-name", b"another"), ("empty", b"")]
        );
        assert_eq!(head.framing, Framing::None);
        assert!(head.keeps_alive && !head.awaits_continue && !head.takes_trailers);
    }

    #[test]
    fn framing_and_connection_are_read_from_the_fields() {
        use Framing::{Chunked, Length, None as Nothing};
        for (fields, framing, keeps_alive) in [
            ("", Nothing, true),
            ("content-length: 0\r\n", Nothing, true),
            ("content-length: 007\r\n", Length(7), true),
            ("content-length: 7\r\nContent-Length:\t7 \r\n", Length(7), true),
            ("content-length: 18446744073709551615\r\n", Length(u64::MAX), true),
            ("transfer-encoding: Chunked\r\n", Chunked, true),
            ("content-length: 7\r\ntransfer-encoding: chunked\r\n", Chunked, false),
            ("transfer-encoding: chunked\r\ncontent-length: 7\r\n", Chunked, false),
            ("connection: close\r\n", Nothing, false),
            ("connection: keep-alive\r\nconnection: x, Close\r\n", Nothing, false),
            ("connection: close\r\nconnection: keep-alive\r\n", Nothing, false),
        ] {
            let head = with(fields).unwrap();
            assert_eq!((head.framing, head.keeps_alive), (framing, keeps_alive), "{fields}");
            let lengths = head.parts.headers.get_all(CONTENT_LENGTH).iter().count();
            let expected = usize::from(framing != Chunked && fields.contains("length"));
            assert_eq!(lengths, expected, "{fields}");
        }
        let old = |fields| one(&format!("GET / HTTP/1.0\r\n{fields}\r\n")).unwrap().keeps_alive;
        assert!(!old(""));
        assert!(old("connection: Keep-Alive\r\n"));
        assert!(!old("connection: keep-alive\r\nconnection: close\r\n"));
    }

    #[test]
    fn only_a_body_is_waited_with() {
        let expect = "expect: 100-Continue\r\n";
        assert!(with(&format!("{expect}content-length: 1\r\n")).unwrap().awaits_continue);
        assert!(!with(expect).unwrap().awaits_continue);
        let old = format!("POST / HTTP/1.0\r\n{expect}content-length: 1\r\n\r\n");
        assert!(!one(&old).unwrap().awaits_continue);
        assert!(with("te: gzip, Trailers\r\n").unwrap().takes_trailers);
    }

    #[test]
    fn what_is_no_head_is_refused() {
        use HeadFault::{Malformed, TargetTooLong, TooLarge};
        let fields = "a: b\r\n".repeat(MOST_FIELDS);
        let long = "x".repeat(MOST);
        for (name, fault, fields) in [
            ("two lengths", Malformed, "content-length: 5\r\ncontent-length: 6\r\n"),
            ("a list of lengths", Malformed, "content-length: 5, 5\r\n"),
            ("a signed length", Malformed, "content-length: +5\r\n"),
            ("an empty length", Malformed, "content-length: \r\n"),
            ("a length in hex", Malformed, "content-length: 0x5\r\n"),
            ("a length beyond 64 bits", Malformed, "content-length: 18446744073709551616\r\n"),
            (
                "a bad length behind chunks",
                Malformed,
                "transfer-encoding: chunked\r\ncontent-length: x\r\n",
            ),
            ("a coding without an end", Malformed, "transfer-encoding: gzip\r\n"),
            ("chunked, then another", Malformed, "transfer-encoding: chunked, gzip\r\n"),
            ("no coding", Malformed, "transfer-encoding:\r\n"),
            ("a folded line", Malformed, "a: b\r\n c\r\n"),
            ("a space before the colon", Malformed, "a : b\r\n"),
            ("no colon", Malformed, "a\r\n"),
            ("no name", Malformed, ": b\r\n"),
            ("a bare CR", Malformed, "a: b\rc\r\n"),
            ("NUL", Malformed, "a: \0\r\n"),
            ("DEL", Malformed, "a: \x7f\r\n"),
            ("too many fields", TooLarge, &fields),
            ("a long field", TooLarge, &format!("a: {long}\r\n")),
        ] {
            assert_eq!(with(fields).map(|head| head.framing), Err(fault), "{name}");
        }
        for (name, fault, text) in [
            ("a space in the target", Malformed, "GET /a b HTTP/1.1\r\n\r\n"),
            ("two spaces", Malformed, "GET  / HTTP/1.1\r\n\r\n"),
            ("HTTP/0.9", Malformed, "GET /\r\n\r\n"),
            ("HTTP/2", Malformed, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            ("a target without a slash", Malformed, "GET a/b HTTP/1.1\r\n\r\n"),
            (
                "chunks in HTTP/1.0",
                Malformed,
                "GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
            ),
            ("a line that does not end", TooLarge, &format!("GET /{long}")),
            ("empty lines without end", TooLarge, &"\r\n".repeat(MOST)),
        ] {
            assert_eq!(one(text).map(|head| head.framing), Err(fault), "{name}");
        }
        let target = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(LONGEST_TARGET));
        let (mut reader, mut buffer) = (HeadReader::new(1 << 20), BytesMut::from(&*target));
        let read = reader.next(&mut buffer, &mut no_parts());
        assert_eq!(read.map(|head| head.is_some()), Err(TargetTooLong));
    }

    #[test]
    fn empty_lines_before_a_request_are_passed_over() {
        let (heads, end) = read([&b"\r\n\n\r"[..], b"\nGET / HTTP/1.1\n", b"a: b\n\n\r\n"]);
        assert_eq!((heads.len(), end), (1, Ok(())));
    }

    fn messages() -> impl Strategy<Value = String> {
        let field = prop_oneof![
            "[a-z-]{1,12}: [ -~]{0,20}\r\n",
            "[!-~ ]{0,12}:?[\\x00-\\xff]{0,8}\r?\n?",
            Just("content-length: 0\r\n".to_owned()),
            Just("connection: close\r\n".to_owned()),
        ];
        let head =
            ("(GET|X|) ?[/a*][!-~]{0,9} HTTP/1.[01]\r\n", prop::collection::vec(field, 0..4))
                .prop_map(|(line, fields)| format!("{line}{}\r\n", fields.concat()));
        prop::collection::vec(head, 1..4).prop_map(|heads| heads.concat())
    }

    fn said(read: &(Vec<Whole>, Result<(), HeadFault>)) -> String {
        let heads: Vec<_> = read.0.iter().map(|head| format!("{head:?}")).collect();
        format!("{heads:#?}")
    }

    proptest! {
        #[test]
        fn the_same_requests_are_read_however_they_come(
            text in messages(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let ends = cuts.iter().copied().chain([bytes.len()]);
            let begins = [0].into_iter().chain(cuts.iter().copied());
            let pieces = begins.zip(ends).map(|(begin, end)| &bytes[begin..end]);
            let whole = read([bytes]);
            prop_assert_eq!(said(&read(pieces)), said(&whole));
            prop_assert_eq!(said(&read(bytes.chunks(1))), said(&whole));
        }

        #[test]
        fn the_usual_is_read_as_anything_else(text in messages()) {
            let mut bytes = text.clone().into_bytes();
            let mut places = Places::new();
            if let Some(line) = usual::read_request(&mut bytes, &mut places) {
                let mut others = Places::new();
                let other = read_any(text.as_bytes(), &mut others).unwrap().unwrap();
                prop_assert_eq!(format!("{line:?}"), format!("{other:?}"));
                prop_assert_eq!(places, others);
                prop_assert!(bytes.eq_ignore_ascii_case(text.as_bytes()));
            }
        }

        #[test]
        fn garbage_is_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read([&*bytes]);
            let _ = read(bytes.chunks(3));
        }
    }
}
