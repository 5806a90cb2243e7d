//! The `ratelimit` fields, in which the limits tell the client what is left. [`QuotaFields`] writes them
//! for requests that pass, [`write_quotas`] for all others.

use std::cell::RefCell;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::limit::decision::Outcome;
use crate::limit::quota::{QuotaText, quota_fields, write_member, write_policy, write_state};
use crate::reading::listed;
use crate::settings::{AnswerSpec, LimitSpec};
use crate::throttle::Quota;

/// The fields about limits: first the lists, then the fields that show one limit.
pub(super) static FIELDS: [HeaderName; 5] =
    [RATELIMIT_POLICY, RATELIMIT, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET];

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Fields that some APIs write too. They mean nothing beside our limit and remainder.
const X_RATELIMIT_MORE: [HeaderName; 2] = [
    HeaderName::from_static("x-ratelimit-reset-after"),
    HeaderName::from_static("x-ratelimit-used"),
];

/// Writes `ratelimit-policy` and `ratelimit` (draft-ietf-httpapi-ratelimit-headers-11) for all limits whose answer
/// settings ask for them. The older `x-ratelimit-*` show only one limit: the tightest of the limits that ask for these
/// fields. `default` has the settings for limits without their own. `retry_after` is the wait of a rejected client, in
/// whole seconds.
///
/// The API may have written such fields about its own limits. The client must keep to these too, so they are never made
/// more generous: the lists get our members beside the API's. Returns the names of the fields that tidegate wrote.
pub(crate) fn write_quotas(
    headers: &mut HeaderMap,
    quotas: &[Quota<'_>],
    default: &AnswerSpec,
    retry_after: Option<u64>,
) -> &'static [HeaderName] {
    let fields = |quota: &Quota<'_>| quota.limit.reject.as_deref().unwrap_or(default).headers;
    let shown = quotas.iter().filter(|quota| fields(quota).ratelimit);
    let shown = shown.map(|it| (&it.limit.name, it.figures(), it.outcome.passes()));
    let [policy, state] = quota_fields(shown, retry_after);
    let (has_lists, mut has_one) = (!policy.is_empty(), false);
    if has_lists {
        headers.append(RATELIMIT_POLICY, value(&policy));
        headers.append(RATELIMIT, value(&state));
    }
    let asked = quotas.iter().filter(|quota| fields(quota).x_ratelimit);
    let tightest = asked.fold(None, |tightest: Option<&Quota<'_>>, quota| {
        tightest.filter(|other| !is_tighter(quota, other)).or(Some(quota))
    });
    if let Some(quota) = tightest
        && leaves_more(headers, quota.remaining)
    {
        X_RATELIMIT_MORE.iter().for_each(|name| drop(headers.remove(name)));
        headers.insert(X_RATELIMIT_LIMIT, quota.burst.into());
        headers.insert(X_RATELIMIT_REMAINING, quota.remaining.into());
        match reset(quota, retry_after) {
            Some(seconds) => drop(headers.insert(X_RATELIMIT_RESET, seconds.into())),
            None => drop(headers.remove(X_RATELIMIT_RESET)),
        }
        has_one = true;
    }
    &FIELDS[if has_lists { 0 } else { 2 }..if has_one { FIELDS.len() } else { 2 }]
}

/// Whether the API's own `x-ratelimit-*` leave more than `ours`, or are not there. If the API does not say clearly what
/// is left, less than `ours` may be left.
fn leaves_more(headers: &HeaderMap, ours: u64) -> bool {
    let [limit, remaining, reset] = [X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET];
    let mut left = listed(headers, &remaining).peekable();
    if left.peek().is_none() {
        return ![&limit, &remaining, &reset].iter().any(|name| headers.contains_key(*name));
    }
    left.all(|left| {
        let left = std::str::from_utf8(left).ok().and_then(|left| left.parse::<u64>().ok());
        left.is_some_and(|left| left > ours)
    })
}

/// The number of limits whose fields are cached. Two limits that share an entry replace each other.
const ENTRIES: usize = 64;

/// A cache of `ratelimit` fields: one worker's, under the same settings. If a single limit lets a request pass,
/// only the numbers of `r` and `t` differ between answers.
#[derive(Debug)]
pub(crate) struct QuotaFields {
    entries: RefCell<[Option<Box<LimitFields>>; ENTRIES]>,
}

