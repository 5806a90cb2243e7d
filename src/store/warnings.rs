//! Warns the operator of odd things in Redis, such as a key of another type. Each warning about a limit
//! comes once in [`SILENCE`].

use std::time::Duration;

use crate::limit::name::Name;
use crate::observe::log_interval::LogIntervals;
use crate::plan::LimitSpec;
use crate::redis::CallError;

/// A warning about a limit is not repeated for this time.
const SILENCE: Duration = Duration::from_secs(600);

/// The warnings that a process has logged.
pub(super) struct LimitWarnings(LogIntervals<(Name, WarningKind)>);

impl Default for LimitWarnings {
    fn default() -> Self {
        Self(LogIntervals::new(SILENCE))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WarningKind {
    Unset,
    Older,
    Ahead,
    EndsTooSoon,
    OtherFigures,
    OtherType,
    Refused,
}

impl LimitWarnings {
    pub(super) fn unset(&self, limit: &LimitSpec) {
        if self.is_news(limit, WarningKind::Unset) {
            tracing::warn!(
                limit = %limit.name,
                limiter = shown(limit),
                "help" = "set its rate in Java or with `tidegate redisson set`, or write `rate` in the limit",
                "limiter not configured"
            );
        }
    }

    /// A Redisson before 3.17 uses the keys of the limiter.
    pub(super) fn older(&self, limit: &LimitSpec) {
        if self.is_news(limit, WarningKind::Older) {
            tracing::warn!(
                limit = %limit.name,
                limiter = shown(limit),
                "help" = "update its Java services to Redisson 3.17 or later, then delete what the old version wrote with `tidegate redisson set`; or give the limit another name; until then \
                          on_store_error decides for this key",
                "limiter used by a redisson before 3.17"
            );
        }
    }

    pub(super) fn ahead(&self, limit: &LimitSpec, ahead: Duration) {
        if self.is_news(limit, WarningKind::Ahead) {
            tracing::warn!(
                limit = %limit.name,
                limiter = shown(limit),
                ahead_ms = u64::try_from(ahead.as_millis()).unwrap_or(u64::MAX),
                "help" = "set the clocks of the Java services: permits that they take are held longer by that time",
                "limiter used by a clock that is ahead"
            );
        }
    }

    pub(super) fn ends_too_soon(&self, limit: &LimitSpec) {
        if self.is_news(limit, WarningKind::EndsTooSoon) {
            tracing::warn!(
                limit = %limit.name,
                limiter = shown(limit),
                "help" = "its keys expire `keepAliveTime` after their last use, or as `expire` says: let this time be at least the interval plus the limit's `wait`",
                "limiter ends too soon to wait for"
            );
        }
    }

    /// Redis has other figures for the limiter than the file. The figures in Redis count.
    pub(super) fn other_figures(
        &self,
        limit: &LimitSpec,
        figures: impl FnOnce() -> (String, &'static str, u64),
    ) {
        if self.is_news(limit, WarningKind::OtherFigures) {
            let (rate, kind, keep_alive_ms) = figures();
            tracing::warn!(
                limit = %limit.name,
                limiter = shown(limit),
                in_force = rate,
                "type" = kind,
                keep_alive_ms,
                "help" = "the figures in redis are in force; `tidegate redisson set` changes them",
                "limiter has other figures in redis"
            );
        }
    }

    /// The key that `name` returns holds a value of another type than the limit's bucket.
    pub(super) fn other_type(&self, limit: &LimitSpec, name: impl FnOnce() -> String) {
        if self.is_news(limit, WarningKind::OtherType) {
            tracing::warn!(
                limit = %limit.name,
                redis_key = name(),
                "help" = "delete that key, or stop the other program that writes it; until then \
                          on_store_error decides for this key",
                "key of another type in redis"
            );
        }
    }

    /// Redis refuses the limit's key, or a command of its algorithm, but works for other limits.
    pub(super) fn refused(&self, limit: &LimitSpec, error: &CallError) {
        if self.is_news(limit, WarningKind::Refused) {
            tracing::warn!(
                limit = %limit.name,
                %error,
                "help" = "allow this user that key and the commands that tidegate needs, or name a limiter \
                          whose keys share a slot; until then on_store_error decides for this limit",
                "key refused by redis"
            );
        }
    }

    fn is_news(&self, limit: &LimitSpec, kind: WarningKind) -> bool {
        self.0.next((limit.name.clone(), kind))
    }
}

/// A limiter's name for logs: without the values of a key, which may be secret.
pub(super) fn shown(limit: &LimitSpec) -> String {
    let name = limit.limiter.as_deref().unwrap_or_default();
    match limit.key.sources.is_empty() {
        true => name.to_owned(),
        false => format!("{name}:…"),
    }
}
