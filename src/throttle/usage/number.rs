//! Reads a number of tokens.

/// The number in this text. A fraction is rounded up to whole tokens: `57.0` is 57, `57.2` is 58. A number
/// that is too large becomes the largest one. `None` for any other text, such as a number below zero or one
/// with an exponent.
pub(super) fn tokens(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let more = fraction.bytes().any(|digit| digit != b'0');
    Some(whole.parse().unwrap_or(u64::MAX).saturating_add(u64::from(more)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_tokens_are_counted() {
        for (text, value) in [
            ("0", Some(0)),
            ("57", Some(57)),
            ("57.0", Some(57)),
            ("57.000", Some(57)),
            ("57.001", Some(58)),
            ("0.5", Some(1)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("99999999999999999999999999999999", Some(u64::MAX)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("-0", None),
            ("1e3", None),
            ("1.", None),
            (".5", None),
            ("1.5.2", None),
            ("5, 7", None),
            ("0x10", None),
            (" 5", None),
            ("1_000", None),
        ] {
            assert_eq!(tokens(text.as_bytes()), value, "{text:?}");
        }
    }
}
