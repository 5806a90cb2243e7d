//! One decision over all limits of a route: a request takes from all of them or from none.
//!
//! `memory` calls [`decide`]; `call/shell.lua` does the same in Redis. The algorithms
//! in `algorithm` answer for each limit alone.

use smallvec::SmallVec;

use super::Mode;
use super::algorithm::{Algorithm, BucketState, Receipt, Step, Want};
use super::decision::{Decision, Outcome, Verdict};
use super::rate::Cost;
use super::time::Now;
use super::waiting::MaxWait;

/// One value for each ask. Most routes have one limit or two; more go to the heap.
pub type PerAsk<T> = SmallVec<[T; 2]>;

/// The question to one limit: would a request of this cost pass?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The figures that apply to this key.
    pub algorithm: Algorithm,
    /// The tokens that the request takes.
    pub cost: Cost,
    /// How long the request may be held instead of refused.
    pub max_wait: MaxWait,
    /// Whether the limit's refusal counts.
    pub mode: Mode,
    /// Whether the request takes its cost. A request that only looks gets the decision that it would get if it took,
    /// and has no `max_wait`.
    pub takes: bool,
}

impl Ask {
    /// Whether one token may be taken now. A refusal counts.
    pub fn for_one(algorithm: Algorithm) -> Self {
        let (cost, max_wait, mode) = (Cost::ONE, MaxWait::NONE, Mode::Enforce);
        Self { algorithm, cost, max_wait, mode, takes: true }
    }

    /// What the limit's algorithm would do with the request.
    pub(crate) fn step(&self, state: Option<BucketState>, now: Now) -> Step {
        let want = Want { cost: self.cost, max_wait: self.max_wait };
        let step = self.algorithm.decide(state, want, self.algorithm.time(now));
        if self.takes {
            return step;
        }
        let decision = Decision { remaining: step.untouched, ..step.decision };
        Step { decision, taken: None, ..step }
    }

    /// The receipt of a request that has taken at `now`. `taken` is the bucket's state after that.
    pub fn receipt(&self, outcome: Outcome, taken: BucketState, now: Now) -> Receipt {
        self.algorithm.receipt(outcome, taken, self.algorithm.time(now))
    }
}

/// The answer to all of a route's asks at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointDecision {
    /// One decision for each ask, in their order. `remaining` is what is left after the verdict.
    pub decisions: PerAsk<Decision>,
    /// The change of each ask's bucket, in the same order.
    pub changes: PerAsk<Change>,
    /// The decision of all enforcing asks together.
    pub verdict: Verdict,
}

/// How a decision changes a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The stored state stays.
    None,
    /// The state follows a clock that stepped back. Nothing was taken.
    Moved(BucketState),
    /// The request has taken, at the moment that this outcome says.
    Taken(BucketState, Outcome),
}

impl Change {
    /// The state to write.
    pub fn state(self) -> Option<BucketState> {
        match self {
            Self::None => None,
            Self::Moved(state) | Self::Taken(state, _) => Some(state),
        }
    }

    fn of(step: &Step, takes: bool) -> Self {
        match step.taken.filter(|_| takes) {
            Some(state) => Self::Taken(state, step.decision.outcome),
            None => step.kept.map_or(Self::None, Self::Moved),
        }
    }
}

/// Whether each limit takes, by the modes and outcomes of all limits. A limit that lets the request pass takes if no
/// enforcing limit refuses. A candidate takes in any case.
pub fn takers(
    outcomes: impl Iterator<Item = (Mode, Outcome)> + Clone,
) -> impl Iterator<Item = bool> {
    let passes = outcomes.clone().all(|(mode, outcome)| mode != Mode::Enforce || outcome.passes());
    outcomes.map(move |(mode, outcome)| outcome.passes() && (passes || mode == Mode::Candidate))
}

