//! Which claims of a request are asked together, and who decides on a claim in place of Redis.

use crate::limit::Mode;
use crate::limit::decide::{PerAsk, takers};
use crate::limit::decision::Outcome;
use crate::plan::OnStoreError;
use crate::store::Unavailable;
use crate::store::claim::{Claim, Party};
use crate::store::nodes::HashSlot;
use crate::store::redis::Verb;

/// Which claims are asked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// All claims whose keys share a slot.
    BySlot,
    /// Each claim by itself: the slot moves, and one server has some of the keys, another one the others.
    Apart,
}

pub(super) fn is_in_several_slots(claims: &[&mut Claim<'_>]) -> bool {
    let mut slots = claims.iter().filter(|claim| is_undecided(claim)).map(|it| it.place.slot);
    slots.next().is_some_and(|first| slots.any(|slot| slot != first))
}

/// Whether the process is still to decide on the claim.
pub(super) fn is_for_process(claim: &Claim<'_>) -> bool {
    claim.party == Party::Process && claim.decision.is_none()
}

/// Whether a Redisson limiter is still to be asked.
pub(super) fn is_open_limiter(claim: &Claim<'_>) -> bool {
    claim.party == Party::Limiter && claim.decision.is_none()
}

/// Whether the claim's bucket is still to be asked in Redis.
pub(super) fn is_undecided(claim: &Claim<'_>) -> bool {
    claim.party == Party::Redis && claim.decision.is_none()
}

/// Whether each claim takes, by what the claims have said so far.
pub(super) fn takes(claims: &[&mut Claim<'_>]) -> PerAsk<bool> {
    let outcome = |claim: &Claim<'_>| claim.decision.map_or(Outcome::Allow, |it| it.outcome);
    let outcomes: PerAsk<_> = claims.iter().map(|it| (it.ask.mode, outcome(it))).collect();
    takers(outcomes.into_iter()).collect()
}

/// What one call asks a slot.
pub(super) struct SlotParty<'c, 'p> {
    slot: HashSlot,
    pub(super) verb: Verb,
    /// The slot's undecided claims that are asked with this verb.
    pub(super) claims: PerAsk<&'c mut Claim<'p>>,
}

/// The undecided claims of each slot, in the order of the claims. Where the claims are only looked at, a candidate
/// that may stand in for its limit takes, by a call of its own.
pub(super) fn parties<'c, 'p>(
    claims: &'c mut [&mut Claim<'p>],
    verb: Verb,
    grouping: Grouping,
) -> PerAsk<SlotParty<'c, 'p>> {
    let may_take = if verb == Verb::Look { takes(claims) } else { PerAsk::new() };
    let mut parties: PerAsk<SlotParty<'c, 'p>> = PerAsk::new();
    for (place, claim) in claims.iter_mut().enumerate().filter(|(_, claim)| is_undecided(claim)) {
        let is_candidate = claim.ask.mode == Mode::Candidate;
        let stands_in = is_candidate && may_take.get(place) == Some(&true);
        let verb = if stands_in { Verb::Take } else { verb };
        let slot = claim.place.slot;
        let same = |party: &&mut SlotParty<'_, '_>| {
            grouping == Grouping::BySlot && (party.slot, party.verb) == (slot, verb)
        };
        match parties.iter_mut().find(same) {
            Some(party) => party.claims.push(claim),
            None => {
                parties.push(SlotParty { slot, verb, claims: PerAsk::from_iter([&mut **claim]) })
            }
        }
    }
    parties
}

/// The claims of one party.
pub(super) fn of<'c, 'p>(
    claims: &'c mut [&mut Claim<'p>],
    party: Party,
) -> PerAsk<&'c mut Claim<'p>> {
    claims.iter_mut().map(|claim| &mut **claim).filter(|claim| claim.party == party).collect()
}

/// Keeps a candidate with its limit, the claim right before it. If Redis cannot decide on the limit, it does
/// not decide on the candidate either. If Redis decides on the limit, but cannot decide on the candidate, the
/// candidate gets no decision.
pub(super) fn keep_together(claims: &mut [&mut Claim<'_>]) {
    for candidate in 1..claims.len() {
        let (limits, candidates) = claims.split_at_mut(candidate);
        let ([.., limit], [candidate, ..]) = (limits, candidates) else { return };
        if candidate.ask.mode != Mode::Candidate {
            continue;
        }
        match (limit.party, candidate.party) {
            (Party::WrongType | Party::Unreachable, Party::Redis) => {
                // It may have been asked by a call of its own. What it took goes back.
                candidate.reset();
                candidate.party = limit.party;
            }
            (Party::Redis, Party::WrongType | Party::Unreachable) => {
                candidate.party = Party::Nobody;
            }
            _ => {}
        }
    }
}

/// The party that decides in place of Redis, by the limit's `on_store_error`.
pub(super) fn without_redis(claim: &Claim<'_>, place: usize) -> Result<Party, Unavailable> {
    match (claim.spec.on_store_error, claim.ask.mode) {
        (OnStoreError::Local, _) => Ok(Party::Process),
        (OnStoreError::Reject, Mode::Enforce) => Err(Unavailable { by: place }),
        (OnStoreError::Allow, _) | (OnStoreError::Reject, Mode::Shadow | Mode::Candidate) => {
            Ok(Party::Nobody)
        }
    }
}
