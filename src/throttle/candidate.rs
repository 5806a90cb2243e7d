//! Candidates: other figures on trial for a limit. `gather` asks a candidate right behind its limit. A
//! candidate never has an effect on requests.

use super::gather::RequestLimit;
use crate::limit::Mode;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::plan::LimitSpec;

/// The ask of a limit's candidate for the same request. `None` where the candidate lets everything pass.
pub(super) fn ask(
    candidate: &LimitSpec,
    (mode, algorithm): (Mode, Option<Algorithm>),
    cost: Cost,
    wall: Timestamp,
) -> Option<Ask> {
    let mode = match (algorithm, mode) {
        // A limit that lets everything pass or is in shadow refuses no request: its candidate replaces
        // none.
        (None, _) | (_, Mode::Shadow) => Mode::Shadow,
        (Some(_), _) => Mode::Candidate,
    };
    let algorithm = candidate.figures.at(wall)?;
    Some(Ask { algorithm, cost, patience: candidate.wait, mode })
}

/// Where an enforcing limit is closed, the other limits take nothing and need not be asked. They are left
/// out, except closed limits, and the candidate where only one limit is closed.
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
