//! A limit's key: the values by which the limit counts, as canonical text.
//!
//! `request::key` builds keys from requests; stores use them to name buckets.

use std::borrow::Cow;
use std::fmt;

#[cfg(feature = "redis")]
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use percent_encoding::{percent_decode_str, percent_encode_byte};
#[cfg(feature = "redis")]
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

/// The values by which a limit counts, joined into one text.
///
/// Values are separated by `|`. In a value `|`, `%`, braces and control characters are percent-encoded.
/// In a value that is not UTF-8, all non-ASCII bytes are percent-encoded too. An absent value is written
/// `%-`, and is different from an empty value. If a part has alternatives, a value of the second begins
/// with `%2=`, of the third with `%3=`. Two different lists of values therefore never give the same key. A
/// key is safe in a Redis hash tag and in a log line. The list without values is the empty text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[u8; 56]>);

const SEPARATOR: u8 = b'|';
const ABSENT: &[u8] = b"%-";

impl Key {
    /// The key of a limit that counts everything in one bucket.
    pub fn empty() -> Self {
        Self(SmallVec::new())
    }

    /// The key of these values in this order; `None` is an absent value.
    pub fn of<'v>(values: impl IntoIterator<Item = Option<&'v [u8]>>) -> Self {
        Self::of_parts(values.into_iter().map(|value| (0, value)))
    }

    /// The key with these values, in this order. Each value comes with the index of its alternative, from 0.
    pub fn of_parts<V: AsRef<[u8]>>(parts: impl IntoIterator<Item = (usize, Option<V>)>) -> Self {
        let mut builder = KeyBuilder::default();
        for (index, value) in parts {
            builder.alternative(index);
            match value {
                Some(value) => builder.push(value.as_ref()),
                None => builder.push_absent(),
            }
        }
        builder.finish()
    }

    /// The key with this canonical text. `None` if no key is written so.
    pub fn parse(text: &str) -> Option<Self> {
        let written = Self(SmallVec::from_slice(text.as_bytes()));
        (text.is_empty() || Self::of_parts(written.parts()) == written).then_some(written)
    }

    /// The key that stands for a longer one with this hash. No other key has this text: in other keys a digit, a letter
    /// or a dash follows a percent sign.
    pub fn of_hash(hash: &str) -> Self {
        let mut text = SmallVec::from_slice(b"%~");
        text.extend_from_slice(hash.as_bytes());
        Self(text)
    }

    /// The canonical text. It is UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        // A key holds only UTF-8, so the fallback is never used.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The decoded values, as [`Key::of`] got them. An empty key reads as one empty value. Whether a limit
    /// has values at all is known from its sources.
    pub fn values(&self) -> impl Iterator<Item = Option<Cow<'_, [u8]>>> {
        self.parts().map(|(_, value)| value)
    }

    /// Whether this is the key of one value that the request does not have.
    pub fn is_absent(&self) -> bool {
        self.as_bytes() == ABSENT
    }

    /// The decoded values, each with the index of its alternative, from 0. An absent value has index 0.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Option<Cow<'_, [u8]>>)> {
        self.as_str().split(char::from(SEPARATOR)).map(|part| match part.as_bytes() {
            ABSENT => (0, None),
            [b'%', digit @ b'2'..=b'9', b'=', ..] => {
                let value = part.get(3..).unwrap_or_default();
                (usize::from(digit - b'1'), Some(percent_decode_str(value).into()))
            }
            _ => (0, Some(percent_decode_str(part).into())),
        })
    }
}

/// Writes a key's text as the log shows it: with `-` for an absent value.
pub fn write_shown(key: &str, f: &mut impl fmt::Write) -> fmt::Result {
    for (index, part) in key.split(char::from(SEPARATOR)).enumerate() {
        f.write_str(if index > 0 { "|" } else { "" })?;
        f.write_str(if part.as_bytes() == ABSENT { "-" } else { part })?;
    }
    Ok(())
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.as_str())
    }
}

/// Builds a [`Key`] value by value.
#[derive(Default)]
pub struct KeyBuilder {
    text: SmallVec<[u8; 56]>,
    started: bool,
    alternative: usize,
}

/// The most alternatives of one part of a key.
pub const MOST_ALTERNATIVES: usize = 9;

impl KeyBuilder {
    /// Says that the next value comes from the alternative at this index, from 0.
    pub fn alternative(&mut self, index: usize) {
        self.alternative = index;
    }

    /// Appends a value.
    pub fn push(&mut self, value: &[u8]) {
        self.separate();
        if value.iter().all(|byte| stands_for_itself(*byte)) {
            self.text.extend_from_slice(value);
            return;
        }
        let is_control = |c: char| !c.is_ascii() && c.is_control();
        let is_text = std::str::from_utf8(value).is_ok_and(|text| !text.contains(is_control));
        for &byte in value {
            if stands_for_itself(byte) || (is_text && !byte.is_ascii()) {
                self.text.push(byte);
            } else {
                self.text.extend_from_slice(percent_encode_byte(byte).as_bytes());
            }
        }
    }

