//! Writes the log line of a candidate, with its counts. The line comes after each interval in which the candidate and
//! its limit rejected different requests. If neither rejects any request, as at night, there is no line.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use super::candidates::CandidateTally;
use super::log_interval::LogInterval;
use super::metrics::Metrics;
use super::throttled::TARGET;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::settings::{LimitSpec, Settings, ThrottleLog};

/// Writes the lines of candidates.
#[derive(Debug)]
pub(crate) struct CandidateLog {
    metrics: Arc<Metrics>,
    line: LogInterval,
    /// The last state of each limit: when its counts began, and how many requests either the candidate or the limit
    /// rejected, but not both.
    logged: HashMap<Name, (Timestamp, u64)>,
}

impl CandidateLog {
    pub(crate) fn new(metrics: Arc<Metrics>, now: Instant) -> Self {
        Self { metrics, line: LogInterval::from(now), logged: HashMap::new() }
    }

    /// Writes the counts that no line has yet, if the interval has passed. A call costs little before that. At the end
    /// of the process `interval` is `None`. `time` is the time of the steady clock at `now`.
    pub(crate) fn write(
        &mut self,
        settings: &Settings,
        interval: Option<Duration>,
        time: Timestamp,
        now: Instant,
    ) {
        if interval.is_some_and(|interval| !self.line.next(interval, now)) {
            return;
        }
        let mut logged = HashMap::new();
        for limit in &settings.limits {
            let (Some(candidate), Some(tally)) = (&limit.candidate, self.metrics.candidate(limit))
            else {
                continue;
            };
            let counted = (tally.since, tally.differing);
            let is_news = tally.differing > 0 && self.logged.get(&limit.name) != Some(&counted);
            if is_news && settings.log.throttle != ThrottleLog::Off {
                write_line(limit, candidate, &tally, time);
            }
            logged.insert(limit.name.clone(), counted);
        }
        self.logged = logged;
    }
}

fn write_line(limit: &LimitSpec, candidate: &LimitSpec, tally: &CandidateTally, now: Timestamp) {
    let CandidateTally { since, all, rejected, limit_rejected, .. } = tally;
    info!(
        target: TARGET,
        limit = limit.name.as_str(),
        candidate = %candidate.figures,
        requests = all.requests,
        rejected = rejected.requests,
        rejected_percent = tally.percent(rejected),
        keys = all.keys(),
        keys_rejected = rejected.keys(),
        limit_rejected = limit_rejected.requests,
        limit_rejected_percent = tally.percent(limit_rejected),
        limit_keys_rejected = limit_rejected.keys(),
        since_ms = now.micros_since(*since) / 1_000,
        "candidate"
    );
}