/// A limit with the figures that clients are shown. The limit is kept alive here, so no other limit can get
/// its address.
#[derive(Debug)]
pub(crate) struct ShownFigures {
    limit: Arc<LimitSpec>,
    burst: u64,
    window: Option<u64>,
    unit: Option<&'static str>,
}

impl ShownFigures {
    pub(crate) fn of(quota: &Quota<'_>) -> Self {
        let Quota { limit, burst, window, unit, .. } = *quota;
        Self { limit: Arc::clone(limit), burst, window, unit }
    }

    pub(crate) fn are_of(&self, quota: &Quota<'_>) -> bool {
        Arc::ptr_eq(&self.limit, quota.limit)
            && self.burst == quota.burst
            && (self.window, self.unit) == (quota.window, quota.unit)
    }
}

/// The fields of one limit with these figures.
#[derive(Debug)]
struct LimitFields {
    figures: ShownFigures,
    policy: HeaderValue,
    /// The text of `ratelimit` up to the number of remaining tokens.
    state: QuotaText,
}

impl QuotaFields {
    pub(crate) fn new() -> Self {
        Self { entries: RefCell::new(std::array::from_fn(|_| None)) }
    }

    /// Writes the same fields as [`write_quotas`], for a request that its limits let pass.
    pub(crate) fn write(
        &self,
        headers: &mut HeaderMap,
        quotas: &[Quota<'_>],
        default: &AnswerSpec,
    ) -> &'static [HeaderName] {
        let [quota] = quotas else { return write_quotas(headers, quotas, default, None) };
        let answer = quota.limit.reject.as_deref().unwrap_or(default);
        if !answer.headers.ratelimit || answer.headers.x_ratelimit {
            return write_quotas(headers, quotas, default, None);
        }
        let mut entries = self.entries.borrow_mut();
        let entry = quota.limit.name.fingerprint() % ENTRIES as u64;
        let entry = &mut entries[usize::try_from(entry).unwrap_or_default()];
        let kept = match entry {
            Some(kept) if kept.figures.are_of(quota) => kept,
            other => other.insert(Box::new(LimitFields::of(quota))),
        };
        headers.append(RATELIMIT_POLICY, kept.policy.clone());
        let mut state = QuotaText::from_slice(&kept.state);
        write_state(&mut state, quota.remaining, reset(quota, None));
        headers.append(RATELIMIT, value(&state));
        &FIELDS[..2]
    }
}

impl LimitFields {
    fn of(quota: &Quota<'_>) -> Self {
        let (mut policy, mut state) = (QuotaText::new(), QuotaText::new());
        write_policy(&mut policy, 0, &quota.limit.name, &quota.figures());
        write_member(&mut state, 0, &quota.limit.name);
        Self { figures: ShownFigures::of(quota), policy: value(&policy), state }
    }
}

