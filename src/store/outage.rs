//! The buckets of this process come first: they decide on limits of scope `node`. Then each Redisson
//! limiter is asked by a call of its own, and all other buckets in Redis by one call. In a cluster each slot
//! is a party: the calls for all slots are sent at once. What a party gave goes back where another party
//! refuses. Therefore never too much passes. Where several parties are asked, a request that is refused
//! holds for a moment what it took from the others, and another request may be refused meanwhile.
//!
//! Where Redis, or the server that has a key, does not decide, the limit follows its `on_store_error`. With
//! `local`, this process decides with its share of the limit, in buckets of its own. They begin with what Redis
//! last said.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::claim::{Claim, Moment, Party, verdict};
use super::memory::Noting;
use super::redis::{Redis, Slot, Verb, is_limiter};
use super::{BucketAsk, Shared, Store, StoreError, Unavailable, noting};
use crate::limit::algorithm::Algorithm;
use crate::limit::decide::{Ask, PerAsk, takers};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::{Mode, Scope};
use crate::plan::OnStoreError;

/// Decides over all claims together, whether Redis answers or not.
pub(super) async fn take(
    store: &Arc<Store>,
    redis: &Redis,
    claims: &mut [&mut Claim<'_>],
    moment: Moment,
) -> Result<(), Unavailable> {
    let deadline = Instant::now() + store.shared.timeout();
    for claim in claims.iter_mut() {
        claim.party = match claim.spec.scope {
            Scope::Node => Party::Process,
            Scope::Cluster if is_limiter(&claim.ask) => Party::Limiter,
            Scope::Cluster => Party::Redis,
        };
    }
    if claims.iter().all(|claim| claim.party == Party::Process) {
        store.take_locally(claims, moment);
        return Ok(());
    }
    if store.prefetch.spend(store, claims) {
        return Ok(());
    }
    redis.find_places(claims);
    if store.known.refuse(&store.shared.memory, claims, moment.time) {
        store.shared.known_refusals.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    for claim in claims.iter_mut().filter(|claim| claim.place.connection.is_none()) {
        if is_there(claim) {
            claim.party = Party::Unreachable;
        }
    }
    leave_redis(&store.shared, claims)?;
    let request = RedisRequest { store, redis, moment, deadline, noting: noting(claims) };
    if claims.iter().any(|claim| is_there(claim)) {
        request.ask_parties(claims).await.inspect_err(|_| {
            claims.iter_mut().for_each(|claim| request.give_back(claim));
        })?;
    }
    if !claims.iter().any(|claim| is_there(claim)) {
        // Nothing in Redis has decided, so the process decides over all its claims at once.
        claims.iter_mut().for_each(|claim| claim.reset());
        store.take_locally(&mut of(claims, Party::Process), Moment::now(moment.present()));
        return Ok(());
    }
    request.ask_process(claims);
    store.known.note(&store.shared.memory, claims, moment.time);
    store.prefetch.note(store, claims);
    request.end(claims);
    request.prepare(claims);
    Ok(())
}

/// Whether Redis is to decide.
fn is_there(claim: &Claim<'_>) -> bool {
    matches!(claim.party, Party::Redis | Party::Limiter)
}

struct RedisRequest<'q> {
    store: &'q Arc<Store>,
    redis: &'q Redis,
    moment: Moment,
    /// By when Redis must have answered all calls.
    deadline: Instant,
    noting: Noting,
}

impl RedisRequest<'_> {
    /// Asks this process, then the Redisson limiters, then the buckets in Redis. Once an enforcing limit
    /// has refused, the later parties are only asked what they would say, and take nothing.
    ///
    /// # Errors
    /// Where Redis does not decide, and an enforcing limit has `on_store_error = "reject"`.
    async fn ask_parties(&self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let mut passes = self.ask_process(claims);
        for claim in claims.iter_mut().filter(|claim| claim.party == Party::Limiter) {
            let verb = if passes { Verb::Take } else { Verb::Look };
            let asking =
                self.redis.ask_limiter_for(claim, verb, self.store, self.moment, self.deadline);
            if asking.await.is_err() {
                self.lose(claim);
            }
            passes &= !claim.refuses();
        }
        leave_redis(&self.store.shared, claims)?;
        let verb = if passes { Verb::Take } else { Verb::Look };
        let mut grouping = Grouping::BySlot;
        // Only an answer tells that a key has another type, or that a slot moves. Then the claims that were
        // asked together with such a key are asked again.
        for turn in [Turn::First, Turn::Again, Turn::Again] {
            if !claims.iter().any(|claim| is_undecided(claim)) {
                return Ok(());
            }
            grouping = self.ask_buckets(claims, verb, turn, grouping).await;
            leave_redis(&self.store.shared, claims)?;
        }
        claims.iter_mut().filter(|claim| is_undecided(claim)).for_each(|claim| self.lose(claim));
        leave_redis(&self.store.shared, claims)
    }

    /// Asks for the undecided claims of all slots at once. Returns how they are to be asked again.
    async fn ask_buckets(
        &self,
        claims: &mut [&mut Claim<'_>],
        verb: Verb,
        turn: Turn,
        grouping: Grouping,
    ) -> Grouping {
        let is_alone = claims.iter().all(|claim| claim.party == Party::Redis);
        let asked_before = claims.iter().any(|claim| claim.party == Party::Limiter);
        let mut parties = parties(claims, grouping);
        // What one party gives must go back if another party refuses.
        let noting = match turn {
            Turn::First if is_alone && parties.len() == 1 => self.noting,
            Turn::First | Turn::Again => Noting::On,
        };
        let asking = parties.iter_mut().map(|party| async {
            let asking = self.redis.ask_for(party, verb, noting, self.store, self.moment);
            match turn {
                // The call has the same deadline by itself.
                Turn::First if !asked_before => asking.await,
                Turn::First | Turn::Again => {
                    timeout_at(self.deadline, asking).await.unwrap_or(Err(StoreError::TimedOut))
                }
            }
        });
        let answers = all(asking).await;
        let mut next = Grouping::BySlot;
        for (party, answer) in parties.iter_mut().zip(answers) {
            match answer {
                Ok(()) if party.iter().any(|claim| claim.party == Party::WrongType) => {
                    // Nothing was taken for the others.
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
        here.retain(|claim| claim.decision.is_none());
        // The request may have waited for Redis since `moment.time`. An older time would set buckets back.
        let now = self.store.shared.wall.both(self.moment.present());
        let verdict = self.store.shared.memory.take(&mut here, Noting::On, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
        verdict.passes()
    }

    /// The server that has this claim's key did not decide.
    fn lose(&self, claim: &mut Claim<'_>) {
        claim.reset();
        claim.party = Party::Unreachable;
        self.store.known.forget(&self.store.shared.memory, claim);
    }

    /// Makes the process's own buckets ready to decide in place of Redis: each begins with its share of what is
    /// used now.
    fn prepare(&self, claims: &[&mut Claim<'_>]) {
        let shared = &self.store.shared;
        let processes = shared.processes.load(Ordering::Relaxed);
        for claim in claims.iter().filter(|claim| claim.party == Party::Redis) {
            let Some(Decision { remaining, .. }) = claim.decision else { continue };
            let (Ask { algorithm, cost, .. }, is_local) =
                (claim.ask, claim.spec.on_store_error == OnStoreError::Local);
            // What is used of a list or of slots has times and holders that only Redis knows.
            let is_list = matches!(algorithm, Algorithm::SlidingLog(_) | Algorithm::Concurrency(_));
            let asked = shared.asked(claim.spec, &claim.ask).algorithm;
            let used = asked.capacity().saturating_sub(remaining);
            // A bucket that only this request has used would cost memory and say little.
            if !is_local || is_list || used <= cost.get() {
                continue;
            }
            let share = algorithm.share(processes, cost);
            let used = u128::from(used) * u128::from(share.capacity());
            let used = used.div_ceil(u128::from(algorithm.capacity().max(1)));
            let ask = Ask { algorithm: share, ..claim.ask };
            let now = shared.wall.both(self.moment.present());
            shared.memory.write_used(
                &BucketAsk { ask, ..claim.question() },
                u64::try_from(used).unwrap_or(u64::MAX),
                now,
            );
        }
    }

    fn give_back(&self, claim: &mut Claim<'_>) {
        claim.hold(self.store, self.moment);
        drop(claim.give_back());
    }

    /// Ends the claims after all parties have decided. Keeps what cannot come back any more, and gives back
    /// what a party took for a request that another party refuses.
    fn end(&self, claims: &mut [&mut Claim<'_>]) {
        let verdict = verdict(claims.iter().map(|claim| &**claim));
        let outcome = |claim: &Claim<'_>| claim.decision.map_or(Outcome::Allow, |it| it.outcome);
        let outcomes: PerAsk<_> =
            claims.iter().map(|claim| (claim.ask.mode, outcome(claim))).collect();
        for (claim, takes) in claims.iter_mut().zip(takers(outcomes.into_iter())) {
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

/// Whether a request's buckets in Redis are asked for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Again,
}

/// Which claims are asked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grouping {
    /// All claims whose keys share a slot.
    BySlot,
    /// Each claim by itself: the slot moves, and one server has some of the keys, another one the others.
    Apart,
}

/// Waits for all answers. One party is the usual case.
async fn all<T>(mut asking: impl ExactSizeIterator<Item = impl Future<Output = T>>) -> PerAsk<T> {
    match (asking.len(), asking.next()) {
        (1, Some(asking)) => PerAsk::from_iter([asking.await]),
        (_, first) => join_all(first.into_iter().chain(asking)).await.into_iter().collect(),
    }
}

/// Whether the claim is still to be asked in Redis.
fn is_undecided(claim: &Claim<'_>) -> bool {
    claim.party == Party::Redis && claim.decision.is_none()
}

/// The undecided claims of each slot, in the order of the claims.
fn parties<'c, 'p>(
    claims: &'c mut [&mut Claim<'p>],
    grouping: Grouping,
) -> PerAsk<PerAsk<&'c mut Claim<'p>>> {
    let mut parties: PerAsk<(Slot, PerAsk<&mut Claim<'p>>)> = PerAsk::new();
    for claim in claims.iter_mut().map(|claim| &mut **claim).filter(|claim| is_undecided(claim)) {
        let slot = claim.place.slot;
        let same = |party: &&mut (Slot, _)| grouping == Grouping::BySlot && party.0 == slot;
        match parties.iter_mut().find(same) {
            Some((_, party)) => party.push(claim),
            None => parties.push((slot, PerAsk::from_iter([claim]))),
        }
    }
    parties.into_iter().map(|(_, party)| party).collect()
}

/// The claims of one party.
fn of<'c, 'p>(claims: &'c mut [&mut Claim<'p>], party: Party) -> PerAsk<&'c mut Claim<'p>> {
    claims.iter_mut().map(|claim| &mut **claim).filter(|claim| claim.party == party).collect()
}

/// Keeps a candidate with its limit, which is asked right before it. A candidate that cannot be asked where its
/// limit is asked gets no decision.
fn keep_together(claims: &mut [&mut Claim<'_>]) {
    for candidate in 1..claims.len() {
        let (limits, candidates) = claims.split_at_mut(candidate);
        let ([.., limit], [candidate, ..]) = (limits, candidates) else { return };
        if candidate.ask.mode != Mode::Candidate {
            continue;
        }
        match (limit.party, candidate.party) {
            (Party::WrongType | Party::Unreachable, Party::Redis) if is_undecided(candidate) => {
                candidate.party = limit.party;
            }
            (Party::Redis, Party::WrongType | Party::Unreachable) => {
                candidate.party = Party::Nobody;
            }
            _ => {}
        }
    }
}

/// Gives each claim on which Redis does not decide to another party, by its `on_store_error`. Counts the
/// requests of an outage for its log lines.
fn leave_redis(shared: &Shared, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
    keep_together(claims);
    let mut met = None;
    for (place, claim) in claims.iter_mut().enumerate() {
        let is_away = claim.party == Party::Unreachable;
        if !is_away && claim.party != Party::WrongType {
            continue;
        }
        let nodes = shared.redis.as_ref().filter(|_| is_away);
        let health = nodes.map(|nodes| nodes.health_of(claim.place.slot));
        claim.party = without_redis(claim, place)
            .inspect_err(|_| health.iter().for_each(|health| health.refused_without()))?;
        if is_away && claim.party == Party::Process {
            let processes = shared.processes.load(Ordering::Relaxed);
            claim.ask.algorithm = claim.ask.algorithm.share(processes, claim.ask.cost);
        }
        met = met.or(health);
    }
    met.iter().for_each(|health| health.decided_without());
    Ok(())
}

/// The party that decides in place of Redis, by the limit's `on_store_error`.
fn without_redis(claim: &Claim<'_>, place: usize) -> Result<Party, Unavailable> {
    match (claim.spec.on_store_error, claim.ask.mode) {
        (OnStoreError::Local, _) => Ok(Party::Process),
        (OnStoreError::Reject, Mode::Enforce) => Err(Unavailable { by: place }),
        (OnStoreError::Allow, _) | (OnStoreError::Reject, Mode::Shadow | Mode::Candidate) => {
            Ok(Party::Nobody)
        }
    }
}
