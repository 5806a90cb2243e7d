//! Applies `limit::decide` atomically somewhere: to this process's buckets, or in Redis.
//!
//! `memory` holds the buckets of this process; `redis` asks a server, by `shell.lua` and the Lua
//! twins of the algorithms (`lists.lua` for those that are lists); `fallback` puts the two together:
//! limits of one node, and what each limit does while Redis is away. `slots` are what a request holds
//! of either until it ends, `noted` what it may give back, `in_force` by what figures. All workers of a
//! process share one [`Shared`]; each has its own [`Store`], because a connection lives in the runtime
//! that made it.

mod fallback;
mod in_force;
mod memory;
mod noted;
mod redis;
mod shared;
mod slots;

use std::fmt;
use std::sync::Arc;

use ::redis::RedisError;

pub use self::fallback::By;
pub use self::noted::Taken;
pub use self::redis::{
    BucketName, Entries, LimiterConfig, LimiterError, LimiterKeys, Limiters, Settling, limiter_name,
};
use self::redis::{Redis, UnderWay};
pub use self::shared::{Counters, Shared};
pub use self::slots::Slots;
use crate::limit::algorithm::{Difference, Receipt, Settlement};
use crate::limit::decide::{Ask, PerAsk};
use crate::limit::decision::{Decision, Verdict};
use crate::limit::key::Key;
use crate::limit::time::Timestamp;
use crate::limit::{Mode, Scope};
use crate::plan::{KeyDisplay, LimitSpec, StoreLocation, StoreSpec};

/// So many calls of [`Shared::sweep`] go around all buckets of a process.
pub const SWEEP_STEPS: usize = memory::SWEEP_STEPS;

/// One limit's question to a store.
#[derive(Clone, Copy, Debug)]
pub struct BucketAsk<'r> {
    /// The limit. Its name, key sources, scope and `on_store_error` are looked at here.
    pub spec: &'r LimitSpec,
    /// The request's key, plain.
    pub key: &'r Key,
    /// The figures that apply to this key, what the request takes, and whether a refusal counts.
    pub ask: Ask,
}

/// What a store says to all of a request's asks together.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// In the asks' order; `None` where a limit was not decided, because Redis is away and the
    /// limit then lets everything pass.
    pub decisions: PerAsk<Option<Decision>>,
    /// Who decided, in the asks' order: what a request has to settle is settled there.
    pub by: PerAsk<By>,
    /// What the enforcing limits mean together; its `by` is a place among the asks.
    pub verdict: Verdict,
    /// The figures of those limits that have them in Redis.
    pub told: Vec<Told>,
    /// The slots that the request holds from now on.
    pub slots: Slots,
    /// What limiters of Redisson's took of a request that is to be held. Dropped, it goes back, and nothing
    /// of that is to be given back otherwise.
    pub entries: Entries,
    /// What is noted of each ask that took, in the asks' order: to be shown when it is settled or given
    /// back. Empty where no limit of the request can come to that.
    pub receipts: Box<[Receipt]>,
}

/// The figures of a limit that only its store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The limit's place among the asks.
    pub place: usize,
    /// The most tokens that a request can ever take.
    pub capacity: u64,
    /// The whole seconds in which they come back, rounded up.
    pub window_seconds: u64,
}

impl Answer {
    /// To nobody's question.
    pub fn to_none() -> Self {
        Self::new(&[], PerAsk::new(), &[])
    }

    /// Who decided on the ask at this place, and what they noted.
    pub fn noted(&self, place: usize) -> (By, Receipt) {
        let receipt = self.receipts.get(place).copied();
        (self.by[place], receipt.unwrap_or(Receipt::NONE))
    }

