//! Asks Redis: one script call holds the asks of all requests that come together. `store::order` calls
//! this folder, and decides what happens if Redis does not answer with a decision.
//!
//! `queue` gathers requests, [`crate::limit::call`] packs them and reads the answer, and [`crate::redis`] sends the call.
//! In a cluster a call has the keys of one hash slot. `leases` keeps the slots that are held in Redis, and
//! `announcement` counts the processes that share Redis, and carries what they tell each other. `overrides` reads and
//! sets the overrides of operators. `redisson` asks Redisson limiters, by its own script and calls.

mod announcement;
mod leases;
mod overrides;
mod queue;
mod redisson;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::announcement::FleetCalls;
use self::leases::SlotLeases;
use self::overrides::SharedOverrides;
use self::queue::{Awaited, Lost, Queue};
use self::redisson::LimiterCalls;
use super::bucket::{BucketAsk, KeyLocation};
use super::name::name_in_redis;
use super::process::ProcessStore;
use crate::limit::algorithm::{Algorithm, Difference, Receipt, token_bucket};
use crate::limit::bucket::{BucketReply, Decider, Holder, LimiterFigures, ReceiptUse};
use crate::limit::call::{AskReply, Call, Reply, SCRIPT, Verb};
use crate::limit::decide::{self, Ask, PerAsk};
use crate::limit::decision::Decision;
use crate::limit::rate::{Burst, Rate};
use crate::redis::{CallError, CallKind, HashSlot, Program, RedisNodes, Router, follow_map};

pub(super) use self::redisson::new_id;
pub(crate) use self::redisson::{
    LimiterConfig, LimiterError, Limiters, limiter_keys, limiter_name,
};

/// The ask of a call about one bucket.
pub(super) struct CallAsk<'r> {
    pub(super) asked: BucketAsk<'r>,
    /// Whether it may take.
    pub(super) verb: Verb,
    /// The holder of the slot that is asked for, if this is a concurrency limit.
    pub(super) holder: Option<Holder>,
}

/// A request's question to Redis, until it is answered. If the client leaves, this is dropped early. Then a task waits
/// for the answer and gives back what was taken.
struct PendingAsk<'q, 'r> {
    redis: &'q Redis,
    hash_slot: HashSlot,
    asks: &'q [CallAsk<'r>],
    /// The reply to these asks, in their order. `None` once the question is answered.
    awaited: Option<Awaited>,
}

/// One worker's access to Redis.
pub(super) struct Redis {
    pub(super) router: Arc<Router>,
    pub(super) queue: Queue,
    _tasks: Vec<AbortOnDropHandle<()>>,
    /// Announces the process. `Some` in one worker of the process.
    announcing: Option<AbortOnDropHandle<()>>,
    pub(super) leases: Arc<SlotLeases>,
    pub(super) limiters: LimiterCalls,
    pub(super) overrides: SharedOverrides,
    pub(super) fleet: FleetCalls,
    prefix: String,
    shared: Arc<ProcessStore>,
}

impl Redis {
    /// Begins to connect. Must be called within the worker's runtime.
    pub(super) fn new(nodes: &Arc<RedisNodes>, prefix: &str, shared: Arc<ProcessStore>) -> Self {
        let router = Router::new(Arc::clone(nodes), program(prefix));
        let (queue, sender) = Queue::to(Arc::clone(&router));
        let mut tasks: Vec<_> = router.keep_connected().into_iter().chain([sender]).collect();
        let mut announcing = None;
        let overrides = SharedOverrides::new(Arc::clone(&router), prefix, Arc::clone(&shared));
        let fleet = FleetCalls::new(Arc::clone(&router), prefix, Arc::clone(&shared));
        // These tasks run once in a process, in the first worker that comes here.
        if !shared.is_announced.swap(true, Ordering::Relaxed) {
            announcing = Some(fleet.announce());
            let following = overrides.clone().follow();
            tasks.push(AbortOnDropHandle::new(tokio::spawn(following)));
            if nodes.is_cluster {
                let following = follow_map(Arc::clone(nodes));
                tasks.push(AbortOnDropHandle::new(tokio::spawn(following)));
            }
        }
        let (leases, keeper) = SlotLeases::begin(queue.clone(), Arc::clone(&router));
        tasks.push(keeper);
        let (to, all) = (Arc::clone(&router), Arc::clone(&shared));
        let limiters = LimiterCalls::new(to, queue.clone(), all);
        let (_tasks, prefix) = (tasks, prefix.to_owned());
        Self {
            router,
            queue,
            _tasks,
            announcing,
            leases,
            limiters,
            overrides,
            fleet,
            prefix,
            shared,
        }
    }

    /// The process ends: it no longer counts among those that share Redis.
    pub(super) async fn leave(&self) {
        if let Some(announcing) = &self.announcing {
            announcing.abort();
            self.fleet.withdraw().await;
        }
    }

    /// Where the key of this question is.
    pub(super) fn locate(&self, ask: &BucketAsk<'_>) -> KeyLocation {
        let hash_slot = self.hash_slot(ask);
        let connection = self.router.connection_number(hash_slot);
        KeyLocation { hash_slot, connection, generation: self.shared.running.generation() }
    }

