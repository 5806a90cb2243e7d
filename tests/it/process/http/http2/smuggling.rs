//! What two readers could take in two ways, once it is HTTP/1.1 to the API: refused, or sent on with one
//! meaning.

use super::logged;
use crate::support::http2::frames::{
    DATA, END_STREAM, Frames, HEADERS, Outcome, asking, block, frame, request,
};
use crate::support::proxy::Proxy;
use crate::support::upstream::Upstream;

const MALFORMED: Outcome = Outcome::Reset(1);
/// What h2 takes for a fault of the whole connection.
const FATAL: Outcome = Outcome::Closed(Some(1));
const BAD: Outcome = Outcome::Status(400);

type Field<'f> = (&'f str, &'f [u8]);

/// A GET with more fields.
fn with<'f>(more: &[Field<'f>]) -> Vec<Field<'f>> {
    asking("GET", "/").into_iter().chain(more.iter().copied()).collect()
}

/// A GET with one pseudo-header replaced.
fn but<'f>(name: &'f str, value: &'f [u8]) -> Vec<Field<'f>> {
    let field = |field: Field<'f>| if field.0 == name { (name, value) } else { field };
    asking("GET", "/").into_iter().map(field).collect()
}

/// A GET without one of its pseudo-headers.
fn without(name: &str) -> Vec<Field<'static>> {
    asking("GET", "/").into_iter().filter(|field| field.0 != name).collect()
}

