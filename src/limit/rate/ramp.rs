//! Rates on the way from one rate down to a lower one.

use super::{EXACT, MAX_INTERVAL, Rate};
use crate::limit::time::Descent;

impl Rate {
    /// Whether this rate gives more tokens than the `other` rate in the same time.
    pub(crate) fn is_above(self, other: Self) -> bool {
        let tokens = |rate: Self, other: Self| u128::from(rate.tokens) * u128::from(other.period);
        tokens(self, other) > tokens(other, self)
    }

    /// The rate on the way from this one down to `to`, which is lower: never above this rate and never below
    /// `to`.
    ///
    /// All rates on one way have the same period, and are not reduced. A bucket counts a part of a token in
    /// units of its period, and the part is lost when the period changes. With a new period at each step a slow
    /// bucket would never refill.
    ///
    /// The figures as written are the whole tokens in `to`'s interval, rounded down.
    pub(crate) fn down_to(self, to: Self, place: Descent) -> Self {
        if place.is_begin() {
            return self;
        }
        let period = period_between(self, to);
        // The tokens that come in the period: at this rate rounded down, at the lower rate rounded up.
        let from_units = u128::from(self.tokens) * u128::from(period) / u128::from(self.period);
        let to_units = (u128::from(to.tokens) * u128::from(period)).div_ceil(u128::from(to.period));
        let [Ok(from_units), Ok(to_units)] = [from_units, to_units].map(u64::try_from) else {
            return to;
        };
        if place.is_end() || from_units <= to_units {
            return to;
        }
        let tokens = place.between(from_units, to_units);
        let count = u128::from(tokens) * u128::from(to.interval) / u128::from(period);
        let count = u64::try_from(count).unwrap_or(EXACT).min(EXACT - 1);
        Self { count, interval: to.interval, tokens, period }
    }
}

/// The period of all rates on the way between these two. It is `to`'s interval times a power of two where
/// such a period can be counted exactly, or else a power of two, and the largest such period. Similar rates
/// have the same period, so that processes whose ways begin at different moments agree on it.
fn period_between(from: Rate, to: Rate) -> u64 {
    let most = u128::from(EXACT - 1) * u128::from(from.period) / u128::from(from.tokens);
    let most = most.min(u128::from(MAX_INTERVAL).pow(2));
    let interval = u128::from(to.interval);
    let unit = if interval * interval <= most { to.interval } else { 1 };
    let times = most / (u128::from(unit) * u128::from(unit));
    unit << (times.max(1).ilog2() / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    fn per_hour(rate: Rate) -> f64 {
        rate.tokens() as f64 / rate.period() as f64 * 3.6e9
    }

    #[test]
    fn half_the_way_is_half_the_difference() {
        for (from, to, half) in [
            ("100/s", "50/s", 75.0 * 3_600.0),
            ("2/s", "1/s", 1.5 * 3_600.0),
            ("1000000/s", "1/s", 500_000.5 * 3_600.0),
            ("5/m", "10/h", 155.0),
            ("1000/10m", "50/m", 4_500.0),
            ("2/d", "1/d", 1.5 / 24.0),
        ] {
            let way = rate(from).down_to(rate(to), Descent::of(30, 60));
            assert!((per_hour(way) / half - 1.0).abs() < 0.01, "{from} {to}: {way:?}");
        }
        let half = |from, to| rate(from).down_to(rate(to), Descent::of(1, 2)).to_string();
        assert_eq!(half("100/s", "50/s"), "75/s");
        assert_eq!(half("1000/10m", "49/m"), "74/m", "rounded down");
    }

    #[test]
    fn a_way_has_one_period() {
        for (from, to) in [("100/s", "50/s"), ("5/m", "10/h"), ("1000000/s", "1/w")] {
            let (from, to) = (rate(from), rate(to));
            let periods = (1..60).map(|left| from.down_to(to, Descent::of(left, 60)).period());
            let periods: std::collections::HashSet<_> = periods.collect();
            assert_eq!(periods.len(), 1, "{from} {to}");
        }
        let later = rate("93/s").down_to(rate("50/s"), Descent::of(1, 2));
        assert_eq!(later.period(), rate("100/s").down_to(rate("50/s"), Descent::of(1, 2)).period());
    }

    fn any_rate() -> impl Strategy<Value = Rate> {
        let figures = (0..30_u32, 1..1_000_u64, 0..10_u32, 1..30_000_u64);
        figures.prop_filter_map("a rate", |(counts, count, intervals, interval)| {
            Rate::new(count << counts, interval * 10_u64.pow(intervals)).ok()
        })
    }

    proptest! {
        #[test]
        fn a_way_leads_down_and_stays_between(one in any_rate(), other in any_rate()) {
            let (from, to) = if one.is_above(other) { (one, other) } else { (other, one) };
            prop_assume!(from.is_above(to));
            let mut before = from;
            for left in (0..=60).rev() {
                let now = from.down_to(to, Descent::of(left, 60));
                prop_assert!(!now.is_above(before) && !to.is_above(now), "{before:?} {now:?} {to:?}");
                prop_assert!(now.tokens().checked_mul(now.period()).unwrap() < EXACT);
                prop_assert!(now.count() >= 1);
                before = now;
            }
            prop_assert_eq!(before, to);
        }
    }
}
