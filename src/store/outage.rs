//! Splits a request's claims by party, asks one party after the other, and decides what happens where
//! Redis does not decide.
//!
//! The buckets of this process are asked first: they decide on limits of scope `node`. Then each limiter of
//! Redisson's is asked by a call of its own, and the other buckets in Redis by one call together. What the
//! first parties gave goes back where a later party refuses. Where Redis does not decide, each limit
//! follows its `on_store_error`: those that then decide locally do so with the whole limit, for this process
//! alone, in buckets that live on between outages.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::claim::{Claim, Moment, Party, verdict};
use super::memory::Noting;
use super::redis::{Health, Redis, Verb, is_limiter};
use super::{Shared, Store, StoreError, Unavailable, noting};
use crate::limit::decide::PerAsk;
use crate::limit::decision::Verdict;
use crate::limit::{Mode, Scope};
use crate::plan::OnStoreError;

/// Decides over all claims together, whatever the state of Redis.
pub(super) async fn take(
    store: &Arc<Store>,
    redis: &Redis,
    claims: &mut [&mut Claim<'_>],
    moment: Moment,
) -> Result<(), Unavailable> {
    let deadline = Instant::now() + store.shared.timeout();
    let request = RedisRequest { store, redis, moment, deadline, noting: noting(claims) };
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
    // A key of another type is found out by asking, and then Redis is asked again without it. First the
    // limiters of Redisson's are found out, then the buckets.
    for turn in [Attempt::First, Attempt::Again, Attempt::Again] {
        if !store.shared.redis_is_up() {
            break;
        }
        match request.ask_parties(claims, turn).await {
            Ok(()) if claims.iter().any(|claim| claim.party == Party::WrongType) => {
                request.give_back(claims).await;
                leave_wrong_types(claims)?;
            }
            Ok(()) => {
                request.end(claims);
                return Ok(());
            }
            // The call may have been carried out all the same, and then its tokens are gone:
            // asking whether it was would cost the time that has just run out.
            Err(_) => break,
        }
    }
    claims.iter_mut().for_each(|claim| claim.reset());
    leave_redis(&store.shared, claims)?;
    store.take_locally(&mut of(claims, Party::Process), Moment::now(moment.present()));
    Ok(())
}

/// Whether Redis was asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    First,
    Again,
}

struct RedisRequest<'q> {
    store: &'q Arc<Store>,
    redis: &'q Redis,
    moment: Moment,
    /// By when Redis must have said all that it is asked.
    deadline: Instant,
    noting: Noting,
}

