//! Reads a number of tokens, digit by digit.

/// What was read of a number so far. A fraction is rounded up to whole tokens: `57.0` is 57, `57.2` is 58.
/// Numbers below zero and numbers with an exponent cannot be read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number {
    whole: u64,
    part: NumberPart,
    /// Whether a digit behind the point is above zero.
    more: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NumberPart {
    #[default]
    Begin,
    Whole,
    Point,
    Fraction,
    Unreadable,
}

impl Number {
    /// Reads the next character.
    pub(super) fn push(&mut self, byte: u8) {
        self.part = match (self.part, byte) {
            (NumberPart::Begin | NumberPart::Whole, b'0'..=b'9') => {
                // A number that is too large becomes the largest one.
                self.whole = self.whole.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
                NumberPart::Whole
            }
            (NumberPart::Whole, b'.') => NumberPart::Point,
            (NumberPart::Point | NumberPart::Fraction, b'0'..=b'9') => {
                self.more |= byte != b'0';
                NumberPart::Fraction
            }
            _ => NumberPart::Unreadable,
        };
    }

    /// The number, if no character follows.
    pub(super) fn value(self) -> Option<u64> {
        matches!(self.part, NumberPart::Whole | NumberPart::Fraction)
            .then(|| self.whole.saturating_add(u64::from(self.more)))
    }

    /// The number in a whole text.
    pub(super) fn of(text: &[u8]) -> Option<u64> {
        let mut number = Self::default();
        text.iter().for_each(|byte| number.push(*byte));
        number.value()
    }
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
            assert_eq!(Number::of(text.as_bytes()), value, "{text:?}");
        }
    }
}
