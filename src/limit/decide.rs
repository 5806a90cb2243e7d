//! All or none over the limits of a route.

use smallvec::SmallVec;

use super::Mode;
use super::algorithm::{Algorithm, State};
use super::decision::{Decision, Verdict};
use super::rate::Cost;
use super::time::Timestamp;

/// One limit's question: what would it say to a request of this cost?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The figures that apply to this key.
    pub algorithm: Algorithm,
    /// What the request takes.
    pub cost: Cost,
    /// Whether its refusal counts.
    pub mode: Mode,
}

/// The answer to all of a route's asks at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// One decision for each ask, in their order. `remaining` is what is left after the verdict.
    pub decisions: SmallVec<[Decision; 4]>,
    /// The state to write for each ask, `None` where the stored one stays.
    pub writes: SmallVec<[Option<State>; 4]>,
    /// What the enforcing asks mean together.
    pub verdict: Verdict,
}

/// Decides over `asks`, whose buckets are in `states` (`None` is a new bucket; a list that is too
/// short stands for new buckets), at `now`.
///
/// Either every enforcing limit allows, and then each limit that allows takes, those in shadow
/// too; or one refuses, and none takes anything.
pub fn decide(asks: &[Ask], states: &[Option<State>], now: Timestamp) -> Decided {
    let steps: SmallVec<[_; 4]> = asks
        .iter()
        .zip(states.iter().copied().chain(std::iter::repeat(None)))
        .map(|(ask, state)| ask.algorithm.decide(state, ask.cost, now))
        .collect();
    let enforcing = asks
        .iter()
        .zip(&steps)
        .enumerate()
        .filter(|(_, (ask, _))| ask.mode == Mode::Enforce)
        .map(|(place, (_, step))| (place, step.decision.outcome));
    let verdict = Verdict::over(enforcing);
    let pass = verdict == Verdict::Pass;
    let decisions = steps
        .iter()
        .map(|step| {
            let remaining = if pass { step.decision.remaining } else { step.untouched };
            Decision { remaining, ..step.decision }
        })
        .collect();
    let writes =
        steps.iter().map(|step| if pass { step.taken.or(step.kept) } else { step.kept }).collect();
    Decided { decisions, writes, verdict }
}