impl RedisRequest<'_> {
    /// Asks the process, then limiters, then the buckets in Redis. Once an enforcing limit has refused, the
    /// rest is only asked what it would say.
    async fn ask_parties(
        &self,
        claims: &mut [&mut Claim<'_>],
        turn: Attempt,
    ) -> Result<(), StoreError> {
        let mut passes = self.ask_process(claims).passes();
        let mut asked_limiter = false;
        for claim in claims.iter_mut().filter(|claim| claim.party == Party::Limiter) {
            asked_limiter = true;
            let verb = if passes { Verb::Take } else { Verb::Look };
            let held = (self.store, self.moment);
            self.redis.ask_limiter_for(claim, verb, held, self.deadline).await?;
            passes &= !claim.refuses();
        }
        if claims.iter().any(|claim| claim.party == Party::WrongType) {
            return Ok(());
        }
        let mut there = of(claims, Party::Redis);
        if there.is_empty() {
            return Ok(());
        }
        let verb = if passes { Verb::Take } else { Verb::Look };
        let asking = self.redis.ask_for(&mut there, (verb, self.noting), (self.store, self.moment));
        match turn {
            // It ends in time by itself.
            Attempt::First if !asked_limiter => asking.await,
            Attempt::First | Attempt::Again => {
                timeout_at(self.deadline, asking).await.unwrap_or(Err(StoreError::TimedOut))
            }
        }
    }

    /// Decides on those claims that are this process's. What was taken is held until the other parties
    /// have decided.
    fn ask_process(&self, claims: &mut [&mut Claim<'_>]) -> Verdict {
        let mut here = of(claims, Party::Process);
        // A request may have waited for Redis. Buckets that went on meanwhile must not be set back.
        let now = self.store.shared.wall.both(self.moment.present());
        let verdict = self.store.shared.memory.take(&mut here, Noting::On, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
        verdict
    }

    /// All parties have decided: what cannot come back any more is kept, and what was taken for a request
    /// that another party refuses goes back.
    fn end(&self, claims: &mut [&mut Claim<'_>]) {
        let verdict = verdict(claims.iter().map(|claim| &**claim));
        // A candidate of this process may have taken in place of its limit. Redis's limits have a say in
        // that.
        let refused_there = claims.iter().any(|it| it.party != Party::Process && it.refuses());
        for claim in claims.iter_mut() {
            if claim.party == Party::Redis && claim.may_come_back(verdict) {
                claim.hold(self.store, self.moment);
            } else if refused_there && claim.party != Party::Redis {
                drop(claim.give_back());
            } else {
                claim.end_at(verdict);
            }
        }
    }

    /// Gives back what was taken for a request that is decided on once more, or the next turn would find
    /// the permits of this turn in use.
    async fn give_back(&self, claims: &mut [&mut Claim<'_>]) {
        for claim in claims.iter_mut() {
            if let Some(grant) = claim.give_back() {
                let _ = timeout_at(self.deadline, grant.give_back()).await;
            }
            claim.reset();
        }
    }
}

/// The claims of one party.
fn of<'c, 'p>(claims: &'c mut [&mut Claim<'p>], party: Party) -> PerAsk<&'c mut Claim<'p>> {
    claims.iter_mut().map(|claim| &mut **claim).filter(|claim| claim.party == party).collect()
}

/// Who decides on each claim whose key in Redis holds something else.
fn leave_wrong_types(claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
    for place in 0..claims.len() {
        if claims[place].party == Party::WrongType {
            claims[place].party = without_redis(claims[place], place)?;
            keep_together(claims, place);
        }
    }
    Ok(())
}

/// A candidate goes where its limit goes, which is asked right before it: apart from its limit, it would
/// stand in for another. Where it is the candidate that cannot be asked, it is not decided on.
fn keep_together(claims: &mut [&mut Claim<'_>], place: usize) {
    let is_candidate = |at: usize| claims.get(at).is_some_and(|it| it.ask.mode == Mode::Candidate);
    let is_own_in_redis = |at: usize| claims[at].party == Party::Redis;
    if is_candidate(place) && place.checked_sub(1).is_some_and(is_own_in_redis) {
        claims[place].party = Party::Nobody;
    } else if is_candidate(place + 1) && claims[place + 1].party == Party::Redis {
        claims[place + 1].party = claims[place].party;
    }
}

/// Who decides on each claim that Redis should decide on, and does not. Of an outage it is told later how
/// many requests it met.
fn leave_redis(shared: &Shared, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
    let (health, mut met) = (shared.health.as_ref(), false);
    for (place, claim) in claims.iter_mut().enumerate() {
        if !matches!(claim.party, Party::Process | Party::Nobody) {
            met = true;
            claim.party = without_redis(claim, place)
                .inspect_err(|_| health.into_iter().for_each(Health::refused_without))?;
        }
    }
    if met {
        health.into_iter().for_each(Health::decided_without);
    }
    Ok(())
}

/// Who decides on a claim that Redis does not decide on.
fn without_redis(claim: &Claim<'_>, place: usize) -> Result<Party, Unavailable> {
    match (claim.spec.on_store_error, claim.ask.mode) {
        (OnStoreError::Local, _) => Ok(Party::Process),
        (OnStoreError::Reject, Mode::Enforce) => Err(Unavailable { by: place }),
        (OnStoreError::Allow, _) | (OnStoreError::Reject, Mode::Shadow | Mode::Candidate) => {
            Ok(Party::Nobody)
        }
    }
}