/// Decides over `asks`, each at `now` by [its clock](Algorithm::time). `states` has the states of their
/// buckets. `None`, or a missing state at the end, is a new bucket.
///
/// If all enforcing limits let the request pass, they take. A limit in shadow then takes if it lets the request pass
/// too. If an enforcing limit refuses, only candidates take: a candidate takes wherever it lets the request pass.
pub fn decide(asks: &[Ask], states: &[Option<BucketState>], now: Now) -> JointDecision {
    let state = |index: usize| states.get(index).copied().flatten();
    let steps: PerAsk<_> =
        asks.iter().enumerate().map(|(index, ask)| ask.step(state(index), now)).collect();
    let outcomes = asks.iter().zip(&steps).map(|(ask, step)| (ask.mode, step.decision.outcome));
    let enforcing = outcomes.clone().enumerate().filter(|(_, (mode, _))| *mode == Mode::Enforce);
    let verdict = Verdict::over(enforcing.map(|(index, (_, outcome))| (index, outcome)));
    let (mut decisions, mut changes) = (PerAsk::new(), PerAsk::new());
    for (step, takes) in steps.iter().zip(takers(outcomes)) {
        let remaining = if takes { step.decision.remaining } else { step.untouched };
        decisions.push(Decision { remaining, ..step.decision });
        changes.push(Change::of(step, takes));
    }
    JointDecision { decisions, changes, verdict }
}

