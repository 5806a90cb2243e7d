//! The same limits for all processes that share a Redis, by Redis's clock: one script call for each request.
//!
//! [`RedisLimits`] asks over a connection of redis-rs. For any other client, [`Limits::redis_call`] makes a
//! [`RedisCall`], which has the command and reads the answer.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use ::redis::aio::ConnectionLike;
use ::redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, cmd};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::answer::{Answer, Quotas};
use crate::bucket::{Holder, ReceiptUse};
use crate::call::{Call, TEXT, Verb};
use crate::charge::{Charge, ChargeError, Charged};
use crate::decision::Verdict;
use crate::limits::Limits;
use crate::stored::bucket_name;
use crate::time::Timestamp;

/// Why Redis gave no answer. Whether anything was taken is unknown if the answer was lost on its way.
#[derive(Debug, thiserror::Error)]
pub enum RedisTakeError {
    /// Nothing was asked.
    #[error(transparent)]
    Charge(#[from] ChargeError),
    /// Redis did not answer, or with an error.
    #[error("Redis does not decide")]
    Redis(#[from] RedisError),
    /// The bucket's key holds a value of another program. Nothing was taken.
    #[error("the key {0:?} in Redis holds a value of another type")]
    OtherType(String),
    /// The answer is not one of this package's script.
    #[error("this is no answer to the call")]
    NoAnswer,
}

/// A question to Redis for any client, and then what the request has taken. It gives nothing back by itself.
#[derive(Debug)]
pub struct RedisCall {
    quotas: Quotas,
    prefix: Arc<str>,
    /// The holder of the slots.
    holder: Holder,
}

impl Limits {
    /// The question to these limits in Redis, under a prefix: the proxy's `store.prefix` is `tidegate` unless it is set.
    /// In a cluster, all charges of a call need the same key.
    ///
    /// # Errors
    /// Those of [`Limits::take_all`].
    pub fn redis_call<'c>(
        &self,
        prefix: &str,
        charges: impl IntoIterator<Item = Charge<'c>>,
    ) -> Result<RedisCall, ChargeError> {
        static WORKER: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0) >> 11);
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let holder = Holder { worker: *WORKER, request: CALLS.fetch_add(1, Ordering::Relaxed) };
        Ok(RedisCall { quotas: self.quotas(charges)?, prefix: prefix.into(), holder })
    }
}

impl RedisCall {
    /// The command, an `EVALSHA`. Its answer is bytes, for [`RedisCall::read`]. If Redis answers with `NOSCRIPT`, load
    /// [`REDIS_SCRIPT`](crate::REDIS_SCRIPT) with `SCRIPT LOAD`. For a client other than redis-rs, `Cmd::args_iter` has
    /// the arguments.
    pub fn command(&self) -> Cmd {
        self.call(Verb::Take, &self.quotas.charged).command()
    }

    /// What the bytes of the answer mean.
    ///
    /// # Errors
    /// [`RedisTakeError::OtherType`] and [`RedisTakeError::NoAnswer`].
    pub fn read(self, answer: &[u8]) -> Result<Answer<Self>, RedisTakeError> {
        let call = self.call(Verb::Take, &self.quotas.charged);
        let reply = call.read(answer).and_then(|mut replies| replies.next());
        let reply = reply.ok_or(RedisTakeError::NoAnswer)?;
        let now = reply.first().map_or(Timestamp::MIN, |it| it.at);
        let mut replies = Vec::with_capacity(reply.len());
        for (charged, said) in self.quotas.charged.iter().zip(reply) {
            let took = said.decision.is_some_and(|it| it.outcome.passes());
            let reply = said.of_bucket(&charged.ask.algorithm, took);
            replies.push(reply.ok_or_else(|| RedisTakeError::OtherType(self.bucket(charged)))?);
        }
        let verdict = Verdict::over(replies.iter().map(|it| it.decision.outcome).enumerate());
        let Self { quotas, prefix, holder } = self;
        Ok(quotas.answer(replies, verdict, now, |quotas| Self { quotas, prefix, holder }))
    }

    /// What the limits say to the client.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// The command that corrects the charge to this limit to `used` tokens, as [`Permit::settle`](crate::Permit::settle)
    /// does. `None` if nothing is to be corrected. Its answer means nothing.
    ///
    /// # Errors
    /// A limit that has taken nothing.
    pub fn settle(&mut self, limit: &str, used: u64) -> Result<Option<Cmd>, ChargeError> {
        let Some((index, settled)) = self.quotas.settle(limit, used)? else { return Ok(None) };
        let verb = Verb::Settle(settled.used, settled.receipt);
        Ok(Some(self.call(verb, self.quotas.charged.get(index)).command()))
    }

    /// The command that renews the leases of the slots, and the command that gives the slots back. `None` if there are no
    /// slots.
    pub fn slots(&self) -> Option<[Cmd; 2]> {
        let slots = || self.quotas.charged.iter().filter(|it| it.ask.algorithm.lease().is_some());
        slots().next()?;
        Some([Verb::HOLD, Verb::RELEASE].map(|verb| self.call(verb, slots()).command()))
    }