    /// Appends a value in which no byte needs encoding, such as an address.
    pub fn push_plain(&mut self, value: &[u8]) {
        debug_assert!(value.iter().all(|byte| stands_for_itself(*byte)));
        self.separate();
        self.text.extend_from_slice(value);
    }

    /// Appends a value that the request does not have.
    pub fn push_absent(&mut self) {
        self.separate();
        self.text.extend_from_slice(ABSENT);
    }

    /// The key of the appended values.
    pub fn finish(self) -> Key {
        Key(self.text)
    }

    fn separate(&mut self) {
        if self.started {
            self.text.push(SEPARATOR);
        }
        self.started = true;
        if self.alternative > 0 {
            let digit = u8::try_from(self.alternative).map_or(b'9', |index| b'1' + index.min(8));
            self.text.extend_from_slice(&[b'%', digit, b'=']);
            self.alternative = 0;
        }
    }
}

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, SEPARATOR | b'%' | b'{' | b'}')
}

/// The first 128 bits of SHA-256, base64url without padding. In the proxy's keys, values of headers, cookies and tokens
/// stand like this unless `log.keys` is `"plain"`.
#[cfg(feature = "redis")]
pub fn hash(value: &[u8]) -> String {
    String::from_utf8_lossy(&hash_text(value)).into_owned()
}

/// [`hash`] without heap memory. Each request with a secret key needs it.
#[cfg(feature = "redis")]
pub fn hash_text(value: &[u8]) -> [u8; 22] {
    let digest = Sha256::digest(value);
    let mut text = [0; 22];
    // The text of 16 bytes has 22.
    let _ = URL_SAFE_NO_PAD.encode_slice(digest.first_chunk::<16>().unwrap_or(&[0; 16]), &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(values: &[Option<&str>]) -> String {
        Key::of(values.iter().map(|v| v.map(str::as_bytes))).to_string()
    }

    #[test]
    fn a_key_is_readable() {
        assert_eq!(key(&[Some("203.0.113.7")]), "203.0.113.7");
        assert_eq!(key(&[Some("2001:db8::/64"), Some("/a b")]), "2001:db8::/64|/a b");
        assert_eq!(key(&[Some("a|b"), None, Some("")]), "a%7Cb|%-|");
        assert_eq!(key(&[Some("{x}%\n")]), "%7Bx%7D%25%0A");
        assert_eq!(key(&[Some("grüße")]), "grüße");
        assert_eq!(key(&[Some("a\u{9b}b")]), "a%C2%9Bb", "a control character");
        assert_eq!(Key::of([Some(&b"\xff\xc3\xa9"[..])]).to_string(), "%FF%C3%A9");
    }

    #[test]
    fn only_a_key_s_own_text_is_read_as_a_key() {
        for text in ["", "a", "a|%-", "%2=a|", "a%7Cb", "grüße", "2001:db8::/64|/a b"] {
            assert_eq!(Key::parse(text).map(|key| key.to_string()).as_deref(), Some(text));
        }
        for text in ["%", "%7c", "%41", "{a}", "a\n", "%1=a", "%~abc"] {
            assert_eq!(Key::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_absent_value_is_not_an_empty_one() {
        assert_ne!(key(&[None]), key(&[Some("")]));
        assert_ne!(key(&[None]), key(&[Some("%-")]));
        assert_ne!(key(&[Some("a|b")]), key(&[Some("a"), Some("b")]));
    }

    #[test]
    fn values_of_different_alternatives_never_meet() {
        let of = |index, value: &[u8]| {
            let mut builder = KeyBuilder::default();
            builder.alternative(index);
            builder.push(value);
            builder.finish()
        };
        assert_eq!(of(0, b"a").as_str(), "a");
        assert_eq!(of(1, b"a").as_str(), "%2=a");
        assert_ne!(of(0, b"%2=a"), of(1, b"a"));
        for index in 0..MOST_ALTERNATIVES {
            for value in [&b""[..], b"a|b", b"%3=x"] {
                let key = of(index, value);
                assert_eq!(key.parts().collect::<Vec<_>>(), [(index, Some(value.into()))]);
            }
        }
    }

    proptest! {
        #[test]
        fn different_values_never_meet(
            values in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..6)), 1..4)
        ) {
            let key = Key::of(values.iter().map(Option::as_deref));
            let again: Vec<_> =
                key.values().map(|value| value.map(Cow::into_owned)).collect();
            prop_assert_eq!(again, values);
            prop_assert!(std::str::from_utf8(key.as_bytes()).is_ok());
            prop_assert_eq!(Key::parse(key.as_str()), Some(key));
        }
    }
}
