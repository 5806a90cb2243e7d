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
    let fields: Vec<_> = parts.headers.iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
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
        ("chunks in HTTP/1.0", Malformed, "GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"),
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
    let head = ("(GET|X|) ?[/a*][!-~]{0,9} HTTP/1.[01]\r\n", prop::collection::vec(field, 0..4))
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
