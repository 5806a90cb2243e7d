//! `tidegate limits`: limits, buckets and overrides of a running proxy, through its admin endpoint.

use std::fmt::Display;
use std::net::IpAddr;

use clap::{Args, Subcommand};
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::admin::{AdminClient, AdminOptions, list, table, text, time};
use super::{CommandResult, Failure, print};
use crate::config::enumerate;
use crate::limit::key::KeyBuilder;
use crate::request::key::{KeySource, is_hash};
use crate::request::overrides::of_alternative;

/// Show the limits of a running proxy, and override a limit for one key or for all keys.
///
/// A key is given by its plain values, in the order of the limit's `key`; `-` stands for a value that
/// requests do not have, and '*' alone for all keys of the limit (with --plain for the key `*`). An override
/// applies within a second on every proxy that shares the store.
#[derive(Args, Clone, Debug)]
#[command(after_help = "For example:\n  \
    tidegate limits list\n  \
    tidegate limits get per-client 203.0.113.7\n  \
    tidegate limits set per-client 203.0.113.7 --rate 1000/s --for 2h --reason 'load test'\n  \
    tidegate limits set per-client '*' --rate 50/s --for 2h --reason 'incident 4711'\n  \
    tidegate limits reset per-client 203.0.113.7 --override")]
pub(super) struct LimitsArgs {
    #[command(subcommand)]
    verb: LimitsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum LimitsCommand {
    /// Print the limits, and the overrides that were set while running
    List(ListLimits),
    /// Print the bucket of a key. Without a key: print the limit and its overrides
    Get(GetBucket),
    /// Give a key, or all keys, other figures, for a time or until they are reset
    Set(SetOverride),
    /// Reset the bucket of a key, as for a new client, or end its override
    Reset(ResetKey),
}

#[derive(Args, Clone, Debug)]
struct ListLimits {
    #[command(flatten)]
    admin: AdminOptions,
    /// Print the endpoint's JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct GetBucket {
    #[command(flatten)]
    named: NamedKey,
    /// Print the endpoint's JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct SetOverride {
    #[command(flatten)]
    named: NamedKey,
    /// As in the file: 100/s, 1000/10m, unlimited, 0/s
    #[arg(long, allow_hyphen_values = true, required_unless_present = "limit_at_once")]
    rate: Option<String>,
    /// The requests at once, for a limit with slots
    #[arg(long = "limit", value_name = "N", conflicts_with = "rate", allow_hyphen_values = true)]
    limit_at_once: Option<u64>,
    /// A token bucket's size; by default the rate's count
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    burst: Option<u64>,
    /// How many requests a leaky bucket holds; by default the rate's count
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    queue: Option<u64>,
    /// How long, as in 2h; by default until it is reset
    #[arg(long = "for", value_name = "DURATION", allow_hyphen_values = true)]
    lasts: Option<String>,
    /// The reason, for people who see the override later
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: Option<String>,
}

#[derive(Args, Clone, Debug)]
struct ResetKey {
    #[command(flatten)]
    named: NamedKey,
    /// End the override, and leave the bucket as it is
    #[arg(long = "override")]
    overridden: bool,
}

#[derive(Args, Clone, Debug)]
struct NamedKey {
    /// The limit's name
    limit: String,
    /// The key's values, in the order of the limit's `key`
    key: Vec<String>,
    /// Take '*' as the key of one client, not as all keys
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    admin: AdminOptions,
}

pub(super) fn limits(limits: &LimitsArgs) -> CommandResult {
    match &limits.verb {
        LimitsCommand::List(list) => {
            let all = list.admin.client()?.get("/api/limits", "limits")?;
            print(if list.json { all.to_string() } else { listed(&all) })
        }
        LimitsCommand::Get(get) => {
            let (client, all) = get.named.ask()?;
            let limit = get.named.limit(&all)?;
            if get.named.key.is_empty() && !parts(limit).is_empty() {
                let of_limit = |one: &&Value| one["limit"] == limit["name"];
                let overrides: Vec<_> = list(&all, "overrides").iter().filter(of_limit).collect();
                let one = json!({ "limits": [limit], "overrides": overrides });
                return print(if get.json { one.to_string() } else { listed(&one) });
            }
            let bucket = client.json(&Method::GET, &get.named.path(limit, "")?, None)?;
            print(if get.json {
                bucket.to_string()
            } else {
                shown(&bucket) + &get.named.doubt(limit)
            })
        }
        LimitsCommand::Set(set) => {
            let (client, all) = set.named.ask()?;
            let limit = set.named.limit(&all)?;
            let path = set.named.path(limit, "/override")?;
            let doubt = set.named.doubt(limit);
            let mut body = json!({
                "rate": set.rate,
                "limit": set.limit_at_once,
                "burst": set.burst,
                "queue": set.queue,
                "for": set.lasts,
                "reason": set.reason,
            });
            // An older proxy refuses fields that it does not know.
            body.as_object_mut().into_iter().for_each(|it| it.retain(|_, value| !value.is_null()));
            let set = client.json(&Method::PUT, &path, Some(&body.to_string()))?;
            let until = set["until"].as_str().unwrap_or("it is reset");
            let burst = match &set["burst"] {
                Value::Null => String::new(),
                burst => format!(", burst {burst},"),
            };
            let of_key = match set["key"].as_str() {
                None => " for all keys".to_owned(),
                Some("") => String::new(),
                Some(_) => format!(" for {}", text(&set["key"])),
            };
            let rate = text(&set["rate"]);
            print(format_args!("{rate}{burst}{of_key} until {until}{doubt}"))
        }
        LimitsCommand::Reset(ResetKey { named, overridden }) => {
            let (client, all) = named.ask()?;
            let (end, done) = match overridden {
                true => ("/override", "the override has ended"),
                false => ("", "the bucket is new"),
            };
            let listed = named.path_of_all().or_else(|| named.listed_override(&all));
            let (path, doubt) = match listed.filter(|_| *overridden) {
                Some(path) => (path, String::new()),
                None => {
                    let limit = named.limit(&all)?;
                    (named.path(limit, end)?, named.doubt(limit))
                }
            };
            client.json(&Method::DELETE, &path, None).map_err(|failure| {
                let is_of_key = named.path_of_all().and(named.listed_override(&all)).is_some();
                let hint = if is_of_key { "; the key `*` has one: add --plain" } else { "" };
                let message = failure.message.map(|message| message + hint);
                Failure { message, ..failure }
            })?;
            print(format_args!("{done}{doubt}"))
        }
    }
}

impl NamedKey {
    /// The endpoint, and its limits and overrides.
    fn ask(&self) -> Result<(AdminClient, Value), Failure> {
        let client = self.admin.client()?;
        let all = client.get("/api/limits", "limits")?;
        Ok((client, all))
    }

