//! Asks one party after the other to decide on a request's claims, and decides what happens where Redis
//! does not decide. [`Store::take`] calls this file where buckets live in Redis.
//!
//! The buckets of this process come first: they decide on limits of scope `node`. Then each Redisson
//! limiter is asked by a call of its own, and all other buckets in Redis by one call. What the first
//! parties gave goes back where a later party refuses. Where Redis does not decide, each limit follows its
//! `on_store_error`. With `local`, this process decides with its share of the limit, in buckets that it keeps
//! between outages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout_at};

use super::claim::{Claim, Moment, Party, verdict};
use super::memory::Noting;
use super::redis::{Redis, RedisHealth, Verb, is_limiter};
use super::{Shared, Store, StoreError, Unavailable, noting};
use crate::limit::decide::PerAsk;
use crate::limit::decision::Verdict;
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
    // What is known belongs to this connection, and to this generation of overrides and buckets.
    let connection = redis.connections_made() + store.shared.running.generation();
    if store.shared.redis_is_up()
        && store.known.refuse(&store.shared.memory, claims, moment.time, connection)
    {
        store.shared.known_refusals.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    // Only an answer tells that a key has another type. Then Redis is asked again without that key.
    // Redisson limiters are asked before the buckets, so there may be two such turns.
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
                store.known.note(&store.shared.memory, claims, moment.time, connection);
                return Ok(());
            }
            // Redis may have carried out the call, and then its tokens are lost. To ask Redis about them
            // would take the time that has just run out.
            Err(_) => {
                store.known.forget(&store.shared.memory, claims);
                break;
            }
        }
    }
    claims.iter_mut().for_each(|claim| claim.reset());
    leave_redis(&store.shared, claims)?;
    store.take_locally(&mut of(claims, Party::Process), Moment::now(moment.present()));
    Ok(())
}

/// Whether Redis was asked before for this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    First,
    Again,
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
            let asking =
                self.redis.ask_limiter_for(claim, verb, self.store, self.moment, self.deadline);
            asking.await?;
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
        let asking = self.redis.ask_for(&mut there, verb, self.noting, self.store, self.moment);
        match turn {
            // The call has the same deadline by itself.
            Attempt::First if !asked_limiter => asking.await,
            Attempt::First | Attempt::Again => {
                timeout_at(self.deadline, asking).await.unwrap_or(Err(StoreError::TimedOut))
            }
        }
    }

    /// Asks this process's own buckets. The claims keep the tokens that they took. The other parties decide
    /// later, and may make the claims give the tokens back.
    fn ask_process(&self, claims: &mut [&mut Claim<'_>]) -> Verdict {
        let mut here = of(claims, Party::Process);
        // The request may have waited for Redis since `moment.time`. An older time would set buckets back.
        let now = self.store.shared.wall.both(self.moment.present());
        let verdict = self.store.shared.memory.take(&mut here, Noting::On, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
        verdict
    }

    /// Ends the claims after all parties have decided. Keeps what cannot come back any more, and gives back
    /// what was taken for a request that another party refuses.
    fn end(&self, claims: &mut [&mut Claim<'_>]) {
        let verdict = verdict(claims.iter().map(|claim| &**claim));
        // A candidate of this process may have taken in place of its limit. It must not keep that where a
        // limit in Redis refuses too.
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

    /// Gives back what this turn took before the next turn asks again. Otherwise the next turn would find
    /// these permits in use.
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

/// Gives each claim whose key is of no use in Redis to another party, by its `on_store_error`.
fn leave_wrong_types(claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
    for place in 0..claims.len() {
        if claims[place].party == Party::WrongType {
            claims[place].party = without_redis(claims[place], place)?;
            keep_together(claims, place);
        }
    }
    Ok(())
}

/// Keeps a candidate with its limit, which is asked right before it: elsewhere it would stand in for a
/// wrong limit. A candidate that cannot be asked together with its limit gets no decision.
fn keep_together(claims: &mut [&mut Claim<'_>], place: usize) {
    let is_candidate = |at: usize| claims.get(at).is_some_and(|it| it.ask.mode == Mode::Candidate);
    let is_own_in_redis = |at: usize| claims[at].party == Party::Redis;
    if is_candidate(place) && place.checked_sub(1).is_some_and(is_own_in_redis) {
        claims[place].party = Party::Nobody;
    } else if is_candidate(place + 1) && claims[place + 1].party == Party::Redis {
        claims[place + 1].party = claims[place].party;
    }
}

/// Gives each claim of Redis to another party, by its `on_store_error`. Counts the request for the log
/// lines of the outage.
fn leave_redis(shared: &Shared, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
    let (health, mut met) = (shared.health.as_ref(), false);
    for (place, claim) in claims.iter_mut().enumerate() {
        if !matches!(claim.party, Party::Process | Party::Nobody) {
            met = true;
            claim.party = without_redis(claim, place)
                .inspect_err(|_| health.into_iter().for_each(RedisHealth::refused_without))?;
            if claim.party == Party::Process {
                let processes = shared.processes.load(Ordering::Relaxed);
                claim.ask.algorithm = claim.ask.algorithm.share(processes, claim.ask.cost);
            }
        }
    }
    if met {
        health.into_iter().for_each(RedisHealth::decided_without);
    }
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
