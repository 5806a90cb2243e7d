//! Refusals that a worker knows, so that Redis need not be asked. When a bucket in Redis refuses a cost, Redis names
//! the moment at which the refusal ends. Until this moment the worker refuses that cost by itself. `order` looks here
//! before it asks Redis.
//!
//! The decision is the same as that of Redis. Only `remaining` may be too low, for requests of several tokens: some
//! tokens may have come back meanwhile. The worker counts the wait from before it sent the question. So the wait never
//! ends later here than in Redis, and no clocks are compared.
//!
//! An answer to a client names each limit that refuses. So a request is refused here only if the decisions of all its
//! limits in Redis are known: each refuses or has room. The worker believes that a limit has room only for as long as
//! other requests can hardly have used it up, and for a tenth of a second at most. Then one request asks Redis again.
//! If a limit has little room, each request asks Redis about it.
//!
//! After the wait one request asks Redis, and the others wait for its answer. Otherwise a crowd would ask for each
//! token. If the answer leaves too few tokens for another request, the bucket refuses again. For a token bucket the end
//! of this refusal can be calculated. For other buckets the next request asks.
//!
//! A refusal is known for at most two seconds, and only as long as the connection lasts. So this worker soon notices
//! that an operator has deleted a key in Redis, or that Redis has lost its data. A reload, a change of the overrides
//! that is no ban, or a reset of a bucket begins a new generation, which ends all known refusals at once.

mod table;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use self::table::{Flight, KnownAnswer, KnownRefusal, RefusalTable, is_lasting, may_be_known};
use super::bucket::{BucketAsk, RedisAnswer, RedisAsk};
use super::memory::{Identity, Memory};
use crate::limit::decide::PerAsk;
use crate::limit::decision::{Decision, Outcome};
use crate::limit::time::Timestamp;

/// The refusals that a worker knows.
#[derive(Default)]
pub(super) struct KnownRefusals(Mutex<RefusalTable>);

/// One limit of a request that is looked up.
#[derive(Clone, Copy)]
pub(super) enum LookedUp<'r> {
    /// Its bucket is in Redis.
    InRedis(RedisAsk<'r>),
    /// Its bucket is in this process.
    Here,
    /// Its decision is never known. It has to be asked.
    Unknown,
}

/// What a request does if its refusal is not known.
pub(super) enum NotKnown<'k> {
    /// This request has to ask Redis. There is a `Leader` if others wait for the answer.
    Ask(Option<Leader<'k>>),
    /// Another request is asking Redis now. When Redis has answered, this request is looked up again.
    Wait(OwnedNotified),
}

/// The request that asks Redis about a bucket whose wait has ended. Others wait until this is dropped.
pub(super) struct Leader<'k> {
    known: &'k KnownRefusals,
    bucket: Identity,
    wakes: Arc<Notify>,
}

