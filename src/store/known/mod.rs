//! Refusals that need no question: a bucket in Redis that refused a cost goes on refusing it until a moment that
//! Redis has named. Until then this worker refuses by itself. `order` asks here before it asks Redis.
//!
//! The answer is the one that Redis would give. Only the number of remaining tokens may be too low: where a
//! request takes several tokens, some may have come back since. The wait is counted from the time before the
//! question was sent. Therefore the wait never ends later here than in Redis, and no clocks are compared.
//! After the wait Redis is asked again.
//!
//! The answer to a client names each limit that refuses. So a request is refused here only if each of its limits in
//! Redis is known to refuse, or had room a tenth of a second ago. One request in this time asks Redis.
//!
//! After the wait one request asks, and the others wait for its answer. Otherwise a crowd would ask for each
//! token. If the answer leaves too few tokens for another request, the next moment of a token bucket can be
//! calculated. For other buckets the next request asks again.
//!
//! A refusal is known for two seconds at most, and only as long as the connection lasts. Therefore a key
//! that an operator deletes in Redis, or a Redis that lost its data, is noticed soon. A reload, a change of the
//! overrides or a reset of a bucket begins a new generation. This ends all known refusals at once.

mod table;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use self::table::{KnownAnswer, KnownRefusal, RefusalTable, Turn, is_lasting, may_be_known};
use super::claim::{Claim, Party};
use super::memory::{Identity, Memory};
use super::process::ProcessStore;
use crate::limit::Mode;
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::time::Timestamp;

/// The refusals that a worker knows.
#[derive(Default)]
pub(super) struct KnownRefusals(Mutex<RefusalTable>);

/// What becomes of a request that no known refusal refuses.
pub(super) enum RefusalLookup<'k> {
    /// Redis has to be asked, by the `Asker` if others wait for the answer.
    Asks(Option<Asker<'k>>),
    /// Another request is asking Redis now. When Redis has answered, this request is looked up again.
    Waits(OwnedNotified),
}

/// The request that asks Redis about a bucket whose wait has ended. Others wait until this is dropped.
pub(super) struct Asker<'k> {
    known: &'k KnownRefusals,
    bucket: Identity,
    wakes: Arc<Notify>,
}

