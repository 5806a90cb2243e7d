//! What the limits say to the client.

use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};

use crate::http1::fields::Fields;
use crate::limit::decision::Outcome;
use crate::plan::AnswerSpec;
use crate::throttle::Quota;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Writes `ratelimit-policy` and `ratelimit` as in draft-ietf-httpapi-ratelimit-headers-11, and the
/// older `x-ratelimit-*`, each for the limits whose answer asks for it; `default` is the answer of
/// those that have none of their own. `retry_after` is what a rejected client is told to wait.
pub(in crate::proxy) fn write_quotas(
    fields: &mut Fields,
    quotas: &[Quota],
    default: &AnswerSpec,
    retry_after: Option<Duration>,
) {
    // Both values in one piece of memory: every answer has them.
    let mut text = Text(Vec::with_capacity(80 * quotas.len()));
    let told = |quota: &&Quota| quota.limit.reject.as_deref().unwrap_or(default).ratelimit;
    for quota in quotas.iter().filter(told) {
        text.member(0, quota.limit.name.as_str()).parameter(b";q=", quota.burst);
        if let Some(window) = quota.window {
            text.parameter(b";w=", window);
        }
        if let Some(unit) = quota.unit {
            text.unit(unit);
        }
    }
    let state = text.0.len();
    for quota in quotas.iter().filter(told) {
        text.member(state, quota.limit.name.as_str()).parameter(b";r=", quota.remaining);
        if let Some(seconds) = reset(quota, retry_after) {
            text.parameter(b";t=", seconds);
        }
    }
    if state > 0 {
        let text = Bytes::from(text.0);
        insert(fields, RATELIMIT_POLICY, text.slice(..state));
        insert(fields, RATELIMIT, text.slice(state..));
    }
    let asks = |quota: &&Quota| quota.limit.reject.as_deref().unwrap_or(default).x_ratelimit;
    let tightest = quotas.iter().filter(asks).fold(None, |tightest: Option<&Quota>, quota| {
        tightest.filter(|other| !is_tighter(quota, other)).or(Some(quota))
    });
    if let Some(quota) = tightest {
        fields.insert(X_RATELIMIT_LIMIT, quota.burst.into());
        fields.insert(X_RATELIMIT_REMAINING, quota.remaining.into());
        if let Some(seconds) = reset(quota, retry_after) {
            fields.insert(X_RATELIMIT_RESET, seconds.into());
        }
    }
}

/// `retry-after` in whole seconds, rounded up, at least 1.
pub(in crate::proxy) fn write_retry_after(fields: &mut Fields, wait: Duration) {
    fields.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
}

/// Fields' values in the making: the formatting machinery would cost ten times as much.
struct Text(Vec<u8>);

impl Text {
    /// Begins a member of the list that begins at `list`.
    fn member(&mut self, list: usize, name: &str) -> &mut Self {
        self.0.extend_from_slice(if self.0.len() == list { b"\"" } else { b", \"" });
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'"');
        self
    }

    fn unit(&mut self, unit: &str) {
        self.0.extend_from_slice(b";qu=\"");
        self.0.extend_from_slice(unit.as_bytes());
        self.0.push(b'"');
    }

    fn parameter(&mut self, name: &[u8; 3], number: u64) -> &mut Self {
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self
    }
}

fn insert(fields: &mut Fields, name: HeaderName, text: Bytes) {
    // Names and numbers are always a value.
    if let Ok(value) = HeaderValue::from_maybe_shared(text) {
        fields.insert(name, value);
    }
}

/// The seconds after which a limit is as it was; of one that refuses, what its client waits for all
/// of them together: an earlier try would be in vain.
fn reset(quota: &Quota, retry_after: Option<Duration>) -> Option<u64> {
    match quota.outcome {
        Outcome::Allow | Outcome::Delay(_) => quota.window,
        Outcome::Reject { .. } => retry_after.map(whole_seconds),
    }
}

fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn is_tighter(quota: &Quota, other: &Quota) -> bool {
    let refuses = |quota: &Quota| !quota.outcome.passes();
    (refuses(quota) && !refuses(other))
        || (refuses(quota) == refuses(other) && quota.remaining < other.remaining)
}
