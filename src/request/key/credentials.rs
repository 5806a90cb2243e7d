//! The normal form of credentials in `authorization`: who has one token must not have a bucket for each
//! way to write it.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

/// Base64 with or without padding, and with nothing else that some decoders pass over.
const STRICT: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A scheme means the same in any case, and with any space behind it (RFC 9110, 11.1 and 11.4): it is
/// written `Like This`. Base64 of `Basic` is padded. What has no scheme is left as it is.
///
/// `None` where `Bearer` or `Basic` have more than one word behind them, of which some APIs read the
/// first alone, or what is behind `Basic` is no base64, of which some read a part.
pub(in crate::request) fn normal_form(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(end) = value.iter().position(is_space) else { return Some(Cow::Borrowed(value)) };
    let (scheme, rest) = value.split_at(end);
    let mut credentials = Cow::Borrowed(rest.trim_ascii());
    let (basic, bearer) =
        (scheme.eq_ignore_ascii_case(b"basic"), scheme.eq_ignore_ascii_case(b"bearer"));
    if (basic || bearer) && credentials.iter().any(is_space) {
        return None;
    }
    if basic {
        credentials = Cow::Owned(STANDARD.encode(STRICT.decode(&*credentials).ok()?).into_bytes());
    }
    let scheme_is_usual = match scheme {
        [first, others @ ..] => {
            !first.is_ascii_lowercase() && !others.iter().any(u8::is_ascii_uppercase)
        }
        [] => true,
    };
    if scheme_is_usual && rest.strip_prefix(b" ") == Some(&*credentials) {
        return Some(Cow::Borrowed(value));
    }
    let mut form = Vec::with_capacity(value.len() + 2);
    form.extend(scheme.to_ascii_lowercase());
    form.iter_mut().take(1).for_each(u8::make_ascii_uppercase);
    form.push(b' ');
    form.extend_from_slice(&credentials);
    Some(Cow::Owned(form))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_have_one_form() {
        for (value, expected) in [
            ("Bearer abc", Some("Bearer abc")),
            ("bearer abc", Some("Bearer abc")),
            ("BEARER  \t abc", Some("Bearer abc")),
            ("Bearer ABC", Some("Bearer ABC")),
            ("Bearer", Some("Bearer")),
            ("Bearer abc x", None),
            ("Bearer abc\tx", None),
            ("abc", Some("abc")),
            ("", Some("")),
            ("dpop abc", Some("Dpop abc")),
            ("Digest username=\"a\", realm=\"b\"", Some("Digest username=\"a\", realm=\"b\"")),
            ("Basic YTpiYw==", Some("Basic YTpiYw==")),
            ("basic YTpiYw", Some("Basic YTpiYw==")),
            ("Basic YTpiYx==", None),
            ("Basic YTp!iYw==", None),
            ("Basic YTpiYw==x", None),
            ("Basic YTpiYw== x", None),
            ("Basic", Some("Basic")),
        ] {
            let form = normal_form(value.as_bytes());
            let form = form.map(|form| String::from_utf8(form.into_owned()).expect(value));
            assert_eq!(form.as_deref(), expected, "{value}");
        }
    }
}
