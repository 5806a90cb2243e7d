//! Puts Redis and this process's buckets together.
//!
//! A limit of scope `node` is always decided here in the process, before Redis is asked about the
//! others, and what it took is given back unless Redis lets the request pass. A limiter of Redisson's
//! has a call of its own, before the others: what it took is known exactly, and is given back in the
//! same way. Where Redis does not decide, each limit follows its `on_store_error`: those that then
//! decide locally do so with the whole limit, for this process alone, in buckets that live on between
//! outages.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::noted::{Noted, receipts};
use super::redis::{Entries, Entry, Health, Heard, Redis, Reply, Said, Verb, is_limiter};
use super::slots::Leases;
use super::{Answer, BucketAsk, Shared, Slots, StoreError, Told, Unavailable};
use crate::limit::algorithm::{Algorithm, Difference, Receipt, Settlement};
use crate::limit::decide::{PerAsk, Refusers};
use crate::limit::decision::{Decision, Outcome, Verdict};
use crate::limit::time::{Now, Timestamp};
use crate::limit::{Mode, Scope};
use crate::plan::OnStoreError;

/// Who decides on an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The buckets of this process.
    Process,
    /// Those in Redis.
    Redis,
    /// Redis should have, and cannot.
    Nobody,
}

/// Decides over all asks together, whatever the state of Redis.
pub(super) async fn decide(
    redis: &Redis,
    shared: &Arc<Shared>,
    asks: &[BucketAsk<'_>],
    now: Timestamp,
) -> Result<Answer, Unavailable> {
    let (began, noted) = (Instant::now(), Noted::of(asks));
    let request = Request { redis, shared, asks, noted, now, began };
    let mut by: PerAsk<By> = asks
        .iter()
        .map(|ask| match ask.spec.scope {
            Scope::Node => By::Process,
            Scope::Cluster => By::Redis,
        })
        .collect();
    // A key of another type is found out by asking, and then Redis is asked again without it. First the
    // limiters of Redisson's are found out, then the buckets.
    for turn in [Turn::First, Turn::Again, Turn::Again] {
        if !shared.redis_is_up() {
            break;
        }
        match request.ask_both(&by, turn).await {
            Ok(Asked::Decided(answer)) => return Ok(answer),
            Ok(Asked::WrongType(places, entries)) => {
                for place in places {
                    by[place] = request.without_redis(place)?;
                    request.keep_together(&mut by, place);
                }
                // Or the next turn would find the permits of this one in use.
                let _ = timeout_at(request.deadline(), entries.give_back()).await;
            }
            // The call may have been carried out all the same, and then its tokens are gone:
            // asking whether it was would cost the time that has just run out.
            Err(_) => break,
        }
    }
    request.all_without_redis(&mut by)?;
    Ok(request.decide_here(&by))
}

/// Whether Redis was asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Again,
}

enum Asked {
    Decided(Answer),
    /// At these places; and what limiters took meanwhile.
    WrongType(PerAsk<usize>, Entries),
}

struct Request<'q> {
    redis: &'q Redis,
    shared: &'q Arc<Shared>,
    asks: &'q [BucketAsk<'q>],
    noted: Noted,
    now: Timestamp,
    began: Instant,
}

