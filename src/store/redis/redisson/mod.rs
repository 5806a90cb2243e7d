//! Asks a Redisson limiter: one script call for each limiter, over keys and bytes as Redisson writes them.
//!
//! `store/outage.rs` calls [`Redis::ask_limiter_for`]. The other side is `redisson.lua`, whose head
//! describes the data in Redis. `command` is for operators, and `names` builds the keys.

mod command;
mod names;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Script, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

pub(crate) use self::command::{LimiterConfig, LimiterError, Limiters};
pub(crate) use self::names::{LimiterKeys, limiter_name};
use super::call::Verb;
use super::queue::Lost;
use super::{BucketAsk, Claim, Moment, Party, Redis, Store, StoreError};
use crate::limit::algorithm::redisson::Sharing;
use crate::limit::algorithm::{Algorithm, Difference};
use crate::limit::decision::{Decision, Outcome};
use crate::limit::waiting::MaxWait;
use crate::store::claim::{LimiterFigures, Source};
use crate::store::notices::shown;

pub(super) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("redisson.lua")));

/// A clock that is ahead of Redis's clock by at most this much is not reported.
const AHEAD: Duration = Duration::from_millis(100);

/// The most permits of one entry.
const MOST: u32 = u32::MAX;

impl Redis {
    /// Asks the limiter of a claim, and writes the decision into the claim.
    pub(in crate::store) async fn ask_limiter_for(
        &self,
        claim: &mut Claim<'_>,
        verb: Verb,
        store: &Arc<Store>,
        moment: Moment,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let id = new_id();
        if verb == Verb::Take {
            claim.hold_from(Source::Limiter(id), store, moment);
        }
        match self.ask_limiter(&claim.question(), verb, &id, deadline).await {
            Ok((decision, figures)) => {
                if !decision.outcome.passes() {
                    claim.hold_nothing();
                }
                claim.decision = Some(decision);
                claim.figures = Some(LimiterFigures {
                    capacity: figures.rate,
                    window_seconds: figures.interval_ms.div_ceil(1_000),
                });
                Ok(())
            }
            Err(error) if error.is_of_one_key() => {
                claim.party = Party::WrongType;
                if let StoreError::Redis(_) = error {
                    self.shared.notices.refused(claim.spec, &error);
                    // The script may have taken permits before it failed. They go back.
                    claim.reset();
                } else {
                    claim.hold_nothing();
                }
                Ok(())
            }
            Err(error) => {
                if let StoreError::Away | StoreError::NotConnected = error {
                    // The call was never sent.
                    claim.hold_nothing();
                }
                Err(error)
            }
        }
    }

    /// Asks a limiter for the ask's cost. `id` names the permits that are taken.
    pub(super) async fn ask_limiter(
        &self,
        ask: &BucketAsk<'_>,
        verb: Verb,
        id: &[u8; 16],
        deadline: Instant,
    ) -> Result<(Decision, LimiterHash), StoreError> {
        let (wanted, permits) = wanted(ask, verb);
        let keys = self.limiter_keys(ask);
        let call = command(&keys, wanted, permits, id, written(ask), ask.ask.max_wait);
        let reply = self.router.call(self.slot(ask), &call, read, deadline).await?;
        match &reply {
            Ok((_, figures)) => self.tell(ask, figures),
            Err(StoreError::Unset) => self.shared.notices.unset(ask.spec),
            Err(_) => self.shared.notices.other_type(ask.spec, || shown(ask.spec)),
        }
        reply
    }

    /// Starts a task that gives back the permits of this id.
    pub(in crate::store) fn return_permits(&self, ask: &BucketAsk<'_>, id: [u8; 16]) {
        // Without a runtime the process is ending. The entry leaves the interval by itself.
        let Ok(runtime) = Handle::try_current() else { return };
        let (_, permits) = wanted(ask, Verb::Take);
        let keys = self.limiter_keys(ask);
        let call = command(&keys, "return", permits, &id, None, MaxWait::NONE);
        let (router, slot, timeout) =
            (Arc::clone(&self.router), self.slot(ask), self.shared.timeout());
        let counted = self.queue.teller().about_to();
        runtime.spawn(async move {
            let understood = |value: Value| matches!(value, Value::Array(_)).then_some(());
            // If the call fails, the permits come back when the interval is over.
            let _ = router.call(slot, &call, understood, Instant::now() + timeout).await;
            drop(counted);
        });
    }

    /// Tells a limiter how much more or less a request used than its cost. A task sends the call, and
    /// nobody waits for the answer.
    pub(super) fn settle_limiter(&self, ask: &BucketAsk<'_>, verb: Verb, lost: Lost) {
        // Without a runtime the worker has ended, and with it its connection.
        let Ok(runtime) = Handle::try_current() else { return };
        let (wanted, permits) = wanted(ask, verb);
        let keys = self.limiter_keys(ask);
        let call = command(&keys, wanted, permits, &new_id(), written(ask), MaxWait::NONE);
        let (router, slot, deadline) = (Arc::clone(&self.router), self.slot(ask), self.deadline());
        let counted = self.queue.teller().about_to();
        runtime.spawn(async move {
            if let Err(error) | Ok(Err(error)) = router.call(slot, &call, read, deadline).await {
                lost(&error);
            }
            drop(counted);
        });
    }

