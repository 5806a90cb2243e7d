//! Header names that some servers take for the same name.

use http::{HeaderMap, HeaderName};

/// Whether many servers take the two names for the same. Servers that pass header fields as variables
/// (RFC 3875, 4.1.18) see no difference between a dash and an underscore.
pub(crate) fn are_alike(one: &HeaderName, other: &HeaderName) -> bool {
    let (one, other) = (one.as_str(), other.as_str());
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    one.len() == other.len() && one.bytes().map(dashed).eq(other.bytes().map(dashed))
}

/// Whether the headers have a field of another name that some servers take for `name`.
pub(crate) fn has_ambiguous_alias(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.keys().any(|other| other != name && are_alike(name, other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_an_underscore() {
        let name = |text: &'static str| HeaderName::from_static(text);
        for (one, other, alike) in [
            ("x-api-key", "x-api-key", true),
            ("x-api-key", "x_api_key", true),
            ("x_api-key", "x-api_key", true),
            ("x-api-key", "x-api-kex", false),
            ("x-api-key", "xapikey", false),
            ("x-api-key", "x-api-keys", false),
        ] {
            assert_eq!(are_alike(&name(one), &name(other)), alike, "{one} {other}");
        }
    }
}
