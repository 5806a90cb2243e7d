//! Refusals that need no question: a bucket in Redis that refused a cost goes on refusing it until a moment that
//! Redis has named. Until then this worker refuses by itself. `outage` asks here before it asks Redis.
//!
//! The answer is the one that Redis would give. Only the number of remaining tokens may be too low: where a
//! request takes several tokens, some may have come back since. The wait is counted from the time before the
//! question was sent. Therefore the wait never ends later here than in Redis, and no clocks are compared.
//! After the wait Redis is asked again. A request is refused here only if all its limits in Redis refuse,
//! because the answer names each limit that refuses.
//!
//! After the wait one request asks, and the others wait for its answer. Otherwise a crowd would ask for each
//! token. If the answer leaves too few tokens for another request, the next moment of a token bucket can be
//! calculated. For other buckets the next request asks again.
//!
//! A refusal is known for two seconds at most, and only as long as the connection lasts. Therefore a key
//! that an operator deletes in Redis, or a Redis that lost its data, is noticed soon. A reload, a change of the
//! overrides or a reset of a bucket begins a new generation. This ends all known refusals at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::claim::{Claim, Party, RedisPlace};
use super::memory::{Identity, Memory};
use super::process::ProcessStore;
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::rate::Cost;
use crate::limit::time::Timestamp;
use crate::limit::waiting::MaxWait;
use crate::limit::{Mode, Scope};

/// The longest time for which a refusal is known. Of the requests of a flood that is refused, one in this
/// time reaches Redis.
const LONGEST: Duration = Duration::from_secs(2);

/// The time in which one request asks Redis again, while others are still refused here.
const ASKING: Duration = Duration::from_millis(100);

/// The most refusals that a worker knows. One takes about a hundred bytes.
const MOST: usize = 16_384;

/// The most costs of one bucket whose refusals are known.
const MOST_COSTS: usize = 4;

/// The refusals that a worker knows.
#[derive(Default)]
pub(super) struct KnownRefusals(Mutex<RefusalTable>);

#[derive(Default)]
struct RefusalTable {
    /// One refusal for each cost that a bucket has refused.
    refusals: HashMap<Identity, SmallVec<[KnownRefusal; 1]>>,
    /// The buckets that lately refused a request about which other parties were asked too, each with the end
    /// of this note. A bucket whose refusal may end at any time is noted as well.
    lately: HashMap<Identity, Timestamp>,
    /// When ended refusals were last removed from a full table.
    cleaned: Option<Timestamp>,
}