    fn hash_slot(&self, ask: &BucketAsk<'_>) -> HashSlot {
        match (self.router.nodes.is_cluster, ask.is_limiter()) {
            (false, _) => HashSlot::default(),
            (true, false) => self.router.hash_slot(&self.name(ask)),
            (true, true) => self.limiters.hash_slot(ask),
        }
    }

    /// Names a slot of a concurrency limit before Redis is asked for it. `None` for all other limits.
    pub(super) fn name_slot(&self, ask: &BucketAsk<'_>) -> Option<Holder> {
        let has_slots = matches!(ask.ask.algorithm, Algorithm::Concurrency(_));
        has_slots.then(|| self.leases.name(&ask.ask, self.name(ask)))
    }

    /// Decides over these asks together by Redis's clock. Returns one reply for each ask: `None` if its key holds a value
    /// of another type, and then no ask has taken anything. If the future is dropped early,
    /// tokens that were taken go back ([`PendingAsk`]). All keys must have the same hash slot.
    pub(super) async fn ask(
        &self,
        hash_slot: HashSlot,
        asks: &[CallAsk<'_>],
        receipts: ReceiptUse,
    ) -> Result<PerAsk<Option<BucketReply>>, CallError> {
        let request = (asks.len(), receipts);
        let awaited = self.queue.begin(hash_slot, request, self.router.deadline(), |call| {
            for CallAsk { asked, verb, holder } in asks {
                call.ask(*verb, &asked.ask, *holder, self.name(asked));
            }
        });
        let pending = PendingAsk { redis: self, hash_slot, asks, awaited: Some(awaited) };
        let answer = pending.answer().await;
        if let (Err(error), [one]) = (&answer, asks)
            && error.is_no_right_in_script()
        {
            self.shared.warnings.refused(one.asked.spec, error);
        }
        let reply = answer?;
        let took = takers(asks.iter().map(|it| (it.verb, &it.asked.ask)), &reply);
        let replies = asks.iter().zip(reply.into_iter().zip(took));
        Ok(replies.map(|(ask, (one, took))| self.read(ask, one, took)).collect())
    }

    fn read(&self, ask: &CallAsk<'_>, reply: AskReply, took: bool) -> Option<BucketReply> {
        if reply.decision.is_none() {
            let name = || String::from_utf8_lossy(&self.name(&ask.asked)).into_owned();
            self.shared.warnings.other_type(ask.asked.spec, name);
            self.router.count_error(self.hash_slot(&ask.asked), &CallError::OTHER_TYPE);
        }
        match ask.holder {
            Some(holder) if took => self.leases.renew(holder),
            Some(holder) => self.leases.forget(holder),
            None => {}
        }
        reply.of_bucket(&ask.asked.ask.algorithm, took)
    }

    /// What the bucket would decide if the request had no other limit. Nothing is taken.
    pub(super) async fn look(&self, ask: &BucketAsk<'_>) -> Result<Decision, CallError> {
        if ask.is_limiter() {
            let (id, deadline) = (new_id(), self.router.deadline());
            return Ok(self.limiters.ask(ask, Verb::Look, &id, deadline).await?.decision);
        }
        let one = (1, ReceiptUse::Unneeded);
        let deadline = self.router.deadline();
        let mut awaited = self.queue.begin(self.hash_slot(ask), one, deadline, |call| {
            call.ask(Verb::Look, &ask.ask, None, self.name(ask));
        });
        let reply = awaited.answer().await?;
        let only = reply.first().ok_or(CallError::Nonsense)?;
        only.decision.ok_or(CallError::OTHER_TYPE)
    }

    /// The figures of the ask's limiter.
    pub(super) async fn limiter_figures(
        &self,
        ask: &BucketAsk<'_>,
    ) -> Result<LimiterFigures, CallError> {
        let (id, deadline) = (new_id(), self.router.deadline());
        match self.limiters.ask(ask, Verb::Look, &id, deadline).await?.by {
            Decider::Limiter(figures) => Ok(figures),
            _ => Err(CallError::Nonsense),
        }
    }

    /// Sends how much more or less a request used than its cost. Tokens used beyond the cost are taken even if the
    /// bucket has fewer left. The settlement joins the call that is being gathered, and the caller does not wait for
    /// the reply. Lost settlements are counted, and logged from time to time.
    pub(super) fn settle(&self, ask: &BucketAsk<'_>, used: Difference, receipt: Receipt) {
        let shared = Arc::clone(&self.shared);
        let lost: Lost =
            Box::new(move |error| shared.unsettled.count((), error.to_string(), Instant::now()));
        let verb = Verb::Settle(used, receipt);
        if ask.is_limiter() {
            return self.limiters.settle(ask, verb, lost);
        }
        self.queue.send(self.hash_slot(ask), self.router.deadline(), Some(lost), |call| {
            call.ask(verb, &ask.ask, None, self.name(ask));
        });
    }

    /// Forgets the bucket. A limiter keeps its figures, and forgets the permits in use.
    pub(super) async fn forget(&self, ask: &BucketAsk<'_>) -> Result<(), CallError> {
        let mut call = redis::cmd("DEL");
        match ask.is_limiter() {
            true => call.arg(&self.limiters.keys(ask)[1..]),
            false => call.arg(self.name(ask)),
        };
        let read = |value| matches!(value, Value::Int(_)).then_some(());
        self.router
            .call(CallKind::Awaited, self.hash_slot(ask), &call, read, self.router.deadline())
            .await
    }

    fn name(&self, ask: &BucketAsk<'_>) -> Vec<u8> {
        name_in_redis(&self.prefix, ask.spec, ask.key, &ask.ask.algorithm).into_bytes()
    }
}

impl PendingAsk<'_, '_> {
    /// Waits for the reply.
    async fn answer(mut self) -> Result<Reply, CallError> {
        let Some(awaited) = &mut self.awaited else { return Err(CallError::Nonsense) };
        let reply = awaited.answer().await;
        self.awaited = None;
        reply
    }
}

impl Drop for PendingAsk<'_, '_> {
    fn drop(&mut self) {
        // Without a runtime the worker has ended, and with it its connection.
        let (Some(mut awaited), Ok(runtime)) = (self.awaited.take(), Handle::try_current()) else {
            return;
        };
        let bucket = |CallAsk { asked, verb, .. }: &CallAsk<'_>| {
            let ask = Ask { max_wait: asked.spec.wait, ..asked.ask };
            (*verb, ask, self.redis.name(asked))
        };
        let buckets: Vec<(Verb, Ask, Vec<u8>)> = self.asks.iter().map(bucket).collect();
        let (queue, router) = (self.redis.queue.clone(), Arc::clone(&self.redis.router));
        let hash_slot = self.hash_slot;
        // `Store::settled` waits for this task, too.
        let counted = queue.count();
        runtime.spawn(async move {
            let _counted = counted;
            let Ok(reply) = awaited.answer().await else { return };
            let took = takers(buckets.iter().map(|(verb, ask, _)| (*verb, ask)), &reply);
            for (((_, ask, name), one), took) in buckets.iter().zip(reply).zip(took) {
                // The grant that was made before the question gives a slot back.
                if !took || matches!(ask.algorithm, Algorithm::Concurrency(_)) {
                    continue;
                }
                let Some(receipt) = receipt(one, ask) else { continue };
                let less = Verb::Settle(Difference::Less(ask.cost.get()), receipt);
                queue.send(hash_slot, router.deadline(), None, |call| {
                    call.ask(less, ask, None, name.clone());
                });
            }
        });
    }
}

