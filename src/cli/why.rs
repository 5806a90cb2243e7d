//! `tidegate why`: one rejection of a running proxy, explained.

use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::admin::{AdminOptions, list, text};
use super::{CommandResult, print};
use crate::limit::sentence::speed;
use crate::replay::report::{counted, length, printable};

/// The lines of the output: a title, the pieces of the sentence, and what is said in place of no piece. A piece that names
/// a member without a value is left out.
#[rustfmt::skip]
const LINES: [(&str, &[&str], &str); 12] = [
    ("rejected", &["{/time} with status {/status}", ", request ID {/request_id}"], ""),
    ("id", &["{/id}", " (asked: {/processes}", "; {/note}", ")"], ""),
    ("request", &["{/method} {/path}", " from {/client}", ", route {/route}"], ""),
    ("limit", &["{/limit}", ": {/rate}", ", burst {/burst}"], ""),
    ("figures", &["of the {/figures/of}", ": {/figures/file}", ", line {/figures/line}", ", reason: {/figures/reason}",
        ", ends in {/figures/ends_in_ms}", ", file in force since {/config_loaded}"], ""),
    ("key", &["{/key}", " ({/name})", ", plan {/plan}", ", from {/from}"], "one for all requests"),
    ("bucket", &["{/remaining} left, the request costs {/cost}", ", decided {/store}"], ""),
    ("told", &["try again in {/retry_after_ms}"], "no such request will ever pass"),
    ("would pass", &["{/would_pass}"], "no single change would have helped"),
    ("series", &["since {/series/since}, {/series/rejected}, {/series/early} of them came before the time they were told"],
        "ended: a request of the key has passed"),
    ("routes", &["{/routes}"], ""),
    ("now", &["{/now/remaining} of {/now/burst} left", ", full again in {/now/reset_ms}",
        ", the next passes in {/now/retry_after_ms}", ", rate {/now/rate}", " ({/now/note})"], "not known"),
];

/// A change that would have let the request pass.
const CHANGES: [&str; 4] = [
    "after {/wait_ms}",
    "with a burst of {/burst}",
    "under the plan {/plan}",
    "at a cost of {/cost}",
];

/// Explain why a request was rejected: which limit, whose key, by which figures, and what would have let it pass.
///
/// Each answer to a throttled client names its ID (`instance` of the body). So does the line `throttled` of the log.
/// A proxy keeps its last 10,000 rejections, and of one key the last 50. If several proxies share Redis, any of them asks
/// the others.
#[derive(Args, Clone, Debug)]
pub(super) struct Why {
    /// The ID of the rejection, or the request's own `request_id`
    id: String,
    #[command(flatten)]
    admin: AdminOptions,
    /// Print the endpoint's JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn why(why: &Why) -> CommandResult {
    let id = utf8_percent_encode(&why.id, NON_ALPHANUMERIC);
    let mut told = why.admin.client()?.get(&format!("/api/why/{id}"), "would_pass")?;
    if why.json {
        return print(told);
    }
    told["would_pass"] = joined(&told, "would_pass", &CHANGES, "; or ");
    told["routes"] = joined(&told, "routes", &["{/count} {/method} {/route}"], ", ");
    let lines = LINES.map(|(title, pieces, otherwise)| {
        let says = Some(sentence(&told, pieces)).filter(|says| !says.is_empty());
        printable(&format!("{title:<12}{}", says.as_deref().unwrap_or(otherwise)))
    });
    print(lines.join("\n"))
}

/// A list of the answer in words.
fn joined(told: &Value, name: &str, pieces: &[&str], between: &str) -> Value {
    let items = list(told, name).iter().map(|item| sentence(item, pieces));
    items.collect::<Vec<_>>().join(between).into()
}

fn sentence(told: &Value, pieces: &[&str]) -> String {
    let pieces: String = pieces.iter().filter_map(|piece| filled(told, piece)).collect();
    pieces.trim_start_matches(", ").to_owned()
}

/// A piece of a sentence with the values of its members. `None` if one has no value.
fn filled(told: &Value, piece: &str) -> Option<String> {
    let Some((before, rest)) = piece.split_once('{') else { return Some(piece.to_owned()) };
    let (name, after) = rest.split_once('}')?;
    Some(format!("{before}{}{}", said(name, told.pointer(name)?)?, filled(told, after)?))
}

/// The text for a value. The name of the member tells the value's unit. `None` if the value is empty.
fn said(name: &str, value: &Value) -> Option<String> {
    let text = Some(text(value)).filter(|text| !value.is_null() && !text.is_empty())?;
    Some(match name {
        "/rate" | "/now/rate" => text.parse().map_or(text, speed),
        "/store" => match text.as_str() {
            "redis" => "by Redis".to_owned(),
            "local" => "by the process, because Redis was away".to_owned(),
            "known" => "by the process, which knew the answer already".to_owned(),
            _ => "by the process".to_owned(),
        },
        "/time" | "/series/since" | "/config_loaded" => {
            text.split('.').next()?.replace('T', " ") + " UTC"
        }
        "/series/rejected" => counted(value.as_u64()?, "rejection"),
        _ if name.ends_with("_ms") => wait(value.as_u64().filter(|millis| *millis > 0)?),
        _ => text,
    })
}

/// A time as people say it, never shorter than it is.
fn wait(millis: u64) -> String {
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis.div_ceil(100) / 10, millis.div_ceil(100) % 10),
        _ => length(millis.next_multiple_of(1_000)),
    }
}