    fn new(asks: &[BucketAsk<'_>], decisions: PerAsk<Option<Decision>>, by: &[By]) -> Self {
        let enforcing = asks
            .iter()
            .zip(&decisions)
            .enumerate()
            .filter(|(_, (ask, _))| ask.ask.mode == Mode::Enforce)
            .filter_map(|(place, (_, decision))| Some((place, decision.as_ref()?.outcome)));
        let verdict = Verdict::over(enforcing);
        let (told, slots, receipts) = (Vec::new(), Slots::default(), Box::default());
        let (by, entries) = (PerAsk::from_slice(by), Entries::default());
        Self { decisions, by, verdict, told, slots, entries, receipts }
    }
}

/// Redis is away, and a limit that enforces says that nothing passes then. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The place of that limit among the asks.
    pub by: usize,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store is out of reach, and a limit rejects requests then")
    }
}

impl std::error::Error for Unavailable {}

/// Why Redis did not decide.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// It failed several times in a row and is not asked until it answers again.
    Away,
    /// This worker has no connection, and the last attempt to make one failed.
    NotConnected,
    /// No answer within `store.timeout`, the connection included.
    TimedOut,
    /// The server or the connection to it reported an error.
    Redis(RedisError),
    /// The server is of a version that does not know what the scripts need.
    TooOld(String),
    /// An answer that is none to what was asked.
    Nonsense,
    /// The key holds something that is no string.
    WrongType,
    /// The limiter has no figures, neither there nor in the file.
    Unset,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Away => "it is out of reach",
            Self::NotConnected => "there is no connection to it",
            Self::TimedOut => "no answer in time",
            Self::Redis(error) => return f.write_str(&redis::words(error)),
            Self::TooOld(version) => {
                return write!(f, "Redis {version} is too old: 6.2 or later is needed");
            }
            Self::Nonsense => "an answer that is no decision",
            Self::WrongType => "the key holds a value of another type",
            Self::Unset => "the limiter has no figures",
        })
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Redis(error) => Some(error),
            _ => None,
        }
    }
}

/// One worker's way to its buckets. What it takes for `now` is a time by a clock that never steps.
pub struct Store {
    shared: Arc<Shared>,
    redis: Option<Redis>,
    settling: UnderWay,
}

impl Store {
    /// A store that begins to connect, where there is something to connect to.
    ///
    /// Must be called within the worker's runtime: its connection lives there, and ends when the
    /// store is dropped. A server that is away is no error: it is connected to when it comes.
    pub fn new(shared: Arc<Shared>, spec: &StoreSpec, display: KeyDisplay) -> Self {
        let redis = match &spec.location {
            StoreLocation::Memory => None,
            StoreLocation::Redis(url) => {
                Some(Redis::new(url, &spec.prefix, display, Arc::clone(&shared)))
            }
        };
        Self { shared, redis, settling: UnderWay::default() }
    }

    /// The time of day at `now`, by which windows on the clock go in this process.
    pub fn wall(&self, now: Timestamp) -> Timestamp {
        self.shared.wall.at(now)
    }

    /// The buckets of this process, where no Redis is configured.
    pub fn alone(&self) -> Option<&Arc<Shared>> {
        self.redis.is_none().then_some(&self.shared)
    }

