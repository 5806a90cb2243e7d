//! Rates, intervals, bursts and costs. A value of these types is always valid.
//!
//! `config` parses them, and the algorithms count with them.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// The bound below which whole numbers are exact in Rust's `u64` and in Lua's doubles alike.
pub const EXACT: u64 = 1 << 53;

/// The longest interval of a rate: 3650 days, in microseconds.
pub const MAX_INTERVAL: u64 = 3_650 * UNITS[3].1;

/// The spellings of a rate's interval and their microseconds, shortest first.
const UNITS: [(&str, u64); 5] = [
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
    ("w", 604_800_000_000),
];

/// A count of tokens for each interval. Count and interval are never zero.
///
/// A rate keeps its figures as written and in reduced form. With `g = gcd(count, interval)` a bucket gains
/// [`tokens`](Self::tokens) `= count / g` tokens each [`period`](Self::period) `= interval / g`
/// microseconds. The product of tokens and period is below 2^53. Every step of an algorithm is therefore
/// exact in `u64` and in doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u64,
    interval: u64,
    tokens: u64,
    period: u64,
}

impl Rate {
    /// `count` tokens each `interval` microseconds.
    ///
    /// # Errors
    /// If count or interval is zero or too large. Also if the reduced figures are too large for
    /// exact arithmetic; the error then holds the nearest rate that fits.
    pub fn new(count: u64, interval: u64) -> Result<Self, RateError> {
        check(count, interval)?;
        match reduce(count, interval) {
            Some((tokens, period)) => Ok(Self { count, interval, tokens, period }),
            None => Err(RateError::Inexact { nearest: nearest(count, interval) }),
        }
    }

    /// The count as written.
    pub fn count(self) -> u64 {
        self.count
    }

    /// The interval as written, in microseconds.
    pub fn interval(self) -> u64 {
        self.interval
    }

    /// Tokens gained each [`period`](Self::period).
    pub fn tokens(self) -> u64 {
        self.tokens
    }

    /// Microseconds in which [`tokens`](Self::tokens) are gained.
    pub fn period(self) -> u64 {
        self.period
    }
}

fn reduce(count: u64, interval: u64) -> Option<(u64, u64)> {
    let divisor = gcd(count, interval);
    let (tokens, period) = (count / divisor, interval / divisor);
    (tokens.checked_mul(period)? < EXACT).then_some((tokens, period))
}

/// The greatest common divisor.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The rate that fits and whose count is closest to `count`. Of two equally close counts the smaller wins.
fn nearest(count: u64, interval: u64) -> Option<Rate> {
    const FAR: u64 = 20_000;
    (1..FAR).find_map(|step| {
        [count.checked_sub(step).filter(|below| *below > 0), count.checked_add(step)]
            .into_iter()
            .flatten()
            .find_map(|count| {
                let (tokens, period) = reduce(count, interval)?;
                Some(Rate { count, interval, tokens, period })
            })
    })
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, Interval(self.interval))
    }
}

/// A length of time for which something is counted, in whole microseconds, from 1 to
/// [`MAX_INTERVAL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval(u64);

impl Interval {
    /// 60 minutes, written `h`.
    pub const HOUR: Self = Self(UNITS[2].1);

    /// 24 hours, written `d`.
    pub const DAY: Self = Self(UNITS[3].1);

    /// Seven times 24 hours, written `w`.
    pub const WEEK: Self = Self(UNITS[4].1);

    /// `None` for 0 and above [`MAX_INTERVAL`].
    pub fn from_micros(micros: u64) -> Option<Self> {
        (1..=MAX_INTERVAL).contains(&micros).then_some(Self(micros))
    }

    /// In microseconds.
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// In whole seconds, rounded up.
    pub(crate) fn as_seconds(self) -> u64 {
        self.0.div_ceil(UNITS[0].1)
    }
}

/// As written after the slash of a rate: `s`, `10m`, `250ms`.
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((unit, _)) = UNITS.iter().find(|(_, micros)| *micros == self.0) {
            return f.write_str(unit);
        }
        let longest = UNITS.iter().take(4).rev().find(|(_, micros)| self.0.is_multiple_of(*micros));
        match longest {
            Some((unit, micros)) => write!(f, "{}{unit}", self.0 / micros),
            None if self.0.is_multiple_of(1_000) => write!(f, "{}ms", self.0 / 1_000),
            None => write!(f, "{}us", self.0),
        }
    }
}

/// The count and the interval of a text that is written like a rate. This is for algorithms that can use any two
/// figures.
///
/// # Errors
/// The errors of the syntax and of [`Rate::new`], without [`RateError::Inexact`].
pub fn count_and_interval(text: &str) -> Result<(u64, Interval), RateError> {
    let (count, interval) = split(text)?;
    Ok((count, check(count, interval)?))
}

/// Checks the bounds of a count and of an interval in microseconds.
fn check(count: u64, interval: u64) -> Result<Interval, RateError> {
    if count == 0 {
        return Err(RateError::ZeroCount);
    }
    if interval == 0 {
        return Err(RateError::ZeroInterval);
    }
    let interval = Interval::from_micros(interval).filter(|_| count < EXACT);
    interval.ok_or(RateError::TooLarge)
}

impl FromStr for Rate {
    type Err = RateError;

    /// `"100/s"`, `"1000/10m"`, `"5/250ms"`; units are `us`, `ms`, `s`, `m`, `h`, `d`, `w`.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let (count, interval) = split(text)?;
        Self::new(count, interval)
    }
}

