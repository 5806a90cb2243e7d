//! The overrides that are in force, as requests look them up. Each change adds, replaces or removes one of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use super::entry::{KnownOverride, OverrideId};
use crate::settings::{Figures, LimitSpec};
use crate::store::name::{BucketKey, stored_text};

/// The overrides in force of all limits, by the limit's name and the key's text.
#[derive(Default)]
pub(super) struct RunningTable {
    limits: RwLock<HashMap<String, HashMap<String, InForce>>>,
    /// How many there are. If there is none, a request only reads this number.
    count: AtomicUsize,
}

/// An override with the limit that uses it.
pub(super) struct InForce {
    pub(super) known: KnownOverride,
    pub(super) spec: Arc<LimitSpec>,
    pub(super) figures: Figures,
}

/// The figures of a running override.
#[derive(Clone, Debug)]
pub(crate) struct RunningFigures {
    pub(crate) figures: Figures,
    /// How long the ban still lasts. `None` for an override that is no ban.
    pub(crate) banned: Option<Duration>,
}

impl RunningTable {
    /// Puts an override in force. Returns what was in force for its key.
    pub(super) fn put(&self, (limit, key): &OverrideId, new: InForce) -> Option<InForce> {
        let mut limits = self.limits.write();
        let was = limits.entry(limit.clone()).or_default().insert(key.clone(), new);
        self.count.fetch_add(usize::from(was.is_none()), Ordering::Release);
        was
    }

    pub(super) fn remove(&self, (limit, key): &OverrideId) -> Option<InForce> {
        let was = self.limits.write().get_mut(limit)?.remove(key)?;
        self.count.fetch_sub(1, Ordering::Release);
        Some(was)
    }

    pub(super) fn figures(&self, (limit, key): &OverrideId) -> Option<Figures> {
        Some(self.limits.read().get(limit)?.get(key)?.figures.clone())
    }

    /// The figures for this key.
    pub(super) fn find(&self, spec: &LimitSpec, key: &BucketKey) -> Option<RunningFigures> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let limits = self.limits.read();
        let found = limits.get(spec.name.as_str())?.get(&*stored_text(key.shown()))?;
        // A request keeps the settings with which it began, and finds only figures for the limit of these settings.
        let is_same = std::ptr::eq(spec, &*found.spec)
            || spec.key == found.spec.key && spec.counting == found.spec.counting;
        let left = found.known.left();
        let banned = left.filter(|_| found.known.entry.is_ban);
        let figures = RunningFigures { figures: found.figures.clone(), banned };
        (is_same && left != Some(Duration::ZERO)).then_some(figures)
    }
}
