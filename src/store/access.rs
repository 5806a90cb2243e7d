//! One worker's access to buckets. This file looks at one bucket, settles with it, or resets it, and asks the other
//! processes. `order` asks all limits of a request.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::bucket::{BucketAsk, KeyLocation};
use super::fleet::{FleetAnswers, FleetWord};
use super::known::KnownRefusals;
use super::name::BucketKey;
use super::process::ProcessStore;
use super::queue::QueueId;
use super::running::RunningOverride;
use super::script::Redis;
use crate::limit::Scope;
use crate::limit::algorithm::{Difference, Receipt, Settlement};
use crate::limit::bucket::BucketReceipt;
use crate::limit::decide::Ask;
use crate::limit::decision::Decision;
use crate::limit::key::Key;
use crate::limit::time::{Now, Timestamp};
use crate::redis::CallError;
use crate::settings::{KeyDisplay, LimitSpec, RunningFigures, StoreSpec};

/// One worker's access to the buckets. Every `now` is a time by the process's clock, which never steps.
pub struct Store {
    pub(super) shared: Arc<ProcessStore>,
    pub(super) redis: Option<Redis>,
    pub(super) known: KnownRefusals,
    display: KeyDisplay,
}

impl Store {
    /// Creates a store. If buckets live in Redis, the store begins to connect.
    ///
    /// Must be called within the worker's runtime, because the connection lives there. The connection ends
    /// when the store is dropped. A server that is away is no error: the store connects once it is back.
    pub fn new(shared: Arc<ProcessStore>, spec: &StoreSpec, display: KeyDisplay) -> Arc<Self> {
        let redis =
            shared.redis.as_ref().map(|nodes| Redis::new(nodes, &spec.prefix, Arc::clone(&shared)));
        Arc::new(Self { shared, redis, known: KnownRefusals::default(), display })
    }

    /// The time `now` by both clocks. In a bucket of this process, windows that begin with the clock follow the time of
    /// day.
    pub(crate) fn both(&self, now: Timestamp) -> Now {
        self.shared.wall.both(now)
    }

