//! What stands in the fields that frame a message.

/// Whether a comma-separated list has this token, in any case.
pub(super) fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}

/// Whether a comma-separated list ends with this token, in any case.
pub(super) fn is_last_token(list: &[u8], token: &[u8]) -> bool {
    let last = list.rsplit(|byte| *byte == b',').next().unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(token)
}

/// A number of digits alone, without sign, space or comma.
pub fn whole_number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
