//! The normal form of credentials in `authorization`. Without it a client with one token would get a new
//! bucket for each spelling of the token.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};

use crate::text::trim;

/// Base64 as the laxest decoders read it: with or without padding, with any bits after the last byte.
const LAX: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Whether this is the secret. Digests are compared: the time of the comparison reveals nothing about the secret.
pub(crate) fn is_secret(given: &[u8], secret: &str) -> bool {
    Sha256::digest(given) == Sha256::digest(secret)
}

/// The bearer token in `authorization`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// The normal form of an `authorization` value: the credentials without their scheme.
///
/// Many APIs take any scheme, or none, and read the last word. So a single word in front of the credentials is left
/// out. Base64 of `Basic` is normalised as lax decoders read it: they skip bytes that are not base64, and everything
/// after the padding. `None` if servers may read different credentials: there are more words that are no parameters
/// (RFC 9110, 11.4), or there is a byte that is not ASCII, which some servers take for a blank.
pub(super) fn normal_form(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !value.is_ascii() {
        return None;
    }
    let is_blank = |byte: &u8| *byte <= b' ';
    let value = trim(value);
    let Some(end) = value.iter().position(is_blank) else { return Some(Cow::Borrowed(value)) };
    let (scheme, rest) = value.split_at(end);
    let credentials = trim(rest);
    let is_basic = scheme.eq_ignore_ascii_case(b"basic");
    if scheme.iter().any(|byte| matches!(byte, b',' | b'"')) {
        return None;
    }
    // A token is long. Without an early end the compiler looks at several bytes at once.
    let has_blank = credentials.iter().fold(false, |has, byte| has | is_blank(byte));
    if !has_blank {
        return Some(match is_basic {
            true => Cow::Owned(base64(credentials)),
            false => Cow::Borrowed(credentials),
        });
    }
    let takes_parameters = !is_basic && !scheme.eq_ignore_ascii_case(b"bearer");
    let without_blanks = || credentials.iter().copied().filter(|byte| !is_blank(byte)).collect();
    (takes_parameters && are_parameters(credentials)).then(without_blanks).map(Cow::Owned)
}

/// Whether these are `name=value` and `name="any value"`, between commas.
fn are_parameters(text: &[u8]) -> bool {
    let mut quoted = false;
    let mut parts = text.split(|byte| {
        quoted ^= *byte == b'"';
        *byte == b',' && !quoted
    });
    let is_one_word = |text: &[u8]| !text.iter().any(|byte| matches!(byte, b'\0'..=b' ' | b'"'));
    parts.all(|part| {
        let part = trim(part);
        let equals = part.iter().position(|byte| *byte == b'=').unwrap_or_default();
        let (name, value) = part.split_at(equals);
        is_one_word(name)
            && match value {
                [b'=', b'"', inner @ .., b'"'] => !inner.contains(&b'"'),
                [b'=', first, ..] => *first != b'=' && is_one_word(value),
                _ => false,
            }
    })
}

/// The normal spelling of a base64 text, without blanks around the user's name and the password. If a text cannot be
/// decoded, its base64 letters alone are returned.
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
    let Ok(decoded) = LAX.decode(&letters) else { return letters };
    let parts: Vec<_> = decoded.splitn(2, |byte| *byte == b':').map(trim).collect();
    STANDARD.encode(parts.join(&b':')).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_removed_from_credentials() {
        for (value, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("BEARER  \t abc\t", Some("abc")),
            ("Bearer ABC", Some("ABC")),
            ("S1 abc", Some("abc")),
            ("abc", Some("abc")),
            ("Bearer", Some("Bearer")),
            ("", Some("")),
            ("Bearer abc x", None),
            ("Bearer abc\tx", None),
            ("n1 Bearer abc", None),
            ("n1, abc", None),
            ("Bearer abc\u{a0}", None),
            ("Bearer\u{3000}abc", None),
            ("Digest user=\"a\", realm=\"b c\",\tnc=1", Some("user=\"a\",realm=\"bc\",nc=1")),
            ("Digest user=\"a\",realm=\"bc\",nc=1", Some("user=\"a\",realm=\"bc\",nc=1")),
            ("AWS4 Credential=A/b, Signature=c", Some("Credential=A/b,Signature=c")),
            ("Token token=\"abc\"", Some("token=\"abc\"")),
            ("n1 a=1, abc", None),
            ("n1 a=1, abc=", None),
            ("n1 a=1, abc==", None),
            ("n1 a=1 abc", None),
            ("n1 a=\"1\" abc=\"2\"", None),
            ("n1 a=\"1\" abc", None),
            ("n1 a=\"1 abc", None),
            ("n1 a=\"1 , abc", None),
            ("n1 Bearer a=1", None),
            ("n1 a=1,", Some("a=1,")),
            ("n1 a=1, ,b=2", None),
            ("a=1, b=2", None),
            ("a=\" b\"", None),
            ("Bearer a=1, b=2", None),
            ("Basic YTpiYw==", Some("YTpiYw==")),
            ("S1 YTpiYw==", Some("YTpiYw==")),
            ("basic YTpiYw", Some("YTpiYw==")),
            ("Basic YTpiYx==", Some("YTpiYw==")),
            ("Basic YTp!iYw==", Some("YTpiYw==")),
            ("Basic YTpiYw==x", Some("YTpiYw==")),
            ("Basic YTo-Pz8_", Some("YTo+Pz8/")),
            // `a:bc`, with a line's end, and with blanks around `a` and `bc`.
            ("Basic YTpiYwo=", Some("YTpiYw==")),
            ("Basic IGEgOiBiYyA=", Some("YTpiYw==")),
            ("Basic abc", Some("abc=")),
            ("Basic abcde", Some("abcde")),
            ("Basic YTpiYw== x", None),
            ("Basic", Some("Basic")),
        ] {
            let form = normal_form(value.as_bytes());
            let form = form.map(|form| String::from_utf8(form.into_owned()).expect(value));
            assert_eq!(form.as_deref(), expected, "{value}");
            if let Some(form) = form {
                let again = normal_form(form.as_bytes());
                assert_eq!(again.as_deref(), Some(form.as_bytes()), "{value}");
            }
        }
        for blank in [&b"\xa0"[..], b"\x85", b"\xc2\xa0", b"\xef\xbb\xbf"] {
            for value in [[blank, b"Bearer abc"], [b"Bearer abc", blank]] {
                assert_eq!(normal_form(&value.concat()), None, "{value:?}");
            }
        }
    }
}