    /// The limit as the endpoint lists it.
    fn limit<'v>(&self, all: &'v Value) -> Result<&'v Value, Failure> {
        let limits = list(all, "limits").iter();
        let names = limits.clone().filter_map(|limit| limit["name"].as_str());
        let (name, names) = (&self.limit, enumerate(names, "and"));
        let none = || format!("there is no limit `{name}` in the proxy: it has {names}");
        let mut found = limits.filter(|limit| limit["name"] == **name);
        found.next().ok_or_else(|| Failure::usage(none()))
    }

    /// The path of the override of all keys, for which `*` alone stands.
    fn path_of_all(&self) -> Option<String> {
        (self.key == ["*"] && !self.plain)
            .then(|| format!("/api/limits/{}/override", segment(&self.limit)))
    }

    /// The path of the override of exactly this key, if the endpoint lists it. The override's limit may be gone, or may
    /// count by something else now.
    fn listed_override(&self, all: &Value) -> Option<String> {
        let [key] = self.key.as_slice() else { return None };
        let is_it = |it: &Value| it["limit"] == *self.limit && it["key"] == **key;
        let (limit, key) = (segment(&self.limit), segment(key));
        let path = || format!("/api/limits/{limit}/keys/{key}/override");
        list(all, "overrides").iter().any(is_it).then(path)
    }

    /// A note for an operator who may have copied a hash from the log, or may have meant an address. The command still
    /// takes the value as a plain value, because some plain values look like a hash or an address.
    fn doubt(&self, limit: &Value) -> String {
        let mut notes = list(limit, "key").iter().zip(&self.key).filter_map(|(part, value)| {
            let part: KeySource = text(part).parse().ok()?;
            let (_, plain, of) = of_alternative(value, &part).ok()?;
            if limit["hashed"] == true && of.is_secret() && is_hash(plain.as_bytes()) {
                return Some(format!(
                    "\nnote: `{value}` was taken as a plain value of `{part}`; if it is a hash from the log, \
                     no bucket has this key: give the value itself"
                ));
            }
            value.parse::<IpAddr>().ok().filter(|_| *of != KeySource::Ip)?;
            let index = part.alternatives().iter().position(|it| *it == KeySource::Ip)?;
            let of_ip = format!("{}={value}", index + 1);
            Some(format!("\nnote: `{value}` was taken as a value of `{of}`; to give an address, write `{of_ip}`"))
        });
        notes.next().unwrap_or_default()
    }

    /// The path of the key's bucket, with `end` after it. The number of values is checked, because an empty key
    /// names a bucket too.
    fn path(&self, limit: &Value, end: &str) -> Result<String, Failure> {
        if let Some(path) = self.path_of_all() {
            let none = || {
                format!(
                    "`*` stands for all keys, which have no one bucket: give a key, or --plain for the key `*`. `tidegate limits reset {} '*' --override` ends the override of all keys",
                    self.limit
                )
            };
            return (end == "/override").then_some(path).ok_or_else(|| Failure::usage(none()));
        }
        let parts = parts(limit);
        if parts.len() != self.key.len() {
            let name = &self.limit;
            return Err(Failure::usage(match parts.is_empty() {
                true => format!("`{name}` has one bucket for all requests, and no key"),
                false => format!("`{name}` counts by {}: give a value for each", parts.join(", ")),
            }));
        }
        let values = list(limit, "key").iter().zip(&self.key);
        let values = values.map(|(part, value)| key_text(part, value));
        let key = values.collect::<Result<Vec<_>, _>>()?.join("|");
        let (limit, key) = (segment(&self.limit), segment(&key));
        Ok(format!("/api/limits/{limit}/keys/{key}{end}?plain"))
    }
}