impl<'q> Request<'q> {
    /// Decides in the process first and in Redis then.
    async fn ask_both(&self, by: &[By], turn: Turn) -> Result<Asked, StoreError> {
        let (here_places, here) = self.here(by);
        let (there_places, there) = self.of(by, |ask, by| by == By::Redis && !is_limiter(ask));
        let now = self.now();
        let (decided, found) = self.shared.memory.decide_in_place(&here, now);
        let noted_here = receipts(&here, &decided, now);
        let passed_here = decided.verdict.passes();
        // Given back when they are dropped, as `taken` is.
        let mut slots = Slots::here(self.shared, &here, (&decided, &found));
        let mut taken = Taken { request: self, taken: PerAsk::new() };
        let refusers_here = refusers(&here, &decided.decisions);
        let outcomes = here.iter().zip(&decided.decisions).zip(&noted_here).enumerate();
        taken.taken = outcomes
            .filter(|(at, ((ask, decision), _))| {
                decision.outcome.passes()
                    && refusers_here.let_take(*at, ask.ask.mode)
                    && !matches!(ask.ask.algorithm, Algorithm::Concurrency(_))
            })
            .map(|(_, ((ask, _), receipt))| (*ask, *receipt))
            .collect();
        let mut decisions: PerAsk<Option<Decision>> = by.iter().map(|_| None).collect();
        for (place, decision) in here_places.iter().zip(&decided.decisions) {
            decisions[*place] = Some(*decision);
        }
        let limiters = self.ask_limiters(by, passed_here).await?;
        for (place, decision) in &limiters.decisions {
            decisions[*place] = Some(*decision);
        }
        if !limiters.wrong.is_empty() {
            return Ok(Asked::WrongType(limiters.wrong, together(limiters.entries)));
        }

        let mut wrong = PerAsk::new();
        let verb = if limiters.pass { Verb::Take } else { Verb::Look };
        let mut leases: Leases = match verb {
            Verb::Take => self.redis.name_slots(&there),
            _ => Leases::new(),
        };
        let reply = match there.is_empty() {
            true => Reply::default(),
            false => {
                let asking = self.redis.ask((&there, self.noted), verb, &leases);
                match turn {
                    // It ends in time by itself.
                    Turn::First if limiters.decisions.is_empty() => asking.await?,
                    Turn::First | Turn::Again => timeout_at(self.deadline(), asking)
                        .await
                        .unwrap_or(Err(StoreError::TimedOut))?,
                }
            }
        };
        for (place, said) in there_places.iter().zip(&reply.said) {
            match said {
                Said::Decided(decision) => decisions[*place] = Some(*decision),
                Said::WrongType => {
                    self.redis.tell_other_type(&self.asks[*place]);
                    wrong.push(*place);
                }
            }
        }
        if !wrong.is_empty() {
            leases.iter_mut().flatten().for_each(|lease| lease.refused());
            return Ok(Asked::WrongType(wrong, together(limiters.entries)));
        }
        let mut answer = Answer::new(self.asks, decisions, by);
        answer.told = limiters.told;
        answer.receipts = self
            .receipts([(&here_places, noted_here.as_slice()), (&there_places, &reply.receipts)]);
        let passes = answer.verdict.passes();
        for (place, lease) in there_places.iter().zip(leases) {
            let Some(mut lease) = lease else { continue };
            let decision = answer.decisions.get(*place).copied().flatten();
            match passes && decision.is_some_and(|decision| decision.outcome.passes()) {
                true => slots.and_lease(lease),
                false => lease.refused(),
            }
        }
        if passes {
            answer.slots = slots;
        }
        // A candidate here may have taken in place of its limit: Redis's limits have a say in that.
        let refused_there =
            answer.decisions.iter().zip(self.asks).zip(by).any(|((decision, ask), by)| {
                let refuses = decision.is_some_and(|decision| !decision.outcome.passes());
                *by == By::Redis && ask.ask.mode == Mode::Enforce && refuses
            });
        if !refused_there {
            taken.keep();
            let entries = together(limiters.entries);
            match answer.verdict {
                Verdict::Pass { wait } if !wait.is_zero() => answer.entries = entries,
                _ => entries.keep(),
            }
        } else if passed_here {
            // What remains after it is given back.
            let entries = limiters.entries.iter().map(|(place, _)| *place);
            for place in here_places.into_iter().chain(entries) {
                if let Some(Some(decision)) = answer.decisions.get_mut(place)
                    && decision.outcome == Outcome::Allow
                {
                    decision.remaining += self.asks[place].ask.cost.get();
                }
            }
        }
        Ok(Asked::Decided(answer))
    }

    /// Asks each limiter of Redisson's, one after the other. Once the request cannot pass any more, the
    /// rest is only asked what it would say.
    async fn ask_limiters(&self, by: &[By], passed: bool) -> Result<Limiters, StoreError> {
        let mut limiters = Limiters { pass: passed, ..Limiters::default() };
        let (places, asks) = self.of(by, |ask, by| by == By::Redis && is_limiter(ask));
        for (place, ask) in places.into_iter().zip(asks) {
            let verb = if limiters.pass { Verb::Take } else { Verb::Look };
            match self.redis.ask_limiter(ask, verb, self.deadline()).await? {
                Heard::Said(said) => {
                    let refused = !said.decision.outcome.passes();
                    limiters.pass &= !refused || ask.ask.mode != Mode::Enforce;
                    limiters.decisions.push((place, said.decision));
                    let (capacity, window_seconds) = (said.count, said.window_seconds);
                    limiters.told.push(Told { place, capacity, window_seconds });
                    limiters.entries.extend(said.entry.map(|entry| (place, entry)));
                }
                Heard::Unset | Heard::WrongType => limiters.wrong.push(place),
            }
        }
        Ok(limiters)
    }

    /// By when Redis must have said all that it is asked.
    fn deadline(&self) -> Instant {
        self.began + self.shared.timeout()
    }

    /// Decides in the process alone.
    fn decide_here(&self, by: &[By]) -> Answer {
        let (places, here) = self.here(by);
        let now = self.now();
        let (decided, found) = self.shared.memory.decide_in_place(&here, now);
        let slots = Slots::here(self.shared, &here, (&decided, &found));
        let receipts = self.receipts([(&places, receipts(&here, &decided, now).as_slice())]);
        let mut decisions: PerAsk<Option<Decision>> = by.iter().map(|_| None).collect();
        for (place, decision) in places.iter().zip(decided.decisions) {
            decisions[*place] = Some(decision);
        }
        Answer { slots, receipts, ..Answer::new(self.asks, decisions, by) }
    }