    /// Forgets the permits in use of the ask's limiter, but not its figures.
    pub(super) async fn forget_limiter(&self, ask: &BucketAsk<'_>) -> Result<(), StoreError> {
        let keys = self.limiter_keys(ask);
        let mut call = redis::cmd("DEL");
        call.arg(keys.all().get(1..).unwrap_or_default());
        let read = |value| matches!(value, Value::Int(_)).then_some(());
        self.router.call(self.slot(ask), &call, read, self.deadline()).await
    }

    pub(super) fn limiter_keys(&self, ask: &BucketAsk<'_>) -> LimiterKeys {
        let begin = ask.spec.limiter.as_deref().unwrap_or_default();
        let key = Some(ask.key).filter(|_| !ask.spec.key.sources.is_empty());
        LimiterKeys::new(&limiter_name(begin, key), &self.shared.client_id)
    }

    /// Warns the operator of what is odd about a limiter.
    fn tell(&self, ask: &BucketAsk<'_>, figures: &LimiterHash) {
        if figures.ahead > AHEAD {
            self.shared.notices.ahead(ask.spec, figures.ahead);
        }
        if figures.ends_too_soon {
            self.shared.notices.ends_too_soon(ask.spec);
        }
        if let Some((rate, interval_ms, sharing)) = written(ask)
            && (rate, interval_ms, sharing) != (figures.rate, figures.interval_ms, figures.sharing)
        {
            self.shared.notices.other_figures(ask.spec, || {
                let config = LimiterConfig {
                    rate: figures.rate,
                    interval_ms: figures.interval_ms,
                    sharing: figures.sharing,
                    keep_alive_ms: None,
                    expires_in_ms: None,
                };
                (config.rate_text(), config.type_text())
            });
        }
    }
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

pub(super) fn new_id() -> [u8; 16] {
    fastrand::u128(..).to_be_bytes()
}

/// The figures in `proxy.toml` for a limiter that has none: count, interval in milliseconds, type.
fn written(ask: &BucketAsk<'_>) -> Option<(u64, u64, Sharing)> {
    let Algorithm::Redisson(params) = ask.ask.algorithm else { return None };
    let rate = params.rate()?;
    Some((rate.count(), rate.interval() / 1_000, params.sharing))
}

/// The number of Redisson's `RateType`: its place in that enum.
fn type_number(sharing: Sharing) -> u8 {
    match sharing {
        Sharing::Overall => 0,
        Sharing::PerClient => 1,
    }
}

/// A call of the script. `id` names a new entry, `figures` are for a limiter that has none, and `max_wait`
/// is how long the request may be held.
fn command(
    keys: &LimiterKeys,
    verb: &str,
    permits: i64,
    id: &[u8; 16],
    figures: Option<(u64, u64, Sharing)>,
    max_wait: MaxWait,
) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(SCRIPT.get_hash()).arg(keys.all().len()).arg(&keys.all()[..]);
    call.arg(verb).arg(permits).arg(&id[..]);
    match figures {
        Some((rate, interval_ms, sharing)) => {
            call.arg(rate).arg(interval_ms).arg(type_number(sharing))
        }
        None => call.arg("").arg("").arg(""),
    };
    call.arg(max_wait.as_micros());
    call
}

/// A limiter's figures, as the script reports them, and two warnings.
#[derive(Clone, Copy)]
pub(super) struct LimiterHash {
    rate: u64,
    interval_ms: u64,
    sharing: Sharing,
    /// How far a clock that made an entry is ahead of Redis's clock. Entries of waiting requests do not
    /// count.
    ahead: Duration,
    /// The request is not held, because the limiter's keys might expire before its permits are free again.
    ends_too_soon: bool,
}

/// Reads the script's reply. `None` where it is none.
fn read(answer: Value) -> Option<Result<(Decision, LimiterHash), StoreError>> {
    let Value::Array(values) = answer else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let numbers: Option<Vec<i64>> = values.iter().map(number).collect();
    match numbers?.as_slice() {
        [1] => Some(Err(StoreError::Unset)),
        [2] => Some(Err(StoreError::WrongType)),
        [0, wait, waits, left, rate, interval_ms, kind, ahead] => {
            let wait = u64::try_from(*wait).ok().map(Duration::from_micros);
            let outcome = match (wait, waits) {
                (Some(Duration::ZERO), _) => Outcome::Allow,
                (Some(wait), 1) => Outcome::Delay(wait),
                (retry_after, _) => Outcome::Reject { retry_after },
            };
            let remaining = u64::try_from(*left).unwrap_or(0);
            let figures = LimiterHash {
                rate: u64::try_from(*rate).ok()?,
                interval_ms: u64::try_from(*interval_ms).ok()?,
                sharing: match kind {
                    0 => Sharing::Overall,
                    _ => Sharing::PerClient,
                },
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
            ("too short", answer(&[0, 0, 0, 5, 10, 1_000, 0])),
            ("too long", answer(&[0, 0, 0, 5, 10, 1_000, 0, 0, 0])),
            ("another end", answer(&[3])),
            ("a rate below zero", answer(&[0, 0, 0, 5, -1, 1_000, 0, 0])),
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
            let said = read(answer(&[0, 7, waits, -3, 10, 1_000, 0, 0]));
            let (decision, figures) = said.unwrap().unwrap();
            assert_eq!((decision.outcome, decision.remaining), (outcome, 0));
            assert_eq!(figures.ends_too_soon, waits == 2);
        }
    }
}
