//! Warns the operator of odd things in Redis, such as a key of another type. Each warning about a limit
//! comes once in [`SILENCE`].

use std::time::Duration;

use tracing::warn;

use crate::limit::name::Name;
use crate::observe::log_interval::LogIntervals;
use crate::observe::millis;
use crate::redis::CallError;
use crate::settings::LimitSpec;

/// A warning about a limit is not repeated for this time.
const SILENCE: Duration = Duration::from_secs(600);

/// The warnings that a process has logged, by limit and advice.
pub(super) struct LimitWarnings(LogIntervals<(Name, &'static str)>);

impl Default for LimitWarnings {
    fn default() -> Self {
        Self(LogIntervals::new(SILENCE))
    }
}

impl LimitWarnings {
    pub(super) fn unset(&self, spec: &LimitSpec) {
        let help =
            "set its rate in Java or with `tidegate redisson set`, or write `rate` in the limit";
        if let Some((limit, limiter)) = self.news(spec, help) {
            warn!(%limit, limiter, help, "limiter not configured");
        }
    }

    /// A Redisson before 3.17 uses the keys of the limiter.
    pub(super) fn older(&self, spec: &LimitSpec) {
        let help = "update its Java services to Redisson 3.17 or later, then delete what the old version wrote with `tidegate redisson set`; or give the limit another name; until then \
                    on_store_error decides for this key";
        if let Some((limit, limiter)) = self.news(spec, help) {
            warn!(%limit, limiter, help, "limiter used by a redisson before 3.17");
        }
    }

    pub(super) fn ahead(&self, spec: &LimitSpec, ahead: Duration) {
        let help = "set the clocks of the Java services: permits that they take are held longer by that time";
        if let Some((limit, limiter)) = self.news(spec, help) {
            let ahead_ms = millis(ahead);
            warn!(%limit, limiter, ahead_ms, help, "limiter used by a clock that is ahead");
        }
    }

    pub(super) fn ends_too_soon(&self, spec: &LimitSpec) {
        let help = "its keys expire `keepAliveTime` after their last use, or as `expire` says: let this time be at least the interval plus the limit's `wait`";
        if let Some((limit, limiter)) = self.news(spec, help) {
            warn!(%limit, limiter, help, "limiter ends too soon to wait for");
        }
    }

    /// Redis has other figures for the limiter than the file. The figures in Redis count.
    pub(super) fn other_figures(
        &self,
        spec: &LimitSpec,
        figures: impl FnOnce() -> (String, &'static str, u64),
    ) {
        let help = "the figures in redis are in force; `tidegate redisson set` changes them";
        if let Some((limit, limiter)) = self.news(spec, help) {
            let (in_force, kind, keep_alive_ms) = figures();
            warn!(
                %limit,
                limiter,
                in_force,
                "type" = kind,
                keep_alive_ms,
                help,
                "limiter has other figures in redis"
            );
        }
    }

    /// The key that `name` returns holds a value of another type than the limit's bucket.
    pub(super) fn other_type(&self, spec: &LimitSpec, name: impl FnOnce() -> String) {
        let help = "delete that key, or stop the other program that writes it; until then \
                    on_store_error decides for this key";
        if let Some((limit, _)) = self.news(spec, help) {
            warn!(%limit, redis_key = name(), help, "key of another type in redis");
        }
    }

    /// Redis refuses the limit's key, or a command of its algorithm, but works for other limits.
    pub(super) fn refused(&self, spec: &LimitSpec, error: &CallError) {
        let help = "allow this user that key and the commands that tidegate needs, or name a limiter \
                    whose keys share a slot; until then on_store_error decides for this limit";
        if let Some((limit, _)) = self.news(spec, help) {
            warn!(%limit, %error, help, "key refused by redis");
        }
    }

    /// The names of the limit and of its limiter, if this warning about it is to be logged now.
    fn news<'s>(&self, spec: &'s LimitSpec, help: &'static str) -> Option<(&'s str, String)> {
        self.0.next((spec.name.clone(), help)).then(|| (spec.name.as_str(), shown(spec)))
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