impl KnownRefusals {
    /// Refuses the request if a refusal is known, and all its other limits in Redis are known too. Limits of scope
    /// `node` are asked here, and take nothing. `None` if the request is refused. Otherwise the claims stay unchanged.
    pub(super) fn refuse(
        &self,
        shared: &ProcessStore,
        claims: &mut [&mut Claim<'_>],
        now: Timestamp,
    ) -> Option<RefusalLookup<'_>> {
        let mut table = self.0.lock();
        let may_be_known = |claim: &Claim<'_>| is_of_process(claim) || may_be_known(claim);
        if table.refusals.is_empty() || !claims.iter().all(|claim| may_be_known(claim)) {
            return Some(RefusalLookup::Asks(None));
        }
        // This request may ask about several limits for the others, so all are looked up.
        let known: PerAsk<Option<KnownAnswer>> = claims
            .iter()
            .map(|claim| match claim.party {
                Party::Process => Some(KnownAnswer::Here),
                _ => table.find(&shared.memory, claim, now),
            })
            .collect();
        let known: Option<PerAsk<KnownAnswer>> = known.into_iter().collect();
        let Some(known) = known else { return Some(RefusalLookup::Asks(None)) };
        let mut ended =
            claims.iter().zip(&known).filter(|(_, known)| matches!(known, KnownAnswer::Ended));
        let rooms = known.iter().filter(|known| matches!(known, KnownAnswer::Room(_))).count();
        match (ended.next(), known.iter().any(|known| matches!(known, KnownAnswer::Refusal(_)))) {
            (None, true) => {}
            // If this process or another limit refuses the request, the token stays in the bucket. The others would
            // have waited in vain.
            (Some((claim, _)), false) if rooms + 1 == known.len() => {
                let bucket = shared.memory.identity(&claim.question());
                return Some(match table.turn(&bucket, claim, now) {
                    Some(Turn::First(wakes)) => {
                        RefusalLookup::Asks(Some(Asker { known: self, bucket, wakes }))
                    }
                    Some(Turn::Later(woken)) => RefusalLookup::Waits(woken),
                    None => RefusalLookup::Asks(None),
                });
            }
            _ => return Some(RefusalLookup::Asks(None)),
        }
        drop(table);
        for (claim, known) in claims.iter_mut().zip(known) {
            let here = || shared.memory.look(&claim.question(), shared.wall.both(now));
            (claim.decision, claim.party) = match known {
                KnownAnswer::Refusal(decision) | KnownAnswer::Room(decision) => {
                    (Some(decision), Party::Nobody)
                }
                KnownAnswer::Here | KnownAnswer::Ended => (Some(here()), Party::Process),
            };
        }
        shared.known_refusals.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// The bucket is reset. Its known refusals no longer hold.
    pub(super) fn forget_bucket(&self, bucket: &Identity) {
        let mut table = self.0.lock();
        table.refusals.remove(bucket);
        table.rooms.remove(bucket);
    }

    /// Redis did not answer. The known refusals of this bucket may no longer hold.
    pub(super) fn forget(&self, memory: &Memory, claim: &Claim<'_>) {
        self.forget_bucket(&memory.identity(&claim.question()));
    }

    /// Notes what Redis said about these claims. `asked` is a time before the question was sent. `asker` is
    /// there if other requests wait for the answer.
    pub(super) fn note(
        &self,
        memory: &Memory,
        claims: &[&mut Claim<'_>],
        asked: Timestamp,
        asker: Option<&Asker<'_>>,
    ) {
        let refuses = claims.iter().any(|claim| claim.refuses() && is_lasting(claim));
        // If another limit refuses, the asker has taken nothing.
        let asker = asker.filter(|_| !claims.iter().any(|claim| claim.refuses()));
        for claim in claims.iter().filter(|claim| claim.party == Party::Redis) {
            let Some(Decision { outcome, remaining }) = claim.decision else { continue };
            // A claim has the connection number 0 until the first connection to its server is made.
            let Some(1..) = claim.place.connection else { continue };
            let mut table = self.0.lock();
            let is_new_room = refuses && may_be_known(claim);
            let is_new =
                is_new_room || matches!(outcome, Outcome::Reject { .. }) && is_lasting(claim);
            if !is_new && table.refusals.is_empty() && table.rooms.is_empty() {
                continue;
            }
            let bucket = memory.identity(&claim.question());
            table.clean(asked);
            if is_new_room || !table.rooms.is_empty() {
                table.note_room(bucket, claim, refuses, asked);
            }
            match outcome {
                Outcome::Reject { retry_after: Some(after) } if is_lasting(claim) => {
                    if !table.has_space(asked) {
                        return;
                    }
                    table.add(bucket, KnownRefusal::of(claim, after, asked));
                }
                Outcome::Allow | Outcome::Delay(_) => {
                    let Some(refusals) = table.refusals.get_mut(&bucket) else { continue };
                    // What was known of the bucket is not true any more, but for what its asker has found out.
                    refusals.retain(|refusal| {
                        let is_asked = asker.is_some_and(|it| refusal.is_asked_by(&it.wakes));
                        let is_empty = is_asked && refusal.cost.get() > remaining;
                        if is_empty {
                            refusal.took(claim.ask.cost, remaining, asked);
                        }
                        is_empty
                    });
                }
                Outcome::Reject { .. } => {}
            }
        }
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        self.known.0.lock().end_turn(&self.bucket, &self.wakes);
    }
}

/// Whether the process itself decides. False for a candidate: it may take where its limit alone refuses.
fn is_of_process(claim: &Claim<'_>) -> bool {
    claim.party == Party::Process && claim.ask.mode != Mode::Candidate
}