impl KnownRefusals {
    /// Looks a request up. Its refusal is known if one of its limits is known to refuse, and the decisions of all its
    /// other limits in Redis are known too. Returns the decision of each limit, in their order: `None` if the bucket
    /// is in this process.
    ///
    /// # Errors
    /// If the refusal is not known.
    pub(super) fn look_up<'r>(
        &self,
        memory: &Memory,
        limits: impl Iterator<Item = LookedUp<'r>> + Clone,
        now: Timestamp,
    ) -> Result<PerAsk<Option<Decision>>, NotKnown<'_>> {
        let mut table = self.0.lock();
        let may_be_known = |limit| match limit {
            LookedUp::InRedis(asked) => may_be_known(&asked.ask),
            LookedUp::Here => true,
            LookedUp::Unknown => false,
        };
        if table.refusals.is_empty() || !limits.clone().all(may_be_known) {
            return Err(NotKnown::Ask(None));
        }
        // `find` is called for every limit, even if an earlier limit is not known: it also notes that this request asks
        // Redis again.
        let known: PerAsk<Option<KnownAnswer>> = limits
            .clone()
            .map(|limit| match limit {
                LookedUp::InRedis(asked) => table.find(memory, &asked, now),
                LookedUp::Here | LookedUp::Unknown => Some(KnownAnswer::Here),
            })
            .collect();
        let known: Option<PerAsk<KnownAnswer>> = known.into_iter().collect();
        let Some(known) = known else { return Err(NotKnown::Ask(None)) };
        let mut ended = limits.zip(&known).filter(|(_, it)| matches!(it, KnownAnswer::Ended));
        let refuses = known.iter().any(|known| matches!(known, KnownAnswer::Refusal(_)));
        let rooms = known.iter().filter(|known| matches!(known, KnownAnswer::Room(_))).count();
        match (ended.next(), refuses) {
            (None, true) => {}
            // Other requests wait for this one only if all its other limits have room. Otherwise it might not take the
            // token, and they would have waited for nothing.
            (Some((LookedUp::InRedis(asked), _)), false) if rooms + 1 == known.len() => {
                let bucket = memory.identity(&asked.ask);
                return Err(match table.join_flight(&bucket, &asked, now) {
                    Some(Flight::Lead(wakes)) => {
                        NotKnown::Ask(Some(Leader { known: self, bucket, wakes }))
                    }
                    Some(Flight::Follow(woken)) => NotKnown::Wait(woken),
                    None => NotKnown::Ask(None),
                });
            }
            _ => return Err(NotKnown::Ask(None)),
        }
        let decisions = known.into_iter().map(|known| match known {
            KnownAnswer::Refusal(decision) | KnownAnswer::Room(decision) => Some(decision),
            KnownAnswer::Here | KnownAnswer::Ended => None,
        });
        Ok(decisions.collect())
    }

    /// The bucket is reset, or Redis did not answer. Its known refusals may no longer hold.
    pub(super) fn forget(&self, memory: &Memory, ask: &BucketAsk<'_>) {
        let bucket = memory.identity(ask);
        let mut table = self.0.lock();
        table.refusals.remove(&bucket);
        table.rooms.remove(&bucket);
    }

    /// Notes what Redis has said to one request. `asked` is a time before the question was sent. `leader` is `Some` if
    /// other requests wait for the answer and this request has taken.
    pub(super) fn note(
        &self,
        memory: &Memory,
        answers: &[RedisAnswer<'_>],
        asked: Timestamp,
        leader: Option<&Leader<'_>>,
    ) {
        let refuses = answers.iter().any(|it| it.refuses() && is_lasting(&it.asked.ask));
        for answer in answers {
            // The connection's number is 0 until the first connection to the server is made.
            let Some(1..) = answer.asked.location.connection else { continue };
            let (ask, Decision { outcome, remaining }) = (&answer.asked.ask, answer.decision);
            let mut table = self.0.lock();
            let is_new_room = refuses && may_be_known(ask);
            let is_new =
                is_new_room || matches!(outcome, Outcome::Reject { .. }) && is_lasting(ask);
            if !is_new && table.refusals.is_empty() && table.rooms.is_empty() {
                continue;
            }
            let bucket = memory.identity(ask);
            table.clean(asked);
            if is_new_room || !table.rooms.is_empty() {
                table.note_room(bucket, answer, refuses, asked);
            }
            match outcome {
                Outcome::Reject { retry_after: Some(after) } if is_lasting(ask) => {
                    if !table.has_space(asked) {
                        return;
                    }
                    table.add(bucket, KnownRefusal::of(answer, after, asked));
                }
                Outcome::Allow | Outcome::Delay(_) => {
                    let Some(refusals) = table.refusals.get_mut(&bucket) else { continue };
                    // The bucket has room, so its known refusals end. The refusal about which the leader asked stays if
                    // too little remains for its cost.
                    refusals.retain(|refusal| {
                        let is_asked = leader.is_some_and(|it| refusal.is_asked_by(&it.wakes));
                        let is_empty = is_asked && refusal.cost.get() > remaining;
                        if is_empty {
                            refusal.took(ask.ask.cost, remaining, asked);
                        }
                        is_empty
                    });
                }
                Outcome::Reject { .. } => {}
            }
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.known.0.lock().end_flight(&self.bucket, &self.wakes);
    }
}

#[cfg(test)]
mod tests;