/// The receipt of an ask. If none was asked for, a token bucket can still take its tokens back, because they were taken
/// a moment ago. A window or a list cannot: without a receipt it does not know where they were counted.
fn receipt(reply: AskReply, ask: &Ask) -> Option<Receipt> {
    match ask.algorithm {
        Algorithm::TokenBucket(_) => Some(reply.receipt.unwrap_or(Receipt::NEWEST)),
        _ => reply.receipt,
    }
}

/// Which of a request's asks have taken. If a key is of another type, no ask of the request has taken.
fn takers<'a>(asks: impl Iterator<Item = (Verb, &'a Ask)> + Clone, reply: &Reply) -> PerAsk<bool> {
    let outcome =
        |((_, ask), one): ((Verb, &Ask), &AskReply)| Some((ask.mode, one.decision?.outcome));
    let outcomes: Option<PerAsk<_>> = asks.clone().zip(reply).map(outcome).collect();
    let Some(outcomes) = outcomes else { return PerAsk::from_elem(false, reply.len()) };
    let takers = decide::takers(outcomes.into_iter()).zip(asks);
    takers.map(|(takes, (verb, ask))| takes && ask.takes && verb == Verb::Take).collect()
}

/// The scripts, and the probe: a call that succeeds only at a server that can decide. It reads the clock, runs the
/// script, and writes a bucket. The bucket expires within a few milliseconds.
fn program(prefix: &str) -> Program {
    Program {
        scripts: vec![&SCRIPT, &redisson::SCRIPT, &overrides::SCRIPT, &announcement::SCRIPT],
        // No limit's key looks like this, because a limit's name is never empty.
        probe_key: format!("{prefix}::probe"),
        probe: |key| Some(probe(key)?.command()),
        is_decision: |answer| {
            let Value::BulkString(answer) = answer else { return false };
            probe("").is_some_and(|probe| probe.read(answer).is_some())
        },
    }
}

fn probe(name: &str) -> Option<Call> {
    let rate = Rate::new(1, 1_000).ok()?;
    let burst = Burst::new(1_000_000)?;
    let algorithm = Algorithm::TokenBucket(token_bucket::Params { rate, burst });
    let ask = Ask::for_one(algorithm);
    let mut call = Call::default();
    call.request(1, ReceiptUse::Unneeded);
    call.ask(Verb::Take, &ask, None, name.as_bytes().to_vec());
    Some(call)
}

#[cfg(test)]
mod tests;
