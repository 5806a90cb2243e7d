//! Tables and properties of the normal form.

use std::borrow::Cow;

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
