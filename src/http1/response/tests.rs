use http::HeaderName;
use proptest::prelude::*;

use super::*;

type Read = Result<Option<(ResponseHead, Vec<u8>)>, HeadFault>;

fn read_in<'p>(asked: &Method, pieces: impl IntoIterator<Item = &'p [u8]>) -> Read {
    let (mut reader, mut buffer) = (HeadReader::default(), BytesMut::new());
    let mut head = None;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if head.is_none() {
            head = reader.next(&mut buffer, asked)?;
        }
    }
    Ok(head.map(|head| (head, buffer.to_vec())))
}

fn read_all(asked: &Method, text: &str) -> Read {
    read_in(asked, [text.as_bytes()])
}

#[test]
fn a_head_is_read_with_its_fields() {
    let text = "HTTP/1.1 404 Nowhere\r\nA: b\r\ncontent-length:3\r\na:  c d \r\n\r\nabc";
    let (head, rest) = read_all(&Method::GET, text).unwrap().unwrap();
    assert_eq!(head.status, 404);
    assert_eq!(head.reason, Some(Reason(Bytes::from_static(b"Nowhere"))));
    let a = HeaderName::from_static("a");
    assert_eq!(head.fields.values(&a).collect::<Vec<_>>(), [&b"b"[..], b"c d"]);
    assert_eq!(rest, b"abc");
    let (head, ..) = read_all(&Method::GET, "HTTP/1.0 200 OK\n\n").unwrap().unwrap();
    assert_eq!((head.version, head.reason), (Version::HTTP_10, None));
    for line in ["HTTP/1.1 200", "HTTP/1.1 200 ", "HTTP/1.1 200 \u{e9}"] {
        let (head, ..) = read_all(&Method::GET, &format!("{line}\r\n\r\n")).unwrap().unwrap();
        assert_eq!(head.reason, Some(Reason(Bytes::new())), "{line}");
    }
}

#[test]
fn a_body_ends_as_rfc_9112_has_it() {
    let get = Method::GET;
    for (asked, status, fields, framing) in [
        (&get, 200, "", Ok(Framing::UntilClose)),
        (&get, 200, "content-length: 5", Ok(Framing::Length(5))),
        (&get, 200, "content-length: 5\r\ncontent-length: 5", Ok(Framing::Length(5))),
        (&get, 200, "content-length: 5, 5", Ok(Framing::Length(5))),
        (&get, 200, "content-length: 5\r\ncontent-length: 6", Err(HeadFault::Length)),
        (&get, 200, "content-length: 5, 6", Err(HeadFault::Length)),
        (&get, 200, "content-length: +5", Err(HeadFault::Length)),
        (&get, 200, "content-length: 5 5", Err(HeadFault::Length)),
        (&get, 200, "content-length:", Err(HeadFault::Length)),
        (&get, 200, "content-length: 18446744073709551616", Err(HeadFault::Length)),
        (&get, 200, "transfer-encoding: Chunked", Ok(Framing::Chunked)),
        (&get, 200, "transfer-encoding: gzip, chunked", Ok(Framing::Chunked)),
        (&get, 200, "transfer-encoding: gzip\r\ntransfer-encoding: chunked", Ok(Framing::Chunked)),
        (&get, 200, "transfer-encoding: chunked, gzip", Ok(Framing::UntilClose)),
        (&get, 200, "transfer-encoding: chunked\r\ncontent-length: x", Ok(Framing::Chunked)),
        (&get, 204, "content-length: 5", Ok(Framing::None)),
        (&get, 304, "transfer-encoding: chunked", Ok(Framing::None)),
        (&get, 101, "content-length: 5", Ok(Framing::None)),
        (&Method::HEAD, 200, "content-length: 5", Ok(Framing::None)),
        (&Method::HEAD, 200, "content-length: x", Ok(Framing::None)),
        (&Method::POST, 204, "", Ok(Framing::None)),
    ] {
        let text =
            format!("HTTP/1.1 {status} X\r\n{fields}\r\n\r\n").replace("\r\n\r\n\r\n", "\r\n\r\n");
        let read = read_all(asked, &text).map(|read| read.unwrap().0.framing);
        assert_eq!(read, framing, "{asked} {status} {fields}");
    }
    let old = read_all(&get, "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(old.unwrap_err(), HeadFault::Coding);
}

#[test]
fn a_connection_is_kept_where_both_sides_know_the_end() {
    for (version, fields, keeps) in [
        ("1.1", "content-length: 0", true),
        ("1.1", "content-length: 0\r\nconnection: close", false),
        ("1.1", "content-length: 0\r\nconnection: a, CLOSE", false),
        ("1.1", "content-length: 0\r\nconnection: close\r\nconnection: keep-alive", false),
        ("1.1", "transfer-encoding: chunked", true),
        ("1.1", "transfer-encoding: chunked\r\ncontent-length: 0", false),
        ("1.1", "a: b", false),
        ("1.0", "content-length: 0", false),
        ("1.0", "content-length: 0\r\nconnection: Keep-Alive", true),
        ("1.0", "content-length: 0\r\nconnection: keep-alive, close", false),
    ] {
        let text = format!("HTTP/{version} 200 OK\r\n{fields}\r\n\r\n");
        let (head, ..) = read_all(&Method::GET, &text).unwrap().unwrap();
        assert_eq!(head.keeps, keeps, "{version} {fields}");
    }
    for (fields, keeps) in [
        ("content-length: 0", true),
        ("content-length: 5", false),
        ("transfer-encoding: chunked", false),
    ] {
        let text = format!("HTTP/1.1 204 No Content\r\n{fields}\r\n\r\n");
        let (head, ..) = read_all(&Method::GET, &text).unwrap().unwrap();
        assert_eq!(head.keeps, keeps, "204 {fields}");
    }
}

#[test]
fn interim_responses_are_passed_over() {
    let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n\
                HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx";
    let (head, rest) = read_all(&Method::GET, text).unwrap().unwrap();
    assert_eq!((head.status, head.fields.len(), &*rest), (StatusCode::OK, 1, &b"x"[..]));
    let (head, ..) = read_all(&Method::GET, "HTTP/1.1 101 X\r\n\r\n").unwrap().unwrap();
    assert!(head.status == 101 && !head.keeps);
    assert_eq!(read_all(&Method::GET, "HTTP/1.1 100 Continue\r\n\r\n"), Ok(None));
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(MOST_HEAD / 25 + 1);
    assert_eq!(read_all(&Method::GET, &endless), Err(HeadFault::TooLarge));
}

#[test]
fn what_is_no_head_is_refused() {
    let fields = "a: b\r\n".repeat(MOST_FIELDS + 1);
    let endless = format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(MOST_HEAD));
    let malformed = |error| Err(HeadFault::Malformed(error));
    for (text, fault) in [
        ("SSH-2.0-OpenSSH_9.2\r\n", malformed(httparse::Error::Version)),
        ("\0\x01", malformed(httparse::Error::Version)),
        ("HTTP/2.0 200 OK\r\n\r\n", malformed(httparse::Error::Version)),
        ("HTTP/1.1 2x0 OK\r\n\r\n", malformed(httparse::Error::Status)),
        ("HTTP/1.1 099 OK\r\n\r\n", malformed(httparse::Error::Status)),
        ("HTTP/1.1 200 OK\r\na b: c\r\n\r\n", malformed(httparse::Error::HeaderName)),
        ("HTTP/1.1 200 OK\r\na : c\r\n\r\n", malformed(httparse::Error::HeaderName)),
        ("HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n", malformed(httparse::Error::HeaderName)),
        ("HTTP/1.1 200 OK\r\na: \0\r\n\r\n", malformed(httparse::Error::HeaderValue)),
        (&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), malformed(httparse::Error::TooManyHeaders)),
        (&endless, Err(HeadFault::TooLarge)),
        (&format!("{endless}\r\n\r\n"), Err(HeadFault::TooLarge)),
    ] {
        assert_eq!(read_all(&Method::GET, text), fault, "{text:.60}");
    }
}

