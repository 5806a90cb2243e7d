//! Tables and properties of the normal form.

use std::borrow::Cow;

use proptest::prelude::*;

use super::*;

fn forms(path: &str, merge_slashes: bool) -> Result<(String, String), AmbiguousPath> {
    let path = NormalPath::parse(path, merge_slashes)?;
    Ok((path.upstream().to_owned(), path.matching().to_owned()))
}

#[test]
fn a_path_has_one_normal_form() {
    for (path, upstream, matching) in [
        ("/", "/", "/"),
        ("/a/b", "/a/b", "/a/b"),
        ("/a/b/", "/a/b/", "/a/b/"),
        ("/%61%2D%7e", "/a-~", "/a-~"),
        ("/%c3%a9", "/%C3%A9", "/%C3%A9"),
        ("/é", "/é", "/%C3%A9"),
        ("/a%20b", "/a%20b", "/a%20b"),
        ("/%2541", "/%2541", "/%2541"),
        ("/a%3ab%40c", "/a%3Ab%40c", "/a:b@c"),
        ("/a!$&'()*+,=:@", "/a!$&'()*+,=:@", "/a!$&'()*+,=:@"),
        ("/%21%24%26%27", "/%21%24%26%27", "/!$&'"),
        ("/{x}|\"^`<>[]", "/{x}|\"^`<>[]", "/%7Bx%7D%7C%22%5E%60%3C%3E%5B%5D"),
        ("/a;v=1/b;c;d", "/a;v=1/b;c;d", "/a/b"),
        ("/a%3bv=1", "/a%3Bv=1", "/a%3Bv=1"),
        ("/;x", "/;x", "/"),
        ("/a/;x/b", "/a/;x/b", "/a/b"),
        ("/a/;x", "/a/;x", "/a/"),
        ("//a///b//", "/a/b/", "/a/b/"),
        ("/a/./b/.", "/a/b/", "/a/b/"),
        ("/a/../b/..", "/", "/"),
        ("/a/b/%2e%2E/c", "/a/c", "/a/c"),
        ("/a/b/.%2e", "/a/", "/a/"),
        ("/../../a", "/a", "/a"),
        ("/..", "/", "/"),
        ("/.", "/", "/"),
        ("/a//../b", "/b", "/b"),
        ("/a/;x/../b", "/b", "/b"),
        ("/a;x/../b", "/b", "/b"),
        ("/.well-known/x", "/.well-known/x", "/.well-known/x"),
        ("/.../..a/.b", "/.../..a/.b", "/.../..a/.b"),
        ("/a%3Fb%23", "/a%3Fb%23", "/a%3Fb%23"),
    ] {
        assert_eq!(forms(path, true), Ok((upstream.into(), matching.into())), "{path}");
    }
}

#[test]
fn doubled_slashes_may_stay_upstream() {
    for (path, upstream, matching) in [
        ("//", "//", "/"),
        ("/a//b", "/a//b", "/a/b"),
        ("/a//b//", "/a//b//", "/a/b/"),
        ("//a", "//a", "/a"),
        ("/a//./b", "/a//b", "/a/b"),
        ("/a//.", "/a//", "/a/"),
        ("/a//../b", "/b", "/b"),
        ("/x/a//../b", "/x/b", "/x/b"),
        ("/a/..//b", "//b", "/b"),
        ("//a/../b", "//b", "/b"),
        ("//../b", "/b", "/b"),
        ("/a//;x//b", "/a//;x//b", "/a/b"),
    ] {
        assert_eq!(forms(path, false), Ok((upstream.into(), matching.into())), "{path}");
    }
}

#[test]
fn an_ambiguous_path_is_refused() {
    use AmbiguousPath::*;
    for (path, error) in [
        ("", Relative),
        ("*", Relative),
        ("a/b", Relative),
        ("/a%2fb", EncodedSlash),
        ("/a%2F", EncodedSlash),
        ("/a\\b", Backslash),
        ("/..\\b", Backslash),
        ("/a%5cb", Backslash),
        ("/a%00", Nul),
        ("/a\0", Nul),
        ("/%", BrokenPercent),
        ("/%2", BrokenPercent),
        ("/%2/", BrokenPercent),
        ("/%zz", BrokenPercent),
        ("/%u002e", BrokenPercent),
        ("/%%41", BrokenPercent),
        ("/%é", BrokenPercent),
        ("/..;x", DotParameters),
        ("/.;x/a", DotParameters),
        ("/a/%2e%2E;x/b", DotParameters),
        ("/%2e;", DotParameters),
        ("/..%3bx", DotParameters),
        ("/a b", Forbidden),
        ("/a\tb", Forbidden),
        ("/a\x7f", Forbidden),
        ("/a?b", Forbidden),
        ("/a#b", Forbidden),
        ("/a%2f/../b", EncodedSlash),
    ] {
        for merge_slashes in [true, false] {
            assert_eq!(forms(path, merge_slashes), Err(error), "{path:?}");
        }
    }
}

#[test]
fn a_normal_path_is_borrowed() {
    for path in ["/", "/users/42", "/a:b@c/d.e", "/.well-known/x", "/x/..a"] {
        let normal = NormalPath::parse(path, true).expect(path);
        assert!(matches!(normal.upstream, Cow::Borrowed(_)), "{path}");
        assert!(matches!(normal.matching, Cow::Borrowed(_)), "{path}");
    }
}

