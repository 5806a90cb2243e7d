//! Asks a Redisson limiter: one script call for each limiter, over keys and bytes as Redisson writes them.
//!
//! `store::order` calls [`LimiterCalls::ask`]. `script` has the script and reads its reply, `config` a limiter's
//! figures, and `names` the keys. `command` is for operators.

mod command;
mod config;
mod names;
mod script;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

pub(crate) use self::command::{LimiterError, Limiters};
pub(crate) use self::config::LimiterConfig;
use self::config::figures;
pub(crate) use self::names::{limiter_keys, limiter_name};
pub(super) use self::script::SCRIPT;
use self::script::{LimiterHash, OLDER, UNSET, read};
use super::queue::{Lost, Queue};
use crate::limit::algorithm::{Algorithm, Difference};
use crate::limit::bucket::{BucketReply, Decider, LimiterFigures};
use crate::limit::call::Verb;
use crate::limit::waiting::MaxWait;
use crate::redis::{CallError, CallKind, HashSlot, Router};
use crate::store::bucket::BucketAsk;
use crate::store::process::ProcessStore;
use crate::store::warnings::shown;

/// If a clock is ahead of Redis's clock by at most this time, this is not reported.
const AHEAD: Duration = Duration::from_millis(100);

/// The most permits of one entry.
const MOST: u32 = u32::MAX;

/// One worker's calls to Redisson limiters.
pub(in crate::store) struct LimiterCalls {
    router: Arc<Router>,
    queue: Queue,
    shared: Arc<ProcessStore>,
}

impl LimiterCalls {
    /// Calls over this router. `queue` counts the calls whose reply nobody waits for.
    pub(super) fn new(router: Arc<Router>, queue: Queue, shared: Arc<ProcessStore>) -> Self {
        Self { router, queue, shared }
    }

    /// The hash slot of the ask's limiter.
    pub(super) fn hash_slot(&self, ask: &BucketAsk<'_>) -> HashSlot {
        self.router.hash_slot(&limiter(ask))
    }

    /// Asks a limiter for the ask's cost. `id` names the permits that are taken.
    pub(in crate::store) async fn ask(
        &self,
        ask: &BucketAsk<'_>,
        verb: Verb,
        id: &[u8; 16],
        deadline: Instant,
    ) -> Result<BucketReply, CallError> {
        let (wanted, permits) = wanted(ask, verb);
        let call = self.command(ask, wanted, permits, id, ask.ask.max_wait);
        let reply =
            self.router.call(CallKind::Awaited, self.hash_slot(ask), &call, read, deadline).await;
        let reply = reply.and_then(|read| read);
        let ProcessStore { warnings, .. } = &*self.shared;
        match &reply {
            Ok((_, figures)) => self.warn(ask, figures),
            Err(CallError::UnusableKey(UNSET)) => warnings.unset(ask.spec),
            Err(CallError::UnusableKey(OLDER)) => warnings.older(ask.spec),
            Err(CallError::UnusableKey(_)) => warnings.other_type(ask.spec, || shown(ask.spec)),
            Err(error) if error.is_of_one_key() => warnings.refused(ask.spec, error),
            Err(_) => {}
        }
        let (decision, LimiterHash { config, .. }) = reply?;
        let (capacity, interval_ms) = (config.rate, config.interval_ms);
        let by = Decider::Limiter(LimiterFigures { capacity, interval_ms });
        let took = verb == Verb::Take && decision.outcome.passes();
        Ok(BucketReply { decision, by, took, receipt: None, window_left: None })
    }

    /// Gives back the permits of this id. If the call fails, they come back when the interval is over.
    pub(in crate::store) fn give_back(&self, ask: &BucketAsk<'_>, id: [u8; 16]) {
        let (_, permits) = wanted(ask, Verb::Take);
        self.tell(ask, "return", permits, &id, None);
    }

    /// Tells a limiter how much more or less a request used than its cost.
    pub(super) fn settle(&self, ask: &BucketAsk<'_>, verb: Verb, lost: Lost) {
        let (wanted, permits) = wanted(ask, verb);
        self.tell(ask, wanted, permits, &new_id(), Some(lost));
    }

