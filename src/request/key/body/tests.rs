//! What bodies say, and which of them are read in one way only.

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::*;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

fn headers(kinds: &[&'static str]) -> HeaderMap {
    kinds.iter().map(|kind| (CONTENT_TYPE, HeaderValue::from_static(kind))).collect()
}

/// The field of this name, `-` if it is missing, and `!` or `2` where the body is refused.
fn field(name: &str, kind: BodyKind, body: &[u8]) -> String {
    let names = [name.to_owned()];
    match BodyFields::read(&names, kind, body).value(name) {
        Ok(Some(value)) => String::from_utf8(value.into_owned()).unwrap(),
        Ok(None) => "-".to_owned(),
        Err(PartFault::Repeated) => "2".to_owned(),
        Err(PartFault::Unreadable) => "?".to_owned(),
        Err(_) => "!".to_owned(),
    }
}

#[test]
fn a_field_of_json_has_one_value_or_the_body_is_refused() {
    for (name, body, expected) in [
        ("user", r#"{"user":"a"}"#, "a"),
        ("user", r#" { "x" : [1,{"user":"b"}], "user" : "a" } "#, "a"),
        ("user", r#"{"us\u0065r":"\u00e4\n"}"#, "\u{e4}\n"),
        ("user", r#"{"user":""}"#, ""),
        ("user", r#"{"user":true}"#, "true"),
        ("user", r#"{"user":42}"#, "42"),
        ("user", r#"{"user":42.0}"#, "42"),
        ("user", r#"{"user":4.2e1}"#, "42"),
        ("user", r#"{"user":-0}"#, "0"),
        ("user", r#"{"user":1.50}"#, "1.5"),
        ("user", r#"{"user":9007199254740991}"#, "9007199254740991"),
        ("user", r#"{"user":-9007199254740991}"#, "-9007199254740991"),
        ("user", r#"{"user":null}"#, "-"),
        ("user", r#"{"user":["a"]}"#, "-"),
        ("user", r#"{"user":{"user":"a"}}"#, "-"),
        ("user", r#"{"name":"a"}"#, "-"),
        ("user", r#"[{"user":"a"}]"#, "-"),
        ("user", r#""user""#, "-"),
        ("user", "", "-"),
        ("a.b", r#"{"a":{"b":"x"}}"#, "x"),
        ("a.b.c", r#"{"a":{"b":{"c":"x"}}}"#, "x"),
        ("a.b", r#"{"a.b":"x"}"#, "x"),
        ("a.b", r#"{"a":"x"}"#, "-"),
        ("a.b", r#"{"a":[{"b":"x"}]}"#, "-"),
        // The field stands at two places.
        ("a.b", r#"{"a":{"b":"x"},"a.b":"x"}"#, "2"),
        // Colons and quotes in texts are no keys.
        ("user", r#"{"user":"\\\"a\":","x\\":":\"","y":[{"z:":1}]}"#, "\\\"a\":"),
        // Keys that come twice.
        ("user", r#"{"user":"a","x":[{"y":{"z":1},"y":2}]}"#, "!"),
        ("user", r#"{"user":"a","user":"a"}"#, "!"),
        ("user", r#"{"user":"a","us\u0065r":"b"}"#, "!"),
        ("user", r#"{"user":"a","x":{"y":1,"y":2}}"#, "!"),
        ("a.b", r#"{"a":{"b":"x"},"a":{"c":"x"}}"#, "!"),
        // Keys that some servers take for this one.
        ("user", r#"{"user":"a","USER":"b"}"#, "!"),
        ("user", r#"{"User":"a"}"#, "!"),
        ("a.b", r#"{"a":{"b":"x"},"A":{"b":"y"}}"#, "!"),
        // Numbers that readers round or refuse.
        ("user", r#"{"user":9007199254740992}"#, "!"),
        ("user", r#"{"user":18446744073709551616}"#, "!"),
        ("user", r#"{"user":1e400}"#, "?"),
        ("user", r#"{"user":"a","n":1e400}"#, "?"),
        ("user", r#"{"user":"a","n":9007199254740993}"#, "a"),
        // What lax readers read.
        ("user", r#"{"user":NaN}"#, "?"),
        ("user", r#"{"user":"a"} x"#, "?"),
        ("user", r#"{"user":"a"}{"user":"b"}"#, "?"),
        ("user", r#"{"user":"a",}"#, "?"),
        ("user", r#"{"user":"a"/*x*/}"#, "?"),
        ("user", r#"{'user':'a'}"#, "?"),
        ("user", r#"{user:"a"}"#, "?"),
        ("user", r#"{"user":01}"#, "?"),
        ("user", r#"{"user":+1}"#, "?"),
        ("user", "{\"user\":\"a\tb\"}", "?"),
        ("user", "\u{FEFF}{\"user\":\"a\"}", "?"),
        ("user", r#"{"user":"\ud800"}"#, "?"),
        ("user", r#"{"user":"a","\udc00":1}"#, "?"),
        ("user", r#"{"user":"a""#, "?"),
        ("user", " ", "?"),
    ] {
        assert_eq!(field(name, BodyKind::Json, body.as_bytes()), expected, "{name} {body}");
    }
    assert_eq!(field("user", BodyKind::Json, b"{\"user\":\"\xff\"}"), "!");
    assert_eq!(field("user", BodyKind::Json, &b"{\"user\":".repeat(5_000)), "?");
    let deep = format!("{{\"x\":{}{},\"user\":\"a\"}}", "[".repeat(20_000), "]".repeat(20_000));
    assert_eq!(field("user", BodyKind::Json, deep.as_bytes()), "?");
}

#[test]
fn a_field_of_a_form_has_one_value_or_the_body_is_refused() {
    for (name, body, expected) in [
        ("user", "user=a", "a"),
        ("user", "x=1&user=a+b%21&x=2", "a b!"),
        ("user", "%75ser=%e4%b8%ad", "\u{4e2d}"),
        ("user", "user=", ""),
        ("user", "user", ""),
        ("user", "name=a", "-"),
        ("user", "{\"user\":\"a\"}", "-"),
        ("a.b", "a.b=x", "x"),
        ("user", "user=a&user=a", "2"),
        ("user", "user=a&%75ser=b", "2"),
        ("user", "user=a&USER=b", "!"),
        ("user", "user[]=a", "!"),
        ("user", "x=1;user=a", "!"),
        ("user", "\u{FEFF}user=a", "!"),
        ("user", "user=%ff", "!"),
        ("a.b", "a[b]=x", "!"),
    ] {
        assert_eq!(field(name, BodyKind::Form, body.as_bytes()), expected, "{name} {body}");
    }
    assert_eq!(field("user", BodyKind::Form, b"user=\xff"), "!");
    assert_eq!(field("user", BodyKind::Unclear, b"user=a"), "!");
}

#[test]
fn only_plain_json_and_forms_are_read() {
    for (kinds, expected) in [
        (&[JSON][..], Some(BodyKind::Json)),
        (&["Application/JSON ; Charset=UTF-8"], Some(BodyKind::Json)),
        (&["application/json;"], Some(BodyKind::Json)),
        (&["application/json; charset=\"utf-8\"; x=y"], Some(BodyKind::Json)),
        (&[FORM], Some(BodyKind::Form)),
        (&["application/json; charset=utf-16"], Some(BodyKind::Unclear)),
        (&["application/x-www-form-urlencoded; charset = utf-7"], Some(BodyKind::Unclear)),
        (&[JSON, JSON], Some(BodyKind::Unclear)),
        (&["text/plain", JSON], Some(BodyKind::Unclear)),
        (&["text/plain"], None),
        (&["multipart/form-data; boundary=x"], None),
        (&["application/jsonp"], None),
        (&["application/x-ndjson"], None),
        (&[""], None),
        (&[], None),
    ] {
        assert_eq!(BodyKind::of(&headers(kinds)), expected, "{kinds:?}");
    }
    for (coding, expected) in [("gzip", None), ("Identity", Some(BodyKind::Json))] {
        let mut headers = headers(&[JSON]);
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
        assert_eq!(BodyKind::of(&headers), expected, "{coding}");
    }
}

#[test]
fn a_told_body_needs_no_content_type() {
    let names = ["user".to_owned()];
    let long = format!("user=a&x={}", "x".repeat(MOST));
    for (kinds, body, expected) in [
        (&[][..], "{\"user\":\"a\"}", Ok(Some("a"))),
        (&[], " \n{\"user\":\"a\"}", Ok(Some("a"))),
        (&[], "user=a", Ok(Some("a"))),
        (&[], "", Ok(None)),
        (&[], &long, Ok(None)),
        (&[FORM], "{\"user\":\"a\"}", Ok(None)),
        (&[JSON], "user=a", Err(PartFault::Unreadable)),
        (&["text/plain"], "user=a", Ok(None)),
    ] {
        let fields = BodyFields::told(&names, &headers(kinds), body.as_bytes());
        let expected = expected.map(|it: Option<&str>| it.map(|it| it.as_bytes().into()));
        assert_eq!(fields.value("user"), expected, "{kinds:?} {body:.20}");
    }
}

proptest! {
    /// Whoever writes the same text as a form and as JSON has the same bucket.
    #[test]
    fn the_same_text_is_the_same_in_json_and_in_a_form(text: String) {
        let json = serde_json::json!({ "user": text }).to_string();
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let form = format!("user={encoded}");
        prop_assert_eq!(field("user", BodyKind::Json, json.as_bytes()), text.clone());
        prop_assert_eq!(field("user", BodyKind::Form, form.as_bytes()), text);
    }
}
