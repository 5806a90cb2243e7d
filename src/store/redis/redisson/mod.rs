//! Asks a Redisson limiter: one script call for each limiter, over keys and bytes as Redisson writes them.
//!
//! `store::order` calls [`Redis::ask_limiter`]. The other side is `redisson.lua`, whose head
//! describes the data in Redis. `command` is for operators, and `names` builds the keys.

mod command;
mod names;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Script, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

pub(crate) use self::command::{LimiterConfig, LimiterError, Limiters};
pub(crate) use self::names::{limiter_keys, limiter_name};
use super::call::Verb;
use super::queue::Lost;
use super::{OTHER_TYPE, Redis};
use crate::limit::algorithm::redisson::Sharing;
use crate::limit::algorithm::{Algorithm, Difference};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::waiting::MaxWait;
use crate::redis::CallError;
use crate::store::bucket::{BucketAsk, LimiterFigures};
use crate::store::warnings::shown;

pub(super) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("redisson.lua")));

/// A clock that is ahead of Redis's clock by at most this much is not reported.
const AHEAD: Duration = Duration::from_millis(100);

/// The most permits of one entry.
const MOST: u32 = u32::MAX;

impl Redis {
    /// Asks a limiter for the ask's cost. `id` names the permits that are taken.
    pub(in crate::store) async fn ask_limiter(
        &self,
        ask: &BucketAsk<'_>,
        verb: Verb,
        id: &[u8; 16],
        deadline: Instant,
    ) -> Result<(Decision, LimiterFigures), CallError> {
        let (wanted, permits) = wanted(ask, verb);
        let call = self.command(ask, wanted, permits, id, ask.ask.max_wait);
        let reply = self.router.call(self.slot(ask), &call, read, deadline).await;
        if let Err(error) = &reply
            && error.is_of_one_key()
        {
            self.shared.warnings.refused(ask.spec, error);
        }
        let reply = reply?;
        match &reply {
            Ok((_, figures)) => self.tell(ask, figures),
            Err(Unusable::Unset) => self.shared.warnings.unset(ask.spec),
            Err(Unusable::Older) => self.shared.warnings.older(ask.spec),
            Err(Unusable::OtherType) => {
                self.shared.warnings.other_type(ask.spec, || shown(ask.spec));
            }
        }
        let (decision, LimiterHash { config, .. }) = reply?;
        let (capacity, interval_ms) = (config.rate, config.interval_ms);
        Ok((decision, LimiterFigures { capacity, interval_ms }))
    }

    /// Gives back the permits of this id. If the call fails, they come back when the interval is over.
    pub(in crate::store) fn return_permits(&self, ask: &BucketAsk<'_>, id: [u8; 16]) {
        let (_, permits) = wanted(ask, Verb::Take);
        self.tell_limiter(ask, "return", permits, &id, None);
    }

    /// Tells a limiter how much more or less a request used than its cost.
    pub(super) fn settle_limiter(&self, ask: &BucketAsk<'_>, verb: Verb, lost: Lost) {
        let (wanted, permits) = wanted(ask, verb);
        self.tell_limiter(ask, wanted, permits, &new_id(), Some(lost));
    }

    /// Starts a task that calls the script. Nobody waits for the answer.
    fn tell_limiter(
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
        let (router, slot, deadline) =
            (Arc::clone(&self.router), self.slot(ask), self.router.deadline());
        let counted = self.queue.teller().about_to();
        let understood = |answer: Value| match &answer {
            Value::Array(numbers) if *numbers == [Value::Int(0)] => Some(Ok(())),
            _ => read(answer).map(|read| read.map(|_| ())),
        };
        runtime.spawn(async move {
            let answer = router.call(slot, &call, understood, deadline).await;
            let answer = answer.and_then(|read| read.map_err(CallError::from));
            if let (Err(error), Some(lost)) = (answer, lost) {
                lost(&error);
            }
            drop(counted);
        });
    }

    /// Forgets the permits in use of the ask's limiter, but not its figures.
    pub(super) async fn forget_limiter(&self, ask: &BucketAsk<'_>) -> Result<(), CallError> {
        let [_, of_permits @ ..] = limiter_keys(&limiter(ask), &self.shared.client_id);
        let mut call = redis::cmd("DEL");
        call.arg(&of_permits);
        let read = |value| matches!(value, Value::Int(_)).then_some(());
        self.router.call(self.slot(ask), &call, read, self.router.deadline()).await
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
        let keys = limiter_keys(&limiter(ask), &self.shared.client_id);
        let mut call = redis::cmd("EVALSHA");
        call.arg(SCRIPT.get_hash()).arg(keys.len()).arg(&keys);
        call.arg(verb).arg(permits).arg(&id[..]);
        match written(ask) {
            Some(figures) => call.arg(&command::figures(&figures)),
            None => call.arg(&[""; 4]),
        };
        call.arg(max_wait.as_micros());
        call
    }