    /// Starts a task that calls the script. Nobody waits for the answer.
    fn tell(
        &self,
        ask: &BucketAsk<'_>,
        verb: &str,
        permits: i64,
        id: &[u8; 16],
        lost: Option<Lost>,
    ) {
        // Without a runtime the worker has ended, and with it its connection.
        let Ok(runtime) = Handle::try_current() else { return };
        let call = self.command(ask, verb, permits, id, MaxWait::NONE);
        let (router, hash_slot) = (Arc::clone(&self.router), self.hash_slot(ask));
        let deadline = router.deadline();
        let counted = self.queue.count();
        let understood = |answer: Value| match &answer {
            Value::Array(numbers) if *numbers == [Value::Int(0)] => Some(Ok(())),
            _ => read(answer).map(|read| read.map(|_| ())),
        };
        runtime.spawn(async move {
            let answer =
                router.call(CallKind::Awaited, hash_slot, &call, understood, deadline).await;
            if let (Err(error), Some(lost)) = (answer.and_then(|read| read), lost) {
                lost(&error);
            }
            drop(counted);
        });
    }

    /// The keys of the ask's limiter, as [`limiter_keys`] returns them.
    pub(super) fn keys(&self, ask: &BucketAsk<'_>) -> [Vec<u8>; 5] {
        limiter_keys(&limiter(ask), &self.shared.client_id)
    }

    /// A call of the script. `id` names a new entry, and `max_wait` is how long the request may be held. The file's
    /// figures are for a limiter that has none.
    fn command(
        &self,
        ask: &BucketAsk<'_>,
        verb: &str,
        permits: i64,
        id: &[u8; 16],
        max_wait: MaxWait,
    ) -> Cmd {
        let keys = self.keys(ask);
        let mut call = redis::cmd("EVALSHA");
        call.arg(SCRIPT.get_hash()).arg(keys.len()).arg(&keys);
        call.arg(verb).arg(permits).arg(&id[..]);
        match written(ask) {
            Some(written) => call.arg(&figures(&written)),
            None => call.arg(&[""; 4]),
        };
        call.arg(max_wait.as_micros());
        call
    }

    /// Warns the operator of what is odd about a limiter.
    fn warn(&self, ask: &BucketAsk<'_>, figures: &LimiterHash) {
        if figures.ahead > AHEAD {
            self.shared.warnings.ahead(ask.spec, figures.ahead);
        }
        if figures.ends_too_soon {
            self.shared.warnings.ends_too_soon(ask.spec);
        }
        let LimiterHash { config, .. } = figures;
        // If the file has no keep-alive time, that of Redis is right.
        let written = written(ask).map(|written| LimiterConfig {
            keep_alive_ms: written.keep_alive_ms.or(config.keep_alive_ms),
            ..written
        });
        if written.is_some_and(|written| written != *config) {
            let keep_alive_ms = config.keep_alive_ms.unwrap_or(0);
            let figures = || (config.rate_text(), config.type_text(), keep_alive_ms);
            self.shared.warnings.other_figures(ask.spec, figures);
        }
    }
}

/// The name of the ask's limiter.
fn limiter(ask: &BucketAsk<'_>) -> Vec<u8> {
    let begin = ask.spec.limiter.as_deref().unwrap_or_default();
    limiter_name(begin, Some(ask.key.plain()).filter(|_| !ask.spec.key.sources.is_empty()))
}

/// The verb of the script, and the number of permits.
fn wanted(ask: &BucketAsk<'_>, verb: Verb) -> (&'static str, i64) {
    let cost = ask.ask.cost.get().cast_signed();
    match verb {
        Verb::Take => ("take", cost),
        Verb::Look => ("look", cost),
        Verb::Settle(Difference::More(more), _) => {
            ("settle", i64::from(u32::try_from(more).unwrap_or(MOST)))
        }
        Verb::Settle(Difference::Less(less), _) => ("settle", -less.cast_signed()),
    }
}

pub(in crate::store) fn new_id() -> [u8; 16] {
    fastrand::u128(..).to_be_bytes()
}

/// The figures in `proxy.toml` for a limiter that has none.
fn written(ask: &BucketAsk<'_>) -> Option<LimiterConfig> {
    let Algorithm::Redisson(params) = ask.ask.algorithm else { return None };
    let rate = params.rate()?;
    let config = LimiterConfig::new(rate.count(), rate.interval() / 1_000, params.sharing);
    let keep_alive_ms = params.keep_alive.and_then(|keep| u64::try_from(keep.as_millis()).ok());
    Some(LimiterConfig { keep_alive_ms, ..config })
}