/// The same as [`decide`] for one ask alone, since most requests have one limit: the decision, the change
/// of the bucket, and the verdict.
pub(crate) fn decide_one(
    ask: &Ask,
    state: Option<BucketState>,
    now: Now,
) -> (Decision, Change, Verdict) {
    let step = ask.step(state, now);
    let enforcing = (ask.mode == Mode::Enforce).then_some((0, step.decision.outcome));
    let verdict = Verdict::over(enforcing);
    let takes = verdict.passes();
    let remaining = if takes { step.decision.remaining } else { step.untouched };
    (Decision { remaining, ..step.decision }, Change::of(&step, takes), verdict)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::token_bucket::{Params, State as Bucket};
    use crate::rate::{Burst, Rate};
    use crate::time::Timestamp;
    use proptest::prelude::*;

    const HOUR: u64 = 3_600_000_000;

    fn ask(count: u64, burst: u64, cost: u64, mode: Mode) -> Ask {
        let rate = Rate::new(count, HOUR).unwrap();
        let algorithm = Algorithm::TokenBucket(Params { rate, burst: Burst::new(burst).unwrap() });
        Ask { cost: Cost::new(cost).unwrap(), mode, ..Ask::for_one(algorithm) }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    fn missing_of(state: Option<BucketState>) -> u64 {
        match state {
            Some(BucketState::Bucket(state)) => state.missing,
            _ => 0,
        }
    }

    /// What is missing in each bucket after these asks were decided on one after the other.
    fn missing(requests: &[&[Ask]], now: Timestamp) -> Vec<u64> {
        let mut states: Vec<Option<BucketState>> = vec![None; requests[0].len()];
        for asks in requests {
            let decided = decide(asks, &states, now.into());
            for (state, change) in states.iter_mut().zip(decided.changes) {
                *state = change.state().or(*state);
            }
        }
        states.iter().map(|state| missing_of(*state)).collect()
    }

    #[test]
    fn all_take_or_none() {
        use Mode::{Candidate, Enforce, Shadow};
        for (name, asks, expected) in [
            ("all allow", [ask(1, 9, 1, Enforce), ask(1, 9, 2, Enforce)], [2, 4]),
            ("one refuses", [ask(1, 9, 1, Enforce), ask(1, 2, 2, Enforce)], [1, 2]),
            ("a shadow refuses", [ask(1, 9, 1, Enforce), ask(1, 2, 2, Shadow)], [2, 2]),
            ("a shadow beside a refusal", [ask(1, 9, 1, Shadow), ask(1, 2, 2, Enforce)], [1, 2]),
            ("shadows alone", [ask(1, 1, 1, Shadow), ask(1, 9, 1, Shadow)], [1, 2]),
            ("a candidate and its limit", [ask(1, 9, 1, Enforce), ask(1, 9, 2, Candidate)], [2, 4]),
            ("a candidate refuses", [ask(1, 9, 1, Enforce), ask(1, 2, 2, Candidate)], [2, 2]),
            ("a candidate's limit does", [ask(1, 1, 1, Enforce), ask(1, 9, 1, Candidate)], [1, 2]),
            ("it comes first", [ask(1, 9, 1, Candidate), ask(1, 1, 1, Enforce)], [2, 1]),
            ("never", [ask(1, 9, 1, Enforce), ask(1, 2, 3, Enforce)], [0, 0]),
        ] {
            assert_eq!(missing(&[&asks, &asks], at(HOUR)), expected, "{name}");
        }
    }

    #[test]
    fn nobody_asked_means_pass() {
        let decided = decide(&[], &[], at(0).into());
        assert_eq!(decided.verdict, Verdict::PASS);
    }

    fn any_ask() -> impl Strategy<Value = (Ask, Option<BucketState>)> {
        let mode = prop_oneof![3 => Just(Mode::Enforce), 1 => Just(Mode::Shadow)];
        (1_u64..5_000, 1_u64..20, 1_u64..22, mode, prop::option::of((0_u64..40, 0..HOUR))).prop_map(
            |(count, burst, cost, mode, state)| {
                let ask = ask(count, burst, cost, mode);
                let Algorithm::TokenBucket(params) = ask.algorithm else { unreachable!() };
                let period = params.rate.period();
                let state = state.map(|(missing, rest)| {
                    let rest = rest % period;
                    BucketState::Bucket(Bucket { missing, rest, period, at: at(10 * HOUR) })
                });
                (ask, state)
            },
        )
    }

    proptest! {
        #[test]
        fn one_ask_is_decided_as_among_several(
            (ask, state) in any_ask(),
            off in -3_000_000_i64..3_000_000,
        ) {
            let now = at((10 * HOUR).saturating_add_signed(off));
            for mode in [Mode::Enforce, Mode::Shadow, Mode::Candidate] {
                let ask = Ask { mode, ..ask };
                let all = decide(&[ask], &[state], now.into());
                let (decision, change, verdict) = decide_one(&ask, state, now.into());
                prop_assert_eq!(all.decisions.as_slice(), [decision]);
                prop_assert_eq!(all.changes.as_slice(), [change]);
                prop_assert_eq!(all.verdict, verdict);
            }
        }

        #[test]
        fn the_wait_for_all_together_is_exact(
            asked in prop::collection::vec(any_ask(), 1..5),
            off in -3_000_000_i64..3_000_000,
        ) {
            let (asks, mut states): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
            let now = at((10 * HOUR).saturating_add_signed(off));
            let decided = decide(&asks, &states, now.into());
            for (state, change) in states.iter_mut().zip(&decided.changes) {
                *state = change.state().or(*state);
            }
            let Verdict::Refuse { by, retry_after } = decided.verdict else { return Ok(()) };
            prop_assert_eq!(decided.decisions[by].outcome, Outcome::Reject { retry_after });
            prop_assert_eq!(asks[by].mode, Mode::Enforce);
            match retry_after {
                Some(wait) => {
                    let then = decide(&asks, &states, now.plus(wait).into());
                    prop_assert_eq!(then.verdict, Verdict::PASS);
                    let before = now.plus(wait - Duration::from_micros(1));
                    let early = decide(&asks, &states, before.into());
                    prop_assert_ne!(early.verdict, Verdict::PASS);
                }
                None => {
                    let late = decide(&asks, &states, Timestamp::MAX.into());
                    prop_assert_ne!(late.verdict, Verdict::PASS);
                }
            }
        }

        #[test]
        fn a_refusal_takes_from_no_bucket(
            asked in prop::collection::vec(any_ask(), 1..5),
            now in 0..20 * HOUR,
        ) {
            let (asks, states): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
            let decided = decide(&asks, &states, at(now).into());
            for ((ask, state), (decision, change)) in
                asks.iter().zip(&states).zip(decided.decisions.iter().zip(&decided.changes))
            {
                let allowed = decision.outcome == Outcome::Allow;
                let before = missing_of(*state);
                let takes = allowed && decided.verdict == Verdict::PASS;
                prop_assert_eq!(matches!(change, Change::Taken(..)), takes);
                if let (Some(BucketState::Bucket(write)), false) = (change.state(), takes) {
                    prop_assert_eq!(write.missing, before, "{:?}", ask);
                }
            }
        }
    }
}
