//! The `date` field, written once a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

use crate::limit::time::Timestamp;

/// A date as HTTP has it (RFC 9110, 5.6.7).
pub(super) type Date = [u8; 29];

/// The last date that was written.
#[derive(Debug)]
pub(super) struct DateCache {
    // Only its worker's thread comes here, so the lock is never waited for.
    last: Mutex<(u64, Date)>,
}

impl Default for DateCache {
    fn default() -> Self {
        Self { last: Mutex::new((0, write(0))) }
    }
}

impl DateCache {
    /// The date at `now`.
    pub(super) fn at(&self, now: Timestamp) -> Date {
        let second = now.as_micros() / 1_000_000;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != second {
            *last = (second, write(second));
        }
        last.1
    }
}

fn write(second: u64) -> Date {
    let date = HttpDate::from(UNIX_EPOCH + Duration::from_secs(second)).to_string();
    // A timestamp's years have four digits, so the fallback is never taken.
    date.as_bytes().try_into().unwrap_or(*b"Thu, 01 Jan 1970 00:00:00 GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_that_of_the_second() {
        let cache = DateCache::default();
        for (micros, date) in [
            (784_111_777_999_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778_000_000, "Sun, 06 Nov 1994 08:49:38 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (1_709_210_096_000_000, "Thu, 29 Feb 2024 12:34:56 GMT"),
        ] {
            let now = Timestamp::from_micros(micros).unwrap();
            assert_eq!(cache.at(now), date.as_bytes(), "{micros}");
        }
        assert_eq!(write(Timestamp::MAX.as_micros() / 1_000_000).len(), 29);
    }
}
