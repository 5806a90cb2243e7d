//! The script `redisson.lua`, whose head describes the data in Redis, and how its reply is read.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Script, Value};

use super::config::LimiterConfig;
use crate::limit::algorithm::redisson::Sharing;
use crate::limit::decision::{Decision, Outcome};
use crate::redis::CallError;

pub(in crate::store::script) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("redisson.lua")));

/// A limiter's figures, as the script reports them, and two warnings.
#[derive(Clone, Copy)]
pub(in crate::store::script) struct LimiterHash {
    pub(super) config: LimiterConfig,
    /// How far an entry is ahead of Redis's clock: it was made by a wrong clock. Entries of waiting requests do not
    /// count.
    pub(super) ahead: Duration,
    /// The request is not held, because the limiter's keys might expire before its permits are free again.
    pub(super) ends_too_soon: bool,
}

/// Why a key cannot be used: neither Redis nor `proxy.toml` has figures.
pub(super) const UNSET: &str = "the limiter has no figures";

/// Why a key cannot be used: newer versions of Redisson cannot read what the older one writes.
pub(super) const OLDER: &str = "a Redisson before 3.17 uses the limiter";

/// Reads the script's reply. `None` if the answer is no reply of the script.
pub(super) fn read(answer: Value) -> Option<Result<(Decision, LimiterHash), CallError>> {
    let Value::Array(values) = answer else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let numbers: Option<Vec<i64>> = values.iter().map(number).collect();
    match numbers?.as_slice() {
        [1] => Some(Err(CallError::UnusableKey(UNSET))),
        [2] => Some(Err(CallError::OTHER_TYPE)),
        [3] => Some(Err(CallError::UnusableKey(OLDER))),
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
    fn an_owed_permit_does_not_remain() {
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