    /// Whether all buckets live in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.redis.is_none()
    }

    /// Where the key of this question is in Redis. `None` if its bucket is in this process.
    pub(super) fn locate(&self, ask: &BucketAsk<'_>) -> Option<KeyLocation> {
        self.redis_of(ask).map(|redis| redis.locate(ask))
    }

    /// What the bucket would decide if the request had no other limit. Nothing is taken, so `remaining` includes the
    /// tokens that the request would take.
    ///
    /// # Errors
    /// If Redis does not decide.
    pub async fn look(&self, ask: &BucketAsk<'_>, now: Timestamp) -> Result<Decision, CallError> {
        match self.redis_of(ask) {
            None => Ok(self.look_here(ask, now)),
            Some(redis) => redis.look(ask).await,
        }
    }

    /// The same question, for the bucket of this process that decides while Redis is away.
    pub(crate) fn without_redis<'r>(&self, ask: &BucketAsk<'r>) -> BucketAsk<'r> {
        let processes = self.shared.processes.load(Ordering::Relaxed);
        let algorithm = ask.ask.algorithm.share(processes, ask.ask.cost);
        BucketAsk { ask: Ask { algorithm, ..ask.ask }, ..*ask }
    }

    /// What a bucket in this process would decide, as [`Store::look`].
    pub(crate) fn look_here(&self, ask: &BucketAsk<'_>, now: Timestamp) -> Decision {
        self.shared.memory.look(&ask.keyed(), self.both(now))
    }

    /// Corrects a bucket after a request: the request used more or fewer tokens than it took at first. The
    /// limit wrote `receipt` when the request took its tokens. A bucket in this process is corrected at once.
    /// For a bucket in Redis, the correction is sent with the next call, before any later question of this
    /// worker. [`Store::settled`] waits for the answer.
    pub fn settle(&self, ask: &BucketAsk<'_>, used: Difference, receipt: Receipt, now: Timestamp) {
        match self.redis_of(ask) {
            None => self.settle_here(ask, used, BucketReceipt::of(receipt), now),
            Some(redis) => redis.settle(&self.in_force(ask, now), used, receipt),
        }
    }

    /// Settles with a bucket of this process.
    pub(super) fn settle_here(
        &self,
        ask: &BucketAsk<'_>,
        used: Difference,
        taken: BucketReceipt,
        now: Timestamp,
    ) {
        let ask = self.in_force(ask, now);
        let settled = Settlement { used, receipt: taken.receipt, max_wait: ask.ask.max_wait };
        self.shared.memory.settle(&ask.keyed(), &settled, taken, self.shared.wall.both(now));
    }

    fn in_force<'r>(&self, ask: &BucketAsk<'r>, now: Timestamp) -> BucketAsk<'r> {
        BucketAsk { ask: self.shared.running.in_force(ask, self.both(now)), ..*ask }
    }

    /// The queue of the ask's bucket.
    pub(super) fn queue_id(&self, ask: &BucketAsk<'_>, is_here: bool) -> QueueId {
        QueueId { bucket: self.shared.memory.identity(&ask.keyed()).number(), is_here }
    }

    /// The requests of this process that wait for the ask's bucket.
    pub(crate) fn waiting_for(&self, ask: &BucketAsk<'_>) -> usize {
        let queues = [true, false].map(|is_here| self.queue_id(ask, is_here));
        queues.into_iter().map(|queue| self.shared.queues.waiting(queue)).sum()
    }

    /// A request's key for a limit.
    pub(crate) fn key(&self, spec: &LimitSpec, key: Key) -> BucketKey {
        BucketKey::new(spec, key, self.display)
    }

    /// The figures that were set for this key, or for all keys, while the process runs.
    pub(crate) fn running_figures(
        &self,
        spec: &LimitSpec,
        key: &BucketKey,
    ) -> Option<RunningFigures> {
        self.shared.running.find(spec, key)
    }

    /// Counts a rejection of this client's request by a limit with `ban`. The rejection may ban the key.
    pub(crate) fn count_rejection(
        &self,
        spec: &Arc<LimitSpec>,
        key: &BucketKey,
        client: IpAddr,
        now: Timestamp,
    ) {
        let now = self.both(now);
        self.shared.running.count_rejection(spec, key, client, now, !self.is_local());
    }

    /// Sets an override: in Redis, if buckets live in Redis, and in this process alone otherwise. `wall`
    /// is the time of day. Returns whether there was room for it.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(crate) async fn set_override(
        &self,
        entry: RunningOverride,
        lasts: Option<Duration>,
        wall: Timestamp,
    ) -> Result<bool, CallError> {
        match &self.redis {
            Some(redis) => redis.overrides.set(&entry, lasts).await,
            None => {
                let ends = lasts.map(|lasts| wall.plus(lasts));
                Ok(self.shared.running.set_here(RunningOverride { ends, ..entry }, lasts))
            }
        }
    }

    /// Ends the override of the key with this text. Returns whether there was one.
    ///
    /// # Errors
    /// If Redis does not answer.
    pub(crate) async fn end_override(&self, limit: &str, key: &str) -> Result<bool, CallError> {
        let _none_is_sent = self.shared.running.sending.lock().await;
        let was_here = self.shared.running.end_here(limit, key);
        let Some(redis) = &self.redis else { return Ok(was_here) };
        match redis.overrides.end(limit, key).await {
            // Redis is away. The ban held in this process alone.
            Err(_) if was_here => Ok(true),
            ended => ended.map(|was_there| was_there || was_here),
        }
    }

    /// Waits until there is a connection, if buckets live in Redis. Waits no longer than `max_wait`, and not for
    /// a Redis that is known to be away.
    pub(crate) async fn connected(&self, max_wait: Duration) {
        if let Some(redis) = &self.redis {
            // Without a connection the next question says what is wrong.
            let _ = timeout(max_wait, redis.router.connected()).await;
        }
    }

    /// Waits until Redis has answered all settlements and returns of this worker, or they have failed. This takes at
    /// most `store.timeout`, or twice as long if Redis must first say what was taken.
    pub async fn settled(&self) {
        if let Some(redis) = &self.redis {
            redis.queue.answered().await;
        }
    }

    /// Called when the worker ends. Does what [`Store::settled`] does, and then tells Redis that the process
    /// has ended. The other processes need not wait until its announcement expires.
    pub(crate) async fn leave(&self) {
        self.settled().await;
        if let Some(redis) = &self.redis {
            redis.leave().await;
        }
    }

    /// Resets the ask's bucket to a new one, in Redis and in this process. Other processes then forget the bucket's
    /// known refusals within a second: they see the change at the server that has the overrides. If that server is
    /// away, the known refusals end by themselves within about two seconds.
    ///
    /// # Errors
    /// If Redis does not answer in time. The bucket may be reset nevertheless.
    pub async fn forget(&self, ask: &BucketAsk<'_>) -> Result<(), CallError> {
        let redis = self.redis_of(ask);
        if let Some(redis) = redis {
            redis.forget(ask).await?;
        }
        self.shared.memory.forget(&ask.keyed());
        self.known.forget(&self.shared.memory, ask);
        // A failure here is no error: the bucket is reset, and known refusals end by themselves soon.
        if let Some(redis) = redis
            && redis.overrides.tell_forgotten().await.is_err()
        {
            // This ends the known refusals of the other workers of this process, without Redis.
            self.shared.running.begin_generation();
        }
        Ok(())
    }

    /// Asks all other processes that share Redis, and waits for their answers, at most a second. The question stays for
    /// `lasts`: an answer to an open question with this ID may have been there before. Without Redis nobody is asked.
    ///
    /// # Errors
    /// If Redis does not answer. [`CallError::UnusableKey`] if too many questions are open.
    pub(crate) async fn ask_fleet(
        &self,
        question: &FleetWord,
        lasts: Duration,
    ) -> Result<FleetAnswers, CallError> {
        match &self.redis {
            None => Ok(FleetAnswers::new()),
            Some(redis) => redis.fleet.ask(question, lasts).await,
        }
    }

    /// Redis, if it holds the ask's bucket.
    fn redis_of(&self, ask: &BucketAsk<'_>) -> Option<&Redis> {
        self.redis.as_ref().filter(|_| ask.spec.scope == Scope::Cluster)
    }
}
