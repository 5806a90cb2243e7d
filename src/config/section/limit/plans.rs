//! A limit's `plans`: its figures for requests with a plan.

use std::sync::Arc;

use super::super::values::name;
use super::algorithm::Counting;
use super::figures::{self, FIGURES};
use super::rate::ELSEWHERE;
use crate::config::reader::{FieldEntry, Kind, Section, Shape, Span, fields};
use crate::limit::name::Name;
use crate::settings::{Figures, LimitSpec};

/// A limit's `plans`: a rate alone, or a table.
pub(crate) const PLANS: Kind = Kind::TableOf(0, &Kind::Either(&[Kind::Rate, Kind::Table(&PLAN)]));

/// One of a limit's `plans`, written as a table.
pub(crate) static PLAN: Shape =
    Shape { elsewhere: ELSEWHERE, ..Shape::new("a plan", || fields(FIGURES)) };

/// One of a limit's `plans`.
pub(crate) struct PlanDraft {
    pub(crate) name: Name,
    pub(crate) figures: Figures,
    /// The position of its name.
    pub(crate) span: Span,
}

/// The plans of a limit with this counting.
pub(super) fn build(section: &mut Section<'_>, counting: Option<&Counting>) -> Vec<PlanDraft> {
    let Some(item) = section.take("plans") else { return Vec::new() };
    if !item.is_table() {
        item.reject("expected a table, as in `{ pro = \"600/m\" }`");
        return Vec::new();
    }
    let entries = item.entries().unwrap_or_default();
    let plans = entries.into_iter().filter_map(|entry| {
        let name = name(section.cx, entry.name, &entry.name_span);
        Some(PlanDraft { name, figures: figures(&entry, counting)?, span: entry.name_span })
    });
    plans.collect()
}

fn figures(entry: &FieldEntry<'_>, counting: Option<&Counting>) -> Option<Figures> {
    if !entry.item.is_table() {
        return figures::of_rate(&entry.item, counting);
    }
    figures::inner(entry.item.section(&PLAN, format!("the plan `{}`", entry.name))?, counting)
}

/// This limit with the figures of each plan. There may be many overrides, and the plans need none.
pub(super) fn specs(spec: &LimitSpec, plans: &[PlanDraft]) -> Vec<Arc<LimitSpec>> {
    let own = spec.figures.window();
    let specs = plans.iter().map(|PlanDraft { name, figures, .. }| {
        let window =
            figures.window().filter(|window| own.as_ref().is_some_and(|own| own != window));
        let (plan, figures) = (Some(name.clone()), figures.clone());
        Arc::new(LimitSpec { plan, figures, window, ..spec.clone() })
    });
    specs.collect()
}

/// Of this limit and its plans, for each length of windows the one with the most tokens. Empty if there is one length.
pub(super) fn windows(spec: &LimitSpec, plans: &[Arc<LimitSpec>]) -> Vec<Arc<LimitSpec>> {
    let mut windows: Vec<Arc<LimitSpec>> = Vec::new();
    if plans.iter().all(|plan| plan.window.is_none()) {
        return windows;
    }
    let all = std::iter::once(Arc::new(spec.clone())).chain(plans.iter().cloned());
    for one in all.filter(|one| one.figures.window().is_some()) {
        match windows.iter_mut().find(|known| known.window == one.window) {
            Some(known) if known.figures.capacity() < one.figures.capacity() => *known = one,
            Some(_) => {}
            None => windows.push(one),
        }
    }
    windows
}
