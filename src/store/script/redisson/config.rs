//! A limiter's figures, as Redisson keeps them.

use crate::limit::algorithm::redisson::Sharing;
use crate::limit::rate::Rate;

/// A limiter's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimiterConfig {
    /// Permits in an interval.
    pub(crate) rate: u64,
    /// The interval in milliseconds.
    pub(crate) interval_ms: u64,
    /// Whether all clients share the rate, or each client has it.
    pub(crate) sharing: Sharing,
    /// How long the limiter's keys stay after each use, in milliseconds. `None` is for ever.
    pub(crate) keep_alive_ms: Option<u64>,
    /// When the limiter's hash expires, in milliseconds from now. `None` is never.
    pub(crate) expires_in_ms: Option<u64>,
    /// Whether a Redisson before 3.17 uses the limiter. Then nobody else can use it.
    pub(crate) is_of_older: bool,
}

impl LimiterConfig {
    /// Figures of a limiter whose keys stay for ever.
    pub(crate) fn new(rate: u64, interval_ms: u64, sharing: Sharing) -> Self {
        Self { rate, interval_ms, sharing, ..Self::default() }
    }

    /// The rate as `proxy.toml` spells it.
    pub(crate) fn rate_text(&self) -> String {
        let micros = self.interval_ms.checked_mul(1_000);
        match micros.and_then(|micros| Rate::new(self.rate, micros).ok()) {
            Some(rate) => rate.to_string(),
            None => format!("{}/{}ms", self.rate, self.interval_ms),
        }
    }

    /// The type as `proxy.toml` spells it.
    pub(crate) fn type_text(&self) -> &'static str {
        match self.sharing {
            Sharing::Overall => "overall",
            Sharing::PerClient => "per-client",
        }
    }
}

/// Rate, interval, type and keep-alive time, as Redisson writes them.
pub(super) fn figures(config: &LimiterConfig) -> [u64; 4] {
    // The position in Redisson's enum `RateType`.
    let kind = u64::from(config.sharing == Sharing::PerClient);
    [config.rate, config.interval_ms, kind, config.keep_alive_ms.unwrap_or(0)]
}