    /// Decides over all asks together: every limit that allows takes, or none does.
    ///
    /// Waits for Redis no longer than `store.timeout`, and not at all where buckets live in the
    /// process. A future that is dropped before its end leaves nothing taken in this process; in Redis
    /// what was taken is given back once it has answered, and gone where it does not answer in time.
    ///
    /// # Errors
    /// Where Redis is away and an enforcing limit then rejects.
    pub async fn decide(
        &self,
        asks: &[BucketAsk<'_>],
        now: Timestamp,
    ) -> Result<Answer, Unavailable> {
        match &self.redis {
            None => Ok(self.shared.decide(asks, now)),
            // Boxed, so that requests that need no Redis are not moved about with room for it.
            Some(redis) => Box::pin(fallback::decide(redis, &self.shared, asks, now)).await,
        }
    }

    /// What this ask alone would be told, with nothing taken and so with what remains before it.
    ///
    /// # Errors
    /// Where Redis does not answer.
    pub async fn peek(&self, ask: &BucketAsk<'_>, now: Timestamp) -> Result<Decision, StoreError> {
        match self.redis_of(ask) {
            None => Ok(self.shared.memory.look(ask, self.shared.wall.both(now))),
            Some(redis) => redis.look(ask).await,
        }
    }

    /// Tells the ask's bucket how much more or less than it had taken the request used, of which this was
    /// noted, where this is the store that decides.
    ///
    /// # Errors
    /// Where Redis does not answer.
    pub async fn settle(
        &self,
        ask: &BucketAsk<'_>,
        (used, receipt): (Difference, Receipt),
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let by = self.redis_of(ask).map_or(By::Process, |_| By::Redis);
        match self.begin((by, receipt), ask, used, now) {
            None => Ok(()),
            Some(settling) => settling.done().await,
        }
    }

    /// Gives back what was taken for an ask, where the bucket is that decided on it. Where Redis does
    /// not answer it is gone, as after any lost call.
    pub async fn give_back(&self, taken: &Taken, now: Timestamp) {
        if let Some(settling) = self.begin_giving_back(taken, now) {
            let _ = settling.done().await;
        }
    }

    /// The same for those who cannot wait: what this process keeps is back when this returns, and for
    /// Redis a task is left behind.
    pub fn give_back_soon(&self, taken: &Taken, now: Timestamp) {
        // Without a runtime the worker has ended, and with it its connection.
        if let Some(settling) = self.begin_giving_back(taken, now)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(settling.done());
        }
    }

    fn begin_giving_back(&self, taken: &Taken, now: Timestamp) -> Option<Settling> {
        self.begin_settling(taken, Difference::Less(taken.ask.cost.get()), now)
    }

    /// Settles in the store that decided on the ask: in this process at once, and in Redis by what is
    /// returned, which must be kept until it is done. Whatever is begun before this worker's tasks run
    /// again goes to Redis in one call, before whatever is asked later; what a limiter of Redisson's is
    /// told has a call of its own.
    pub fn begin_settling(
        &self,
        taken: &Taken,
        used: Difference,
        now: Timestamp,
    ) -> Option<Settling> {
        let ask = BucketAsk { spec: &taken.spec, key: &taken.key, ask: taken.ask };
        self.begin((taken.by, taken.receipt), &ask, used, now)
    }

    fn begin(
        &self,
        (by, receipt): (By, Receipt),
        ask: &BucketAsk<'_>,
        used: Difference,
        now: Timestamp,
    ) -> Option<Settling> {
        let ask = BucketAsk { ask: self.shared.in_force.of(ask, self.wall(now)), ..*ask };
        match (by, &self.redis) {
            (By::Redis, Some(redis)) => {
                let said = redis.begin_settling(&ask, used, receipt);
                Some(Settling::new(said, Arc::clone(&self.shared), &self.settling))
            }
            (By::Process | By::Redis, _) => {
                let settled = Settlement { used, receipt, patience: ask.ask.patience };
                self.shared.memory.settle(&ask, &settled, self.shared.wall.both(now));
                None
            }
            (By::Nobody, _) => None,
        }
    }

    /// Waits until Redis was told of every settlement that this worker has begun, and of every slot and
    /// token that it gave back: no longer than `store.timeout`, and twice that where it is still asked what
    /// was taken.
    pub async fn settled(&self) {
        self.settling.none().await;
        if let Some(redis) = &self.redis {
            redis.told().await;
        }
    }

    /// Makes the ask's bucket a new one, in this process too.
    ///
    /// # Errors
    /// Where Redis does not answer.
    pub async fn forget(&self, ask: &BucketAsk<'_>) -> Result<(), StoreError> {
        self.shared.memory.forget(ask);
        match self.redis_of(ask) {
            None => Ok(()),
            Some(redis) => redis.forget(ask).await,
        }
    }

    /// Redis, where it holds the ask's bucket.
    fn redis_of(&self, ask: &BucketAsk<'_>) -> Option<&Redis> {
        self.redis.as_ref().filter(|_| ask.spec.scope == Scope::Cluster)
    }
}
