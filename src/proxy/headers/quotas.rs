//! What the limits say to the client.

use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::limit::decision::Outcome;
use crate::plan::AnswerSpec;
use crate::throttle::Quota;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A field's value while it is written: those of two limits mostly fit.
type Text = SmallVec<[u8; 96]>;

/// Writes `ratelimit-policy` and `ratelimit` as in draft-ietf-httpapi-ratelimit-headers-11, and the
/// older `x-ratelimit-*`, each for the limits whose answer asks for it; `default` is the answer of
/// those that have none of their own. `retry_after` is what a rejected client
/// is told to wait, in whole seconds.
pub(in crate::proxy) fn write_quotas(
    headers: &mut HeaderMap,
    quotas: &[Quota<'_>],
    default: &AnswerSpec,
    retry_after: Option<u64>,
) {
    let told = |quota: &&Quota<'_>| quota.limit.reject.as_deref().unwrap_or(default).ratelimit;
    let told = || quotas.iter().filter(told).enumerate();
    if told().next().is_some() {
        let (mut policy, mut state) = (Text::new(), Text::new());
        for (place, quota) in told() {
            write_member(&mut policy, place, quota);
            write_parameter(&mut policy, b";q=", quota.burst);
            if let Some(window) = quota.window {
                write_parameter(&mut policy, b";w=", window);
            }
            if let Some(unit) = quota.unit {
                write_unit(&mut policy, unit);
            }
            write_member(&mut state, place, quota);
            write_parameter(&mut state, b";r=", quota.remaining);
            if let Some(seconds) = reset(quota, retry_after) {
                write_parameter(&mut state, b";t=", seconds);
            }
        }
        insert(headers, RATELIMIT_POLICY, &policy);
        insert(headers, RATELIMIT, &state);
    }
    let asks = |quota: &&Quota<'_>| quota.limit.reject.as_deref().unwrap_or(default).x_ratelimit;
    let tightest = quotas.iter().filter(asks).fold(None, |tightest: Option<&Quota<'_>>, quota| {
        tightest.filter(|other| !is_tighter(quota, other)).or(Some(quota))
    });
    if let Some(quota) = tightest {
        headers.insert(X_RATELIMIT_LIMIT, quota.burst.into());
        headers.insert(X_RATELIMIT_REMAINING, quota.remaining.into());
        if let Some(seconds) = reset(quota, retry_after) {
            headers.insert(X_RATELIMIT_RESET, seconds.into());
        }
    }
}

/// Sets a field. Names of limits and numbers are always a value.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &[u8]) {
    if let Ok(value) = HeaderValue::from_bytes(value) {
        headers.insert(name, value);
    }
}

fn write_unit(out: &mut Text, unit: &str) {
    out.extend_from_slice(b";qu=\"");
    out.extend_from_slice(unit.as_bytes());
    out.push(b'"');
}

/// Begins a member of a list. The formatting machinery would cost ten times as much.
fn write_member(out: &mut Text, place: usize, quota: &Quota<'_>) {
    out.extend_from_slice(if place == 0 { b"\"" } else { b", \"" });
    // Names need no escapes.
    out.extend_from_slice(quota.limit.name.as_str().as_bytes());
    out.push(b'"');
}

fn write_parameter(out: &mut Text, name: &[u8; 3], number: u64) {
    out.extend_from_slice(name);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The seconds after which a limit is as it was; of one that refuses, what its client waits for all
/// of them together: an earlier try would be in vain.
fn reset(quota: &Quota<'_>, retry_after: Option<u64>) -> Option<u64> {
    match quota.outcome {
        Outcome::Allow | Outcome::Delay(_) => quota.window,
        Outcome::Reject { .. } => retry_after,
    }
}

/// What a client is told of a wait: rounded up, at least 1.
pub(in crate::proxy) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn is_tighter(quota: &Quota<'_>, other: &Quota<'_>) -> bool {
    let refuses = |quota: &Quota<'_>| !quota.outcome.passes();
    (refuses(quota) && !refuses(other))
        || (refuses(quota) == refuses(other) && quota.remaining < other.remaining)
}