proptest! {
    #[test]
    fn it_does_not_matter_how_a_head_comes_in(size in 1..40usize, which in 0..3usize) {
        let text = [
            "HTTP/1.1 200 OK\r\nserver: a\r\nx: é\r\ncontent-length: 3\r\n\r\nabc",
            "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 204 No\r\n\r\nleft",
            "HTTP/1.1 200 OK\r\ncontent-length: 3, 4\r\n\r\nabc",
        ][which];
        let all = read_all(&Method::GET, text);
        prop_assert!(all != Ok(None));
        prop_assert_eq!(read_in(&Method::GET, text.as_bytes().chunks(size)), all);
    }

    #[test]
    fn what_is_read_as_usual_is_what_the_parser_reads(
        fields in prop::collection::vec(
            prop_oneof![
                4 => "[a-zA-Z0-9_.-]{1,20}: ?[!-~é]([ -~é]{0,20}[!-~é])?",
                1 => "(Content-Length|connection|DATE): [0-9a-z]{0,4}",
                1 => "[ -~\t]{0,9}:?[ -~\\x00-\\xff]{0,9}",
            ],
            0..6,
        ),
        line in "HTTP/1.[01] (200 OK|404 Not Found|[0-9]{3} [A-Z]{0,2})",
        end in prop_oneof![9 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r")],
    ) {
        let text = format!("{line}\r\n{}{end}\r\n", fields.join("\r\n"));
        let mut bytes = text.clone().into_bytes();
        if let Some(usual) = usual::read(&mut bytes) {
            let parsed = parse(&mut text.into_bytes()).unwrap().unwrap();
            let said = |parsed: Parsed| {
                let fields = Fields::of(Bytes::from(bytes.clone()), parsed.places);
                (parsed.version, parsed.status, parsed.reason, parsed.length, fields)
            };
            prop_assert_eq!(said(usual), said(parsed));
        }
    }

    #[test]
    fn garbage_is_no_reason_to_panic(text in "(HTTP/1.[01] [0-9]{3} [a-z]{0,3}\r\n)?[ -~\r\n\\x00-\\xff]{0,200}") {
        let _ = read_all(&Method::GET, &text);
        let _ = read_in(&Method::GET, text.as_bytes().chunks(1));
    }
}
