//! What a limit says to a client: the `ratelimit` fields of draft-ietf-httpapi-ratelimit-headers-11, and the problem of its
//! section 5.

use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Algorithm;
use crate::decide::Ask;
use crate::decision::{Decision, Outcome, whole_seconds};
use crate::name::Name;
use crate::time::Timestamp;

/// What a limit says to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaFigures {
    /// The bucket's size. 0 if nothing passes.
    pub burst: u64,
    /// The whole seconds in which the bucket refills, rounded up. `None` if time does not refill it.
    pub window: Option<u64>,
    /// The whole seconds, rounded up, after which the bucket is full again if no other request comes. It is less than
    /// `window` only for windows that are open. `None` if time does not refill the bucket.
    pub reset: Option<u64>,
    /// The unit that is counted, if it is not requests.
    pub unit: Option<&'static str>,
    /// Whole tokens left after this request.
    pub remaining: u64,
}

impl QuotaFigures {
    /// What a limit says that has decided so. `window_left` is what a window that began with a request has left, and
    /// `goes` is the time of day at which the request goes or is refused.
    pub fn of(
        ask: &Ask,
        Decision { remaining, outcome }: Decision,
        window_left: Option<Duration>,
        goes: Timestamp,
    ) -> Self {
        let algorithm = &ask.algorithm;
        // A leaky bucket may refuse although its queue has room: the wait would exceed the longest. Then 0 remain.
        let has_too_few = remaining < ask.cost.get();
        let remaining = if outcome.passes() || has_too_few { remaining } else { 0 };
        let window = algorithm.window_seconds();
        // A window that is open ends when it must. Every other limit is full again after its whole window.
        let reset = match (algorithm, window_left) {
            (_, Some(left)) if outcome == Outcome::Allow => Some(whole_seconds(left)),
            (Algorithm::FixedWindow(params), _) => Some(params.windows.seconds_left(goes)),
            _ => window,
        };
        let unit = matches!(algorithm, Algorithm::Concurrency(_)).then_some("concurrent-requests");
        Self { burst: algorithm.capacity(), window, reset, unit, remaining }
    }
}

/// A field's value while it is written. The text of two limits mostly fits without the heap.
pub type QuotaText = SmallVec<[u8; 96]>;

/// The values of `ratelimit-policy` and of `ratelimit`. Each has a member for each limit. A limit comes with its name,
/// its figures, and whether it lets the request pass. `retry_after` is the wait of a rejected client.
pub fn quota_fields<'n>(
    quotas: impl Iterator<Item = (&'n Name, QuotaFigures, bool)>,
    retry_after: Option<u64>,
) -> [QuotaText; 2] {
    let mut fields = [QuotaText::new(), QuotaText::new()];
    let [policy, state] = &mut fields;
    for (index, (name, quota, passes)) in quotas.enumerate() {
        write_policy(policy, index, name, &quota);
        write_member(state, index, name);
        write_state(state, quota.remaining, if passes { quota.reset } else { retry_after });
    }
    fields
}

/// Writes a limit's member of `ratelimit-policy`, the one at this index of the list.
pub fn write_policy(out: &mut QuotaText, index: usize, name: &Name, quota: &QuotaFigures) {
    write_member(out, index, name);
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

/// Begins a member of the list with the limit's name. `write!` would cost ten times as much.
pub fn write_member(out: &mut QuotaText, index: usize, name: &Name) {
    out.extend_from_slice(if index == 0 { b"\"" } else { b", \"" });
    // Names need no escapes.
    out.extend_from_slice(name.as_str().as_bytes());
    out.push(b'"');
}

/// Ends a member of `ratelimit`: what remains, and the whole seconds until the bucket is full or the client may come.
pub fn write_state(out: &mut QuotaText, remaining: u64, reset: Option<u64>) {
    write_parameter(out, b";r=", remaining);
    if let Some(seconds) = reset {
        write_parameter(out, b";t=", seconds);
    }
}

fn write_parameter(out: &mut QuotaText, name: &[u8; 3], number: u64) {
    out.extend_from_slice(name);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The problem type of draft-ietf-httpapi-ratelimit-headers-11, section 5, and its title.
pub const QUOTA_EXCEEDED: [&str; 2] = [
    "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "Request cannot be satisfied as assigned quota has been exceeded",
];

/// A problem in JSON: its type and title, its status, `more` of its members as JSON, each with a comma in front, and the
/// limits that refuse the request, whose names need no escapes.
pub fn problem<'n, N: Iterator<Item = &'n str>>(
    [kind, title]: [&str; 2],
    status: &str,
    more: &[&str],
    names: impl Fn() -> N,
) -> String {
    // Written piece by piece: `format!` costs ten times as much, and rejections must cost little.
    let begin = [r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#, status];
    let pieces = || begin.iter().chain(more).chain(&[r#","violated-policies":["#]);
    let quoted = names().map(|name| name.len() + 3).sum::<usize>();
    // The exact length. The string then becomes a body's bytes without a copy.
    let length = pieces().map(|piece| piece.len()).sum::<usize>() + quoted.max(1) - 1 + 2;
    let mut body = String::with_capacity(length);
    for piece in pieces() {
        body.push_str(piece);
    }
    for (index, name) in names().enumerate() {
        body.push_str(if index == 0 { "\"" } else { ",\"" });
        body.push_str(name);
        body.push('"');
    }
    body.push_str("]}");
    body
}
