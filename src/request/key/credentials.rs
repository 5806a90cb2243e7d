//! The normal form of credentials in `authorization`. Without it a client with one token would get a new
//! bucket for each spelling of the token.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

/// Base64 as the laxest decoders read it: with or without padding, with any bits after the last byte.
const LAX: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The normal form of an `authorization` value.
///
/// The scheme means the same in any case and with any space behind it (RFC 9110, 11.1 and 11.4). Its normal
/// form is an upper-case letter, then lower case, then one space. Base64 of `Basic` is normalised as lax
/// decoders read it: they skip bytes that are not base64, and everything after the padding. A value without
/// a scheme stays as it is. `None` where `Bearer` or `Basic` has more than one word behind it, since some
/// APIs read only the first word.
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
        credentials = Cow::Owned(base64(&credentials));
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

/// The normal spelling of a base64 text; only the base64 letters of a text that cannot be decoded.
fn base64(text: &[u8]) -> Vec<u8> {
    let letters: Vec<u8> = text
        .iter()
        .take_while(|byte| **byte != b'=')
        .filter_map(|byte| match byte {
            b'-' => Some(b'+'),
            b'_' => Some(b'/'),
            b'+' | b'/' => Some(*byte),
            _ => byte.is_ascii_alphanumeric().then_some(*byte),
        })
        .collect();
    LAX.decode(&letters).map_or(letters, |bytes| STANDARD.encode(bytes).into_bytes())
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
            ("Basic YTpiYx==", Some("Basic YTpiYw==")),
            ("Basic YTp!iYw==", Some("Basic YTpiYw==")),
            ("Basic YTpiYw==x", Some("Basic YTpiYw==")),
            ("Basic YTp_-w==", Some("Basic YTp/+w==")),
            ("Basic abc", Some("Basic abc=")),
            ("Basic abcde", Some("Basic abcde")),
            ("Basic YTpiYw== x", None),
            ("Basic", Some("Basic")),
        ] {
            let form = normal_form(value.as_bytes());
            let form = form.map(|form| String::from_utf8(form.into_owned()).expect(value));
            assert_eq!(form.as_deref(), expected, "{value}");
        }
    }
}
