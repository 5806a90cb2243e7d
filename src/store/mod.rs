//! Where buckets live, and who decides on a request's claims.
//!
//! `throttle` hands a [`Claim`] for each limit that applies to a request to [`Store::take`]. Three parties
//! decide on claims: `memory` (the buckets of this process), `redis` (a server, by `shell.lua` and the Lua
//! twins of the algorithms), and `redis::redisson` (limiters that Java services share). `outage` splits a
//! request's claims by party, asks one party after the other, and decides who stands in for a Redis that is
//! away. `claim` has what a limit gave, and how it goes back. `current_limits` knows the figures of the last
//! reload, by which a response is settled.
//!
//! All workers of a process share one [`Shared`]. Each worker has its own [`Store`], because a connection
//! lives in the runtime that made it.

mod claim;
mod current_limits;
mod memory;
mod outage;
mod redis;
mod shared;

use std::sync::Arc;

use ::redis::RedisError;

use self::claim::Taken;
pub use self::claim::{BucketAsk, Claim, Grant, LimiterFigures, Moment, Party, verdict};
use self::memory::Noting;
use self::redis::Redis;
pub use self::redis::{
    BucketName, LimiterConfig, LimiterError, LimiterKeys, Limiters, limiter_name,
};
pub use self::shared::{Counters, Shared};
use crate::limit::Scope;
use crate::limit::algorithm::{Difference, Receipt, Settlement};
use crate::limit::decision::Decision;
use crate::limit::patience::Patience;
use crate::limit::time::Timestamp;
use crate::plan::{KeyDisplay, StoreLocation, StoreSpec};

/// So many calls of [`Shared::sweep`] go around all buckets of a process.
pub const SWEEP_STEPS: usize = memory::SWEEP_STEPS;

/// Redis is away, and a limit that enforces says that nothing passes then. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is out of reach, and a limit rejects requests then")]
pub struct Unavailable {
    /// The place of that limit among the asks.
    pub by: usize,
}

/// Why Redis did not decide.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// It failed several times in a row and is not asked until it answers again.
    #[error("it is out of reach")]
    Away,
    /// This worker has no connection, and the last attempt to make one failed.
    #[error("there is no connection to it")]
    NotConnected,
    /// No answer within `store.timeout`, the connection included.
    #[error("no answer in time")]
    TimedOut,
    /// The server or the connection to it reported an error.
    #[error("{}", redis::words(.0))]
    Redis(#[source] RedisError),
    /// The server is of a version that does not know what the scripts need.
    #[error("Redis {0} is too old: 6.2 or later is needed")]
    TooOld(String),
    /// An answer that is none to what was asked.
    #[error("an answer that is no decision")]
    Nonsense,
    /// The key holds something that is no string.
    #[error("the key holds a value of another type")]
    WrongType,
    /// The limiter has no figures, neither there nor in the file.
    #[error("the limiter has no figures")]
    Unset,
}

impl StoreError {
    /// Whether the server works and refuses one key alone: this user may not use the key, or it stands on
    /// another node. The others' buckets are where they were.
    fn is_of_one_key(&self) -> bool {
        let Self::Redis(error) = self else { return matches!(self, Self::WrongType) };
        match error.code() {
            Some("CROSSSLOT" | "WRONGTYPE") => true,
            // Without the right to run a command, too, but then no key can be used.
            Some("NOPERM") => error.detail().is_some_and(|detail| detail.contains("key")),
            _ => false,
        }
    }

    /// Whether the server answers, and says that it decides nothing now: to ask again is of no use.
    fn is_refusal(&self) -> bool {
        let Self::Redis(error) = self else { return matches!(self, Self::TooOld(_)) };
        let code = error.code().unwrap_or_default();
        matches!(
            code,
            "OOM" | "READONLY" | "MISCONF" | "NOAUTH" | "WRONGPASS" | "LOADING" | "NOPERM"
        )
    }

    /// What kind of error it is, in a word for metrics. `None` where Redis was not asked at all.
    fn kind(&self) -> Option<&'static str> {
        Some(match self {
            Self::Away => return None,
            Self::NotConnected => "connection",
            Self::TimedOut => "timeout",
            Self::Redis(error) => match error.code() {
                Some("OOM") => "oom",
                Some("READONLY") => "readonly",
                Some("LOADING") => "loading",
                Some("NOAUTH" | "WRONGPASS" | "NOPERM") => "permission",
                Some(_) => "server",
                None => "connection",
            },
            Self::TooOld(_) => "version",
            Self::Nonsense => "nonsense",
            Self::WrongType => "type",
            Self::Unset => "unset",
        })
    }
}