/// The names of limits and numbers are always valid in a field's value.
fn value(text: &[u8]) -> HeaderValue {
    HeaderValue::from_bytes(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// The seconds after which a limit is full again at the latest. For a limit that refuses, the seconds after which all
/// limits let the client pass: an earlier try would be rejected again.
fn reset(quota: &Quota<'_>, retry_after: Option<u64>) -> Option<u64> {
    match quota.outcome {
        Outcome::Allow | Outcome::Delay(_) => quota.reset,
        Outcome::Reject { .. } => retry_after,
    }
}

fn is_tighter(quota: &Quota<'_>, other: &Quota<'_>) -> bool {
    let refuses = |quota: &Quota<'_>| !quota.outcome.passes();
    (refuses(quota) && !refuses(other))
        || (refuses(quota) == refuses(other) && quota.remaining < other.remaining)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::AnswerHeaders;
    use crate::settings::testing::settings;

    /// Cached fields must not be used for other figures of the limit, or for another limit.
    #[test]
    fn cached_fields_are_those_that_are_composed() {
        // More limits than entries, so that two of them share one.
        let names: Vec<_> = (0..=ENTRIES).map(|n| format!("limit{n}")).collect();
        let limits = names.iter().map(|name| format!("[limits.{name}]\nrate = \"10/h\"\n"));
        let text = format!(
            "{}[[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = {names:?}\n",
            limits.collect::<String>()
        );
        let settings = settings(&text);
        let spoken = AnswerSpec {
            headers: AnswerHeaders { x_ratelimit: true, ..settings.reject.headers },
            ..AnswerSpec::clone(&settings.reject)
        };
        let silent = AnswerSpec {
            headers: AnswerHeaders { ratelimit: false, ..settings.reject.headers },
            ..AnswerSpec::clone(&settings.reject)
        };
        let fields = QuotaFields::new();
        let mut seen = Vec::new();
        for default in [&*settings.reject, &spoken, &silent] {
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
            let others = (0..=ENTRIES).map(|limit| (limit, 10, Some(3600), Some(3600), None, 10));
            for (limit, burst, window, reset, unit, remaining) in figures.into_iter().chain(others)
            {
                let (limit, outcome) = (&settings.limits[limit], Outcome::Allow);
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

    /// The fields that a client gets: those of an API, and ours of a limit of which 7 of 10 are left.
    fn beside(api: &[(&'static str, &'static str)], reset: Option<u64>) -> Vec<String> {
        let text = "[limits.ours]\nrate = \"10/h\"\n[reject]\nheaders = [\"x-ratelimit\", \"ratelimit\"]\n\
                    [[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"ours\"]\n";
        let settings = settings(text);
        let (limit, outcome) = (&settings.limits[0], Outcome::Allow);
        let quota =
            Quota { limit, burst: 10, window: Some(60), reset, unit: None, remaining: 7, outcome };
        let mut headers = HeaderMap::new();
        for (name, value) in api {
            headers.append(*name, HeaderValue::from_static(value));
        }
        QuotaFields::new().write(&mut headers, &[quota], &settings.reject);
        let line = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().unwrap())
        };
        let mut lines: Vec<_> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    #[test]
    fn the_lists_of_the_api_get_our_members() {
        let api = [("ratelimit", "\"theirs\";r=1;t=9"), ("ratelimit-policy", "\"theirs\";q=5;w=9")];
        let lines = beside(&api, Some(60));
        assert_eq!(
            lines[..4],
            [
                "ratelimit-policy: \"ours\";q=10;w=60",
                "ratelimit-policy: \"theirs\";q=5;w=9",
                "ratelimit: \"ours\";r=7;t=60",
                "ratelimit: \"theirs\";r=1;t=9",
            ]
        );
    }

    #[test]
    fn the_older_fields_have_the_smaller_remaining_quota() {
        const LIMIT: &str = "x-ratelimit-limit";
        const LEFT: &str = "x-ratelimit-remaining";
        const RESET: &str = "x-ratelimit-reset";
        for (reset, ours) in [
            (
                Some(60),
                &["x-ratelimit-limit: 10", "x-ratelimit-remaining: 7", "x-ratelimit-reset: 60"][..],
            ),
            (None, &["x-ratelimit-limit: 10", "x-ratelimit-remaining: 7"]),
        ] {
            for (api, is_ours) in [
                (&[][..], true),
                (&[("x-ratelimit-scope", "user")], true),
                (&[(LEFT, "8")], true),
                (&[(LIMIT, "100"), (LEFT, "8"), (RESET, "1700000000")], true),
                (
                    &[
                        (LIMIT, "100"),
                        (LEFT, "8"),
                        ("x-ratelimit-used", "92"),
                        ("x-ratelimit-reset-after", "1.5"),
                    ],
                    true,
                ),
                (&[(LEFT, "8, 9"), (LEFT, "10")], true),
                (&[(LIMIT, "100"), (LEFT, "7"), (RESET, "9")], false),
                (&[(LIMIT, "100"), (LEFT, "6"), (RESET, "9")], false),
                (&[(LIMIT, "100"), (LEFT, "0")], false),
                (&[(LEFT, "8, 6")], false),
                (&[(LEFT, "8"), (LEFT, "6")], false),
                // Nobody knows what is left.
                (&[(LIMIT, "100")], false),
                (&[(RESET, "9")], false),
                (&[(LEFT, "")], false),
                (&[(LEFT, "-1")], false),
                (&[(LEFT, "8.5")], false),
                (&[(LEFT, "8;w=1")], false),
                (&[(LEFT, "many"), (LIMIT, "100")], false),
            ] {
                let mut lines = beside(api, reset);
                lines.retain(|line| line.starts_with("x-ratelimit") && !line.contains("scope"));
                let mut theirs: Vec<_> =
                    api.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                theirs.sort();
                match is_ours {
                    true => assert_eq!(lines, ours, "{api:?}"),
                    false => assert_eq!(lines, theirs, "{api:?}"),
                }
            }
        }
    }
}
