//! One override that runs, and what this process knows about it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::limit::time::Timestamp;
use crate::request::key::ALL_KEYS;
use crate::settings::{Figures, LimitSpec, RunningFigures, WantedFigures};

/// The most overrides that run at once. Each process reads all of them when one changes.
pub(crate) const MOST_RUNNING: usize = 1_000;

/// Other figures for one key of a limit, or for all of its keys, as an operator wrote them. What is not skipped is JSON
/// in Redis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunningOverride {
    #[serde(skip)]
    pub(crate) limit: String,
    /// The key's text as Redis has it: hashed if `log.keys` says so. Or [`ALL_KEYS`].
    #[serde(skip)]
    pub(crate) key: String,
    /// The parts of the limit's key. A limit with other parts has other keys.
    #[serde(rename = "key")]
    pub(crate) sources: Vec<String>,
    #[serde(flatten)]
    pub(crate) wanted: WantedFigures,
    pub(crate) reason: Option<String>,
    /// When the override ends, by the store's clock. `None`: when an operator resets it.
    #[serde(skip)]
    pub(crate) ends: Option<Timestamp>,
    /// Whether a limit's `ban` has set it, and no operator.
    #[serde(rename = "ban", default)]
    pub(crate) is_ban: bool,
}

/// A limit's name and a key's text.
pub(super) type OverrideId = (String, String);

impl RunningOverride {
    pub(super) fn id(&self) -> OverrideId {
        (self.limit.clone(), self.key.clone())
    }

    /// The key's text. `None` for all keys.
    pub(crate) fn one_key(&self) -> Option<&str> {
        Some(&*self.key).filter(|key| *key != ALL_KEYS)
    }

    /// The figures of the override for this limit. `None` if the limit has another key now, or if its algorithm
    /// cannot use what was written.
    pub(super) fn figures(&self, spec: &LimitSpec) -> Option<Figures> {
        let has_key = self.sources == spec.key.parts_text();
        spec.counting.as_ref().filter(|_| has_key)?.figures(&self.wanted).ok()
    }
}

/// An override, and what this process knows about it.
#[derive(Clone)]
pub(in crate::store) struct KnownOverride {
    pub(in crate::store) entry: Arc<RunningOverride>,
    /// The override as its limit uses it. `None` if the limit cannot use it.
    pub(super) in_force: Option<InForce>,
    /// Its end by this process's clock.
    pub(super) ends: Option<Instant>,
    /// The client whose rejected request led to the ban, if this process has set it.
    pub(super) client: Option<IpAddr>,
    /// Whether this process alone knows it: Redis has not heard of it yet, or there is no Redis.
    pub(super) is_here: bool,
    /// Whether it is a ban by this process that is still to be logged.
    pub(super) is_unlogged: bool,
}

impl KnownOverride {
    /// An override that others know too.
    pub(super) fn new(entry: RunningOverride, ends: Option<Instant>) -> Self {
        let entry = Arc::new(entry);
        let (in_force, client) = (None, None);
        Self { entry, in_force, ends, client, is_here: false, is_unlogged: false }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    /// Its figures for this limit. `None` if it has ended, or if the limit comes from other settings and counts otherwise:
    /// a request keeps the settings with which it began.
    pub(super) fn running(&self, spec: &LimitSpec) -> Option<RunningFigures> {
        let found = self.in_force.as_ref()?;
        let is_same = std::ptr::eq(spec, &*found.spec)
            || spec.key == found.spec.key && spec.counting == found.spec.counting;
        let left = self.left();
        (is_same && left != Some(Duration::ZERO)).then(|| RunningFigures {
            figures: found.figures.clone(),
            is_for_all: self.entry.one_key().is_none(),
            banned: left.filter(|_| self.entry.is_ban),
        })
    }

    pub(super) fn listed(&self) -> ListedOverride {
        ListedOverride {
            entry: Arc::clone(&self.entry),
            running: self.in_force.as_ref().and_then(|it| self.running(&it.spec)),
            left: self.left(),
        }
    }

    /// How long it still lasts. `None`: until an operator resets it.
    pub(in crate::store) fn left(&self) -> Option<Duration> {
        self.ends.map(|ends| ends.saturating_duration_since(Instant::now()))
    }
}

/// The limit that uses an override, and its figures.
#[derive(Clone)]
pub(super) struct InForce {
    pub(super) spec: Arc<LimitSpec>,
    pub(super) figures: Figures,
}

/// An override with its state in this process, for lists.
#[derive(Clone, Debug)]
pub(crate) struct ListedOverride {
    pub(crate) entry: Arc<RunningOverride>,
    /// Its figures. `None` if there is no limit with this key that can use them, or if it has just ended.
    pub(crate) running: Option<RunningFigures>,
    /// How long the override still lasts. `None`: until an operator resets it.
    pub(crate) left: Option<Duration>,
}

/// The overrides that Redis has, all of them at one moment.
#[derive(Debug)]
pub(in crate::store) struct ReadOverrides {
    /// The moment by Redis's clock.
    pub(in crate::store) at: Timestamp,
    /// The number of the last change in Redis.
    pub(in crate::store) generation: u64,
    /// The number of the last change that was no ban.
    pub(in crate::store) told: u64,
    pub(in crate::store) entries: Vec<RunningOverride>,
}
