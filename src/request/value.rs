//! The normal form of a header's value. All spellings that some servers take for the same value have one normal form.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::credentials;
use crate::text::trim;

/// The fields in which MCP clients name what they call. Their values may be encoded (SEP-2243, "Value Encoding").
pub(crate) static OF_MCP: [HeaderName; 2] =
    [HeaderName::from_static("mcp-name"), HeaderName::from_static("mcp-method")];

/// The normal form of a header's value. `None` if servers read the value differently.
pub(super) fn normal<'v>(name: &HeaderName, value: &'v [u8]) -> Option<Cow<'v, [u8]>> {
    if *name == AUTHORIZATION {
        return credentials::normal_form(value);
    }
    match trim(value) {
        // The name is compared last, because few values begin like this.
        value @ [b'=', b'?', ..] if OF_MCP.contains(name) => decoded(value),
        value => Some(Cow::Borrowed(value)),
    }
}

/// Decodes `=?base64?…?=`. Every other value stays as it is. Only the spelling that clients use is decoded. Other
/// spellings give `None`, because some servers would decode them and others would not.
fn decoded(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    const BEGIN: &[u8] = b"=?base64?";
    let (begin, rest) = value.split_at_checked(BEGIN.len()).unwrap_or((value, &[]));
    match rest.strip_suffix(b"?=") {
        Some(code) if begin.eq_ignore_ascii_case(BEGIN) => {
            let text = STANDARD.decode(code).ok().filter(|_| begin == BEGIN)?;
            std::str::from_utf8(&text).ok()?;
            Some(Cow::Owned(trim(&text).to_vec()))
        }
        _ => Some(Cow::Borrowed(value)),
    }
}

/// Whether a value of one of these headers cannot be decoded.
pub(crate) fn is_undecodable(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    let read = |name, value: &HeaderValue| normal(name, value.as_bytes()).is_some();
    names.iter().any(|name| !headers.get_all(name).iter().all(|value| read(name, value)))
}

/// The common form of all spellings of one value.
pub(super) fn form<'v>(name: &HeaderName, value: &'v HeaderValue) -> Cow<'v, [u8]> {
    normal(name, value.as_bytes()).unwrap_or(Cow::Borrowed(value.as_bytes()))
}

/// Whether one of the header's fields has this value, in any spelling of it.
pub(super) fn is_there(headers: &HeaderMap, (name, value): &(HeaderName, HeaderValue)) -> bool {
    headers.get_all(name).iter().any(|found| are_same(name, value, found))
}

/// Whether two values of a header are the same in some spelling.
pub(super) fn are_same(name: &HeaderName, one: &HeaderValue, other: &HeaderValue) -> bool {
    let form = normal(name, one.as_bytes());
    one == other || form.is_some() && form == normal(name, other.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_name_of_mcp_is_the_text_that_it_encodes() {
        for (value, text) in [
            ("search", Some("search")),
            ("=?base64?c2VhcmNo?=", Some("search")),
            (" \t=?base64?c2VhcmNo?= ", Some("search")),
            ("=?base64?IHNlYXJjaA==?=", Some("search")),
            ("=?base64?5qSc57Si?=", Some("検索")),
            ("=?base64??=", Some("")),
            // The value is decoded only once.
            ("=?base64?PT9iYXNlNjQ/YzJWaGNtTm8/PQ==?=", Some("=?base64?c2VhcmNo?=")),
            // These values do not have the form.
            ("=?base64?=", Some("=?base64?=")),
            ("=?base64?c2VhcmNo", Some("=?base64?c2VhcmNo")),
            ("=?utf-8?q?search?=", Some("=?utf-8?q?search?=")),
            ("x=?base64?c2VhcmNo?=", Some("x=?base64?c2VhcmNo?=")),
            ("=?", Some("=?")),
            // No client encodes like this.
            ("=?BASE64?c2VhcmNo?=", None),
            ("=?base64?c2VhcmNo=?=", None),
            ("=?base64?c2VhcmN?=", None),
            ("=?base64?c2VhcmNoLg?=", None),
            ("=?base64?c2VhcmNoLh==?=", None),
            ("=?base64?c2 VhcmNo?=", None),
            ("=?base64?_-8=?=", None),
            ("=?base64?%%%?=", None),
            ("=?base64?//4=?=", None),
        ] {
            for name in &OF_MCP {
                let form = normal(name, value.as_bytes());
                assert_eq!(form.as_deref(), text.map(str::as_bytes), "{value}");
            }
            let other = normal(&HeaderName::from_static("mcp-names"), value.as_bytes());
            assert_eq!(other.as_deref(), Some(value.trim().as_bytes()), "{value}");
        }
    }
}