struct KnownRefusal {
    /// With other figures the bucket may not refuse.
    algorithm: Algorithm,
    /// A request that takes less may pass.
    cost: Cost,
    /// The tokens that were left: fewer than the cost.
    remaining: u64,
    /// When the bucket has a token again, by the process's steady clock.
    ends: Timestamp,
    /// Until when the refusal is believed.
    until: Timestamp,
    /// The server's connection that refused, and the generation of overrides and buckets.
    place: RedisPlace,
    /// No other slot was asked together with this one. Otherwise a request that another slot refuses may give
    /// tokens back at any moment.
    is_exact: bool,
    /// `Some` while a request asks Redis after the wait. Wakes the requests that wait for the answer.
    asked_by: Option<Arc<Notify>>,
}

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
    /// Refuses the request if a refusal of each of its limits in Redis is known. Limits of scope `node` are asked
    /// here, and take nothing. `None` if the request is refused. Otherwise the claims stay unchanged.
    pub(super) fn refuse(
        &self,
        shared: &ProcessStore,
        claims: &mut [&mut Claim<'_>],
        now: Timestamp,
    ) -> Option<RefusalLookup<'_>> {
        let mut known = self.0.lock();
        let is_sure = |claim: &Claim<'_>| is_lasting(claim) || is_of_process(claim);
        if known.refusals.is_empty() || !claims.iter().all(|claim| is_sure(claim)) {
            return Some(RefusalLookup::Asks(None));
        }
        let said: Option<PerAsk<Option<Decision>>> = claims
            .iter()
            .map(|claim| match claim.party {
                Party::Process => Some(None),
                _ => known.refusal_of(&shared.memory, claim, now).map(Some),
            })
            .collect();
        let Some(said) = said else {
            // If other limits are asked too, one of them may refuse the request. The token would stay in the
            // bucket, and the others would have waited in vain.
            return Some(match claims {
                [claim] => known.ask(self, shared.memory.identity(&claim.question()), claim, now),
                _ => RefusalLookup::Asks(None),
            });
        };
        drop(known);
        for (claim, said) in claims.iter_mut().zip(said) {
            let here = || shared.memory.look(&claim.question(), shared.wall.both(now));
            (claim.decision, claim.party) = match said {
                Some(decision) => (Some(decision), Party::Nobody),
                None => (Some(here()), Party::Process),
            };
        }
        shared.known_refusals.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Whether this limit refused the key a moment ago, and so probably refuses it again. Only known where
    /// several parties were asked.
    pub(super) fn refused_lately(
        &self,
        memory: &Memory,
        claim: &Claim<'_>,
        now: Timestamp,
    ) -> bool {
        let lately = &self.0.lock().lately;
        !lately.is_empty()
            && lately.get(&memory.identity(&claim.question())).is_some_and(|until| now < *until)
    }

    /// The bucket is reset. Its known refusals no longer hold.
    pub(super) fn forget_bucket(&self, bucket: &Identity) {
        self.0.lock().refusals.remove(bucket);
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
        let shared = claims.iter().filter(|claim| claim.spec.scope == Scope::Cluster);
        let mut slots = shared.map(|claim| claim.place.slot);
        let is_exact = slots.next().is_none_or(|first| slots.all(|slot| slot == first));
        if !is_exact || claims.iter().any(|claim| claim.party == Party::Limiter) {
            self.note_lately(memory, claims, asked);
        }
        for claim in claims.iter().filter(|claim| claim.party == Party::Redis) {
            let Some(Decision { outcome, remaining }) = claim.decision else { continue };
            // A claim has the connection number 0 until the first connection to its server is made.
            let (place, Some(1..)) = (claim.place, claim.place.connection) else { continue };
            let after = match outcome {
                Outcome::Reject { retry_after } if is_lasting(claim) => retry_after,
                _ => None,
            };
            let (algorithm, cost) = (claim.ask.algorithm, claim.ask.cost);
            let mut known = self.0.lock();
            let Some(after) = after else {
                // Somebody may have reset the bucket. Then it has tokens that it lacked before.
                if !known.refusals.is_empty() && outcome.passes() {
                    let bucket = memory.identity(&claim.question());
                    let had = remaining.saturating_add(cost.get());
                    if let Some(refusals) = known.refusals.get_mut(&bucket) {
                        refusals.retain(|refusal| {
                            let is_asked = asker.is_some_and(|asker| refusal.is_asked_by(asker));
                            let is_empty = is_asked && refusal.cost.get() > remaining;
                            if is_empty {
                                refusal.took(remaining, asked);
                            }
                            is_empty || refusal.cost.get() > had
                        });
                    }
                }
                continue;
            };
            if !known.has_room(asked) {
                return;
            }
            let (ends, until) = (asked.plus(after), asked.plus(after.min(LONGEST)));
            let refusal = KnownRefusal {
                algorithm,
                cost,
                remaining,
                ends,
                until,
                place,
                is_exact,
                asked_by: None,
            };
            known.add(memory.identity(&claim.question()), refusal);
        }
    }

    fn note_lately(&self, memory: &Memory, claims: &[&mut Claim<'_>], asked: Timestamp) {
        let is_there = |claim: &Claim<'_>| matches!(claim.party, Party::Redis | Party::Limiter);
        for claim in claims.iter().filter(|claim| is_there(claim) && claim.refuses()) {
            let mut known = self.0.lock();
            if known.has_room(asked) {
                known.lately.insert(memory.identity(&claim.question()), asked.plus(LONGEST));
            }
        }
    }
}

impl KnownRefusal {
    fn is_of(&self, claim: &Claim<'_>) -> bool {
        let Ask { algorithm, cost, .. } = claim.ask;
        (self.algorithm, self.cost, self.place) == (algorithm, cost, claim.place)
    }

    fn is_asked_by(&self, asker: &Asker<'_>) -> bool {
        self.asked_by.as_ref().is_some_and(|wakes| Arc::ptr_eq(wakes, &asker.wakes))
    }

    /// The request that asked has taken what was there at `ends`, and too little remains for another request.
    fn took(&mut self, remaining: u64, asked: Timestamp) {
        let next = self.algorithm.time_for(self.cost).unwrap_or_default();
        (self.ends, self.until) = (self.ends.plus(next), asked.plus(LONGEST));
        (self.remaining, self.asked_by) = (remaining, None);
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        let mut known = self.known.0.lock();
        let mut refusals = known.refusals.get_mut(&self.bucket).into_iter().flatten();
        if let Some(refusal) = refusals.find(|refusal| refusal.is_asked_by(self)) {
            refusal.asked_by = None;
        }
        self.wakes.notify_waiters();
    }
}

impl RefusalTable {
    /// What Redis would say to a claim whose refusal is known.
    fn refusal_of(
        &mut self,
        memory: &Memory,
        claim: &Claim<'_>,
        now: Timestamp,
    ) -> Option<Decision> {
        let refusals = self.refusals.get_mut(&memory.identity(&claim.question()))?;
        let refusal = refusals.iter_mut().find(|refusal| refusal.is_of(claim))?;
        if !refusal.is_exact || now >= refusal.ends {
            return None;
        }
        if now >= refusal.until {
            // This request asks Redis again. Requests that come meanwhile are still refused here.
            refusal.until = now.plus(ASKING);
            return None;
        }
        let retry_after = Some(Duration::from_micros(refusal.ends.micros_since(now)));
        Some(Decision { outcome: Outcome::Reject { retry_after }, remaining: refusal.remaining })
    }

    /// Whether this request asks Redis about the bucket, or waits for the answer to another request.
    fn ask<'k>(
        &mut self,
        known: &'k KnownRefusals,
        bucket: Identity,
        claim: &Claim<'_>,
        now: Timestamp,
    ) -> RefusalLookup<'k> {
        let mut refusals = self.refusals.get_mut(&bucket).into_iter().flatten();
        let ended = |it: &&mut KnownRefusal| it.is_of(claim) && it.is_exact && now >= it.ends;
        let Some(refusal) = refusals.find(ended) else { return RefusalLookup::Asks(None) };
        if let Some(wakes) = &refusal.asked_by {
            return RefusalLookup::Waits(Arc::clone(wakes).notified_owned());
        }
        let wakes = Arc::new(Notify::new());
        refusal.asked_by = Some(Arc::clone(&wakes));
        RefusalLookup::Asks(Some(Asker { known, bucket, wakes }))
    }

    /// Adds the refusal of one cost in place of an older one.
    fn add(&mut self, bucket: Identity, refusal: KnownRefusal) {
        let refusals = self.refusals.entry(bucket).or_default();
        refusals.retain(|known| known.cost != refusal.cost);
        if refusals.len() >= MOST_COSTS {
            refusals.remove(0);
        }
        refusals.push(refusal);
    }

    /// Whether one more refusal fits. A full table is looked through now and then, and not for each refusal.
    fn has_room(&mut self, now: Timestamp) -> bool {
        let is_due = self.cleaned.is_none_or(|cleaned| cleaned.plus(ASKING) <= now);
        if self.refusals.len() + self.lately.len() >= MOST && is_due {
            self.refusals.retain(|_, of| of.iter().any(|refusal| now < refusal.until));
            self.lately.retain(|_, until| now < *until);
            self.cleaned = Some(now);
        }
        self.refusals.len() + self.lately.len() < MOST
    }
}

/// Whether the process itself decides. False for a candidate: it may take where its limit alone refuses.
fn is_of_process(claim: &Claim<'_>) -> bool {
    claim.party == Party::Process && claim.ask.mode != Mode::Candidate
}

/// Whether a refusal of this claim lasts until the moment that Redis names. A limit that holds requests or
/// settles them later may give tokens back before. A slot may come back at any time. A limit in shadow is
/// asked each time, since its decisions are counted.
fn is_lasting(claim: &Claim<'_>) -> bool {
    claim.party == Party::Redis
        && claim.ask.mode == Mode::Enforce
        && claim.ask.max_wait == MaxWait::NONE
        && claim.spec.wait == MaxWait::NONE
        && !claim.spec.is_settled()
        && !matches!(claim.ask.algorithm, Algorithm::Concurrency(_))
}
