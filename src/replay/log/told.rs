//! Values that only tidegate logs: what the limits counted of a request, and the changes to the limits.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::time;
use crate::limit::time::Timestamp;
use crate::settings::WantedFigures;

/// What the limits counted of one request, by the names of the limits. An access line has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct LoggedCounts {
    /// The keys, in the form that they have in Redis.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// The tokens that the request took in the end. If it was rejected: the tokens that it asked for.
    #[serde(default)]
    pub costs: BTreeMap<String, u64>,
    /// The request's plan.
    pub plan: Option<String>,
    /// The form of the call, if another proxy asked.
    pub via: Option<String>,
    /// Why tidegate refused the request, if it did.
    pub reason: Option<String>,
}

/// A logged change. The limits decide by it from the line's time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToldChange {
    /// A file came into force. These are the `key` of each limit, and the part of a request that gives its plan.
    File { counts_by: BTreeMap<String, Vec<String>>, plans_by: Option<String> },
    /// An override was set. `key` is the text in the log. Without it, the override is of all keys.
    OverrideSet {
        limit: String,
        key: Option<String>,
        wanted: WantedFigures,
        /// The end of the override, in whole seconds.
        until: Option<Timestamp>,
    },
    /// An override has ended.
    OverrideEnded { limit: String, key: Option<String> },
}

impl LoggedCounts {
    /// The part of the request that the limits could not read, if that is why they refused it. Then they counted
    /// nothing.
    pub(crate) fn refused_part(&self) -> Option<&'static str> {
        match self.reason.as_deref()? {
            "missing_key" | "bad_key" | "invalid_token" | "no_keys" => Some("key"),
            "bad_cost" => Some("cost"),
            _ => None,
        }
    }

    /// Reads an access line of tidegate. `None` if an older version wrote it, without these values.
    pub(super) fn of(line: &Map<String, Value>) -> Option<Box<Self>> {
        line.get("process")?;
        Self::deserialize(line).ok().map(Box::new)
    }
}

impl ToldChange {
    /// Reads a line about a change, with its time. `None` for every other line.
    pub(super) fn read(line: &str) -> Option<(Timestamp, Self)> {
        #[derive(Deserialize)]
        struct ToldLine {
            timestamp: String,
            message: String,
            #[serde(default)]
            limit: String,
            key: Option<String>,
            #[serde(default)]
            counts_by: BTreeMap<String, Vec<String>>,
            plans_by: Option<String>,
            until: Option<String>,
            #[serde(flatten)]
            wanted: Option<WantedFigures>,
        }
        let ToldLine { timestamp, message, limit, key, counts_by, plans_by, until, wanted } =
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
