//! The figures by which what a request used is counted: those that are in force by then.
//!
//! A bucket goes on under other figures after a reload. By those of the request's own time it would still
//! refill, or its window end, at what is over: a settlement could give a client all that it has used.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::BucketAsk;
use crate::limit::decide::Ask;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::plan::{LimitSpec, Terms};

/// The limits of the last reload by their names, and the candidates; nothing before the first one.
#[derive(Default)]
pub(super) struct InForce(RwLock<HashMap<Name, Arc<LimitSpec>>>);

impl InForce {
    /// These are in force from now on.
    pub(super) fn put(&self, limits: &[Arc<LimitSpec>]) {
        let all = limits.iter().chain(limits.iter().filter_map(|spec| spec.candidate.as_ref()));
        let all = all.map(|spec| (spec.name.clone(), Arc::clone(spec))).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// What was asked, by the figures that its bucket has at this time of day. Where there is no such
    /// bucket any more, as it was asked.
    pub(super) fn of(&self, asked: &BucketAsk<'_>, wall: Timestamp) -> Ask {
        let BucketAsk { spec: before, key, ask } = *asked;
        let limits = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(spec) = limits.get(&before.name) else { return ask };
        if std::ptr::eq(&**spec, before) || spec.key.sources != before.key.sources {
            return ask;
        }
        match spec.overrides.find(key).unwrap_or(&spec.figures).at(wall) {
            Terms::Limited(algorithm) if algorithm.number() == ask.algorithm.number() => {
                Ask { algorithm, patience: spec.wait, ..ask }
            }
            Terms::Limited(_) | Terms::Unlimited | Terms::Nothing => ask,
        }
    }
}
