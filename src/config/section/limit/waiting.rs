//! `wait`, `max_waiting` and `candidate` of a limit.

use std::time::Duration;

use super::algorithm::{Counting, Family};
use super::figures;
use super::rate::ELSEWHERE;
use crate::config::reader::{
    Count, Kind, Required, Section, SettingList, Shape, Span, field, fields,
};
use crate::limit::Mode;
use crate::limit::algorithm::sliding_log::MOST_LEAD;
use crate::limit::rate::MAX_TOKENS;
use crate::limit::waiting::MaxWait;
use crate::request::exempt::Exempt;
use crate::request::overrides::KeyOverrides;
use crate::settings::{Figures, LimitSpec};

/// A limit's `candidate`.
pub(crate) static CANDIDATE: Shape =
    Shape { elsewhere: ELSEWHERE, ..Shape::new("candidate", || fields(OF_CANDIDATE)) };

#[rustfmt::skip]
static OF_CANDIDATE: SettingList<()> = &[
    field("rate", Kind::Rate, Required, "as in the limit"),
    field("burst", Kind::Whole(1, MAX_TOKENS), Count("the candidate's own count"), "as in the limit"),
    field("queue", Kind::Whole(0, MAX_TOKENS - 1), Count("the candidate's own count"), "as in the limit"),
];

/// `wait`. Without `wait`, a leaky bucket holds requests for as long as its queue needs. With a `wait` of zero it
/// holds none.
pub(super) fn wait(section: &mut Section<'_>, counting: Option<&Counting>) -> MaxWait {
    let family = counting.map(|counting| counting.family);
    let leaks = family == Some(Family::LeakyBucket);
    let Some(item) = section.take("wait") else {
        if !leaks && family.is_some() {
            section.refuse_field(
                "max_waiting",
                "`max_waiting` has no effect without `wait`",
                "remove it, or add `wait`: without it no request is held",
            );
        }
        return if leaks { MaxWait::ENDLESS } else { MaxWait::NONE };
    };
    let Some(wait) = item.duration(&Kind::TIME) else { return MaxWait::NONE };
    let wait = MaxWait::of(wait);
    if family == Some(Family::SlidingLog) && wait > MaxWait::of(Duration::from_micros(MOST_LEAD)) {
        item.reject("expected at most \"71m\": a sliding log reserves no place further ahead");
    }
    wait
}

/// `candidate`: its figures and its position.
pub(super) fn candidate(
    section: &mut Section<'_>,
    counting: Option<&Counting>,
) -> Option<(Figures, Span)> {
    let item = section.take("candidate")?;
    let figures = figures::inner(item.section(&CANDIDATE, "candidate")?, counting)?;
    Some((figures, item.span))
}

/// The candidate of the limit `spec`: the same limit in shadow mode, with these other figures.
pub(super) fn trying(spec: &LimitSpec, figures: Figures) -> LimitSpec {
    LimitSpec {
        name: spec.name.of_candidate(),
        figures,
        overrides: KeyOverrides::default(),
        ban: None,
        near: None,
        candidate: None,
        exempt: Exempt::default(),
        mode: Mode::Shadow,
        reject: None,
        limiter: None,
        ..spec.clone()
    }
}
