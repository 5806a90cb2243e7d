//! The overrides that are in force, as requests look them up. A ban is added to the table. For any other change a new
//! table replaces it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::entry::KnownOverride;
use crate::limit::name::Name;
use crate::plan::{Figures, LimitSpec};
use crate::store::name::{BucketKey, stored_text};

/// The overrides in force of all limits.
#[derive(Default)]
pub(in crate::store) struct RunningTable(RwLock<HashMap<Name, OverriddenLimit>>);

/// A limit with its overrides, by the key's text.
struct OverriddenLimit {
    spec: Arc<LimitSpec>,
    keys: HashMap<String, (KnownOverride, Figures)>,
}

/// The figures of a running override.
#[derive(Clone, Debug)]
pub(crate) struct RunningFigures {
    pub(crate) figures: Figures,
    /// How long the ban still lasts. `None` for an override that is no ban.
    pub(crate) banned: Option<Duration>,
}

impl RunningTable {
    /// Adds an override of this limit with these figures.
    pub(super) fn add(&self, spec: &Arc<LimitSpec>, known: &KnownOverride, figures: Figures) {
        let mut limits = self.0.write();
        let limit = limits.entry(spec.name.clone());
        let new = || OverriddenLimit { spec: Arc::clone(spec), keys: HashMap::new() };
        limit.or_insert_with(new).keys.insert(known.entry.key.clone(), (known.clone(), figures));
    }

    /// The figures for this key.
    pub(in crate::store) fn find(
        &self,
        spec: &LimitSpec,
        key: &BucketKey,
    ) -> Option<RunningFigures> {
        let limits = self.0.read();
        let limit = limits.get(&spec.name)?;
        // A request keeps the plan with which it began, and finds only figures for the limit of this plan.
        let is_same = std::ptr::eq(spec, &*limit.spec)
            || spec.key == limit.spec.key && spec.counting == limit.spec.counting;
        let (known, figures) = limit.keys.get(&*stored_text(key.shown())).filter(|_| is_same)?;
        let left = known.left();
        let (figures, banned) = (figures.clone(), left.filter(|_| known.entry.is_ban));
        (left != Some(Duration::ZERO)).then_some(RunningFigures { figures, banned })
    }
}
