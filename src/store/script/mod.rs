//! Asks Redis: one script call holds the asks of all requests that come together. `store::order` calls
//! this folder, and decides what happens if Redis does not answer with a decision.
//!
//! `queue` gathers requests, [`crate::limit::call`] packs them and reads the answer, and [`crate::redis`] sends the call.
//! In a cluster a call has the keys of one hash slot. `pending` is a question whose client may leave before the answer. `leases` keeps the slots that are held in
//! Redis, and `processes` counts the processes that share Redis. `overrides` reads and sets the overrides of
//! operators. `redisson` asks Redisson limiters, by its own script and calls.

mod leases;
mod overrides;
mod pending;
mod processes;
mod queue;
mod redisson;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::leases::SlotLeases;
use self::overrides::SharedOverrides;
pub(super) use self::pending::CallAsk;
use self::pending::{PendingAsk, key_name, takers};
use self::processes::Announcement;
use self::queue::{Lost, Queue};
use self::redisson::LimiterCalls;
use super::bucket::{BucketAsk, KeyLocation};
use super::process::ProcessStore;
use crate::limit::algorithm::{Algorithm, Difference, Receipt, token_bucket};
use crate::limit::bucket::{BucketReceipt, BucketReply, Decider, Holder, ReceiptUse};
use crate::limit::call::{AskReply, Call, SCRIPT, Verb};
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::Decision;
use crate::limit::rate::{Burst, Rate};
use crate::redis::{CallError, CallKind, HashSlot, Program, RedisNodes, Router, keep_map};

pub(super) use self::redisson::new_id;
pub(crate) use self::redisson::{
    LimiterConfig, LimiterError, Limiters, limiter_keys, limiter_name,
};

/// One worker's access to Redis.
pub(super) struct Redis {
    pub(super) router: Arc<Router>,
    pub(super) queue: Queue,
    _tasks: Vec<AbortOnDropHandle<()>>,
    /// `Some` in one worker of the process.
    announcement: Option<Announcement>,
    pub(super) leases: SlotLeases,
    pub(super) limiters: LimiterCalls,
    pub(super) overrides: SharedOverrides,
    prefix: String,
    shared: Arc<ProcessStore>,
}

impl Redis {
    /// Begins to connect. Must be called within the worker's runtime.
    pub(super) fn new(nodes: &Arc<RedisNodes>, prefix: &str, shared: Arc<ProcessStore>) -> Self {
        let router = Router::new(Arc::clone(nodes), program(prefix));
        let (queue, sender) = Queue::to(Arc::clone(&router));
        let mut tasks: Vec<_> = router.keep_connected().into_iter().chain([sender]).collect();
        let mut announcement = None;
        let overrides = SharedOverrides::new(Arc::clone(&router), prefix, Arc::clone(&shared));
        // These tasks run once in a process, in the first worker that comes here.
        if !shared.is_announced.swap(true, Ordering::Relaxed) {
            let (to, all) = (Arc::clone(&router), Arc::clone(&shared));
            announcement = Some(Announcement::begin(to, prefix, all));
            let following = overrides.clone().follow();
            tasks.push(AbortOnDropHandle::new(tokio::spawn(following)));
            if nodes.is_cluster {
                let following = keep_map(Arc::clone(nodes));
                tasks.push(AbortOnDropHandle::new(tokio::spawn(following)));
            }
        }
        let leases = SlotLeases::keep(queue.clone(), Arc::clone(&router));
        let (to, all) = (Arc::clone(&router), Arc::clone(&shared));
        let limiters = LimiterCalls::new(to, queue.clone(), all);
        let (_tasks, prefix) = (tasks, prefix.to_owned());
        Self { router, queue, _tasks, announcement, leases, limiters, overrides, prefix, shared }
    }

    /// The process ends: it no longer counts among those that share Redis.
    pub(super) async fn leave(&self) {
        if let Some(announcement) = &self.announcement {
            announcement.withdraw().await;
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
    /// tokens that were taken go back (`pending`). All keys must have the same hash slot.
    pub(super) async fn ask(
        &self,
        hash_slot: HashSlot,
        asks: &[CallAsk<'_>],
        receipts: ReceiptUse,
    ) -> Result<PerAsk<Option<BucketReply>>, CallError> {
        let request = (asks.len(), receipts);
        let awaited = self.queue.begin(hash_slot, request, self.router.deadline(), |call| {
            for CallAsk { asked, verb, holder } in asks {
                call.ask_for(*holder, *verb, &asked.ask, self.name(asked));
            }
        });
        let Self { queue, router, prefix, .. } = self;
        let pending = PendingAsk { queue, router, prefix, hash_slot, asks, awaited: Some(awaited) };
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
        let algorithm = &ask.asked.ask.algorithm;
        // Redis notes a receipt wherever the limit itself lets the request pass.
        let begin = reply.receipt.map(Receipt::time);
        let window_left = begin.and_then(|begin| algorithm.window_left(begin, reply.at));
        let receipt = reply.receipt.filter(|_| took).map(|it| it.under(algorithm, reply.at));
        let (by, receipt) = (Decider::Redis, receipt.map(BucketReceipt::of));
        Some(BucketReply { decision: reply.decision?, by, took, receipt, window_left })
    }

    /// What the bucket would decide if the request had no other limit. Nothing is taken.
    pub(super) async fn look(&self, ask: &BucketAsk<'_>) -> Result<Decision, CallError> {
        if ask.is_limiter() {
            let (id, deadline) = (new_id(), self.router.deadline());
            return self.limiters.ask(ask, Verb::Look, &id, deadline).await.map(|(said, _)| said);
        }
        let one = (1, ReceiptUse::Unneeded);
        let deadline = self.router.deadline();
        let mut awaited = self.queue.begin(self.hash_slot(ask), one, deadline, |call| {
            call.ask(Verb::Look, &ask.ask, self.name(ask));
        });
        let reply = awaited.answer().await?;
        let only = reply.first().ok_or(CallError::Nonsense)?;
        only.decision.ok_or(CallError::OTHER_TYPE)
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
            call.ask(verb, &ask.ask, self.name(ask));
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
        key_name(&self.prefix, ask)
    }
}

/// The scripts, and the probe: a call that succeeds only at a server that can decide. It reads the clock, runs the
/// script, and writes a bucket. The bucket expires within a few milliseconds.
fn program(prefix: &str) -> Program {
    Program {
        scripts: vec![&SCRIPT, &redisson::SCRIPT, &overrides::SCRIPT, &processes::SCRIPT],
        // No limit's key looks like this, because a limit's name is never empty.
        probe_key: format!("{prefix}::probe"),
        probe: |key| Some(probe(key)?.command()),
        is_decision: |answer| probe("").is_some_and(|probe| probe.read(answer).is_some()),
    }
}

fn probe(name: &str) -> Option<Call> {
    let rate = Rate::new(1, 1_000).ok()?;
    let burst = Burst::new(1_000_000)?;
    let algorithm = Algorithm::TokenBucket(token_bucket::Params { rate, burst });
    let ask = Ask::for_one(algorithm);
    let mut call = Call::default();
    call.request(1, ReceiptUse::Unneeded);
    call.ask(Verb::Take, &ask, name.as_bytes().to_vec());
    Some(call)
}