#[test]
fn a_head_with_two_meanings_is_refused_and_never_sent_on() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let behind = [("x", &b"1"[..]), (":path", b"/")];
    let late: Vec<_> = without(":path").into_iter().chain(behind).collect();
    let long = [b'a'; 300];
    let extended = [
        (":method", &b"CONNECT"[..]),
        (":protocol", b"websocket"),
        (":scheme", b"http"),
        (":authority", b"api.test"),
        (":path", b"/"),
    ];
    for (name, fields, outcome) in [
        ("no method", without(":method"), MALFORMED),
        ("no scheme", without(":scheme"), MALFORMED),
        ("no path", without(":path"), MALFORMED),
        ("no host", without(":authority"), BAD),
        ("two methods", with(&[(":method", b"POST")]), MALFORMED),
        ("two paths", with(&[(":path", b"/b")]), MALFORMED),
        ("two authorities", with(&[(":authority", b"b")]), MALFORMED),
        ("a pseudo-header of answers", with(&[(":status", b"200")]), MALFORMED),
        ("a pseudo-header nobody knows", with(&[(":x", b"1")]), FATAL),
        ("a pseudo-header behind a field", late, MALFORMED),
        ("an upgrade without its consent", extended.to_vec(), MALFORMED),
        ("an empty path", but(":path", b""), MALFORMED),
        ("a path without its slash", but(":path", b"a"), MALFORMED),
        ("a path that is a URL", but(":path", b"http://other/a"), MALFORMED),
        ("a path with a space", but(":path", b"/a HTTP/1.1"), MALFORMED),
        ("a path with a line", but(":path", b"/ HTTP/1.1\r\nx: y\r\n\r\n"), MALFORMED),
        ("a path with NUL", but(":path", b"/\0"), MALFORMED),
        ("a path in two ways", but(":path", b"/a%2fb"), BAD),
        ("a path with a backslash", but(":path", b"/a\\b"), BAD),
        ("a method in lower case", but(":method", b"get"), BAD),
        ("a method with a space", but(":method", b"GET /x"), FATAL),
        ("a method with a line", but(":method", b"GET\r\nx: y"), FATAL),
        ("no letters of a method", but(":method", b""), FATAL),
        ("a scheme with a line", but(":scheme", b"http\r\nx: y"), MALFORMED),
        ("an authority with a line", but(":authority", b"a\r\nx: y"), MALFORMED),
        ("an authority with a user", but(":authority", b"u@api.test"), BAD),
        ("an authority with a path", but(":authority", b"api.test/a"), MALFORMED),
        ("an authority that is two", but(":authority", b"a,b"), BAD),
        ("an authority that is too long", but(":authority", &long), BAD),
        ("two hosts beside it", with(&[("host", b"a"), ("host", b"b")]), BAD),
        ("a malformed host beside it", with(&[("host", b"a b")]), BAD),
        ("a name in upper case", with(&[("X-A", b"1")]), FATAL),
        ("a name with a space", with(&[("x a", b"1")]), FATAL),
        ("a name with a colon", with(&[("x:", b"1")]), FATAL),
        ("a name with a quotation mark", with(&[("x\"", b"1")]), BAD),
        ("a name with a line", with(&[("x: 1\r\ny", b"1")]), FATAL),
        ("a name with NUL", with(&[("x\0", b"1")]), FATAL),
        ("no name", with(&[("", b"1")]), FATAL),
        ("a value with a line", with(&[("x", b"1\r\ny: 2")]), FATAL),
        ("a value with CR", with(&[("x", b"1\r")]), FATAL),
        ("a value with LF", with(&[("x", b"1\n")]), FATAL),
        ("a value with NUL", with(&[("x", b"1\0")]), FATAL),
        ("a cookie with a line", with(&[("cookie", b"a=1\r\nx: y")]), FATAL),
        ("connection", with(&[("connection", b"close")]), MALFORMED),
        ("a coding", with(&[("transfer-encoding", b"chunked")]), MALFORMED),
        ("an upgrade", with(&[("upgrade", b"h2c")]), MALFORMED),
        ("keep-alive", with(&[("keep-alive", b"timeout=5")]), MALFORMED),
        ("proxy-connection", with(&[("proxy-connection", b"close")]), MALFORMED),
        ("te with more than trailers", with(&[("te", b"trailers, deflate")]), MALFORMED),
        ("te with something else", with(&[("te", b"gzip")]), MALFORMED),
        ("a length without a body", with(&[("content-length", b"5")]), MALFORMED),
        ("a signed length", with(&[("content-length", b"+0")]), MALFORMED),
        ("a negative length", with(&[("content-length", b"-1")]), MALFORMED),
        ("an empty length", with(&[("content-length", b"")]), BAD),
        ("a list of lengths", with(&[("content-length", b"0, 0")]), MALFORMED),
        ("a length in hex", with(&[("content-length", b"0x0")]), MALFORMED),
        (
            "a length beyond 64 bits",
            with(&[("content-length", b"18446744073709551616")]),
            MALFORMED,
        ),
        ("two lengths", with(&[("content-length", b"0"), ("content-length", b"5")]), MALFORMED),
    ] {
        // On connections of their own: what is reset counts against them.
        let mut client = Frames::open(proxy.address, &[]);
        assert_eq!(client.ask(1, &fields), outcome, "{name}");
        let sent: Vec<_> = api.requests().into_iter().map(|got| got.line).collect();
        assert!(sent.is_empty(), "{name}: {sent:?}");
        if outcome == FATAL {
            continue;
        }
        // Nobody else on the connection is harmed.
        assert_eq!(client.ask(3, &but(":path", b"/a%2fb")), BAD, "{name}");
    }
}

#[test]
fn a_body_of_a_wrong_length_never_looks_whole_to_the_api() {
    for (name, lengths, pieces) in [
        ("too short", &["10"][..], &["hello"][..]),
        ("too long", &["3"], &["hello"]),
        ("too long in two pieces", &["5"], &["hello", "more"]),
        ("none at all", &["5"], &[""]),
        ("something instead of nothing", &["0"], &["hello"]),
        ("two lengths", &["5", "6"], &["hello"]),
        ("a list of lengths", &["5, 5"], &["hello"]),
        ("a signed length", &["+5"], &["hello"]),
    ] {
        let api = Upstream::echoing();
        let proxy = Proxy::of_one_worker(&api).start();
        let mut client = Frames::open(proxy.address, &[]);
        let mut fields = asking("POST", "/").to_vec();
        fields.extend(lengths.iter().map(|length| ("content-length", length.as_bytes())));
        // In one piece: a head that announces nothing is a whole request until more comes.
        let mut bytes = request(1, 0, &fields);
        for (place, piece) in pieces.iter().enumerate() {
            let flags = if place + 1 == pieces.len() { END_STREAM } else { 0 };
            bytes.extend(frame(DATA, flags, 1, piece.as_bytes()));
        }
        client.send(bytes);
        assert_eq!(client.outcome(1), MALFORMED, "{name}");
        assert_eq!(client.ask(3, &but(":path", b"/a%2fb")), BAD, "{name}");
        assert!(api.requests().is_empty(), "{name}: {:?}", api.requests());
    }
}

