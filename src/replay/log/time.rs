//! Times in the spellings of logs.

use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::Offset;

use crate::limit::time::Timestamp;

/// Reads a time: `17/May/2015:10:05:03 +0200` (nginx, Apache), ISO 8601 (RFC 3339), or a number since 1970. A
/// time without a zone is UTC. `None` if it cannot be read, or is before 1970.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    match text.as_bytes() {
        [_, _, b'/', ..] => common(text),
        [_, _, _, _, b'-' | b'/', ..] => iso(text),
        _ => number(text.parse().ok()?),
    }
}

/// A number since 1970: of seconds, milliseconds, microseconds or nanoseconds, by its size. The bounds are the year
/// 5138 in the smaller unit, and the year 1973 in the larger one.
pub(super) fn number(number: f64) -> Option<Timestamp> {
    let micros = match number {
        0.0..1e11 => number * 1e6,
        1e11..1e14 => number * 1e3,
        1e14..1e17 => number,
        1e17..1e20 => number / 1e3,
        _ => return None,
    };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and 1e17"
    )]
    Timestamp::from_micros(micros.round() as u64)
}

/// `17/May/2015:10:05:03 +0200`, with or without the zone. A leap second counts as the second before it.
fn common(text: &str) -> Option<Timestamp> {
    match BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", text) {
        Ok(time) => in_micros(time.to_timestamp().ok()?),
        Err(_) => {
            let time = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S", text).ok()?;
            in_utc(time.to_datetime().ok()?)
        }
    }
}

/// `2015-05-17T10:05:03.123Z`, also with a space for the `T`, `/` for `-`, and any offset.
fn iso(text: &str) -> Option<Timestamp> {
    let slashes = text.as_bytes().get(4) == Some(&b'/');
    if slashes {
        return iso(&text.replace('/', "-"));
    }
    match text.parse() {
        Ok(time) => in_micros(time),
        Err(_) => in_utc(text.parse().ok()?),
    }
}

fn in_utc(time: DateTime) -> Option<Timestamp> {
    in_micros(Offset::UTC.to_timestamp(time).ok()?)
}

fn in_micros(time: jiff::Timestamp) -> Option<Timestamp> {
    Timestamp::from_micros(u64::try_from(time.as_microsecond()).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOON: u64 = 1_431_857_103_000_000;

    #[test]
    fn reads_the_spellings_of_logs() {
        for (text, micros) in [
            ("17/May/2015:10:05:03 +0000", NOON),
            ("17/May/2015:12:05:03 +0200", NOON),
            ("17/May/2015:04:35:03 -0530", NOON),
            ("17/May/2015:10:05:03", NOON),
            ("2015-05-17T10:05:03Z", NOON),
            ("2015-05-17T10:05:03.25Z", NOON + 250_000),
            ("2015-05-17T12:05:03+02:00", NOON),
            ("2015-05-17T12:05:03.000+0200", NOON),
            ("2015-05-17T10:05:03.123456789Z", NOON + 123_456),
            ("2015-05-17 10:05:03", NOON),
            ("2015/05/17 10:05:03", NOON),
            ("2015/05/17 10:05:03.5", NOON + 500_000),
            ("1431857103", NOON),
            ("1431857103.250", NOON + 250_000),
            ("1431857103250", NOON + 250_000),
            ("1431857103000001", NOON + 1),
            ("1431857103000000000", NOON),
            ("01/Jan/1970:00:00:00 +0000", 0),
            ("31/Dec/2016:23:59:60 +0000", 1_483_228_799_000_000),
        ] {
            assert_eq!(parse(text).map(Timestamp::as_micros), Some(micros), "{text}");
        }
    }

    #[test]
    fn other_text_is_no_time() {
        for text in [
            "",
            "-",
            "17/Mai/2015:10:05:03 +0000",
            "32/May/2015:10:05:03 +0000",
            "29/Feb/2015:10:05:03 +0000",
            "17/May/2015:25:05:03 +0000",
            "17/May/2015:10:05:03 0000",
            "17/May/2015:10:05:03 +",
            "17/May/2015:10:05:03 +9999",
            "17/May/2015:10:05",
            "31/Dec/1969:23:59:59 +0000",
            "1/May/2015:10:05:03 +0000",
            "2015-13-17T10:05:03Z",
            "-5",
            "NaN",
            "inf",
            "1e300",
            "é/é",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_servers_time_is_read_back(second in 0_i64..7_000_000_000, minutes in -720_i32..840) {
            let time = jiff::Timestamp::from_second(second).unwrap();
            let zone = Offset::from_seconds(minutes * 60).unwrap().to_time_zone();
            let micros = u64::try_from(second).unwrap() * 1_000_000;
            for format in ["%d/%b/%Y:%H:%M:%S %z", "%Y-%m-%dT%H:%M:%S%:z"] {
                let text = time.to_zoned(zone.clone()).strftime(format).to_string();
                prop_assert_eq!(parse(&text).map(Timestamp::as_micros), Some(micros), "{}", text);
            }
        }
    }
}
