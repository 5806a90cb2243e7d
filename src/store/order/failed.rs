//! Claims on which Redis did not decide. Their limits follow `on_store_error`.

use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::plan::OnStoreError;
use crate::redis::HashSlot;
use crate::store::access::Store;
use crate::store::claim::{Claim, ClaimFailure, Party};

/// Redis does not decide, and an enforcing limit has `on_store_error = "reject"`. What other limits gave
/// goes back. Tokens of a call that Redis did not answer in time may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is out of reach, and a limit rejects requests then")]
pub struct Unavailable {
    /// The index of that limit's claim among the claims that were given to [`Store::take`].
    pub by: usize,
}

/// The server that has this claim's key did not decide.
pub(super) fn lose(store: &Store, claim: &mut Claim<'_>) {
    claim.fail(ClaimFailure::Unreachable);
    store.known.forget(&store.shared.memory, &claim.question());
}

/// Some of these claims may have failed. With `on_store_error = "local"` or `"allow"` the request goes on. `missed`
/// gets the hash slot of a claim on which its server did not decide.
///
/// # Errors
/// If a limit has `on_store_error = "reject"`.
pub(super) fn follow_on_store_error(
    claims: &mut [&mut Claim<'_>],
    missed: &mut Option<HashSlot>,
) -> Result<(), Unavailable> {
    for (by, claim) in claims.iter().enumerate() {
        let Some(failure) = claim.failure() else { continue };
        let location = claim.location().filter(|_| failure == ClaimFailure::Unreachable);
        let hash_slot = location.map(|it| it.hash_slot);
        if (claim.spec.on_store_error, claim.ask.mode) == (OnStoreError::Reject, Mode::Enforce) {
            *missed = hash_slot;
            return Err(Unavailable { by });
        }
        *missed = missed.or(hash_slot);
    }
    Ok(())
}

/// Whether this process is still to decide on the claim.
pub(super) fn is_left_to_process(claim: &Claim<'_>) -> bool {
    match claim.failure() {
        None => claim.is_open() && claim.party == Party::Process,
        Some(_) => claim.spec.on_store_error == OnStoreError::Local,
    }
}

/// The claims on which this process is still to decide.
pub(super) fn left_to_process<'c, 'p>(
    claims: &'c mut [&mut Claim<'p>],
) -> PerAsk<&'c mut Claim<'p>> {
    let claims = claims.iter_mut().map(|claim| &mut **claim);
    claims.filter(|claim| is_left_to_process(claim)).collect()
}