/// One worker's way to its buckets. What it takes for `now` is a time by a clock that never steps.
pub struct Store {
    shared: Arc<Shared>,
    redis: Option<Redis>,
}

impl Store {
    /// A store that begins to connect, where there is something to connect to.
    ///
    /// Must be called within the worker's runtime: its connection lives there, and ends when the
    /// store is dropped. A server that is away is no error: it is connected to when it comes.
    pub fn new(shared: Arc<Shared>, spec: &StoreSpec, display: KeyDisplay) -> Arc<Self> {
        let redis = match &spec.location {
            StoreLocation::Memory => None,
            StoreLocation::Redis(url) => {
                Some(Redis::new(url, &spec.prefix, display, Arc::clone(&shared)))
            }
        };
        Arc::new(Self { shared, redis })
    }

    /// The time of day at `now`, by which windows on the clock go in this process.
    pub fn wall(&self, now: Timestamp) -> Timestamp {
        self.shared.wall.at(now)
    }

    /// Whether all buckets live in this process.
    pub fn is_local(&self) -> bool {
        self.redis.is_none()
    }

    /// Decides over these claims together: every limit that allows takes, or none does. [`verdict`] says
    /// what the claims mean together then.
    ///
    /// Waits for Redis no longer than `store.timeout`, and not at all where buckets live in the
    /// process. What a request took goes back where its claims are dropped. Where the future is dropped
    /// before its end, what was taken in Redis is given back once Redis has answered, and gone where
    /// Redis does not answer in time.
    ///
    /// # Errors
    /// Where Redis is away and an enforcing limit then rejects.
    pub async fn take(
        self: &Arc<Self>,
        claims: &mut [&mut Claim<'_>],
        moment: Moment,
    ) -> Result<(), Unavailable> {
        match &self.redis {
            None => {
                self.take_locally(claims, moment);
                Ok(())
            }
            // Boxed, so that requests that need no Redis are not moved about with room for it.
            Some(redis) => Box::pin(outage::take(self, redis, claims, moment)).await,
        }
    }

    /// The same by the buckets of this process alone.
    pub fn take_locally(self: &Arc<Self>, claims: &mut [&mut Claim<'_>], moment: Moment) {
        let noting = noting(claims);
        let verdict = self.shared.memory.take(claims, noting, self.shared.wall.both(moment.time));
        for claim in claims.iter_mut().filter(|claim| claim.may_come_back(verdict)) {
            claim.hold(self, moment);
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

    /// Tells the ask's bucket how much more or less than it had taken a request used, of which this was
    /// noted. A bucket of this process knows it when this returns. Redis is told together with what else
    /// is begun before this worker's tasks run again, and before whatever is asked later;
    /// [`Store::settled`] waits for it.
    pub fn settle(&self, ask: &BucketAsk<'_>, used: Difference, receipt: Receipt, now: Timestamp) {
        match self.redis_of(ask) {
            None => self.settle_here(ask, used, Taken { receipt, from_shared: false }, now),
            Some(redis) => redis.settle(&self.in_force(ask, now), used, receipt),
        }
    }

    /// The same where the process has decided.
    fn settle_here(&self, ask: &BucketAsk<'_>, used: Difference, taken: Taken, now: Timestamp) {
        let ask = self.in_force(ask, now);
        let settled = Settlement { used, receipt: taken.receipt, patience: ask.ask.patience };
        self.shared.memory.settle(&ask, &settled, taken.from_shared, self.shared.wall.both(now));
    }

    fn in_force<'r>(&self, ask: &BucketAsk<'r>, now: Timestamp) -> BucketAsk<'r> {
        BucketAsk { ask: self.shared.current_limits.of(ask, self.wall(now)), ..*ask }
    }

    /// Waits until Redis was told of every settlement that this worker has begun, and of everything that
    /// it gave back: no longer than `store.timeout`, and twice that where it is still asked what was taken.
    pub async fn settled(&self) {
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

/// Where buckets live, as a log may show it: `memory:`, or a server's name without what is secret.
pub fn location(spec: &StoreSpec) -> String {
    match &spec.location {
        StoreLocation::Memory => "memory:".to_owned(),
        StoreLocation::Redis(url) => redis::server_name(url),
    }
}

/// It is noted what is taken where the request may leave while it is held, and where a limit is settled
/// or holds a slot.
fn noting(claims: &[&mut Claim<'_>]) -> Noting {
    let comes_back =
        |claim: &&mut Claim<'_>| claim.ask.patience > Patience::NONE || claim.is_held_to_the_end();
    if claims.iter().any(comes_back) { Noting::On } else { Noting::Off }
}