/// The count, and the interval in microseconds.
fn split(text: &str) -> Result<(u64, u64), RateError> {
    let (count, interval) = text.split_once('/').ok_or(RateError::Syntax)?;
    Ok((whole(count)?, parse_interval(interval)?))
}

/// The microseconds of `s`, `10m`, `250ms` …
fn parse_interval(text: &str) -> Result<u64, RateError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or(RateError::Syntax)?;
    let (number, unit) = text.split_at(digits);
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        _ => UNITS.iter().find(|(name, _)| *name == unit).ok_or(RateError::Syntax)?.1,
    };
    if number.is_empty() {
        // A bare `s` means "each second". A bare `ms` looks like a typing error.
        return if micros < UNITS[0].1 { Err(RateError::Syntax) } else { Ok(micros) };
    }
    whole(number)?.checked_mul(micros).ok_or(RateError::TooLarge)
}

fn whole(text: &str) -> Result<u64, RateError> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(RateError::Syntax);
    }
    text.parse().map_err(|_| RateError::TooLarge)
}

/// Why a text or a pair of figures is no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Not `COUNT/UNIT`.
    #[error("a rate is COUNT/UNIT, as in \"100/s\" or \"1000/10m\"")]
    Syntax,
    /// A count of zero. The configuration may say `"0/s"`, but this is no rate.
    #[error("the count is zero")]
    ZeroCount,
    /// An interval of zero.
    #[error("the interval is zero")]
    ZeroInterval,
    /// A count from 2^53 on, or an interval of more than 3650 days.
    #[error("the figures are too large (count below 2^53, interval to 3650 days)")]
    TooLarge,
    /// Count and interval have too few common factors for exact arithmetic.
    #[error("the rate cannot be counted exactly; {}", match nearest {
        Some(rate) => format!("the nearest that can is \"{rate}\""),
        None => "take a rounder count".to_owned(),
    })]
    Inexact {
        /// The rate of the same interval whose count is closest and fits.
        nearest: Option<Rate>,
    },
}

/// The most tokens that a bucket can hold, and the highest cost.
pub const MAX_TOKENS: u64 = 1_000_000_000;

/// A bucket's size in whole tokens, from 1 to [`MAX_TOKENS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Burst(NonZeroU64);

/// The tokens that one request takes, from 1 to [`MAX_TOKENS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

macro_rules! tokens {
    ($name:ident) => {
        impl $name {
            /// `None` for 0 and above [`MAX_TOKENS`].
            pub fn new(tokens: u64) -> Option<Self> {
                NonZeroU64::new(tokens).filter(|n| n.get() <= MAX_TOKENS).map(Self)
            }

            /// Whole tokens.
            pub fn get(self) -> u64 {
                self.0.get()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

tokens!(Burst);
tokens!(Cost);

impl Cost {
    /// One token: the cost of a request unless the limit says otherwise.
    pub const ONE: Self = Self(NonZeroU64::MIN);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn valid_rates_are_read() {
        for (text, count, interval) in [
            ("100/s", 100, 1_000_000),
            ("1/d", 1, 86_400_000_000),
            ("1000/10m", 1_000, 600_000_000),
            ("5/250ms", 5, 250_000),
            ("7/w", 7, 604_800_000_000),
            ("10000000/s", 10_000_000, 1_000_000),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.count(), rate.interval()), (count, interval), "{text}");
        }
    }

    #[test]
    fn invalid_rates_are_refused() {
        for (text, error) in [
            ("", RateError::Syntax),
            ("100", RateError::Syntax),
            ("100/", RateError::Syntax),
            ("/s", RateError::Syntax),
            ("1.5/s", RateError::Syntax),
            ("-1/s", RateError::Syntax),
            ("+1/s", RateError::Syntax),
            ("1/ms", RateError::Syntax),
            ("1/year", RateError::Syntax),
            ("1/s ", RateError::Syntax),
            ("0/s", RateError::ZeroCount),
            ("1/0s", RateError::ZeroInterval),
            ("1/99999999999999999999d", RateError::TooLarge),
            ("1/3651d", RateError::TooLarge),
            ("9007199254740992/s", RateError::TooLarge),
        ] {
            assert_eq!(text.parse::<Rate>(), Err(error), "{text}");
        }
    }

    #[test]
    fn an_inexact_rate_names_the_nearest_that_fits() {
        let RateError::Inexact { nearest: Some(nearest) } =
            "999999999/d".parse::<Rate>().unwrap_err()
        else {
            panic!("a rate beyond exact arithmetic was taken");
        };
        assert!(nearest.count().abs_diff(999_999_999) <= 10, "{nearest}");
        assert_eq!(nearest.to_string().parse(), Ok(nearest));
    }

    proptest! {
        #[test]
        fn text_survives_the_round_trip(count in 1_u64..100_000, interval in 1_u64..10_000_000_000) {
            if let Ok(rate) = Rate::new(count, interval) {
                prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }

        #[test]
        fn an_accepted_rate_is_exact(count in 1..EXACT, interval in 1..MAX_INTERVAL) {
            if let Ok(rate) = Rate::new(count, interval) {
                prop_assert!(rate.tokens().checked_mul(rate.period()).unwrap() < EXACT);
                prop_assert_eq!(
                    u128::from(rate.tokens()) * u128::from(interval),
                    u128::from(count) * u128::from(rate.period())
                );
            }
        }
    }
}
