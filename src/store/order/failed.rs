//! Claims on which Redis did not decide: which of them are left to this process.

use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::plan::OnStoreError;
use crate::store::claim::{Claim, ClaimFailure, Party};

/// Whether this process is still to decide on the claim.
pub(super) fn is_left_to_process(claim: &Claim<'_>) -> bool {
    match claim.failure() {
        None => claim.is_open() && claim.party == Party::Process,
        Some(ClaimFailure::Unreachable | ClaimFailure::UnusableKey) => {
            claim.spec.on_store_error == OnStoreError::Local
        }
        Some(ClaimFailure::CandidateAlone) => false,
    }
}

/// The claims on which this process is still to decide.
pub(super) fn left_to_process<'c, 'p>(
    claims: &'c mut [&mut Claim<'p>],
) -> PerAsk<&'c mut Claim<'p>> {
    let claims = claims.iter_mut().map(|claim| &mut **claim);
    claims.filter(|claim| is_left_to_process(claim)).collect()
}

/// A candidate stands right after its limit. If Redis cannot decide on the limit, it does not decide on the candidate
/// either. If Redis decides on the limit, but cannot decide on the candidate, the candidate gets no decision.
pub(super) fn keep_candidates_with_their_limits(claims: &mut [&mut Claim<'_>]) {
    for candidate in 1..claims.len() {
        let (limits, candidates) = claims.split_at_mut(candidate);
        let ([.., limit], [candidate, ..]) = (limits, candidates) else { return };
        if candidate.ask.mode != Mode::Candidate || candidate.party == Party::Process {
            continue;
        }
        match (limit.failure(), candidate.failure()) {
            // It may have been asked by a call of its own. What it took goes back.
            (Some(failure), None) => candidate.fail(failure),
            (None, Some(_)) => candidate.fail(ClaimFailure::CandidateAlone),
            _ => {}
        }
    }
}
