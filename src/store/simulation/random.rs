//! Random numbers that are the same each time: arrivals, delays, failures.

/// A generator with a seed (splitmix64, by Steele, Lea and Flood).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    #[allow(clippy::cast_precision_loss, reason = "53 bits are exact")]
    pub(super) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let end = u128::try_from(end).unwrap();
        usize::try_from((u128::from(self.bits()) * end) >> 64).unwrap()
    }

    /// Whether an event of this probability happens.
    pub(super) fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Microseconds to an event that may come at any moment, with this mean.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time to come")]
    pub(super) fn gap(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.unit()).ln()) as u64
    }
}