/// The library cuts a path at `#` before anybody can look. The API gets what was counted.
#[test]
fn nothing_behind_a_number_sign_is_counted_or_sent_on() {
    let api = Upstream::echoing();
    let proxy =
        Proxy::of_one_worker(&api).limit("path", "key = [\"path\"]\nrate = \"1/h\"").start();
    let mut client = Frames::open(proxy.address, &[]);
    let asked = |path: &'static [u8]| but(":path", path);
    assert_eq!(client.ask(1, &asked(b"/a?b#/../login&c")), Outcome::Status(200));
    assert_eq!(api.last().line, "GET /a?b HTTP/1.1");
    assert_eq!(client.ask(3, &asked(b"/a#/../b")), Outcome::Status(429));
}

#[test]
fn what_has_one_meaning_is_written_in_one_way() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let without_authority: Vec<_> =
        without(":authority").into_iter().chain([("host", &b"other.test"[..])]).collect();
    for (name, fields, line, host) in [
        ("plain", with(&[]), "GET / HTTP/1.1", "api.test"),
        ("a host instead of the authority", without_authority, "GET / HTTP/1.1", "other.test"),
        ("another host beside it", with(&[("host", b"other.test")]), "GET / HTTP/1.1", "api.test"),
        ("the same host beside it", with(&[("host", b"api.test")]), "GET / HTTP/1.1", "api.test"),
        ("a port", but(":authority", b"api.test:81"), "GET / HTTP/1.1", "api.test:81"),
        ("another scheme", but(":scheme", b"https"), "GET / HTTP/1.1", "api.test"),
        ("a fragment", but(":path", b"/a?b=1#c"), "GET /a?b=1 HTTP/1.1", "api.test"),
        ("dots", but(":path", b"/a/../b//c"), "GET /b/c HTTP/1.1", "api.test"),
        ("a query", but(":path", b"/?a=/../b"), "GET /?a=/../b HTTP/1.1", "api.test"),
        ("a method nobody knows", but(":method", b"BREW"), "BREW / HTTP/1.1", "api.test"),
        ("no length", with(&[("content-length", b"0")]), "GET / HTTP/1.1", "api.test"),
        ("it twice", with(&[("content-length", &b"0"[..]); 2]), "GET / HTTP/1.1", "api.test"),
    ] {
        let mut client = Frames::open(proxy.address, &[]);
        assert_eq!(client.ask(1, &fields), Outcome::Status(200), "{name}");
        let got = api.last();
        assert_eq!(got.line, line, "{name}");
        assert_eq!(got.headers.iter().filter(|(name, _)| name == "host").count(), 1, "{name}");
        assert_eq!(got.header("host").as_deref(), Some(host), "{name}");
        assert!(got.headers.iter().all(|(name, _)| !name.starts_with(':')), "{name}: {got:?}");
        assert!(got.body.is_empty(), "{name}");
        let lengths = got.headers.iter().filter(|(name, _)| name == "content-length");
        assert!(lengths.count() <= 1, "{name}: {got:?}");
    }
}

