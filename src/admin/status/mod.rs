//! `/api/status`: how the process is now. The fields are described in docs/reference.md.
//!
//! Totals are counted since the start. What is counted a second is the difference of the last two readings of
//! [`Pulse`](super::pulse::Pulse).

mod alarms;
mod limits;
mod store;
mod traffic;

use std::time::Duration;

use serde_json::{Value, json};

use super::Admin;
use crate::limit::time::Timestamp;
use crate::observe::events::date_and_time;
use crate::observe::metrics::{DECISIONS, DecisionCounts, Histogram, Reading};
use crate::redis::ClusterServer;
use crate::worker::Process;

/// The most entries of a list that grows with the file. The busiest ones are listed.
const MOST: usize = 200;

/// What is counted at one moment.
pub(super) struct ProcessReading {
    /// By the steady clock.
    pub(super) at: Timestamp,
    pub(super) reading: Reading,
    servers: Vec<ClusterServer>,
}

impl ProcessReading {
    pub(super) fn now(process: &Process) -> Self {
        Self {
            at: process.clock.now(),
            reading: process.metrics.reading(),
            servers: process.store.cluster_servers(),
        }
    }
}

/// What is known when a status is made.
struct Scene<'s> {
    admin: &'s Admin,
    /// The totals.
    now: &'s ProcessReading,
    /// The last two readings, for what is counted a second.
    earlier: &'s ProcessReading,
    later: &'s ProcessReading,
    interval: Duration,
}

/// The status at a moment.
pub(super) fn build(admin: &Admin, now: &ProcessReading) -> Value {
    let [earlier, later] = admin.pulse.readings();
    let scene = Scene {
        admin,
        now,
        earlier: &earlier,
        later: &later,
        interval: Duration::from_micros(later.at.micros_since(earlier.at)),
    };
    scene.status()
}

impl Scene<'_> {
    fn status(&self) -> Value {
        let process = &self.admin.process;
        let published = self.admin.plan.borrow().clone();
        let uptime = Duration::from_micros(self.now.at.micros_since(self.admin.started));
        let [limits, routes] = [self.limits(&published.plan), self.routes(&published.plan)];
        let (top_keys, alarms) = (limits::top_keys(&limits.entries), self.alarms(&published));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "host": self.admin.host,
            "summary": self.summary(&published.plan, alarms.is_empty()),
            "alarms": alarms,
            "marks": self.admin.marks(),
            "time": self.ago(Duration::ZERO),
            "started": self.ago(uptime),
            "uptime_ms": millis(uptime),
            "interval_ms": millis(self.interval),
            "draining": process.draining.load(std::sync::atomic::Ordering::Relaxed),
            "config": self.config(),
            "store": self.store(),
            "connections": self.connections(&published.plan),
            "requests": self.requests(),
            "upstreams": self.upstreams(&published),
            "routes": routes.entries,
            "routes_left_out": routes.left_out,
            "limits": limits.entries,
            "limits_left_out": limits.left_out,
            "top_keys": top_keys,
            "rejected_keys_window_ms": millis(self.rejections_window(uptime)),
        })
    }

    fn config(&self) -> Value {
        let news = self.admin.process.config.news();
        let (errors, since) = news.rejected.unzip();
        json!({
            "file": news.file,
            "version": news.version,
            "since": date_and_time(news.since),
            "changed": news.changed,
            "restart_needed": news.restart,
            "valid": errors.is_none(),
            "errors": errors.unwrap_or_default(),
            "rejected_since": since.map(date_and_time),
        })
    }

    /// What was counted at the last two readings.
    fn readings(&self) -> [&Reading; 2] {
        [&self.earlier.reading, &self.later.reading]
    }

    /// A count a second, from its values at the last two readings.
    fn per_second(&self, before: u64, last: u64) -> f64 {
        let seconds = self.interval.as_secs_f64();
        let count = last.saturating_sub(before) as f64;
        if seconds > 0.0 { rounded(count / seconds) } else { 0.0 }
    }

    /// Writes how often each decision occurred, in all and a second.
    fn write_decisions(&self, value: &mut Value, of: impl Fn(&Reading) -> DecisionCounts) {
        let ([before, last], total) = (self.readings().map(&of), of(&self.now.reading));
        for (place, decision) in DECISIONS.iter().enumerate() {
            value[format!("{decision}_total")] = total[place].into();
            let per_second = self.per_second(before[place], last[place]);
            value[format!("{decision}_per_second")] = per_second.into();
        }
    }

    /// The time of day before this time.
    fn ago(&self, time: Duration) -> String {
        let wall = self.admin.process.clock.wall().at(self.now.at);
        let before = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let micros = wall.as_micros().saturating_sub(before);
        date_and_time(Timestamp::from_micros(micros).unwrap_or(Timestamp::MIN))
    }
}

/// Entries of a list, and how many are not in it.
struct Listed {
    entries: Vec<Value>,
    left_out: usize,
}

/// The busiest of these items, in their order. `busy` says how busy each is.
fn listed<T>(items: &[T], busy: impl Fn(&T) -> (f64, u64), write: impl Fn(&T) -> Value) -> Listed {
    let mut places: Vec<usize> = (0..items.len()).collect();
    if places.len() > MOST {
        let busy: Vec<_> = items.iter().map(busy).collect();
        places.sort_by(|a, b| {
            let (a, b) = (busy[*a], busy[*b]);
            b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
        });
        places.truncate(MOST);
        places.sort_unstable();
    }
    let left_out = items.len() - places.len();
    Listed { entries: places.into_iter().map(|place| write(&items[place])).collect(), left_out }
}

/// Half of the durations, and 99 of 100, took no longer than these milliseconds.
fn latency(earlier: &Histogram, later: &Histogram) -> [Value; 2] {
    let since = later.since(earlier);
    [0.5, 0.99].map(|share| since.quantile_ms(share).map(rounded).into())
}

/// Three digits behind the point are enough.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
