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
        let (_, framing, text) = bodies().into_iter().find(|(other, ..)| *other == name).unwrap();
        whole(framing, &text).map(|(data, trailers, rest)| {
            let trailers = trailers.map(|trailers| trailers.len());
            (String::from_utf8(data).unwrap(), trailers, String::from_utf8(rest).unwrap())
        })
    };
    let ok = |data: &str, trailers, rest: &str| Ok((data.to_owned(), trailers, rest.to_owned()));
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
