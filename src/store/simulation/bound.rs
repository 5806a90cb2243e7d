//! Checks the limit's promise by other arithmetic than the algorithm's: in every interval from `s` to `e` at most
//! `burst + rate * (e - s)` tokens are spent. The check uses a bucket that begins full, fills at the rate and loses a
//! token for each request. The promise is kept exactly if this bucket never goes below zero.

use crate::limit::algorithm::{Algorithm, token_bucket};

/// One key's check. Amounts are in parts of a token: a microsecond gives back `gain` of them.
#[derive(Clone)]
pub(super) struct Bound {
    gain: u64,
    token: u64,
    full: u64,
    missing: u64,
    at: u64,
}

impl Bound {
    pub(super) fn of(algorithm: &Algorithm) -> Self {
        let Algorithm::TokenBucket(token_bucket::Params { rate, burst }) = algorithm else {
            panic!("the limit is a token bucket");
        };
        let (gain, token) = (rate.count(), rate.interval());
        Self { gain, token, full: burst.get() * token, missing: 0, at: 0 }
    }

    /// A request passes at `now`. Returns by how many tokens the limit is exceeded, rounded up.
    pub(super) fn admit(&mut self, now: u64) -> u64 {
        assert!(now >= self.at, "requests are admitted in the order of time");
        self.missing = self.missing.saturating_sub((now - self.at) * self.gain) + self.token;
        self.at = now;
        self.missing.saturating_sub(self.full).div_ceil(self.token)
    }
}
