//! Other figures in place of a limit's own: asked right behind it, and never with an effect.

use std::sync::Arc;

use super::applying::Applying;
use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::limit::time::Timestamp;
use crate::plan::{LimitSpec, Terms};

/// The candidate of a limit that applies, for the same request.
pub(super) fn of<'p>(
    candidate: &'p Arc<LimitSpec>,
    limit: &Applying<'p>,
    wall: Timestamp,
) -> Applying<'p> {
    Applying {
        spec: candidate,
        key: limit.key.clone(),
        terms: candidate.figures.at(wall),
        cost: limit.cost,
        mode: match (limit.terms, limit.mode) {
            // What does not refuse needs nobody to stand in for it, and is not asked.
            (Terms::Unlimited, _) | (_, Mode::Shadow) => Mode::Shadow,
            _ => Mode::Candidate,
        },
        place: None,
    }
}

/// Where a limit lets nothing pass, ever, the others take nothing and need not be asked: all of them
/// but its candidate are left out.
pub(super) fn leave_closed(applying: &mut PerAsk<Applying<'_>>) {
    let mut closed = applying
        .iter()
        .enumerate()
        .filter(|(_, limit)| limit.is_closed() && limit.mode == Mode::Enforce)
        .map(|(place, _)| place);
    let Some(first) = closed.next() else { return };
    let is_only_one = closed.next().is_none();
    let mut place = 0;
    applying.retain(|limit| {
        let is_tried = is_only_one && place == first + 1 && limit.mode == Mode::Candidate;
        place += 1;
        if is_tried {
            limit.mode = Mode::Shadow;
        }
        is_tried || limit.is_closed()
    });
}