    /// A call about these charges.
    fn call<'c>(&self, verb: Verb, charged: impl IntoIterator<Item = &'c Charged>) -> Call {
        let charged: Vec<_> = charged.into_iter().collect();
        let receipts = if verb == Verb::Take { ReceiptUse::Needed } else { ReceiptUse::Unneeded };
        let mut call = Call::default();
        call.request(charged.len(), receipts);
        for charged in charged {
            let holder = charged.ask.algorithm.lease().map(|_| self.holder);
            call.ask(verb, &charged.ask, holder, self.bucket(charged).into_bytes());
        }
        call
    }

    fn bucket(&self, Charged { limit, key, is_keyed, ask, .. }: &Charged) -> String {
        bucket_name(&self.prefix, limit, is_keyed.then_some(key), &ask.algorithm, None)
    }
}

/// The limits of several processes, over a connection that they may share. Clones share everything.
#[derive(Clone, Debug)]
pub struct RedisLimits<C> {
    limits: Limits,
    prefix: Arc<str>,
    connection: C,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisLimits<C> {
    /// Asks these limits under this prefix: the proxy's `store.prefix` is `tidegate` unless it is set. A
    /// `MultiplexedConnection` serves all requests of a process at once, a `ConnectionManager` also connects again.
    pub fn new(limits: Limits, prefix: &str, connection: C) -> Self {
        Self { limits, prefix: prefix.into(), connection }
    }

    /// Asks the limits in Redis as [`Limits::take`] asks them in the process, at Redis's present time. If the future is
    /// dropped early, slots go back, and tokens stay taken.
    ///
    /// # Errors
    /// [`RedisTakeError`]. The caller says what happens to the request then.
    pub async fn take<const N: usize>(
        &self,
        charges: [(&str, &[&str]); N],
    ) -> Result<Answer<RedisPermit<C>>, RedisTakeError> {
        self.take_all(charges.map(|(limit, values)| Charge::new(limit, values))).await
    }

    /// Like [`RedisLimits::take`], for charges with costs, or as many as are known at run time.
    ///
    /// # Errors
    /// [`RedisTakeError`].
    pub async fn take_all<'c>(
        &self,
        charges: impl IntoIterator<Item = Charge<'c>>,
    ) -> Result<Answer<RedisPermit<C>>, RedisTakeError> {
        let call = self.limits.redis_call(&self.prefix, charges)?;
        // Made before the question: a slot whose answer is not awaited goes back.
        let slots = self.keep_slots(&call);
        let mut connection = self.connection.clone();
        let answer = match call.quotas.charged.as_slice() {
            [] => Vec::new(),
            _ => send(&mut connection, &call.command()).await?,
        };
        Ok(match call.read(&answer)? {
            Answer::Taken { remaining, wait, permit: call } => {
                let permit = RedisPermit { call, connection, _slots: slots };
                Answer::Taken { remaining, wait, permit }
            }
            Answer::Rejected { by, retry_after, quotas } => {
                // Nothing was given, and nothing goes back.
                slots.map(|slots| slots.send(()));
                Answer::Rejected { by, retry_after, quotas }
            }
        })
    }

    /// Renews the slots of a call until what is returned is dropped, and then gives them back. If that is lost, they are
    /// free when their lease ends.
    fn keep_slots(&self, call: &RedisCall) -> Option<oneshot::Sender<()>> {
        let lease = call.quotas.charged.iter().filter_map(|it| it.ask.algorithm.lease()).min()?;
        let [renew, release] = call.slots()?;
        let mut connection = self.connection.clone();
        let (slots, mut ended) = oneshot::channel();
        Handle::try_current().ok()?.spawn(async move {
            loop {
                match timeout(lease / 3, &mut ended).await {
                    // A lost renewal is made up for by the next one.
                    Err(_) => drop(send(&mut connection, &renew).await),
                    Ok(Ok(())) => return,
                    Ok(Err(_)) => return drop(send(&mut connection, &release).await),
                }
            }
        });
        Some(slots)
    }
}

/// What a request has taken in Redis. Its slots are renewed until it is dropped, and then go back; tokens stay taken.
#[derive(Debug)]
pub struct RedisPermit<C> {
    call: RedisCall,
    connection: C,
    _slots: Option<oneshot::Sender<()>>,
}

impl<C: ConnectionLike> RedisPermit<C> {
    /// What the limits say to the client.
    pub fn quotas(&self) -> &Quotas {
        &self.call.quotas
    }

    /// Corrects the charge to this limit to `used` tokens, as [`Permit::settle`](crate::Permit::settle) does.
    ///
    /// # Errors
    /// [`RedisTakeError`]. A correction that was lost is not sent again.
    pub async fn settle(&mut self, limit: &str, used: u64) -> Result<(), RedisTakeError> {
        if let Some(command) = self.call.settle(limit, used)? {
            send(&mut self.connection, &command).await?;
        }
        Ok(())
    }
}

/// Sends a script call. Tells a server the script that does not know it.
async fn send(connection: &mut impl ConnectionLike, command: &Cmd) -> Result<Vec<u8>, RedisError> {
    let answer = command.query_async(connection).await;
    match answer {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            cmd("SCRIPT").arg("LOAD").arg(TEXT.as_str()).exec_async(connection).await?;
            command.query_async(connection).await
        }
        answer => answer,
    }
}