/// A text as one segment of a URL's path: everything but unreserved characters is encoded.
fn segment(text: &str) -> impl Display {
    const ENCODED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, ENCODED)
}

/// The text of one part of a key. `-` is an absent value.
fn key_text(part: &Value, value: &str) -> Result<String, Failure> {
    let mut key = KeyBuilder::default();
    if value == "-" {
        key.push_absent();
    } else {
        let source: KeySource = text(part).parse().map_err(|_| {
            Failure::usage(format!("the proxy counts by `{}`, which is unknown here", text(part)))
        })?;
        let (alternative, value, _) = of_alternative(value, &source).map_err(Failure::usage)?;
        key.alternative(alternative);
        key.push(value.as_bytes());
    }
    Ok(key.finish().as_str().to_owned())
}

/// The parts of a limit's key.
fn parts(limit: &Value) -> Vec<String> {
    list(limit, "key").iter().map(|part| format!("`{}`", text(part))).collect()
}

fn listed(all: &Value) -> String {
    const LIMITS: &str = "limit = /name, key = /key, algorithm = /algorithm, rate = /rate, \
                          burst = /burst, mode = /mode, scope = /scope";
    const OVERRIDES: &str = "override of = /limit, key = /key, rate = /rate, burst = /burst, \
                             ends in = /ends_in_ms, state = /state, reason = /reason";
    let out = table(LIMITS, list(all, "limits"));
    let mut overrides = list(all, "overrides").to_vec();
    for one in &mut overrides {
        let state = if one["in_force"] == true { "in force" } else { "of no limit" };
        one["state"] = state.into();
        // A key may be any text, and a limit's name has no comma.
        if one["key"].is_null() {
            one["limit"] = format!("{}, all keys", text(&one["limit"])).into();
        }
    }
    match overrides.is_empty() {
        true => out,
        false => format!("{out}\n\n{}", table(OVERRIDES, &overrides)),
    }
}

fn shown(bucket: &Value) -> String {
    let mut lines: Vec<_> = ["limit", "key", "algorithm", "rate", "burst", "remaining"]
        .map(|name| (name, text(&bucket[name])))
        .into();
    if bucket["plan"].is_string() {
        lines.push(("plan", text(&bucket["plan"])));
    } else if bucket["plans"].is_object() {
        lines.push(("by plan", text(&bucket["plans"])));
    }
    lines.extend(bucket["note"].as_str().map(|note| ("plan", format!("unknown: {note}"))));
    lines.push(match &bucket["held_ms"] {
        Value::Null => ("passes in", time(&bucket["retry_after_ms"])),
        held => ("held for", time(held)),
    });
    lines.push(("full again in", time(&bucket["reset_ms"])));
    if bucket["here"] == true {
        lines.push(("counted in", "this process alone, because Redis is away".to_owned()));
    }
    let set = &bucket["override"];
    if !set.is_null() {
        let keys = if set["key"].is_null() { ", for all keys" } else { "" };
        lines.push(("override", text(&set["rate"]) + keys));
        lines.push(("ends in", time(&set["ends_in_ms"])));
        lines.push(("reason", text(&set["reason"])));
    }
    let lines: Vec<_> = lines.iter().map(|(title, value)| format!("{title:<10} {value}")).collect();
    lines.join("\n")
}
