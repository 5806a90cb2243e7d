//! Which claims are asked by one call to Redis.

use futures_util::future::join_all;

use crate::limit::decide::PerAsk;
use crate::redis::HashSlot;
use crate::store::bucket::RedisAsk;
use crate::store::claim::{Claim, Party};
use crate::store::grant::Grant;
use crate::store::redis::SlotAsk;

/// Which claims are asked by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// All claims whose keys share a slot.
    BySlot,
    /// Each claim by itself.
    Apart,
}

/// The claims of one call.
pub(super) type SlotCall<'c, 'p> = PerAsk<&'c mut Claim<'p>>;

/// The calls for the open claims on buckets in Redis, in the order of the claims.
pub(super) fn calls<'c, 'p>(
    claims: &'c mut [&mut Claim<'p>],
    grouping: Grouping,
) -> PerAsk<SlotCall<'c, 'p>> {
    let mut calls: PerAsk<(HashSlot, SlotCall<'c, 'p>)> = PerAsk::new();
    for claim in claims.iter_mut().filter(|claim| claim.is_open()) {
        let Party::Bucket(place) = claim.party else { continue };
        let is_of = |call: &&mut (HashSlot, SlotCall<'c, 'p>)| {
            grouping == Grouping::BySlot && call.0 == place.hash_slot
        };
        match calls.iter_mut().find(is_of) {
            Some((_, call)) => call.push(claim),
            None => calls.push((place.hash_slot, PerAsk::from_iter([&mut **claim]))),
        }
    }
    calls.into_iter().map(|(_, call)| call).collect()
}

/// The question to a slot about a claim, for which this grant is held already.
pub(super) fn slot_ask<'r>(
    (claim, grant): (&'r &mut Claim<'_>, &Option<Box<Grant>>),
) -> Option<SlotAsk<'r>> {
    let asked = RedisAsk { ask: claim.question(), place: claim.place()? };
    Some(SlotAsk { asked, holder: grant.as_ref().and_then(|grant| grant.slot()) })
}

/// Waits for all answers. One call is the usual case.
pub(super) async fn all(mut asking: impl ExactSizeIterator<Item = impl Future<Output = ()>>) {
    match (asking.len(), asking.next()) {
        (1, Some(asking)) => asking.await,
        (_, first) => {
            join_all(first.into_iter().chain(asking)).await;
        }
    }
}
