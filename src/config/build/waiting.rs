//! `wait`, `max_waiting` and `candidate` of a limit.

use std::time::Duration;

use super::algorithm::Family;
use super::figures;
use crate::config::fields::{CANDIDATE, MAX_WAITING};
use crate::config::file::{Section, Zero};
use crate::config::problem::Span;
use crate::limit::Mode;
use crate::limit::algorithm::sliding_log::MOST_LEAD;
use crate::limit::patience::Patience;
use crate::plan::{Figures, LimitSpec};
use crate::request::exempt::Exempt;
use crate::request::overrides::Overrides;

/// Where the file does not say.
const DEFAULT_MAX_WAITING: u64 = 1_000;

const NO_TURN: &str = "nobody knows when a slot is free";

/// `wait` and `max_waiting`.
pub(super) fn build(section: &mut Section<'_>, family: Option<&Family>) -> (Patience, usize) {
    let holds = matches!(family, Some(Family::LeakyBucket));
    if !holds && !matches!(family, None | Some(Family::Concurrency { .. })) {
        refuse_without_wait(section);
    }
    (wait(section, family), max_waiting(section, family))
}

/// Refuses `max_waiting` of a limit that holds nobody unless it has a `wait`.
pub(super) fn refuse_without_wait(section: &mut Section<'_>) {
    if !section.has(|field| field == "wait") {
        section.refuse_field(
            "max_waiting",
            "says nothing without `wait`",
            "remove it, or add `wait`: without it nobody is held",
        );
    }
}

/// `wait`. A leaky bucket holds requests by itself, for as long as its queue needs.
fn wait(section: &mut Section<'_>, family: Option<&Family>) -> Patience {
    let leaks = matches!(family, Some(Family::LeakyBucket));
    if let Some(Family::Concurrency { .. }) = family {
        section.refuse_for("wait", "concurrency", NO_TURN);
    }
    let Some(item) = section.take("wait") else {
        return if leaks { Patience::ENDLESS } else { Patience::NONE };
    };
    let Some(wait) = item.duration(Zero::Allowed) else { return Patience::NONE };
    if leaks && wait.is_zero() {
        item.reject(
            "expected more than zero: a leaky bucket holds requests; without `wait` it does so for as \
             long as its `queue` needs",
        );
    }
    let wait = Patience::of(wait);
    if let Some(Family::SlidingLog) = family
        && wait > Patience::of(Duration::from_micros(MOST_LEAD))
    {
        item.reject("expected at most \"71m\": a sliding log reserves no place further ahead");
    }
    wait
}

/// `max_waiting`.
fn max_waiting(section: &mut Section<'_>, family: Option<&Family>) -> usize {
    if let Some(Family::Concurrency { .. }) = family {
        section.refuse_for("max_waiting", "concurrency", NO_TURN);
    }
    let most = section.whole("max_waiting", 0..=MAX_WAITING, DEFAULT_MAX_WAITING);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// `candidate`: its figures and its place.
pub(super) fn candidate(
    section: &mut Section<'_>,
    family: Option<&Family>,
) -> Option<(Figures, Span)> {
    if let Some(Family::Concurrency { .. }) = family {
        section.refuse_for("candidate", "concurrency", "slots that nobody holds cannot be tried");
    }
    let item = section.take("candidate")?;
    let mut inner = item.section(&CANDIDATE, "candidate")?;
    let figures = figures::build(&mut inner, family);
    inner.finish();
    Some((figures?, item.span))
}

/// The limit that tries these figures in place of `spec`'s own.
pub(super) fn trying(spec: &LimitSpec, figures: Figures) -> LimitSpec {
    LimitSpec {
        name: spec.name.of_candidate(),
        key: spec.key.clone(),
        figures,
        overrides: Overrides::default(),
        cost: spec.cost.clone(),
        wait: spec.wait,
        max_waiting: spec.max_waiting,
        candidate: None,
        count_when: spec.count_when.clone(),
        exempt: Exempt::default(),
        mode: Mode::Shadow,
        scope: spec.scope,
        on_store_error: spec.on_store_error,
        reject: None,
        limiter: None,
    }
}
