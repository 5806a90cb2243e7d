//! Names of headers, cookies and query parameters that some servers take for the same name.

use http::{HeaderMap, HeaderName};
use smallvec::SmallVec;

use crate::text::trim;

/// Whether some server takes `found` for `name`. The exact name is one of these.
///
/// Letters may have another case (ASP.NET). Whatever is no letter and no digit may stand for any other such
/// character: servers make underscores of dashes (RFC 3875, 4.1.18), and PHP makes them of dots, spaces and brackets.
/// Blanks at the edges may be cut off, and a name may end at a zero. `name[]` and `name[0]` are a list that has the
/// value, and `name.field` is `name[field]`.
pub(crate) fn may_be(found: &[u8], name: &str) -> bool {
    let [found, name] = [found, name.as_bytes()].map(|name| String::from_utf8_lossy(trim(name)));
    let is_read = |character: &char| *character != ']';
    let mut found = found.chars().filter(is_read);
    let is_same = |one: char, other: char| {
        one == other
            || !one.is_alphanumeric() && !other.is_alphanumeric()
            || one.to_lowercase().eq(other.to_lowercase())
    };
    name.chars().filter(is_read).all(|own| found.next().is_some_and(|found| is_same(found, own)))
        && matches!(found.next(), None | Some('[' | '\0'))
}

/// Whether some server takes the two headers for the same.
pub(crate) fn are_alike(one: &HeaderName, other: &HeaderName) -> bool {
    let (one, other) = (one.as_str(), other.as_str());
    one.len() == other.len() && may_be(one.as_bytes(), other)
}

/// The common form of all header names that some server takes for the same name. Two names have the same form exactly
/// if they [`are_alike`].
pub(crate) fn form(name: &HeaderName) -> String {
    name.as_str().replace(|character: char| !character.is_ascii_alphanumeric(), "-")
}

/// Whether a header's name has a character besides letters, digits and dashes. Some servers read it as a dash.
pub(crate) fn is_odd(name: &HeaderName) -> bool {
    let is_plain = |byte: u8| byte == b'-' || byte.is_ascii_alphanumeric();
    !name.as_str().bytes().all(is_plain)
}

/// Whether a field's name is no token (RFC 9110, 5.1). h2 lets a quotation mark pass. A message with such a name is
/// malformed (RFC 9113, 10.3), because HTTP/1.1 does not allow the name.
pub(crate) fn is_invalid(name: &HeaderName) -> bool {
    name.as_str().contains('"')
}

/// Removes all fields with an unwanted name.
pub(crate) fn remove_all(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    let found: SmallVec<[HeaderName; 4]> =
        headers.keys().filter(|name| unwanted(name)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Whether the headers have a field of another name that some servers take for `name`.
pub(crate) fn has_ambiguous_alias(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.keys().any(|other| other != name && are_alike(name, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_alike_where_a_server_reads_them_alike() {
        let name = |text: &'static str| HeaderName::from_static(text);
        for (one, other, alike) in [
            ("x-api-key", "x-api-key", true),
            ("x-api-key", "x_api_key", true),
            ("x_api-key", "x-api_key", true),
            ("x-api-key", "x.api.key", true),
            ("x-api-key", "x-api-kex", false),
            ("x-api-key", "xapikey", false),
            ("x-api-key", "x-api-keys", false),
        ] {
            assert_eq!(are_alike(&name(one), &name(other)), alike, "{one} {other}");
            assert_eq!(form(&name(one)) == form(&name(other)), alike, "{one} {other}");
        }
    }

    #[test]
    fn a_name_is_taken_for_another_where_a_framework_does() {
        for (name, others, strangers) in [
            (
                "api_key",
                &[
                    "api_key",
                    "API_KEY",
                    "api.key",
                    "api key",
                    " api_key",
                    "api_key\u{a0}",
                    "api-key",
                    "api[key",
                    "api_key[]",
                    "api_key[0]",
                    "api_key[a][b]",
                    "api_key\0",
                    "api_key\0x",
                    "api[key]",
                    "\u{feff}Api_Key ",
                ][..],
                &["", "apikey", "api_keys", "xapi_key", "_api_key", "api_key_", "api", "api_key2"]
                    [..],
            ),
            ("id", &["ID", "id[]"], &["_id", "ids", "i", "id_token"]),
            (
                "filter[user]",
                &["filter[user]", "filter.user", "filter[user][]"],
                &["filter[users]", "filter"],
            ),
            ("\u{e4}", &["\u{c4}"], &["a"]),
        ] {
            for found in others {
                assert!(may_be(found.as_bytes(), name), "{name} {found:?}");
            }
            for found in strangers {
                assert!(!may_be(found.as_bytes(), name), "{name} {found:?}");
            }
        }
        assert!(may_be(b"api_key\xa0", "api_key"));
    }
}
