//! Numbers, shares, lengths and times as people read them, and plots of one line.

use crate::limit::time::Timestamp;
use crate::text::misleads;

/// From little to much.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

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
    if percent == 0.0 {
        return "0 %".to_owned();
    }
    if percent >= 10.0 {
        let near_all = percent < 100.0 && percent > 99.5;
        return if near_all {
            without_zeros(&format!("{percent:.2}"))
        } else {
            format!("{percent:.0} %")
        };
    }
    // The first digit that is not 0 stands this many places behind the point.
    let mut places = 1_usize;
    let mut rest = percent;
    while rest < 1.0 && places < 8 {
        rest *= 10.0;
        places += 1;
    }
    without_zeros(&format!("{percent:.places$}"))
}

/// A decimal fraction in percent, without the zeros at its end.
fn without_zeros(percent: &str) -> String {
    format!("{} %", percent.trim_end_matches('0').trim_end_matches('.'))
}

/// `1 request`, `2 requests`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    format!("{} {one}{}", number(count), if count == 1 { "" } else { "s" })
}

/// A length of time in its two largest units.
pub(super) fn length(micros: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = micros / 1_000_000;
    if seconds == 0 {
        return format!("{} ms", micros.div_ceil(1_000));
    }
    let place = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[place];
    let first = format!("{} {name}", seconds / unit);
    match UNITS.get(place + 1) {
        Some((smaller, name)) if seconds % unit / smaller > 0 => {
            format!("{first} {} {name}", seconds % unit / smaller)
        }
        _ => first,
    }
}

/// A time in UTC, to the second.
pub(crate) fn time(at: Timestamp) -> String {
    let at = i64::try_from(at.as_micros())
        .ok()
        .and_then(|it| jiff::Timestamp::from_microsecond(it).ok());
    at.unwrap_or_default().strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A text of strangers without characters that would move a terminal's cursor or turn the direction of the text.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if misleads(c) { '·' } else { c }).collect()
}

/// A plot of one line with at most `columns` columns. A column is empty where nothing happened. The highest
/// column is the highest bar.
pub(super) fn plot(values: &[u64], columns: usize) -> String {
    let each = values.len().div_ceil(columns.max(1)).max(1);
    let sums: Vec<u64> = values.chunks(each).map(|chunk| chunk.iter().sum()).collect();
    let most = sums.iter().copied().max().unwrap_or_default().max(1);
    let last = BARS.len() as u64 - 1;
    let bar = |sum: &u64| match sum {
        0 => ' ',
        sum => {
            let place = (u128::from(*sum) * u128::from(last)).div_ceil(u128::from(most));
            usize::try_from(place).ok().and_then(|place| BARS.get(place)).copied().unwrap_or('█')
        }
    };
    sums.iter().map(bar).collect()
}

/// The values that one column of such a plot sums up.
pub(super) fn values_each(values: usize, columns: usize) -> usize {
    values.div_ceil(columns.max(1)).max(1)
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
        for (micros, text) in [
            (0, "0 ms"),
            (1_500, "2 ms"),
            (59_000_000, "59 s"),
            (3_600_000_000, "1 h"),
            (90_061_000_000, "1 d 1 h"),
            (86_405_000_000, "1 d"),
        ] {
            assert_eq!(length(micros), text);
        }
        assert_eq!(
            time(Timestamp::from_micros(1_431_857_103_000_000).unwrap()),
            "2015-05-17 10:05:03"
        );
    }

    #[test]
    fn a_plot_shows_each_value_and_no_more_columns_than_there_are() {
        assert_eq!(plot(&[0, 1, 7, 14], 80), " ▂▅█");
        assert_eq!(plot(&[0, 1, 7, 14], 2), "▂█");
        assert_eq!(plot(&[1; 100], 50).chars().count(), 50);
        assert_eq!(plot(&[], 50), "");
    }
}
