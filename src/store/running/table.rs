//! The overrides that are in force, as requests look them up. A table never changes: a new one replaces it.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use crate::limit::name::Name;
use crate::plan::{Figures, LimitSpec};
use crate::store::name::{BucketKey, stored_text};

/// The overrides in force of all limits.
#[derive(Default)]
pub(in crate::store) struct RunningTable(HashMap<Name, OverriddenLimit>);

/// A limit with its overrides, by the key's text.
struct OverriddenLimit {
    spec: Arc<LimitSpec>,
    keys: HashMap<String, FiguresInForce>,
}

struct FiguresInForce {
    figures: Figures,
    ends: Option<Instant>,
}

impl RunningTable {
    /// Adds an override of this limit for the key with this text.
    pub(super) fn add(
        &mut self,
        spec: &Arc<LimitSpec>,
        key: &str,
        figures: Figures,
        ends: Option<Instant>,
    ) {
        let limit = self.0.entry(spec.name.clone());
        let new = || OverriddenLimit { spec: Arc::clone(spec), keys: HashMap::new() };
        limit.or_insert_with(new).keys.insert(key.to_owned(), FiguresInForce { figures, ends });
    }

    /// The figures for this key.
    pub(in crate::store) fn find(&self, spec: &LimitSpec, key: &BucketKey) -> Option<&Figures> {
        let limit = self.0.get(&spec.name)?;
        // A request keeps the plan with which it began, and finds only figures for the limit of this plan.
        let is_same = std::ptr::eq(spec, &*limit.spec)
            || spec.key == limit.spec.key && spec.counting == limit.spec.counting;
        let found = limit.keys.get(&*stored_text(key.shown())).filter(|_| is_same)?;
        found.ends.is_none_or(|ends| Instant::now() < ends).then_some(&found.figures)
    }
}