    /// What was noted, each at its ask's place.
    fn receipts<'n>(
        &self,
        noted: impl IntoIterator<Item = (&'n PerAsk<usize>, &'n [Receipt])>,
    ) -> Box<[Receipt]> {
        if self.noted == Noted::Untold {
            return Box::default();
        }
        // A limiter of Redisson's notes nothing.
        let mut receipts: Box<[Receipt]> = self.asks.iter().map(|_| Receipt::NONE).collect();
        for (places, noted) in noted {
            for (place, receipt) in places.iter().zip(noted) {
                receipts[*place] = *receipt;
            }
        }
        receipts
    }

    /// A candidate goes where its limit goes, which is asked right before it: apart from it, it would
    /// stand in for another. Where it is the candidate that cannot be asked, it is not decided on.
    fn keep_together(&self, by: &mut [By], place: usize) {
        let is_candidate =
            |at: usize| self.asks.get(at).is_some_and(|ask| ask.ask.mode == Mode::Candidate);
        if is_candidate(place) && place.checked_sub(1).is_some_and(|own| by[own] == By::Redis) {
            by[place] = By::Nobody;
        } else if is_candidate(place + 1) && by[place + 1] == By::Redis {
            by[place + 1] = by[place];
        }
    }

    /// Who decides on each ask that Redis should have, and does not. Of an outage it is told later how
    /// many requests it met.
    fn all_without_redis(&self, by: &mut [By]) -> Result<(), Unavailable> {
        let (health, mut met) = (self.shared.health.as_ref(), false);
        for (place, by) in by.iter_mut().enumerate().filter(|(_, by)| **by == By::Redis) {
            met = true;
            *by = self
                .without_redis(place)
                .inspect_err(|_| health.into_iter().for_each(Health::refused_without))?;
        }
        if met {
            health.into_iter().for_each(Health::decided_without);
        }
        Ok(())
    }

    /// Who decides on an ask that Redis does not.
    fn without_redis(&self, place: usize) -> Result<By, Unavailable> {
        let ask = &self.asks[place];
        match (ask.spec.on_store_error, ask.ask.mode) {
            (OnStoreError::Local, _) => Ok(By::Process),
            (OnStoreError::Reject, Mode::Enforce) => Err(Unavailable { by: place }),
            (OnStoreError::Allow, _) | (OnStoreError::Reject, Mode::Shadow | Mode::Candidate) => {
                Ok(By::Nobody)
            }
        }
    }

    fn here(&self, by: &[By]) -> (PerAsk<usize>, PerAsk<&'q BucketAsk<'q>>) {
        self.of(by, |_, by| by == By::Process)
    }

    fn of(
        &self,
        by: &[By],
        which: impl Fn(&BucketAsk<'_>, By) -> bool,
    ) -> (PerAsk<usize>, PerAsk<&'q BucketAsk<'q>>) {
        let mine = self.asks.iter().enumerate().zip(by).filter(|((_, ask), by)| which(ask, **by));
        mine.map(|(ask, _)| ask).unzip()
    }

    /// The time by now: a request may have waited for Redis, and buckets that went on meanwhile
    /// must not be set back.
    fn now(&self) -> Now {
        self.shared.wall.both(self.now.plus(self.began.elapsed()))
    }
}

fn refusers(asks: &[&BucketAsk<'_>], decisions: &[Decision]) -> Refusers {
    let outcomes = asks.iter().zip(decisions).enumerate();
    Refusers::of(outcomes.map(|(at, (ask, decision))| (at, ask.ask.mode, decision.outcome)))
}

/// What the limiters of Redisson's said, those of a request together.
#[derive(Default)]
struct Limiters {
    /// Whether the request may still pass.
    pass: bool,
    decisions: Vec<(usize, Decision)>,
    told: Vec<Told>,
    /// What was taken, which goes back unless it is kept.
    entries: Vec<(usize, Entry)>,
    /// Those that cannot decide.
    wrong: PerAsk<usize>,
}

fn together(entries: Vec<(usize, Entry)>) -> Entries {
    Entries::of(entries.into_iter().map(|(_, entry)| entry))
}

/// Tokens taken in the process for a request that Redis has not let pass yet. They go back when
/// it does not, or when the client leaves and the request is dropped.
struct Taken<'t, 'q> {
    request: &'t Request<'q>,
    taken: PerAsk<(&'q BucketAsk<'q>, Receipt)>,
}

impl Taken<'_, '_> {
    fn keep(mut self) {
        self.taken.clear();
    }
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        for (ask, receipt) in &self.taken {
            let used = Difference::Less(ask.ask.cost.get());
            let settled = Settlement { used, receipt: *receipt, patience: ask.spec.wait };
            self.request.shared.memory.settle(ask, &settled, self.request.now());
        }
    }
}
