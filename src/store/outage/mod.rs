//! Asks the parties that decide on a request, one after the other. The buckets of this process come first: they
//! decide on limits of scope `node`. Then each Redisson limiter is asked by a call of its own, and all other
//! buckets in Redis by one call. In a cluster each slot is a party: the calls for all slots are sent at once. If
//! a party refuses, the tokens that the other parties gave go back to them. Therefore never too much passes.
//! Until the tokens are back, another request may be refused.
//!
//! Where Redis, or the server that has a key, does not decide, the limit follows its `on_store_error`. With `local`
//! this process decides with its share, in buckets of its own. `carry_over` writes into them what Redis says.

mod parties;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use self::parties::{
    Grouping, SlotParty, is_for_process, is_in_several_slots, is_open_limiter, is_undecided,
    keep_together, of, parties, takes, without_redis,
};
use super::claim::{Claim, Moment, Party, verdict};
use super::known::{Asker, RefusalLookup};
use super::memory::ReceiptUse;
use super::nodes::HashSlot;
use super::redis::{Redis, Verb, is_limiter};
use super::{Store, StoreError, Unavailable, carry_over, noting};
use crate::limit::decide::PerAsk;
use crate::limit::{Mode, Scope};

/// The most rounds of questions to the slots for one request.
const MOST_ROUNDS: usize = 4;

/// Decides over the claims where that needs no question to Redis, and then returns `None`.
pub(super) fn take_here<'q>(
    store: &'q Arc<Store>,
    redis: &Redis,
    claims: &mut [&mut Claim<'_>],
    moment: Moment,
) -> Option<RefusalLookup<'q>> {
    for claim in claims.iter_mut() {
        claim.party = match claim.spec.scope {
            Scope::Node => Party::Process,
            Scope::Cluster if is_limiter(&claim.ask) => Party::Limiter,
            Scope::Cluster => Party::Redis,
        };
    }
    if claims.iter().all(|claim| claim.party == Party::Process) {
        store.take_locally(claims, moment);
        return None;
    }
    redis.find_places(claims);
    store.known.refuse(&store.shared, claims, moment.time)
}

/// Decides over all claims together, whether Redis answers or not. `lookup` is what [`take_here`] returned.
pub(super) async fn take(
    store: &Arc<Store>,
    redis: &Redis,
    claims: &mut [&mut Claim<'_>],
    mut moment: Moment,
    mut lookup: RefusalLookup<'_>,
) -> Result<(), Unavailable> {
    let deadline = Instant::now() + store.shared.timeout();
    let mut has_waited = false;
    let asker = loop {
        match lookup {
            RefusalLookup::Asks(asker) => break asker,
            RefusalLookup::Waits(answered) => {
                has_waited = true;
                // Boxed, because few requests wait, and the others need no room for this future.
                if Box::pin(timeout_at(deadline, answered)).await.is_err() {
                    break None;
                }
                moment = Moment::now(moment.present());
            }
        }
        match store.known.refuse(&store.shared, claims, moment.time) {
            Some(next) => lookup = next,
            None => return Ok(()),
        }
    };
    for claim in claims.iter_mut().filter(|claim| claim.place.connection.is_none()) {
        if is_there(claim) {
            claim.party = Party::Unreachable;
        }
    }
    let noting = noting(claims);
    let mut request =
        RedisRequest { store, redis, moment, asker, deadline, has_waited, noting, met: None };
    let taken = request.take(claims).await;
    request.count(taken);
    taken
}

/// Whether Redis is to decide.
fn is_there(claim: &Claim<'_>) -> bool {
    matches!(claim.party, Party::Redis | Party::Limiter)
}

struct RedisRequest<'q> {
    store: &'q Arc<Store>,
    redis: &'q Redis,
    moment: Moment,
    /// `Some` if other requests wait for the answer to this request.
    asker: Option<Asker<'q>>,
    /// By when Redis must have answered all calls.
    deadline: Instant,
    /// Whether a part of the time went by while another request asked.
    has_waited: bool,
    noting: ReceiptUse,
    /// The slot of a claim on which Redis should have decided and did not.
    met: Option<HashSlot>,
}

