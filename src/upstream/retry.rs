//! Which requests may be sent again, how often, and the pause that a server asks for.

use std::cell::Cell;
use std::time::Duration;

use http::header::{DATE, HeaderMap, RETRY_AFTER};
use http::{Method, StatusCode};

/// A retry costs what 10 requests earn. Therefore at most a tenth of the requests are sent again.
const RETRY_COST: u32 = 10;
/// Retries that are free at the start: an upstream with little traffic needs retries too.
const FIRST_RETRIES: u32 = 10;
/// Retries that can be saved up. A server that is restarted under load breaks many requests at once.
const MOST_RETRIES: u32 = 100;

/// The longest pause that a server can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The retries that one worker may still make at one upstream. If all requests failed and each was sent
/// again, the retries would keep an overloaded upstream down.
#[derive(Debug)]
pub(super) struct RetryBudget(Cell<u32>);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(Cell::new(FIRST_RETRIES * RETRY_COST))
    }
}

impl RetryBudget {
    /// A request is sent for the first time.
    pub(super) fn earn(&self) {
        let saved = self.0.get();
        if saved < MOST_RETRIES * RETRY_COST {
            self.0.set(saved + 1);
        }
    }

    /// Pays for a retry. Returns whether there was enough for it.
    pub(super) fn spend(&self) -> bool {
        let left = self.0.get().checked_sub(RETRY_COST);
        if let Some(left) = left {
            self.0.set(left);
        }
        left.is_some()
    }
}

/// Whether the request has the same effect if it is sent twice (RFC 9110, 9.2.2). Of the methods that other documents
/// define, these are the safe ones: QUERY (RFC 10008), and those of WebDAV, which the `http` crate does not know.
pub(super) fn is_idempotent(method: &Method) -> bool {
    method.is_idempotent() || matches!(method.as_str(), "PROPFIND" | "REPORT" | "SEARCH")
}

/// The pause that the server asks for, at most a minute. `None` if it asks for none. A date in `retry-after` (RFC 9110,
/// 10.2.3) counts from the answer's own `date`, so no clocks are compared.
pub(super) fn asked_pause(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let after = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match after.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that is too large for its type is a long pause too.
        true if !after.is_empty() => after.parse().map_or(LONGEST_PAUSE, Duration::from_secs),
        _ => {
            let date = |text| httpdate::parse_http_date(text).ok();
            let sent = date(headers.get(DATE)?.to_str().ok()?)?;
            date(after)?.duration_since(sent).ok()?
        }
    };
    Some(pause.min(LONGEST_PAUSE)).filter(|pause| !pause.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_a_tenth_is_sent_again() {
        let budget = RetryBudget::default();
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.earn();
            retries += usize::from(budget.spend());
        }
        assert_eq!(retries, 10_000 / 10 + 10);
    }

    #[test]
    fn a_quiet_time_saves_up_a_hundred_retries() {
        let budget = RetryBudget::default();
        (0..100_000).for_each(|_| budget.earn());
        let spent = (0..1_000).filter(|_| budget.spend()).count();
        assert_eq!(spent, 100);
    }

    fn pause(status: u16, fields: &[(&'static str, &str)]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, value.parse().unwrap());
        }
        asked_pause(StatusCode::from_u16(status).unwrap(), &headers).map(|pause| pause.as_secs())
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_by_a_date() {
        assert_eq!(pause(503, &[("retry-after", "7")]), Some(7));
        assert_eq!(pause(429, &[("retry-after", " 7 ")]), Some(7));
        assert_eq!(pause(429, &[("retry-after", "3600")]), Some(60), "at most a minute");
        assert_eq!(pause(429, &[("retry-after", "99999999999999999999999")]), Some(60));
        for none in ["0", "", "-1", "soon", "1.5"] {
            assert_eq!(pause(429, &[("retry-after", none)]), None, "{none}");
        }
        assert_eq!(pause(200, &[("retry-after", "7")]), None);
        assert_eq!(pause(429, &[]), None);
        let sent = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let until = ("retry-after", "Sun, 06 Nov 1994 08:49:57 GMT");
        assert_eq!(pause(503, &[sent, until]), Some(20));
        assert_eq!(pause(503, &[until]), None, "no clock to count from");
        let past = ("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT");
        assert_eq!(pause(503, &[sent, past]), None);
    }
}
