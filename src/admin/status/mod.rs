//! `/api/status`: how the process is now. The fields are described in docs/reference.md.
//!
//! Totals are counted since the start. A rate per second comes from the last two readings of
//! [`Pulse`](super::pulse::Pulse).

mod alarms;
mod fleet;
mod limits;
mod store;
mod traffic;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

pub(super) use self::fleet::report;
use super::Admin;
use crate::limit::time::Timestamp;
use crate::observe::events::date_and_time;
use crate::observe::metrics::{Histogram, OUTCOMES, Reading};
use crate::observe::{millis, top_keys};
use crate::redis::ClusterServer;
use crate::worker::Process;

/// The most entries of a list of limits, routes or keys. The busiest entries are listed.
pub(super) const MOST: usize = 200;

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

/// The data from which a status is made.
struct StatusFacts<'s> {
    admin: &'s Admin,
    /// The totals.
    now: &'s ProcessReading,
    /// The oldest reading of the last seconds, for the alarms.
    oldest: &'s ProcessReading,
    /// The last two readings, for the rates per second.
    earlier: &'s ProcessReading,
    later: &'s ProcessReading,
    interval: Duration,
}

/// The status at a moment.
pub(super) fn build(admin: &Admin, now: &ProcessReading) -> Value {
    StatusFacts::new(admin, now, &admin.pulse.readings()).status()
}

/// The alarms at the last reading.
pub(super) fn alarms(admin: &Admin) -> Vec<Value> {
    let readings = admin.pulse.readings();
    StatusFacts::new(admin, &readings[2], &readings).alarms(&admin.published.borrow().clone())
}

impl<'s> StatusFacts<'s> {
    fn new(
        admin: &'s Admin,
        now: &'s ProcessReading,
        [oldest, earlier, later]: &'s [Arc<ProcessReading>; 3],
    ) -> Self {
        let interval = Duration::from_micros(later.at.micros_since(earlier.at));
        Self { admin, now, oldest, earlier, later, interval }
    }

    fn status(&self) -> Value {
        let process = &self.admin.process;
        let published = self.admin.published.borrow().clone();
        let uptime = Duration::from_micros(self.now.at.micros_since(self.admin.started));
        let (limits, alarms) = (self.limits(&published.settings), self.alarms(&published));
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "host": self.admin.host,
            "summary": self.summary(&published.settings, alarms.is_empty()),
            "alarms": alarms,
            "marks": self.admin.marks(),
            "time": self.ago(Duration::ZERO),
            "started": self.ago(uptime),
            "uptime_ms": millis(uptime),
            "interval_ms": millis(self.interval),
            "draining": process.draining.load(std::sync::atomic::Ordering::Relaxed),
            "config": self.config(),
            "store": self.store(),
            "connections": self.connections(&published.settings),
            "requests": self.requests(),
            "upstreams": self.upstreams(&published),
            "routes": self.routes(&published.settings),
            "top_keys": limits::top_keys(&limits),
            "limits": limits,
            "rejected_keys_window_ms": millis(top_keys::window(self.now.at).min(uptime)),
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

    /// What was counted at the last two readings, and now.
    fn readings(&self) -> [&Reading; 3] {
        [self.earlier, self.later, self.now].map(|it| &it.reading)
    }

    /// The rate per second of a count that had these values at the last two readings.
    fn per_second(&self, before: u64, last: u64) -> f64 {
        let seconds = self.interval.as_secs_f64();
        let count = last.saturating_sub(before) as f64;
        if seconds > 0.0 { rounded(count / seconds) } else { 0.0 }
    }

    /// Writes the total of each outcome, and its rate per second. The arrays are the counts at the last two readings,
    /// and the present counts.
    fn write_outcomes<const K: usize>(
        &self,
        value: &mut Value,
        [before, last, now]: [[u64; K]; 3],
    ) {
        for (index, outcome) in OUTCOMES.iter().take(K).enumerate() {
            value[format!("{outcome}_total")] = now[index].into();
            let per_second = self.per_second(before[index], last[index]);
            value[format!("{outcome}_per_second")] = per_second.into();
        }
    }

    /// The time of day, `time` before now.
    fn ago(&self, time: Duration) -> String {
        let wall = self.admin.process.clock.wall().at(self.now.at);
        let before = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let micros = wall.as_micros().saturating_sub(before);
        date_and_time(Timestamp::from_micros(micros).unwrap_or(Timestamp::MIN))
    }
}

/// The busiest of these items, in their order. `busy` says how busy each is.
fn busiest<T>(
    items: &[T],
    busy: impl Fn(&T) -> (u64, u64),
    write: impl Fn(&T) -> Value,
) -> Vec<Value> {
    let mut listed: Vec<_> = items.iter().enumerate().collect();
    if listed.len() > MOST {
        listed.sort_by_cached_key(|(_, item)| Reverse(busy(item)));
        listed.truncate(MOST);
        listed.sort_unstable_by_key(|(index, _)| *index);
    }
    listed.into_iter().map(|(_, item)| write(item)).collect()
}

/// The median and the 99th percentile of the durations between two readings, in milliseconds.
fn latency(earlier: &Histogram, later: &Histogram) -> [Value; 2] {
    let since = later.since(earlier);
    [0.5, 0.99].map(|share| since.quantile_ms(share).map(rounded).into())
}

/// Three digits after the point are enough.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests;