impl RedisRequest<'_> {
    async fn take(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let (store, moment) = (self.store, self.moment);
        self.leave_redis(claims)?;
        if claims.iter().any(|claim| is_there(claim)) {
            let asked = self.ask_parties(claims).await;
            asked.inspect_err(|_| claims.iter_mut().for_each(|claim| self.give_back(claim)))?;
        }
        if !claims.iter().any(|claim| is_there(claim)) {
            // Nothing in Redis has decided, so the process decides over all its claims at once.
            claims.iter_mut().for_each(|claim| claim.reset());
            store.take_locally(&mut of(claims, Party::Process), Moment::now(moment.present()));
            return Ok(());
        }
        self.ask_process(claims);
        store.known.note(&store.shared.memory, claims, moment.time, self.asker.as_ref());
        self.end(claims);
        carry_over::note(&self.store.shared, claims, self.moment.present());
        Ok(())
    }

    /// Counts the request for the log lines of an outage. A request counts once, also where several servers are
    /// away.
    fn count(&self, taken: Result<(), Unavailable>) {
        let (Some(slot), Some(nodes)) = (self.met, &self.store.shared.redis) else { return };
        match taken {
            Ok(()) => nodes.health_of(slot).decided_without(),
            Err(_) => nodes.health_of(slot).refused_without(),
        }
    }

    /// Asks this process, then the Redisson limiters, then the buckets in Redis. Once an enforcing limit
    /// has refused, the later parties are only asked what they would say, and take nothing.
    ///
    /// No party must lose tokens, even for a moment, to a flood that another party refuses. Therefore a party
    /// that refused lately is asked before the others.
    async fn ask_parties(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let passes = self.ask_process(claims);
        let has_limiter = claims.iter().any(|claim| is_open_limiter(claim));
        if !has_limiter && !is_in_several_slots(claims) {
            return self.ask_slots(claims, false, true).await;
        }
        let refused: PerAsk<bool> =
            claims.iter().map(|claim| passes && self.refused_lately(claim)).collect();
        let did_refuse = |place: usize| refused.get(place) == Some(&true);
        let mut each = claims.iter().zip(&refused);
        let is_bucket = |claim: &Claim<'_>| claim.party == Party::Redis;
        let bucket_did = each.any(|(claim, refused)| *refused && is_bucket(claim));
        // If several parties refused lately, nobody knows which of them refuses now. Then all are first asked
        // what they would say.
        let is_look = has_limiter && refused.iter().filter(|refused| **refused).count() > 1;
        if is_look {
            self.ask_limiters(claims, Verb::Look, did_refuse).await;
            self.leave_redis(claims)?;
        }
        if bucket_did || !has_limiter {
            self.ask_slots(claims, bucket_did, !is_look).await?;
        }
        if is_look && !claims.iter().any(|claim| claim.refuses()) {
            let limiters = claims.iter_mut().filter(|claim| claim.party == Party::Limiter);
            limiters.for_each(|claim| claim.reset());
        }
        self.ask_limiters(claims, Verb::Take, did_refuse).await;
        self.ask_limiters(claims, Verb::Take, |_| true).await;
        self.leave_redis(claims)?;
        self.ask_slots(claims, false, false).await
    }

    fn refused_lately(&self, claim: &Claim<'_>) -> bool {
        self.store.known.refused_lately(&self.store.shared.memory, claim, self.moment.time)
    }

    /// Asks the limiters at these places that nobody has asked yet, one after the other.
    async fn ask_limiters(
        &self,
        claims: &mut [&mut Claim<'_>],
        verb: Verb,
        which: impl Fn(usize) -> bool,
    ) {
        for place in (0..claims.len()).filter(|place| which(*place)) {
            let passes = !claims.iter().any(|claim| claim.refuses());
            let verb = if passes { verb } else { Verb::Look };
            let claim = claims.get_mut(place).filter(|claim| is_open_limiter(claim));
            let Some(claim) = claim else { continue };
            let (store, moment, deadline) = (self.store, self.moment, self.deadline);
            let asking = self.redis.ask_limiter_for(claim, verb, store, moment, deadline);
            // Boxed: otherwise the futures of all other limits would also have its size.
            if Box::pin(asking).await.is_err() {
                self.lose(claim);
            }
        }
    }

    /// Asks the buckets in Redis. Where one of them `refused` lately, and several slots are asked, they are
    /// first asked what they would say. `is_first` says that no party was asked over the network before.
    async fn ask_slots(
        &mut self,
        claims: &mut [&mut Claim<'_>],
        refused: bool,
        mut is_first: bool,
    ) -> Result<(), Unavailable> {
        let passes = !claims.iter().any(|claim| claim.refuses());
        let is_look = passes && refused && is_in_several_slots(claims);
        let mut verb = if passes && !is_look { Verb::Take } else { Verb::Look };
        let mut grouping = Grouping::BySlot;
        // Only an answer tells that a key has another type, or that a slot moves. Then the claims that were
        // asked together with such a key are asked again.
        for _ in 0..MOST_ROUNDS {
            if is_look && verb == Verb::Look && !claims.iter().any(|claim| is_undecided(claim)) {
                if claims.iter().any(|claim| claim.refuses()) {
                    return Ok(());
                }
                // A candidate has taken already.
                let there = claims.iter_mut().filter(|claim| {
                    claim.party == Party::Redis && claim.ask.mode != Mode::Candidate
                });
                there.for_each(|claim| claim.reset());
                verb = Verb::Take;
            }
            if !claims.iter().any(|claim| is_undecided(claim)) || Instant::now() >= self.deadline {
                break;
            }
            grouping = self.ask_buckets(claims, verb, grouping, is_first).await;
            is_first = false;
            self.leave_redis(claims)?;
        }
        claims.iter_mut().filter(|claim| is_undecided(claim)).for_each(|claim| self.lose(claim));
        self.leave_redis(claims)
    }

    /// Asks for the undecided claims of all slots at once. Returns how they are to be asked again.
    async fn ask_buckets(
        &self,
        claims: &mut [&mut Claim<'_>],
        verb: Verb,
        grouping: Grouping,
        is_first: bool,
    ) -> Grouping {
        let is_other_last =
            claims.iter().any(|claim| is_for_process(claim) || is_open_limiter(claim));
        let mut parties = parties(claims, verb, grouping);
        // What this party gives must go back if another party, which answers later, refuses.
        let is_last = parties.len() == 1 && !is_other_last;
        let noting = if is_last { self.noting } else { ReceiptUse::Needed };
        let asking = parties.iter_mut().map(|party| async {
            let SlotParty { verb, claims: party, .. } = party;
            let asking = self.redis.ask_for(party, *verb, noting, self.store, self.moment);
            let answer = match is_first && !self.has_waited {
                // The call itself has the same deadline.
                true => asking.await,
                false => {
                    timeout_at(self.deadline, asking).await.unwrap_or(Err(StoreError::TimedOut))
                }
            };
            if !is_last {
                // The client may leave before the other parties have answered.
                party.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
            }
            answer
        });
        let answers = all(asking).await;
        let mut next = Grouping::BySlot;
        for (SlotParty { claims: party, .. }, answer) in parties.iter_mut().zip(answers) {
            match answer {
                Ok(()) if party.iter().any(|claim| claim.party == Party::WrongType) => {
                    // Where one key has another type, the call took nothing for the other keys either.
                    party.iter_mut().for_each(|claim| claim.reset());
                }
                Ok(()) => {}
                Err(error) if error.is_of_several_keys() && party.len() > 1 => {
                    party.iter_mut().for_each(|claim| claim.reset());
                    next = Grouping::Apart;
                }
                // Redis may have carried out the call, and then its tokens are lost. To ask Redis about them
                // would take the time that has just run out.
                Err(_) => party.iter_mut().for_each(|claim| self.lose(claim)),
            }
        }
        next
    }

    /// Asks this process's own buckets for what nobody has decided. The claims keep the tokens that they took.
    /// The other parties decide later or have decided, and may make the claims give the tokens back. Returns
    /// whether no claim refuses.
    fn ask_process(&self, claims: &mut [&mut Claim<'_>]) -> bool {
        let mut here = of(claims, Party::Process);
        here.retain(|claim| is_for_process(claim));
        if here.is_empty() {
            return true;
        }
        // The request may have waited for Redis since `moment.time`. An older time would set buckets back.
        let now = self.store.shared.wall.both(self.moment.present());
        let verdict = self.store.shared.memory.take(&mut here, ReceiptUse::Needed, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
        verdict.passes()
    }

    /// Gives each claim on which Redis does not decide to another party, by its `on_store_error`.
    fn leave_redis(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        keep_together(claims);
        for (place, claim) in claims.iter_mut().enumerate() {
            let is_away = claim.party == Party::Unreachable;
            if !is_away && claim.party != Party::WrongType {
                continue;
            }
            let slot = is_away.then_some(claim.place.slot);
            claim.party = without_redis(claim, place).inspect_err(|_| self.met = slot)?;
            if is_away && claim.party == Party::Process {
                let processes = self.store.shared.processes.load(Ordering::Relaxed);
                claim.ask.algorithm = claim.ask.algorithm.share(processes, claim.ask.cost);
            }
            self.met = self.met.or(slot);
        }
        Ok(())
    }

    /// The server that has this claim's key did not decide.
    fn lose(&self, claim: &mut Claim<'_>) {
        claim.reset();
        claim.party = Party::Unreachable;
        self.store.known.forget(&self.store.shared.memory, claim);
    }

    fn give_back(&self, claim: &mut Claim<'_>) {
        claim.hold(self.store, self.moment);
        if let Some(grant) = claim.give_back() {
            // A refusal that was noted meanwhile may not hold any more.
            self.store.known.forget(&self.store.shared.memory, claim);
            drop(grant);
        }
    }

    /// Ends the claims after all parties have decided. Keeps what cannot come back any more, and gives back
    /// what a party took for a request that another party refuses.
    fn end(&self, claims: &mut [&mut Claim<'_>]) {
        let verdict = verdict(claims.iter().map(|claim| &**claim));
        let takes = takes(claims);
        for (claim, takes) in claims.iter_mut().zip(takes) {
            if !takes {
                self.give_back(claim);
            } else if claim.may_come_back(verdict) {
                claim.hold(self.store, self.moment);
            } else {
                claim.end_at(verdict);
            }
        }
    }
}

/// Waits for all answers. One party is the usual case.
async fn all<T>(mut asking: impl ExactSizeIterator<Item = impl Future<Output = T>>) -> PerAsk<T> {
    match (asking.len(), asking.next()) {
        (1, Some(asking)) => PerAsk::from_iter([asking.await]),
        (_, first) => join_all(first.into_iter().chain(asking)).await.into_iter().collect(),
    }
}