#[test]
fn a_length_that_is_told_twice_is_told_the_api_once() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for lengths in [&["5"][..], &["5", "5"], &["005"], &["5", "05"]] {
        let mut client = Frames::open(proxy.address, &[]);
        let mut fields = asking("POST", "/").to_vec();
        fields.extend(lengths.iter().map(|length| ("content-length", length.as_bytes())));
        client.send(request(1, 0, &fields));
        client.send(frame(DATA, END_STREAM, 1, b"hello"));
        assert_eq!(client.outcome(1), Outcome::Status(200), "{lengths:?}");
        let got = api.last();
        let said = got.headers.iter().filter(|(name, _)| name == "content-length");
        assert_eq!((said.count(), got.body.as_slice()), (1, &b"hello"[..]), "{lengths:?}");
        assert_eq!(got.header("transfer-encoding"), None, "{lengths:?}");
    }
}

#[test]
fn the_target_that_asks_for_the_server_itself_is_not_a_path() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for method in ["OPTIONS", "GET"] {
        let mut client = Frames::open(proxy.address, &[]);
        let outcome = client.ask(1, &asking(method, "*"));
        assert!(matches!(outcome, BAD | Outcome::Status(404) | MALFORMED), "{method}: {outcome:?}");
    }
    assert!(api.requests().is_empty(), "{:?}", api.requests());
}

#[test]
fn the_authority_chooses_the_route_and_the_limits_key() {
    let api = Upstream::echoing();
    let proxy = logged(&api).limit("host", "key = [\"host\"]\nrate = \"1/h\"").start();
    let mut client = Frames::open(proxy.address, &[]);
    assert_eq!(client.ask(1, &with(&[])), Outcome::Status(200));
    assert_eq!(client.ask(3, &with(&[("host", b"b")])), Outcome::Status(429));
    assert_eq!(client.ask(5, &but(":authority", b"API.test.:80")), Outcome::Status(429));
    assert_eq!(client.ask(7, &but(":authority", b"b")), Outcome::Status(200));
}

#[test]
fn fields_that_claim_to_be_from_a_proxy_are_removed() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    let mut client = Frames::open(proxy.address, &[]);
    let claims = with(&[
        ("x-forwarded-for", b"203.0.113.7"),
        ("x-forwarded-host", b"evil"),
        ("forwarded", b"for=203.0.113.7"),
        ("proxy-authorization", b"Basic a"),
        ("te", b"trailers"),
    ]);
    assert_eq!(client.ask(1, &claims), Outcome::Status(200));
    let got = api.last();
    assert_eq!(got.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(got.header("x-forwarded-host").as_deref(), Some("api.test"));
    assert_eq!(got.header("forwarded"), None);
    assert_eq!(got.header("proxy-authorization"), None);
    assert_eq!(got.header("te").as_deref(), Some("trailers"));
}

#[test]
fn fields_behind_a_body_cannot_be_those_of_a_head() {
    let api = Upstream::echoing();
    let proxy = Proxy::of_one_worker(&api).start();
    for (name, fields, outcome) in [
        ("a pseudo-header", [(":path", &b"/other"[..])], Outcome::Status(200)),
        ("a coding", [("transfer-encoding", b"chunked")], MALFORMED),
        ("a line", [("x", b"1\r\n\r\nGET /smuggled HTTP/1.1")], FATAL),
        ("a length", [("content-length", b"99")], Outcome::Status(200)),
        ("a host", [("host", b"other")], Outcome::Status(200)),
    ] {
        let before = api.requests().len();
        let mut client = Frames::open(proxy.address, &[]);
        let mut head = asking("POST", "/").to_vec();
        head.push(("trailer", b"x, host, content-length, transfer-encoding"));
        client.send(request(1, 0, &head));
        client.send(frame(DATA, 0, 1, b"hi"));
        client.send(frame(HEADERS, END_STREAM | 4, 1, &block(&fields)));
        assert_eq!(client.outcome(1), outcome, "{name}");
        let sent = api.requests();
        assert_eq!(sent.len() - before, usize::from(outcome == Outcome::Status(200)), "{name}");
        if outcome == Outcome::Status(200) {
            assert_eq!((api.last().path(), api.last().body.as_slice()), ("/", &b"hi"[..]));
            assert!(api.last().trailers.is_empty(), "{name}: {:?}", api.last());
        }
    }
}
