//! Other figures in place of a limit's own: asked right behind it, and never with an effect.

use super::gather::RequestLimit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::plan::LimitSpec;

/// What the candidate of a limit is asked, for the same request. `None` where it lets everything pass.
pub(super) fn ask(
    candidate: &LimitSpec,
    (mode, algorithm): (Mode, Option<Algorithm>),
    cost: Cost,
    wall: Timestamp,
) -> Option<Ask> {
    let mode = match (algorithm, mode) {
        // A limit that refuses nobody needs nobody to stand in for it, and is not asked.
        (None, _) | (_, Mode::Shadow) => Mode::Shadow,
        (Some(_), _) => Mode::Candidate,
    };
    let algorithm = candidate.figures.at(wall)?;
    Some(Ask { algorithm, cost, patience: candidate.wait, mode })
}

/// Where a limit lets nothing pass, ever, the others take nothing and need not be asked: all of them
/// but its candidate are left out.
pub(super) fn leave_closed(limits: &mut PerAsk<RequestLimit<'_>>) {
    let mut closed = limits
        .iter()
        .enumerate()
        .filter(|(_, limit)| limit.is_closed() && limit.mode() == Mode::Enforce)
        .map(|(place, _)| place);
    let Some(first) = closed.next() else { return };
    let is_only_one = closed.next().is_none();
    let mut place = 0;
    limits.retain(|limit| {
        let is_tried = is_only_one && place == first + 1 && limit.mode() == Mode::Candidate;
        place += 1;
        if is_tried {
            limit.claim.ask.mode = Mode::Shadow;
        }
        is_tried || limit.is_closed()
    });
}