    /// Warns the operator of what is odd about a limiter.
    fn tell(&self, ask: &BucketAsk<'_>, figures: &LimiterHash) {
        if figures.ahead > AHEAD {
            self.shared.warnings.ahead(ask.spec, figures.ahead);
        }
        if figures.ends_too_soon {
            self.shared.warnings.ends_too_soon(ask.spec);
        }
        let LimiterHash { config, .. } = figures;
        // Where the file has no keep-alive time, any is right.
        let written = written(ask).map(|written| LimiterConfig {
            keep_alive_ms: written.keep_alive_ms.or(config.keep_alive_ms),
            ..written
        });
        if written.is_some_and(|written| written != *config) {
            let keep_alive_ms = config.keep_alive_ms.unwrap_or(0);
            let told = || (config.rate_text(), config.type_text(), keep_alive_ms);
            self.shared.warnings.other_figures(ask.spec, told);
        }
    }
}

/// The name of the ask's limiter.
pub(super) fn limiter(ask: &BucketAsk<'_>) -> Vec<u8> {
    let begin = ask.spec.limiter.as_deref().unwrap_or_default();
    limiter_name(begin, Some(ask.key.plain()).filter(|_| !ask.spec.key.sources.is_empty()))
}

/// The verb of the script, and the number of permits.
fn wanted(ask: &BucketAsk<'_>, verb: Verb) -> (&'static str, i64) {
    let cost = ask.ask.cost.get().cast_signed();
    match verb {
        Verb::Take => ("take", cost),
        // A Redisson limiter has no slots.
        Verb::Look | Verb::Hold | Verb::Release => ("look", cost),
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

/// The number of Redisson's `RateType`: its place in that enum.
fn type_number(sharing: Sharing) -> u8 {
    match sharing {
        Sharing::Overall => 0,
        Sharing::PerClient => 1,
    }
}

/// A limiter's figures, as the script reports them, and two warnings.
#[derive(Clone, Copy)]
pub(super) struct LimiterHash {
    config: LimiterConfig,
    /// How far a clock that made an entry is ahead of Redis's clock. Entries of waiting requests do not
    /// count.
    ahead: Duration,
    /// The request is not held, because the limiter's keys might expire before its permits are free again.
    ends_too_soon: bool,
}

/// Why the script cannot use the limiter's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unusable {
    /// Neither Redis nor `proxy.toml` has figures.
    Unset,
    OtherType,
    /// A Redisson before 3.17 uses the keys, in a form that newer ones cannot use.
    Older,
}

impl From<Unusable> for CallError {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Unset => Self::UnusableKey("the limiter has no figures"),
            Unusable::OtherType => OTHER_TYPE,
            Unusable::Older => Self::UnusableKey("a Redisson before 3.17 uses the limiter"),
        }
    }
}

/// Reads the script's reply. `None` where the answer is no reply of the script.
fn read(answer: Value) -> Option<Result<(Decision, LimiterHash), Unusable>> {
    let Value::Array(values) = answer else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let numbers: Option<Vec<i64>> = values.iter().map(number).collect();
    match numbers?.as_slice() {
        [1] => Some(Err(Unusable::Unset)),
        [2] => Some(Err(Unusable::OtherType)),
        [3] => Some(Err(Unusable::Older)),
        [0, wait, waits, left, rate, interval_ms, kind, keep, ahead] => {
            let wait = u64::try_from(*wait).ok().map(Duration::from_micros);
            let outcome = match (wait, waits) {
                (Some(Duration::ZERO), _) => Outcome::Allow,
                (Some(wait), 1) => Outcome::Delay(wait),
                (retry_after, _) => Outcome::Reject { retry_after },
            };
            let remaining = u64::try_from(*left).unwrap_or(0);
            let sharing = if *kind == 0 { Sharing::Overall } else { Sharing::PerClient };
            let (rate, interval_ms) = (u64::try_from(*rate), u64::try_from(*interval_ms));
            let config = LimiterConfig::new(rate.ok()?, interval_ms.ok()?, sharing);
            let keep_alive_ms = u64::try_from(*keep).ok().filter(|keep| *keep > 0);
            let figures = LimiterHash {
                config: LimiterConfig { keep_alive_ms, ..config },
                ahead: Duration::from_millis(u64::try_from(*ahead).ok()?),
                ends_too_soon: *waits == 2,
            };
            Some(Ok((Decision { outcome, remaining }, figures)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().map(|number| Value::Int(*number)).collect())
    }

    #[test]
    fn only_an_answer_to_the_question_is_a_decision() {
        for (name, answer) in [
            ("no list", Value::Okay),
            ("nothing", answer(&[])),
            ("too short", answer(&[0, 0, 0, 5, 10, 1_000, 0, 0])),
            ("too long", answer(&[0, 0, 0, 5, 10, 1_000, 0, 0, 0, 0])),
            ("another end", answer(&[4])),
            ("a rate below zero", answer(&[0, 0, 0, 5, -1, 1_000, 0, 0, 0])),
            ("a text", Value::Array(vec![Value::SimpleString("0".into())])),
        ] {
            assert!(read(answer).is_none(), "{name}");
        }
    }

    #[test]
    fn what_is_owed_is_no_permit() {
        let seven = Duration::from_micros(7);
        for (waits, outcome) in [
            (0, Outcome::Reject { retry_after: Some(seven) }),
            (1, Outcome::Delay(seven)),
            (2, Outcome::Reject { retry_after: Some(seven) }),
        ] {
            let said = read(answer(&[0, 7, waits, -3, 10, 1_000, 0, 0, 0]));
            let (decision, figures) = said.unwrap().unwrap();
            assert_eq!((decision.outcome, decision.remaining), (outcome, 0));
            assert_eq!(figures.ends_too_soon, waits == 2);
        }
    }
}
