//! The order in which a request's limits are asked. Read it from top to bottom.
//!
//! 1. A refusal that is known needs no question ([`take_here`]).
//! 2. The buckets of this process are asked: the limits of scope `node`.
//! 3. The buckets in Redis are asked. In a cluster the calls for all slots are sent at once.
//! 4. The Redisson limiters are asked, one after the other.
//! 5. If an enforcing limit refuses, what the others gave goes back. Otherwise it is kept.
//!
//! What is exact and the client's own comes first. Once a limit has refused, those that are asked later only say what
//! they would do, and take nothing. So a client that its own limit refuses takes nothing from a limiter that it shares
//! with others. Between two slots of a cluster it does for a moment: never too much passes, but until the tokens are
//! back another request may be refused. A flood hardly does so, because its refusals are known.
//!
//! Where Redis, or the server that has a key, does not decide, the limit follows its `on_store_error`. With `local`
//! this process decides with its share, in buckets of its own. `carry_over` writes into them what Redis says.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::claim::{Claim, Moment, Party, Unavailable, verdict};
use super::known::{Asker, RefusalLookup};
use super::memory::ReceiptUse;
use super::redis::{Redis, Verb, is_limiter};
use super::{Store, carry_over, noting};
use crate::limit::decide::{PerAsk, takers};
use crate::limit::decision::Outcome;
use crate::limit::{Mode, Scope};
use crate::plan::OnStoreError;
use crate::redis::{CallError, HashSlot};

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
    let deadline = redis.router.deadline();
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
    /// Whether a part of the time has gone by, with a question of this request or of another one.
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
            let asked = self.ask_all(claims).await;
            asked.inspect_err(|_| claims.iter_mut().for_each(|claim| self.give_back(claim)))?;
        }
        if !claims.iter().any(|claim| is_there(claim)) {
            // Nothing in Redis has decided, so the process decides over all its claims at once.
            claims.iter_mut().for_each(|claim| claim.reset());
            store.take_locally(&mut of_process(claims), Moment::now(moment.present()));
            return Ok(());
        }
        // The claims that Redis left to this process.
        self.ask_process(claims);
        self.keep_or_give_back(claims);
        store.known.note(&store.shared.memory, claims, moment.time, self.asker.as_ref());
        carry_over::note(&store.shared, claims, moment.present());
        Ok(())
    }

    async fn ask_all(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        self.ask_process(claims);
        self.ask_slots(claims).await?;
        self.ask_limiters(claims).await
    }

    /// Asks this process's own buckets for what nobody has decided. The claims keep the tokens that they took until
    /// it is known whether another limit refuses.
    fn ask_process(&self, claims: &mut [&mut Claim<'_>]) {
        let mut here = of_process(claims);
        here.retain(|claim| claim.decision.is_none());
        if here.is_empty() {
            return;
        }
        // The request may have waited for Redis since `moment.time`. An older time would set buckets back.
        let now = self.store.shared.wall.both(self.moment.present());
        self.store.shared.memory.take(&mut here, ReceiptUse::Needed, now);
        here.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
    }

    /// Asks the buckets in Redis.
    async fn ask_slots(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        let verb = verb(claims);
        self.call_slots(claims, verb, Grouping::BySlot).await;
        self.leave_redis(claims)?;
        // A call takes nothing if one of its keys has another type, or if its slot moves. Only the answer tells.
        self.call_slots(claims, verb, Grouping::Apart).await;
        self.leave_redis(claims)
    }

    /// Asks for the open claims in Redis, by calls that are sent at once. A claim stays open if its call was not
    /// carried out because of another claim.
    async fn call_slots(&mut self, claims: &mut [&mut Claim<'_>], verb: Verb, grouping: Grouping) {
        let is_other_last = claims
            .iter()
            .any(|claim| is_open(claim, Party::Process) || is_open(claim, Party::Limiter));
        let mut calls = calls(claims, grouping);
        if calls.is_empty() {
            return;
        }
        let has_waited = mem::replace(&mut self.has_waited, true);
        // What a call gives must go back if another limit, which answers later, refuses.
        let is_last = calls.len() == 1 && !is_other_last && grouping == Grouping::BySlot;
        let noting = if is_last { self.noting } else { ReceiptUse::Needed };
        let asking = calls.iter_mut().map(|call| async {
            let asking = self.redis.ask_for(call, verb, noting, self.store, self.moment);
            let answer = match has_waited {
                // The call itself has the same deadline.
                false => asking.await,
                true => timeout_at(self.deadline, asking).await.unwrap_or(Err(CallError::TimedOut)),
            };
            if !is_last {
                // The client may leave before the other calls are answered.
                call.iter_mut().for_each(|claim| claim.hold(self.store, self.moment));
            }
            answer
        });
        let answers = all(asking).await;
        for (call, answer) in calls.iter_mut().zip(answers) {
            let was_not_carried_out = match &answer {
                Ok(()) => call.iter().any(|claim| claim.party == Party::WrongType),
                Err(error) => error.is_of_several_keys() && call.len() > 1,
            };
            match answer {
                _ if was_not_carried_out => call.iter_mut().for_each(|claim| claim.reset()),
                Ok(()) => {}
                // Redis may have carried out the call, and then its tokens are lost. To ask Redis about them
                // would take the time that has just run out.
                Err(_) => call.iter_mut().for_each(|claim| self.lose(claim)),
            }
        }
    }

    /// Asks the Redisson limiters. Those with a key come first: their refusals are the client's own.
    async fn ask_limiters(&mut self, claims: &mut [&mut Claim<'_>]) -> Result<(), Unavailable> {
        for has_key in [true, false] {
            for place in 0..claims.len() {
                let verb = verb(claims);
                let Some(claim) = claims.get_mut(place) else { continue };
                let is_next = has_key != claim.spec.key.sources.is_empty();
                if !is_next || !is_open(claim, Party::Limiter) {
                    continue;
                }
                let (store, moment, deadline) = (self.store, self.moment, self.deadline);
                let asking = self.redis.ask_limiter_for(claim, verb, store, moment, deadline);
                // Boxed: otherwise the futures of all other limits would also have its size.
                if Box::pin(asking).await.is_err() {
                    self.lose(claim);
                }
            }
        }
        self.leave_redis(claims)
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

    /// All limits have decided. Keeps what cannot come back any more, and gives back what a limit gave for a request
    /// that another limit refuses.
    fn keep_or_give_back(&self, claims: &mut [&mut Claim<'_>]) {
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

    fn give_back(&self, claim: &mut Claim<'_>) {
        claim.hold(self.store, self.moment);
        if let Some(grant) = claim.give_back() {
            // A refusal that was noted meanwhile may not hold any more.
            self.store.known.forget(&self.store.shared.memory, claim);
            drop(grant);
        }
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
}

/// Which claims are asked by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grouping {
    /// All claims whose keys share a slot.
    BySlot,
    /// Each claim by itself.
    Apart,
}

/// The claims of one call.
type SlotCall<'c, 'p> = PerAsk<&'c mut Claim<'p>>;

/// The calls for the open claims in Redis, in the order of the claims.
fn calls<'c, 'p>(claims: &'c mut [&mut Claim<'p>], grouping: Grouping) -> PerAsk<SlotCall<'c, 'p>> {
    let mut calls: PerAsk<SlotCall<'c, 'p>> = PerAsk::new();
    for claim in claims.iter_mut().filter(|claim| is_open(claim, Party::Redis)) {
        let slot = claim.place.slot;
        let is_of = |call: &&mut SlotCall<'c, 'p>| {
            grouping == Grouping::BySlot && call.iter().any(|other| other.place.slot == slot)
        };
        match calls.iter_mut().find(is_of) {
            Some(call) => call.push(claim),
            None => calls.push(PerAsk::from_iter([&mut **claim])),
        }
    }
    calls
}

/// How the next limits are asked: they take nothing where a limit has refused.
fn verb(claims: &[&mut Claim<'_>]) -> Verb {
    if claims.iter().any(|claim| claim.refuses()) { Verb::Look } else { Verb::Take }
}

/// Whether this party is still to decide on the claim.
fn is_open(claim: &Claim<'_>, party: Party) -> bool {
    claim.party == party && claim.decision.is_none()
}

/// Whether each claim takes, by what all have decided.
fn takes(claims: &[&mut Claim<'_>]) -> PerAsk<bool> {
    let outcome = |claim: &Claim<'_>| claim.decision.map_or(Outcome::Allow, |it| it.outcome);
    let outcomes: PerAsk<_> = claims.iter().map(|it| (it.ask.mode, outcome(it))).collect();
    takers(outcomes.into_iter()).collect()
}

/// The claims on which this process decides.
fn of_process<'c, 'p>(claims: &'c mut [&mut Claim<'p>]) -> PerAsk<&'c mut Claim<'p>> {
    let claims = claims.iter_mut().map(|claim| &mut **claim);
    claims.filter(|claim| claim.party == Party::Process).collect()
}

/// Keeps a candidate with its limit, the claim right before it. If Redis cannot decide on the limit, it does
/// not decide on the candidate either. If Redis decides on the limit, but cannot decide on the candidate, the
/// candidate gets no decision.
fn keep_together(claims: &mut [&mut Claim<'_>]) {
    for candidate in 1..claims.len() {
        let (limits, candidates) = claims.split_at_mut(candidate);
        let ([.., limit], [candidate, ..]) = (limits, candidates) else { return };
        if candidate.ask.mode != Mode::Candidate {
            continue;
        }
        match (limit.party, candidate.party) {
            (Party::WrongType | Party::Unreachable, Party::Redis) => {
                // It may have been asked by a call of its own. What it took goes back.
                candidate.reset();
                candidate.party = limit.party;
            }
            (Party::Redis, Party::WrongType | Party::Unreachable) => {
                candidate.party = Party::Nobody;
            }
            _ => {}
        }
    }
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

/// Waits for all answers. One call is the usual case.
async fn all<T>(mut asking: impl ExactSizeIterator<Item = impl Future<Output = T>>) -> PerAsk<T> {
    match (asking.len(), asking.next()) {
        (1, Some(asking)) => PerAsk::from_iter([asking.await]),
        (_, first) => join_all(first.into_iter().chain(asking)).await.into_iter().collect(),
    }
}
