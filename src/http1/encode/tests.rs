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
        ("a length said before", 200, length, Known(9), "GET", new, Length(9), "content-length: 9"),
        ("no body", 200, &[], Empty, "GET", new, Nothing, "content-length: 0"),
        ("a length without a body", 200, length, Empty, "GET", new, Nothing, "content-length: 0"),
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
        ("ended by the response", new, Keep, close, Size::Empty, Close, Some("connection: close")),
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
