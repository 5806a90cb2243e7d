//! Numbers, shares, lengths of time and times as people read them.

use crate::limit::time::Timestamp;
use crate::text::misleads;

/// A number with a comma between thousands.
pub(crate) fn number(number: u64) -> String {
    match number / 1_000 {
        0 => number.to_string(),
        thousands => format!("{},{:03}", self::number(thousands), number % 1_000),
    }
}

/// A share from 0 to 1 in percent, with at most two significant digits: `12 %`, `4.6 %`, `0.4 %`, `0.046 %`.
/// A share that is not 0 or 1 is never written as 0 % or 100 %.
pub(crate) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = match percent {
        99.5..100.0 => 2,
        10.0.. => 0,
        // Two digits, from the first one that is not 0.
        _ => (1..8).find(|digits| percent * 10_f64.powi(*digits) >= 10.0).unwrap_or(8),
    };
    let digits = usize::try_from(digits).unwrap_or_default();
    let text = format!("{percent:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

/// `1 request`, `2 requests`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    format!("{} {one}{}", number(count), if count == 1 { "" } else { "s" })
}

/// Milliseconds in their two largest units, as in `1h59m`.
pub(crate) fn length(millis: u64) -> String {
    let seconds = millis / 1_000;
    let units = [
        (seconds / 86_400, 'd'),
        (seconds / 3_600 % 24, 'h'),
        (seconds / 60 % 60, 'm'),
        (seconds % 60, 's'),
    ];
    let units = units.into_iter().skip_while(|(count, _)| *count == 0).take(2);
    let units = units.filter(|(count, _)| *count > 0);
    let text: String = units.map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { format!("{millis}ms") } else { text }
}

/// A time in UTC, to the second.
pub(crate) fn time(at: Timestamp) -> String {
    let at = i64::try_from(at.as_micros())
        .ok()
        .and_then(|it| jiff::Timestamp::from_microsecond(it).ok());
    at.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A text of strangers, without characters that would move a terminal's cursor or change the direction of the text.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if misleads(c) { '·' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_numbers() {
        for (count, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")]
        {
            assert_eq!(number(count), text);
        }
        for (share, text) in [
            (0.0, "0 %"),
            (1.0, "100 %"),
            (0.999, "99.9 %"),
            (0.25, "25 %"),
            (0.0456, "4.6 %"),
            (0.04, "4 %"),
            (0.004, "0.4 %"),
            (0.000_041, "0.0041 %"),
        ] {
            assert_eq!(percent(share), text);
        }
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_999, "1s"),
            (59_000, "59s"),
            (60_000, "1m"),
            (7_199_000, "1h59m"),
            (7_205_000, "2h"),
            (90_061_000, "1d1h"),
            (86_400_000, "1d"),
        ] {
            assert_eq!(length(millis), text);
        }
        assert_eq!(
            time(Timestamp::from_micros(1_431_857_103_000_000).unwrap()),
            "2015-05-17T10:05:03Z"
        );
    }
}
