//! What tidegate's own lines say beside the usual values of an access log: what was counted of a request, and what
//! changed how limits decide.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::time;
use crate::limit::time::Timestamp;
use crate::settings::WantedFigures;

/// What an access line says that limits counted, by the names of the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LoggedCounts {
    /// The keys as in Redis.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// What the request took in the end. For a rejected one: what it asked for.
    #[serde(default)]
    pub costs: BTreeMap<String, u64>,
    /// The request's plan.
    pub plan: Option<String>,
    /// The form of the call, if another proxy asked.
    pub via: Option<String>,
    /// Why tidegate refused the request, if it did.
    pub reason: Option<String>,
}

/// A line that says how limits decide from its time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToldChange {
    /// A file is in force: the `key` of each of its limits, and the part of a request that says its plan.
    File { counts_by: BTreeMap<String, Vec<String>>, plans_by: Option<String> },
    /// An override was set. The key's text is as the log shows it.
    OverrideSet {
        limit: String,
        key: String,
        wanted: WantedFigures,
        /// In whole seconds.
        until: Option<Timestamp>,
    },
    /// An override has ended.
    OverrideEnded { limit: String, key: String },
}

impl LoggedCounts {
    /// The part of the request that its limits could not count, if they refused it for that. Then they counted nothing.
    pub(crate) fn refused_part(&self) -> Option<&'static str> {
        match self.reason.as_deref()? {
            "missing_key" | "bad_key" | "invalid_token" | "no_keys" => Some("key"),
            "bad_cost" => Some("cost"),
            _ => None,
        }
    }

    /// What an access line of tidegate says. `None` if it is of a version that did not say it.
    pub(super) fn of(line: &Map<String, Value>) -> Option<Box<Self>> {
        line.get("process")?;
        Self::deserialize(line).ok().map(Box::new)
    }
}

impl ToldChange {
    /// What another line of tidegate says, with its time.
    pub(super) fn read(line: &str) -> Option<(Timestamp, Self)> {
        #[derive(Deserialize)]
        struct Line {
            timestamp: String,
            message: String,
            #[serde(default)]
            limit: String,
            #[serde(default)]
            key: String,
            #[serde(default)]
            counts_by: BTreeMap<String, Vec<String>>,
            plans_by: Option<String>,
            until: Option<String>,
            #[serde(flatten)]
            wanted: Option<WantedFigures>,
        }
        let Line { timestamp, message, limit, key, counts_by, plans_by, until, wanted } =
            serde_json::from_str(line).ok()?;
        let change = match message.as_str() {
            "config loaded" | "config reloaded" if !counts_by.is_empty() => {
                Self::File { counts_by, plans_by }
            }
            "override set" => {
                let until = until.as_deref().and_then(time::parse);
                Self::OverrideSet { limit, key, wanted: wanted?, until }
            }
            "override ended" => Self::OverrideEnded { limit, key },
            _ => return None,
        };
        Some((time::parse(&timestamp)?, change))
    }
}
