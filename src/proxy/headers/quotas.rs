//! What the limits say to the client.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

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
    headers: &mut HeaderMap,
    quotas: &[Quota],
    default: &AnswerSpec,
    retry_after: Option<Duration>,
) {
    let mut policy = Text::with_room_for(quotas.len());
    let mut state = Text::with_room_for(quotas.len());
    let mut tightest: Option<&Quota> = None;
    for quota in quotas {
        let answer = quota.limit.reject.as_deref().unwrap_or(default);
        if answer.ratelimit {
            write_member(&mut policy, &mut state, quota, retry_after);
        }
        if answer.x_ratelimit && tightest.is_none_or(|other| is_tighter(quota, other)) {
            tightest = Some(quota);
        }
    }
    if !policy.0.is_empty() {
        policy.insert(headers, RATELIMIT_POLICY);
        state.insert(headers, RATELIMIT);
    }
    if let Some(quota) = tightest {
        headers.insert(X_RATELIMIT_LIMIT, quota.burst.into());
        headers.insert(X_RATELIMIT_REMAINING, quota.remaining.into());
        if let Some(seconds) = reset(quota, retry_after) {
            headers.insert(X_RATELIMIT_RESET, seconds.into());
        }
    }
}

/// `retry-after` in whole seconds, rounded up, at least 1.
pub(in crate::proxy) fn write_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
}

fn write_member(policy: &mut Text, state: &mut Text, quota: &Quota, retry_after: Option<Duration>) {
    let name = quota.limit.name.as_str();
    policy.member(name).parameter(b";q=", quota.burst);
    if let Some(window) = quota.window {
        policy.parameter(b";w=", window);
    }
    state.member(name).parameter(b";r=", quota.remaining);
    if let Some(seconds) = reset(quota, retry_after) {
        state.parameter(b";t=", seconds);
    }
}

/// A field's value in the making: every answer has two of them, and the formatting machinery costs
/// ten times as much.
struct Text(Vec<u8>);

impl Text {
    /// An empty one, with room for so many limits whose names are not long.
    fn with_room_for(limits: usize) -> Self {
        Self(Vec::with_capacity(64 * limits))
    }

    fn member(&mut self, name: &str) -> &mut Self {
        self.0.extend_from_slice(if self.0.is_empty() { b"\"" } else { b", \"" });
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'"');
        self
    }

    fn parameter(&mut self, name: &[u8; 3], number: u64) -> &mut Self {
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self
    }

    fn insert(&self, headers: &mut HeaderMap, name: HeaderName) {
        // Names and numbers are always a value.
        if let Ok(value) = HeaderValue::from_bytes(&self.0) {
            headers.insert(name, value);
        }
    }
}

/// The seconds after which a limit is as it was; of one that refuses, what its client waits for all
/// of them together: an earlier try would be in vain.
fn reset(quota: &Quota, retry_after: Option<Duration>) -> Option<u64> {
    match quota.outcome {
        Outcome::Allow => quota.window,
        Outcome::Reject { .. } => retry_after.map(whole_seconds),
    }
}

fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn is_tighter(quota: &Quota, other: &Quota) -> bool {
    let refuses = |quota: &Quota| quota.outcome != Outcome::Allow;
    (refuses(quota) && !refuses(other))
        || (refuses(quota) == refuses(other) && quota.remaining < other.remaining)
}
