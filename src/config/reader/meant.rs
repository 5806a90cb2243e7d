//! What an operator probably meant by a duration or a size that the file does not take: `5 sec`, `1.5s`, `1 MB`,
//! or a number alone. Pure functions of a text.

use std::time::Duration;

use super::value::{self, DURATION_UNITS, SIZE_UNITS, SpelledUnit};

/// The duration that is meant, as the file takes it.
pub(super) fn duration(text: &str) -> Option<String> {
    let near = meant(text, &DURATION_UNITS, |it| value::duration_text(Duration::from_millis(it)))?;
    value::duration(&near).is_ok().then_some(near)
}

/// The size that is meant, as the file takes it.
pub(super) fn size(text: &str) -> Option<String> {
    let near = meant(text, &SIZE_UNITS, value::size_text)?;
    value::size(&near).map(|_| near)
}

/// The text in the units of the file. `write` writes a number that has no unit yet.
fn meant(text: &str, units: &[SpelledUnit], write: impl Fn(u64) -> String) -> Option<String> {
    let plain: String = text.to_lowercase().split_whitespace().collect();
    let (number, unit, after) = first_part(&plain, units)?;
    if after.is_empty() && !unit.0.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(format!("{number}{}", unit.0));
    }
    let (mut sum, mut rest) = (0_u64, plain.as_str());
    while !rest.is_empty() {
        let (number, unit, after) = first_part(rest, units)?;
        // In `1h 30` nobody knows the second unit.
        if number.len() == rest.len() && rest.len() < plain.len() {
            return None;
        }
        sum = sum.checked_add(times(number, unit.1)?)?;
        rest = after;
    }
    Some(write(sum))
}

/// The number in front, its unit, and what stands after them.
fn first_part<'t, 'u>(
    text: &'t str,
    units: &'u [SpelledUnit],
) -> Option<(&'t str, &'u SpelledUnit, &'t str)> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (number, rest) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let (name, after) = rest.split_at(rest.find(is_number).unwrap_or(rest.len()));
    let unit = value::unit_named(units, name)?;
    (!number.is_empty()).then_some((number, unit, after))
}

/// A number with digits after a point, times `factor`. `None` if that is no whole number.
fn times(number: &str, factor: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    let product = format!("{whole}{part}").parse::<u64>().ok()?.checked_mul(factor)?;
    product.is_multiple_of(scale).then(|| product.checked_div(scale))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_of_other_programs() {
        for (text, near) in [
            ("5", Some("5s")),
            ("120", Some("120s")),
            ("5 sec", Some("5s")),
            ("1.5s", Some("1500ms")),
            ("0.5", Some("500ms")),
            ("10S", Some("10s")),
            ("5min", Some("5m")),
            ("2 Hours", Some("2h")),
            ("1h30m", Some("90m")),
            ("1h 30", None),
            ("2w", Some("14d")),
            ("0.5ms", None),
            ("1.5.5s", None),
            ("-1s", None),
            ("fast", None),
            ("", None),
            ("9999d", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(duration(text).as_deref(), near, "{text}");
        }
    }

    #[test]
    fn sizes_of_other_programs() {
        for (text, near) in [
            ("1 MB", Some("1MB")),
            ("64k", Some("64KiB")),
            ("64kb", Some("64KB")),
            ("1024", Some("1024B")),
            ("1.5MB", Some("1500KB")),
            ("1.5 MiB", Some("1536KiB")),
            ("0.5B", None),
            ("2TB", None),
            ("big", None),
        ] {
            assert_eq!(size(text).as_deref(), near, "{text}");
        }
    }

    proptest! {
        #[test]
        fn each_suggestion_is_a_valid_value(text in "[0-9. a-zA-Z]{0,12}") {
            prop_assert!(duration(&text).is_none_or(|near| value::duration(&near).is_ok()));
            prop_assert!(size(&text).is_none_or(|near| value::size(&near).is_some()));
        }
    }
}
