//! `tidegate why`: one rejection of a running proxy, explained.

use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::admin::{AdminOptions, text};
use super::{CommandResult, print};
use crate::replay::report::printable;

/// The lines of the output: a title, and the members of the answer that stand in it.
const LINES: [(&str, &[&str]); 12] = [
    ("rejected", &["time", "status", "request_id"]),
    ("id", &["id"]),
    ("request", &["method", "path", "client", "route"]),
    ("limit", &["limit", "rate", "burst"]),
    ("figures", &["figures", "config_loaded"]),
    ("key", &["key", "name", "plan", "from"]),
    ("bucket", &["cost", "remaining", "store"]),
    ("told", &["retry_after_ms"]),
    ("would pass", &["would_pass"]),
    ("series", &["series"]),
    ("routes", &["routes"]),
    ("now", &["now"]),
];

/// Of the bucket at this moment, what a person wants to know.
const NOW: [&str; 4] = ["remaining", "burst", "retry_after_ms", "reset_ms"];

/// Explain why a request was rejected: which limit, whose key, by which figures, and what would have let it pass.
///
/// Each answer to a throttled client names its ID (`instance` of the body). So does the line `throttled` of the log.
/// A proxy keeps its last 10,000 rejections, and of one key the last 50.
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
    for (name, value) in told.as_object_mut().into_iter().flatten() {
        if let Some(members) = value.as_object_mut() {
            let is_wanted = |member: &str| name != "now" || NOW.contains(&member);
            members.retain(|member, value| !value.is_null() && is_wanted(member));
        }
    }
    let lines = LINES.map(|(title, members)| {
        let some = members.iter().filter(|name| !told[**name].is_null());
        let some: Vec<_> = some.map(|name| said(title, name, &told[*name])).collect();
        format!("{title:<12}{}", if some.is_empty() { "-".to_owned() } else { some.join(", ") })
    });
    print(lines.join("\n"))
}

/// A member of the answer. Its name is left out if the title says it.
fn said(title: &str, name: &str, value: &Value) -> String {
    let value = printable(&text(value));
    let is_said = name == title || value.contains(' ') || members_alone(title);
    if is_said { value } else { format!("{name} {value}") }
}

/// Whether the line has one member only.
fn members_alone(title: &str) -> bool {
    LINES.iter().any(|(own, members)| *own == title && members.len() == 1)
}
