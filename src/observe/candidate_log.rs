//! Writes the log line of a candidate, with its counts, after each interval in which the candidate and its limit
//! rejected different requests. If neither rejects any request, as at night, there is no line.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::candidates::CandidateTally;
use super::metrics::Metrics;
use super::throttled::TARGET;
use crate::limit::name::Name;
use crate::limit::time::Timestamp;
use crate::plan::{LimitSpec, Plan, ThrottleLog};

/// Writes the lines of candidates.
#[derive(Debug)]
pub(crate) struct CandidateLog {
    metrics: Arc<Metrics>,
    /// When the running interval began.
    began: Timestamp,
    /// For each limit, by its name, what the last line told: when the counts began, and how many requests only the
    /// candidate or only the limit had rejected.
    told: HashMap<Name, (Timestamp, u64)>,
}

impl CandidateLog {
    pub(crate) fn new(metrics: Arc<Metrics>, now: Timestamp) -> Self {
        Self { metrics, began: now, told: HashMap::new() }
    }

    /// Writes the lines if an interval has ended by `now`. A call costs little while the interval still runs.
    pub(crate) fn tick(&mut self, plan: &Plan, now: Timestamp) {
        if Duration::from_micros(now.micros_since(self.began)) >= plan.log.summary_interval {
            self.flush(plan, now);
        }
    }

    /// Writes the counts that no line has told yet. The end of the process calls this, too.
    pub(crate) fn flush(&mut self, plan: &Plan, now: Timestamp) {
        self.began = now;
        let mut told = HashMap::new();
        for limit in &plan.limits {
            let (Some(candidate), Some(tally)) = (&limit.candidate, self.metrics.candidate(limit))
            else {
                continue;
            };
            let before = self.told.get(&limit.name).filter(|(since, _)| *since == tally.since);
            let differed = before.map_or(0, |(_, differing)| *differing);
            if tally.differing > differed && plan.log.throttle != ThrottleLog::Off {
                write_line(limit, candidate, &tally, now);
            }
            told.insert(limit.name.clone(), (tally.since, tally.differing));
        }
        self.told = told;
    }
}

fn write_line(limit: &LimitSpec, candidate: &LimitSpec, tally: &CandidateTally, now: Timestamp) {
    info!(
        target: TARGET,
        limit = limit.name.as_str(),
        candidate = %candidate.figures,
        requests = tally.requests,
        rejected = tally.rejected,
        rejected_percent = tally.percent(tally.rejected),
        keys = tally.keys(),
        keys_rejected = tally.keys_rejected(),
        limit_rejected = tally.limit_rejected,
        limit_rejected_percent = tally.percent(tally.limit_rejected),
        limit_keys_rejected = tally.limit_keys_rejected(),
        since_ms = now.micros_since(tally.since) / 1_000,
        "candidate"
    );
}
