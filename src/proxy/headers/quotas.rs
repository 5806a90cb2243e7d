//! The `ratelimit` fields, in which the limits tell the client what is left. [`QuotaFields`] writes them
//! for requests that pass, [`write_quotas`] for all others. [`whole_seconds`] rounds a wait for `retry-after`.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::limit::decision::Outcome;
use crate::plan::{AnswerSpec, LimitSpec};
use crate::throttle::Quota;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A field's value while it is written. The text of two limits mostly fits without the heap.
type QuotaText = SmallVec<[u8; 96]>;

/// Writes `ratelimit-policy` and `ratelimit` (draft-ietf-httpapi-ratelimit-headers-11) for all limits whose
/// answer settings ask for them. Of the limits that ask for the older `x-ratelimit-*`, these fields show
/// the tightest. `default` has the settings for limits without their own. `retry_after` is the wait of a
/// rejected client, in whole seconds.
pub(in crate::proxy) fn write_quotas(
    headers: &mut HeaderMap,
    quotas: &[Quota<'_>],
    default: &AnswerSpec,
    retry_after: Option<u64>,
) {
    let fields = |quota: &Quota<'_>| quota.limit.reject.as_deref().unwrap_or(default).headers;
    let told = || quotas.iter().filter(|quota| fields(quota).ratelimit).enumerate();
    if told().next().is_some() {
        let (mut policy, mut state) = (QuotaText::new(), QuotaText::new());
        for (place, quota) in told() {
            write_policy(&mut policy, place, quota);
            write_member(&mut state, place, quota);
            write_state(&mut state, quota, retry_after);
        }
        headers.insert(RATELIMIT_POLICY, value(&policy));
        headers.insert(RATELIMIT, value(&state));
    }
    let asked = quotas.iter().filter(|quota| fields(quota).x_ratelimit);
    let tightest = asked.fold(None, |tightest: Option<&Quota<'_>>, quota| {
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

/// The number of limits whose fields are cached. Two limits that share a place replace each other.
const PLACES: usize = 64;

/// A cache of `ratelimit` fields: one worker's, under one plan. Where a single limit lets a request pass,
/// only the numbers behind `r` and `t` differ between answers.
#[derive(Debug)]
pub(in crate::proxy) struct QuotaFields {
    places: Mutex<[Option<Box<LimitFields>>; PLACES]>,
}

/// A limit with the figures that clients are told. The limit is kept alive here, so no other limit can get
/// its address.
#[derive(Debug)]
pub(in crate::proxy) struct ToldFigures {
    limit: Arc<LimitSpec>,
    burst: u64,
    window: Option<u64>,
    unit: Option<&'static str>,
}

impl ToldFigures {
    pub(in crate::proxy) fn of(quota: &Quota<'_>) -> Self {
        let Quota { limit, burst, window, unit, .. } = *quota;
        Self { limit: Arc::clone(limit), burst, window, unit }
    }

    pub(in crate::proxy) fn are_of(&self, quota: &Quota<'_>) -> bool {
        Arc::ptr_eq(&self.limit, quota.limit)
            && self.burst == quota.burst
            && (self.window, self.unit) == (quota.window, quota.unit)
    }
}

/// The fields of one limit with these figures.
#[derive(Debug)]
struct LimitFields {
    figures: ToldFigures,
    policy: HeaderValue,
    /// The text of `ratelimit` up to the number of remaining tokens.
    state: QuotaText,
}

impl QuotaFields {
    pub(in crate::proxy) fn new() -> Self {
        Self { places: Mutex::new(std::array::from_fn(|_| None)) }
    }

    /// Writes the same fields as [`write_quotas`], for a request that its limits let pass.
    pub(in crate::proxy) fn write(
        &self,
        headers: &mut HeaderMap,
        quotas: &[Quota<'_>],
        default: &AnswerSpec,
    ) {
        let [quota] = quotas else { return write_quotas(headers, quotas, default, None) };
        let answer = quota.limit.reject.as_deref().unwrap_or(default);
        if !answer.headers.ratelimit || answer.headers.x_ratelimit {
            return write_quotas(headers, quotas, default, None);
        }
        let mut places = self.places.lock();
        let place = quota.limit.name.fingerprint() % PLACES as u64;
        let place = &mut places[usize::try_from(place).unwrap_or_default()];
        let kept = match place {
            Some(kept) if kept.figures.are_of(quota) => kept,
            other => other.insert(Box::new(LimitFields::of(quota))),
        };
        headers.insert(RATELIMIT_POLICY, kept.policy.clone());
        let mut state = QuotaText::from_slice(&kept.state);
        write_state(&mut state, quota, None);
        headers.insert(RATELIMIT, value(&state));
    }
}

impl LimitFields {
    fn of(quota: &Quota<'_>) -> Self {
        let (mut policy, mut state) = (QuotaText::new(), QuotaText::new());
        write_policy(&mut policy, 0, quota);
        write_member(&mut state, 0, quota);
        Self { figures: ToldFigures::of(quota), policy: value(&policy), state }
    }
}

/// The names of limits and numbers are always valid in a field's value.
fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn write_policy(out: &mut QuotaText, place: usize, quota: &Quota<'_>) {
    write_member(out, place, quota);
    write_parameter(out, b";q=", quota.burst);
    if let Some(window) = quota.window {
        write_parameter(out, b";w=", window);
    }
    if let Some(unit) = quota.unit {
        out.extend_from_slice(b";qu=\"");
        out.extend_from_slice(unit.as_bytes());
        out.push(b'"');
    }
}

fn write_state(out: &mut QuotaText, quota: &Quota<'_>, retry_after: Option<u64>) {
    write_parameter(out, b";r=", quota.remaining);
    if let Some(seconds) = reset(quota, retry_after) {
        write_parameter(out, b";t=", seconds);
    }
}

/// Begins a member of the list with the limit's name. `write!` would cost ten times as much.
fn write_member(out: &mut QuotaText, place: usize, quota: &Quota<'_>) {
    out.extend_from_slice(if place == 0 { b"\"" } else { b", \"" });
    // Names need no escapes.
    out.extend_from_slice(quota.limit.name.as_str().as_bytes());
    out.push(b'"');
}

fn write_parameter(out: &mut QuotaText, name: &[u8; 3], number: u64) {
    out.extend_from_slice(name);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The seconds after which a limit is full again at the latest. For a limit that refuses, the seconds after which all
/// limits let the client pass, since an earlier try would be in vain.
fn reset(quota: &Quota<'_>, retry_after: Option<u64>) -> Option<u64> {
    match quota.outcome {
        Outcome::Allow | Outcome::Delay(_) => quota.reset,
        Outcome::Reject { .. } => retry_after,
    }
}

/// A wait as a client is told: in whole seconds, rounded up, at least 1.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn is_tighter(quota: &Quota<'_>, other: &Quota<'_>) -> bool {
    let refuses = |quota: &Quota<'_>| !quota.outcome.passes();
    (refuses(quota) && !refuses(other))
        || (refuses(quota) == refuses(other) && quota.remaining < other.remaining)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, parse};
    use crate::plan::AnswerHeaders;

    /// Cached fields must not be used for other figures of the limit, or for another limit.
    #[test]
    fn cached_fields_are_those_that_are_composed() {
        // More limits than places, so that two of them share one.
        let names: Vec<_> = (0..=PLACES).map(|n| format!("limit{n}")).collect();
        let limits = names.iter().map(|name| format!("[limits.{name}]\nrate = \"10/h\"\n"));
        let text = format!(
            "[upstreams.api]\nservers = [\"http://a\"]\n{}\
             [[routes]]\npath = \"/\"\nupstream = \"api\"\nlimits = {names:?}\n",
            limits.collect::<String>()
        );
        let plan = parse("proxy.toml", &text, &|_| None, &Overrides::default()).unwrap().plan;
        let spoken = AnswerSpec {
            headers: AnswerHeaders { x_ratelimit: true, ..plan.reject.headers },
            ..AnswerSpec::clone(&plan.reject)
        };
        let silent = AnswerSpec {
            headers: AnswerHeaders { ratelimit: false, ..plan.reject.headers },
            ..AnswerSpec::clone(&plan.reject)
        };
        let fields = QuotaFields::new();
        let mut seen = Vec::new();
        for default in [&*plan.reject, &spoken, &silent] {
            let figures = [
                (0, 10, Some(3600), Some(3600), None, 10),
                (0, 10, Some(3600), Some(3600), None, 9),
                (0, 11, Some(3600), Some(3600), None, 9),
                (0, 10, Some(3600), Some(60), None, 9),
                (0, 10, Some(60), Some(60), None, 9),
                (0, 10, None, None, None, 9),
                (0, 10, None, None, Some("concurrent-requests"), 9),
                (0, 10, Some(3600), Some(3600), None, 10),
            ];
            let others = (0..=PLACES).map(|limit| (limit, 10, Some(3600), Some(3600), None, 10));
            for (limit, burst, window, reset, unit, remaining) in figures.into_iter().chain(others)
            {
                let (limit, outcome) = (&plan.limits[limit], Outcome::Allow);
                let quota = Quota { limit, burst, window, reset, unit, remaining, outcome };
                let (mut cached, mut composed) = (HeaderMap::new(), HeaderMap::new());
                fields.write(&mut cached, &[quota], default);
                write_quotas(&mut composed, &[quota], default, None);
                assert_eq!(cached, composed);
                seen.push(cached);
            }
        }
        assert_ne!(seen[0], seen[1]);
        assert!(seen.last().unwrap().is_empty());
    }
}
