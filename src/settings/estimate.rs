//! The estimate: the tokens that a request takes before its response says how many it used.

use std::fmt;

use crate::limit::rate::{Cost, MAX_TOKENS};

/// The tokens that a request takes before its response is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// What each request takes at least.
    pub at_least: Cost,
    /// The tokens for each byte of the request's body. `None` if the length does not matter.
    pub per_byte: Option<TokensPerByte>,
}

impl Estimate {
    /// The estimate for a body whose length is announced as `length`, if it is.
    pub(crate) fn of(self, length: impl FnOnce() -> Option<u64>) -> Cost {
        let tokens = self.per_byte.and_then(|rate| Some(rate.tokens(length()?)));
        let tokens = tokens.and_then(|tokens| Cost::new(tokens.min(MAX_TOKENS)));
        tokens.map_or(self.at_least, |tokens| tokens.max(self.at_least))
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per_byte {
            Some(rate) => {
                write!(f, "{rate} for each byte of the request's body, at least {}", self.at_least)
            }
            None => self.at_least.fmt(f),
        }
    }
}

/// Tokens for each byte, as in `0.3`. The number is more than zero, and exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokensPerByte {
    millionths: u64,
}

/// The digits that a number may have after its point.
const PLACES: usize = 6;
const MILLION: u64 = 1_000_000;

impl TokensPerByte {
    /// `None` if the text is no such number.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) || fraction.len() > PLACES {
            return None;
        }
        let millionths = format!("{whole}{fraction:0<PLACES$}").parse().ok()?;
        (1..=MAX_TOKENS * MILLION).contains(&millionths).then_some(Self { millionths })
    }

    /// The tokens for these bytes, rounded up.
    fn tokens(self, bytes: u64) -> u64 {
        let millionths = u128::from(bytes) * u128::from(self.millionths);
        u64::try_from(millionths.div_ceil(MILLION.into())).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for TokensPerByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.millionths / MILLION, self.millionths % MILLION);
        let text = format!("{whole}.{rest:0PLACES$}");
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_decimal_number_above_zero() {
        for (text, written) in [
            ("0.3", Some("0.3")),
            ("0.25", Some("0.25")),
            ("1", Some("1")),
            ("10", Some("10")),
            ("10.0", Some("10")),
            ("007.500", Some("7.5")),
            ("0.000001", Some("0.000001")),
            ("0.0000001", None),
            ("0", None),
            ("0.0", None),
            ("-1", None),
            ("+1", None),
            ("1e3", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("0,3", None),
            (" 1", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            let rate = TokensPerByte::new(text).map(|rate| rate.to_string());
            assert_eq!(rate.as_deref(), written, "{text}");
        }
        assert!(TokensPerByte::new(&MAX_TOKENS.to_string()).is_some());
        assert!(TokensPerByte::new(&(MAX_TOKENS + 1).to_string()).is_none());
    }

    #[test]
    fn an_estimate_is_exact_and_rounded_up() {
        for (rate, at_least, length, estimate) in [
            ("0.3", 100, None, 100),
            ("0.3", 100, Some(0), 100),
            ("0.3", 100, Some(333), 100),
            ("0.3", 100, Some(334), 101),
            ("0.3", 100, Some(1_000), 300),
            // As floats these are a little more than 3 and 7.
            ("0.1", 1, Some(30), 3),
            ("0.07", 1, Some(100), 7),
            ("0.000001", 1, Some(1_000_000), 1),
            ("0.000001", 1, Some(1_000_001), 2),
            ("4", 1, Some(9_007_199_254_740_993), MAX_TOKENS),
            ("1000000000", 1, Some(u64::MAX), MAX_TOKENS),
        ] {
            let at_least = Cost::new(at_least).unwrap();
            let found = Estimate { at_least, per_byte: TokensPerByte::new(rate) }.of(|| length);
            assert_eq!(found.get(), estimate, "{rate} {length:?}");
        }
        let fixed = Estimate { at_least: Cost::new(7).unwrap(), per_byte: None };
        assert_eq!(fixed.of(|| unreachable!("nobody looks for the length")).get(), 7);
    }
}
