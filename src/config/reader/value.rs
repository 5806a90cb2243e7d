//! Values as an operator writes them: durations, sizes, networks. Pure functions of a text.

use std::time::Duration;

use ipnet::IpNet;

use super::wrong::Wrong;
use crate::request::network::{canonical, parse};

/// What a duration looks like.
pub(crate) const DURATION: &str =
    "a whole number and a unit, as in \"250ms\", \"10s\", \"5m\", \"1h\" or \"1d\"";

/// What a size looks like.
pub(crate) const SIZE: &str = "a whole number and a unit, as in \"512B\", \"64KiB\" or \"10MB\"";

/// What a network looks like.
pub(crate) const NETWORK: &str =
    "an address or a network, as in \"192.0.2.7\", \"10.0.0.0/8\" or \"2001:db8::/32\"";

/// Ten years. A longer duration is a typing error. With this bound, no sum of two durations overflows.
const MAX_DURATION: Duration = Duration::from_secs(3_650 * 86_400);

/// Why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationError {
    /// The text is not a whole number with a unit.
    Syntax,
    /// The duration is longer than 3650 days.
    TooLong,
}

impl DurationError {
    /// What is expected in place of a duration that is too long.
    pub(crate) const AT_MOST: &str = "at most \"3650d\"";
}

/// A unit and its factor.
type Unit = (&'static str, u64);

const DURATION_UNITS: [Unit; 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

const SIZE_UNITS: [Unit; 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

/// `"250ms"`, `"10s"`, `"5m"`, `"1h"`, `"1d"`; whole numbers, at most 3650 days.
///
/// # Errors
/// If the text is written in another way, or is longer.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let (number, unit) = number_and_unit(text, &DURATION_UNITS).ok_or(DurationError::Syntax)?;
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let duration = millis.map(Duration::from_millis).filter(|duration| *duration <= MAX_DURATION);
    duration.ok_or(DurationError::TooLong)
}

/// `"64KiB"`, `"10MB"`, `"512B"`, in bytes.
pub(crate) fn size(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text, &SIZE_UNITS)?;
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// The size in the largest unit that gives a whole number.
pub(crate) fn size_text(size: u64) -> String {
    in_units(size.into(), &SIZE_UNITS).unwrap_or("0B".to_owned())
}

/// The duration in the largest unit that gives a whole number, as in `"90s"`. Fractions of a millisecond
/// are dropped.
pub(crate) fn duration_text(duration: Duration) -> String {
    in_units(duration.as_millis(), &DURATION_UNITS).unwrap_or("0s".to_owned())
}

/// The number in the largest unit that gives a whole number. `None` for zero.
fn in_units(number: u128, units: &[Unit]) -> Option<String> {
    let units = units.iter().map(|(name, unit)| (name, u128::from(*unit)));
    let fits = units.filter(|(_, unit)| number >= *unit && number.is_multiple_of(*unit));
    fits.max_by_key(|(_, unit)| *unit).map(|(name, unit)| format!("{}{name}", number / unit))
}

/// A network. A single address is a network of full length. A network of addresses that carry
/// IPv4 addresses becomes the IPv4 network.
pub(crate) fn network(text: &str) -> Result<IpNet, Wrong> {
    let written = parse(text).ok_or(Wrong::Expected)?;
    let network = canonical(&written);
    if written == written.trunc() {
        return Ok(network);
    }
    let expected = "expected the network's first address";
    Err(Wrong::Because(format!("{expected}; did you mean \"{network}\"?")))
}

/// The digits of a text, and the unit after them as a factor.
fn number_and_unit<'t>(text: &'t str, units: &[Unit]) -> Option<(&'t str, u64)> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    (!number.is_empty()).then_some((number, *factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        use DurationError::{Syntax, TooLong};
        for (text, millis) in [
            ("250ms", Ok(250)),
            ("10s", Ok(10_000)),
            ("5m", Ok(300_000)),
            ("1h", Ok(3_600_000)),
            ("1d", Ok(86_400_000)),
            ("0s", Ok(0)),
            ("3650d", Ok(315_360_000_000)),
            ("3651d", Err(TooLong)),
            ("10", Err(Syntax)),
            ("s", Err(Syntax)),
            ("", Err(Syntax)),
            ("1.5s", Err(Syntax)),
            ("-1s", Err(Syntax)),
            ("+1s", Err(Syntax)),
            (" 1s", Err(Syntax)),
            ("1 s", Err(Syntax)),
            ("1S", Err(Syntax)),
            ("1µs", Err(Syntax)),
            ("99999999999999999999s", Err(TooLong)),
            ("18446744073709551615d", Err(TooLong)),
        ] {
            assert_eq!(duration(text), millis.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_as_people_write_them() {
        for text in ["250ms", "10s", "90s", "5m", "1h", "36h", "1d", "0s"] {
            assert_eq!(duration_text(duration(text).unwrap()), text);
        }
        assert_eq!(duration_text(duration("1000ms").unwrap()), "1s");
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("64KiB", Some(65_536)),
            ("10MB", Some(10_000_000)),
            ("0B", Some(0)),
            ("1GiB", Some(1 << 30)),
            ("64", None),
            ("64kb", None),
            ("64 KiB", None),
            ("KiB", None),
            ("18446744073709551615GB", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
        for text in ["64KiB", "10MB", "512B", "1GiB", "0B"] {
            assert_eq!(size_text(size(text).unwrap()), text);
        }
    }

    #[test]
    fn networks_are_read() {
        let ok = |text: &str| Ok(text.parse::<IpNet>().unwrap());
        let first = |text: &str| {
            let reason = "expected the network's first address; did you mean";
            Err(Wrong::Because(format!("{reason} \"{text}\"?")))
        };
        for (text, expected) in [
            ("10.0.0.0/8", ok("10.0.0.0/8")),
            ("192.0.2.7", ok("192.0.2.7/32")),
            ("2001:db8::1", ok("2001:db8::1/128")),
            ("::ffff:10.0.0.0/104", ok("10.0.0.0/8")),
            ("::ffff:10.0.0.1", ok("10.0.0.1/32")),
            ("64:ff9b::10.0.0.0/104", ok("10.0.0.0/8")),
            ("0.0.0.0/0", ok("0.0.0.0/0")),
            ("10.0.0.1/8", first("10.0.0.0/8")),
            ("2001:db8::1/64", first("2001:db8::/64")),
            ("10.0.0.0/33", Err(Wrong::Expected)),
            ("10.0.0/8", Err(Wrong::Expected)),
            ("localhost", Err(Wrong::Expected)),
            ("", Err(Wrong::Expected)),
        ] {
            assert_eq!(network(text), expected, "{text}");
        }
    }
}