#[test]
fn segments_of_the_two_forms_correspond() {
    let path = NormalPath::parse("//a;1///%3ab;2//;x/c//d/", false).expect("a path");
    assert_eq!(path.matching(), "/a/:b/c/d/");
    assert_eq!(path.upstream_segment(0), Some("a;1"));
    assert_eq!(path.upstream_segment(1), Some("%3Ab;2"));
    assert_eq!(path.upstream_segment(2), Some("c"));
    assert_eq!(path.upstream_segment(9), None);
    assert_eq!(path.upstream_rest(0), Some("/a;1///%3Ab;2//;x/c//d/"));
    assert_eq!(path.upstream_rest(1), Some("//%3Ab;2//;x/c//d/"));
    assert_eq!(path.upstream_rest(2), Some("/;x/c//d/"));
    assert_eq!(path.upstream_rest(4), Some(""));
    assert_eq!(path.upstream_rest(5), None);
}

fn tricky() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/", "/", "/", "a", "b", ".", "..", "/.", "/..", "%2e", "%2E", ";", ";x", "%3b", ":",
        "%3A", "é", "%C3%a9", "%20", "{", "%7b", "+", "%2B", "//", "%41", "=", "%25",
    ]);
    prop::collection::vec(piece, 0..14).prop_map(|pieces| format!("/{}", pieces.concat()))
}

/// The decoded segments of a path: its meaning, whatever its spelling.
fn meaning() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let byte = prop_oneof![
        prop::sample::select(b"ab.;:@%+{}|!\xc3\xa9".to_vec()),
        any::<u8>().prop_filter("ambiguous", |byte| !matches!(byte, 0 | b'/' | b'\\')),
    ];
    let segment = prop::collection::vec(byte, 1..5)
        .prop_filter("dots", |s| !(s.starts_with(b".;") || s.starts_with(b"..;")))
        .prop_filter("dots", |s| s != b"." && s != b"..");
    prop::collection::vec(segment, 0..5)
}

/// One of the many spellings of a path. `choices` selects the spelling.
fn spell(meaning: &[Vec<u8>], choices: &mut impl Iterator<Item = u8>) -> String {
    let mut choose = move |of: u8| choices.next().unwrap_or(0) % of;
    let mut path = String::new();
    for segment in meaning {
        path.push_str(["/", "//", "/./", "/x/../", "/;p/", "/x//%2e%2E/"][usize::from(choose(6))]);
        for &byte in segment {
            let must =
                byte == b'%' || byte == b';' || !byte.is_ascii_graphic() || b"?#".contains(&byte);
            match choose(3) {
                0 if !must => path.push(char::from(byte)),
                1 => path.push_str(&format!("%{byte:02x}")),
                _ => path.push_str(&format!("%{byte:02X}")),
            }
        }
        path.push_str(["", ";", ";v=1", ";a;b=%41"][usize::from(choose(4))]);
    }
    path.push_str(["/", "//", "/.", "/x/..", "/;p"][usize::from(choose(5))]);
    path
}

proptest! {
    #[test]
    fn any_text_can_be_parsed(path in any::<String>(), merge_slashes: bool) {
        let _ = NormalPath::parse(&path, merge_slashes);
    }

    #[test]
    fn a_normal_form_is_its_own_normal_form(path in tricky(), merge_slashes: bool) {
        if let Ok((upstream, matching)) = forms(&path, merge_slashes) {
            prop_assert_eq!(forms(&upstream, merge_slashes), Ok((upstream.clone(), matching.clone())));
            prop_assert_eq!(forms(&matching, merge_slashes), Ok((matching.clone(), matching.clone())));
        }
    }

    #[test]
    fn nothing_is_left_to_resolve(path in tricky(), merge_slashes: bool) {
        if let Ok((upstream, matching)) = forms(&path, merge_slashes) {
            prop_assert!(upstream.starts_with('/') && matching.starts_with('/'));
            prop_assert!(!matching.contains("//") && !matching.contains(';'));
            prop_assert!(!merge_slashes || !upstream.contains("//"));
            for segment in upstream.split('/') {
                prop_assert!(!matches!(segment.split(';').next(), Some("." | "..")), "{}", segment);
            }
        }
    }

    #[test]
    fn keeping_doubled_slashes_changes_nothing_else(path in tricky()) {
        let (merged, kept) = (forms(&path, true), forms(&path, false));
        if let (Ok((merged, seen)), Ok((kept, also_seen))) = (&merged, &kept) {
            prop_assert_eq!(seen, also_seen);
            let mut squeezed = kept.clone();
            while squeezed.contains("//") {
                squeezed = squeezed.replace("//", "/");
            }
            prop_assert_eq!(&squeezed, merged);
        } else {
            prop_assert_eq!(merged, kept);
        }
    }

    #[test]
    fn all_spellings_of_a_path_count_the_same(
        meaning in meaning(),
        one in prop::collection::vec(any::<u8>(), 60),
        other in prop::collection::vec(any::<u8>(), 60),
    ) {
        let one = spell(&meaning, &mut one.into_iter());
        let other = spell(&meaning, &mut other.into_iter());
        let one = forms(&one, true).expect("unambiguous");
        let other = forms(&other, false).expect("unambiguous");
        prop_assert_eq!(one.1, other.1);
    }

    #[test]
    fn different_paths_never_count_the_same(one in meaning(), other in meaning()) {
        let form = |meaning: &[Vec<u8>]| {
            forms(&spell(meaning, &mut std::iter::repeat(1)), true).expect("unambiguous").1
        };
        prop_assert_eq!(form(&one) == form(&other), one == other);
    }
}
