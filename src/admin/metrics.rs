//! Every metric in one table: kind, name, help, and samples. [`page`] writes the metrics in the order of the
//! table. Then `process` writes the metrics of the process.
//!
//! To add a metric, add an entry to the table. If the workers count it, the number comes from `Reading`.
//! Otherwise it comes from the part of the process that knows it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::process;
use super::prometheus::Page;
use crate::config::Spelled as _;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::fixed_window::windows::Windows;
use crate::limit::rate::{Burst, Interval, Rate};
use crate::limit::time::Now;
use crate::observe::metrics::{OUTCOMES, Reading};
use crate::redis::ClusterServer;
use crate::settings::{LimitSpec, Priority};
use crate::store::Counters;
use crate::upstream::health::ServerState;
use crate::upstream::overload::report::QueueFacts;
use crate::upstream::overload::rule::LimitChange;
use crate::worker::{Process, Published};

/// What a scrape of the metrics shows.
pub(super) struct Scrape<'s> {
    /// What the workers counted.
    pub(super) reading: Reading,
    /// The numbers of the store.
    pub(super) store: Counters,
    /// The servers of a Redis cluster. Empty without a cluster.
    pub(super) servers: Vec<ClusterServer>,
    /// Log lines that were dropped since the start.
    pub(super) log_dropped: u64,
    /// Panics since the start.
    pub(super) panics: u64,
    /// The present time. The length of a calendar's window depends on it.
    pub(super) now: Now,
    pub(super) process: &'s Process,
    /// The settings in force, and the state of its servers.
    pub(super) published: &'s Published,
}

impl Scrape<'_> {
    /// Each upstream's name and servers.
    fn upstreams(&self) -> impl Iterator<Item = (&str, &[Arc<ServerState>])> {
        self.published.upstreams.iter().map(|state| (state.name().as_str(), state.servers()))
    }

    /// The queue of each upstream that has `max_requests`.
    fn queues(&self) -> impl Iterator<Item = (&str, QueueFacts)> {
        let specs = self.published.settings.upstreams.iter();
        let queues = specs.zip(&self.published.upstreams);
        let queues = queues.filter(|(spec, _)| spec.max_requests.is_some());
        queues.map(|(spec, state)| (spec.name.as_str(), state.queue().facts()))
    }

    /// The queues whose upstream has a goal.
    fn goals(&self) -> impl Iterator<Item = (&str, QueueFacts)> {
        self.queues().filter(|(_, facts)| facts.has_goal)
    }

    /// Writes a number for each limit that has one.
    fn of_limits(&self, page: &mut Page, of: impl Fn(&LimitSpec) -> Option<f64>) {
        for limit in &self.published.settings.limits {
            if let Some(value) = of(limit) {
                page.sample(&[("limit", limit.name.as_str())], &number(value));
            }
        }
    }
}

type Samples = fn(&Scrape<'_>, &mut Page);

#[rustfmt::skip]
const FAMILIES: &[(&str, &str, &str, Samples)] = &[
    ("counter", "tidegate_requests_total", "Requests by route and status.", |scrape, page| {
        for (route, requests) in &scrape.reading.routes {
            let mut statuses = requests.statuses.0.clone();
            statuses.sort_unstable();
            for (status, count) in statuses {
                page.sample(&[("route", route), ("status", &status.to_string())], &count);
            }
        }
    }),
    ("counter", "tidegate_decide_requests_total", "Requests about which other proxies have asked, and calls that ask nothing, by how they ask and the status of the client's answer.", |scrape, page| {
        for ((via, status), count) in &scrape.reading.asked {
            page.sample(&[("via", via), ("status", &status.to_string())], count);
        }
    }),
    ("counter", "tidegate_refused_total", "Requests that were refused with 4xx, and that no limit rejected, by the reason.", |scrape, page| {
        for (reason, count) in &scrape.reading.refused {
            page.sample(&[("reason", reason)], count);
        }
    }),
    ("counter", "tidegate_decisions_total", "Decisions of limits on requests.", |scrape, page| {
        for (limit, counts) in &scrape.reading.limits {
            for (decision, count) in OUTCOMES.iter().zip(counts) {
                page.sample(&[("limit", limit.as_str()), ("decision", decision)], count);
            }
        }
    }),
    ("histogram", "tidegate_request_duration_seconds", "Time from a request's head to the end of its response.", |scrape, page| {
        for (route, seconds) in &scrape.process.metrics.request_seconds() {
            page.histogram(&[("route", route)], seconds);
        }
    }),
    ("histogram", "tidegate_upstream_duration_seconds", "Time from sending a request upstream to the head of the response.", |scrape, page| {
        for (upstream, counts) in &scrape.reading.upstreams {
            page.histogram(&[("upstream", upstream.as_str())], &counts.seconds);
        }
    }),
    ("counter", "tidegate_upstream_errors_total", "Exchanges that failed.", |scrape, page| {
        for (upstream, counts) in &scrape.reading.upstreams {
            for (failure, count) in &counts.failures {
                page.sample(&[("upstream", upstream.as_str()), ("reason", failure.reason())], count);
            }
        }
    }),
    ("gauge", "tidegate_upstream_limit", "The most requests that an upstream with `max_requests` may have at once now. In shadow, what would apply.", |scrape, page| {
        for (upstream, facts) in scrape.queues() {
            let limit = facts.limit.map_or_else(|| number(f64::INFINITY), |limit| limit.to_string());
            page.sample(&[("upstream", upstream)], &limit);
        }
    }),
    ("gauge", "tidegate_upstream_in_flight", "Requests that hold a place in `max_requests`.", |scrape, page| {
        for (upstream, facts) in scrape.queues() {
            page.sample(&[("upstream", upstream)], &facts.in_flight);
        }
    }),
    ("gauge", "tidegate_upstream_waiting", "Requests that wait for such a place.", |scrape, page| {
        for (upstream, facts) in scrape.queues() {
            for (priority, waiting) in Priority::ALL.iter().zip(facts.waiting) {
                page.sample(&[("upstream", upstream), ("priority", priority.spelling())], &waiting);
            }
        }
    }),
    ("gauge", "tidegate_upstream_slow_ratio", "The share of an upstream's answers that came after its goal.", |scrape, page| {
        for (upstream, facts) in scrape.goals() {
            page.sample(&[("upstream", upstream)], &number(facts.slow_share));
        }
    }),
    ("gauge", "tidegate_upstream_goal_times", "How many times the goal counts, as the upstream is slow, but not from load.", |scrape, page| {
        for (upstream, facts) in scrape.goals() {
            page.sample(&[("upstream", upstream)], &facts.goal_times);
        }
    }),
    ("counter", "tidegate_upstream_refused_total", "Requests that were refused with 503, as the queue was full or they had waited for too long.", |scrape, page| {
        for (upstream, facts) in scrape.queues() {
            for (priority, counts) in Priority::ALL.iter().zip(facts.report.refused) {
                for (reason, count) in ["full", "waited"].iter().zip(counts) {
                    let labels = [("upstream", upstream), ("priority", priority.spelling()), ("reason", reason)];
                    page.sample(&labels, &count);
                }
            }
        }
    }),
    ("histogram", "tidegate_upstream_queue_seconds", "How long those waited that were sent after a wait.", |scrape, page| {
        for (upstream, facts) in scrape.queues() {
            page.histogram(&[("upstream", upstream)], &facts.report.waits);
        }
    }),
    ("counter", "tidegate_upstream_limit_changes_total", "What the rule of a goal has done.", |scrape, page| {
        for (upstream, facts) in scrape.goals() {
            for (kind, count) in LimitChange::COUNTED.iter().zip(facts.report.changes) {
                page.sample(&[("upstream", upstream), ("kind", kind)], &count);
            }
        }
    }),
    ("histogram", "tidegate_store_duration_seconds", "Time that the store took to answer.", |scrape, page| {
        for server in &scrape.servers {
            page.histogram(&[("server", &server.name)], &server.seconds);
        }
        if scrape.servers.is_empty() {
            page.histogram(&[], &scrape.reading.store_seconds);
        }
    }),
    ("gauge", "tidegate_connections", "Client connections.", |scrape, page| {
        let http2 = scrape.reading.http2;
        page.sample(&[("protocol", "http1")], &(scrape.process.connections.open() as u64).saturating_sub(http2));
        page.sample(&[("protocol", "http2")], &http2);
    }),
    ("counter", "tidegate_received_bytes_total", "Bytes that clients sent.", |scrape, page| page.number(&scrape.reading.received)),
    ("counter", "tidegate_sent_bytes_total", "Bytes that were sent to clients.", |scrape, page| page.number(&scrape.reading.sent)),
    ("gauge", "tidegate_limit_rate", "The rate of a limit in the configuration file, in tokens a second.", |scrape, page| {
        scrape.of_limits(page, |limit| rate(limit.figures.at(scrape.now)));
    }),
    ("gauge", "tidegate_limit_burst", "The most that a limit in the configuration file lets pass at once.", |scrape, page| {
        scrape.of_limits(page, |limit| burst(limit.figures.at(scrape.now)));
    }),
    ("gauge", "tidegate_throttled_keys", "Keys that were rejected in the last summary interval.", |scrape, page| {
        scrape.of_limits(page, |limit| Some(scrape.process.throttled.throttled_keys(&limit.name) as f64));
    }),
    ("counter", "tidegate_bans_total", "Bans of keys by limits with `ban`.", |scrape, page| {
        scrape.of_limits(page, |limit| limit.ban.as_ref().map(|_| scrape.process.store.bans(&limit.name) as f64));
    }),
    ("counter", "tidegate_near_limit_total", "How often keys came near a limit, by its `near`.", |scrape, page| {
        scrape.of_limits(page, |limit| limit.near.map(|_| scrape.process.near.total(&limit.name) as f64));
    }),
    ("counter", "tidegate_upstream_retries_total", "Tries of requests after the first try.", |scrape, page| {
        for (upstream, servers) in scrape.upstreams() {
            let retries: u64 = servers.iter().map(|server| server.notes().retries).sum();
            page.sample(&[("upstream", upstream)], &retries);
        }
    }),
    ("counter", "tidegate_store_errors_total", "Errors of Redis by their kind.", |scrape, page| {
        for server in &scrape.servers {
            for (kind, count) in &server.errors {
                page.sample(&[("server", &server.name), ("kind", kind)], count);
            }
        }
        if scrape.servers.is_empty() {
            for (kind, count) in &scrape.process.store.errors() {
                page.sample(&[("kind", kind)], count);
            }
        }
    }),
    ("gauge", "tidegate_store_up", "Whether the store answers.", |scrape, page| {
        for server in &scrape.servers {
            page.sample(&[("server", &server.name)], &u8::from(server.is_up));
        }
        if scrape.servers.is_empty() {
            page.number(&u8::from(scrape.store.redis_up.unwrap_or(true)));
        }
    }),
    ("gauge", "tidegate_waiting", "Requests that are held by a limit.", |scrape, page| page.number(&scrape.process.waiting.held())),
    ("gauge", "tidegate_upstream_up", "Whether requests are sent to a server.", |scrape, page| {
        for (upstream, servers) in scrape.upstreams() {
            for server in servers {
                page.sample(&[("upstream", upstream), ("server", server.url())], &u8::from(server.is_up()));
            }
        }
    }),
    ("counter", "tidegate_malformed_requests_total", "Malformed requests: faulty or too large heads, and faulty bodies, handshakes and frames.", |scrape, page| page.number(&scrape.process.error_log.malformed.total())),
    ("counter", "tidegate_panics_total", "Faults of the program, each of which ended a request, a connection or a task.", |scrape, page| page.number(&scrape.panics)),
    ("counter", "tidegate_refused_connections_total", "Connections that were closed at once, because their client had too many.", |scrape, page| page.number(&scrape.process.connections.refused().total())),
    ("gauge", "tidegate_processes", "Processes that share the store, when it last answered.", |scrape, page| page.number(&scrape.store.processes)),
    ("counter", "tidegate_deny_cache_hits_total", "Requests that were rejected without a question to Redis, because the rejection was known.", |scrape, page| page.number(&scrape.store.known_refusals)),
    ("gauge", "tidegate_memory_keys", "Buckets in this process's memory.", |scrape, page| page.number(&scrape.store.keys)),
    ("counter", "tidegate_shared_decisions_total", "Decisions by a bucket that new keys share, because the memory was full.", |scrape, page| page.number(&scrape.store.shared_uses)),
    ("counter", "tidegate_forgotten_total", "Buckets that were forgotten before they were full, because the memory was full.", |scrape, page| page.number(&scrape.store.forgotten)),
    ("counter", "tidegate_without_redis_total", "Requests that Redis did not decide on.", |scrape, page| {
        page.sample(&[("answer", "decided")], &scrape.store.decided_without);
        page.sample(&[("answer", "refused")], &scrape.store.refused_without);
    }),
    ("counter", "tidegate_unsettled_total", "Settlements of costs that did not reach Redis.", |scrape, page| page.number(&scrape.store.unsettled)),
    ("counter", "tidegate_spans_dropped_total", "Spans of traced requests that no collector got.", |scrape, page| page.number(&scrape.process.spans.dropped.total())),
    ("counter", "tidegate_log_dropped_total", "Log lines that were dropped.", |scrape, page| page.number(&scrape.log_dropped)),
    ("gauge", "tidegate_config_last_reload_successful", "Whether the configuration file was valid when it was last read.", |scrape, page| page.number(&u8::from(scrape.process.is_config_valid.load(Ordering::Relaxed)))),
    ("gauge", "tidegate_config_last_reload_success_timestamp_seconds", "When a configuration last came into force, in seconds since 1970.", |scrape, page| {
        page.number(&(scrape.process.adopted.load(Ordering::Relaxed) as f64 / 1e6));
    }),
    ("gauge", "tidegate_last_read_successful", "Whether what is read again and again was taken when it was last read: certificates, keys of tokens, plans.", |scrape, page| scrape.published.last_reads().for_each(|(source, read, _)| page.sample(&[("source", &source)], &u8::from(read.failure().is_none())))),
    ("gauge", "tidegate_certificate_expiry_timestamp_seconds", "When a certificate ends, in seconds since 1970.", |scrape, page| scrape.published.certificate_ends().for_each(|it| page.sample(&[("certificate", &it.file.to_string_lossy())], &it.end.as_secs()))),
    ("gauge", "tidegate_jwt_keys", "Keys in force that can verify tokens.", |scrape, page| scrape.published.keys.iter().for_each(|keys| page.sample(&[("jwt", keys.spec.name.as_str())], &keys.count()))),
    ("gauge", "tidegate_jwt_keys_age_seconds", "Time since keys were last read.", |scrape, page| {
        let ages = scrape.published.keys.iter().filter_map(|keys| Some((keys.spec.name.as_str(), keys.last_read.age()?)));
        ages.for_each(|(jwt, age)| page.sample(&[("jwt", jwt)], &age.as_secs_f64()));
    }),
    ("gauge", "tidegate_plans_lines", "Lines of plans.file that are in force.", |scrape, page| scrape.published.settings.plans_file().iter().for_each(|file| page.number(&file.table().lines()))),
    ("gauge", "tidegate_build_info", "The version that runs.", |_, page| page.sample(&[("version", env!("CARGO_PKG_VERSION"))], &1)),
];

pub(super) fn page(scrape: &Scrape<'_>) -> String {
    let mut page = Page::default();
    for (kind, name, help, samples) in FAMILIES {
        page.family(kind, name, help);
        samples(scrape, &mut page);
    }
    process::write(&mut page);
    page.finish()
}

/// A number as Prometheus writes it.
fn number(number: f64) -> String {
    match number.is_infinite() {
        true => "+Inf".to_owned(),
        false => number.to_string(),
    }
}

/// The rate of these figures, in tokens a second. `None` if they have no rate.
pub(super) fn rate(algorithm: Option<Algorithm>) -> Option<f64> {
    let of = |rate: Rate| rate.count() as f64 * 1e6 / rate.interval() as f64;
    let in_interval =
        |count: Burst, interval: Interval| count.get() as f64 * 1e6 / interval.as_micros() as f64;
    Some(match algorithm {
        None => f64::INFINITY,
        Some(Algorithm::TokenBucket(params)) => of(params.rate),
        Some(Algorithm::LeakyBucket(params)) => of(params.rate),
        Some(Algorithm::Redisson(params)) => of(params.rate()?),
        Some(Algorithm::SlidingLog(params)) => in_interval(params.count, params.interval),
        Some(Algorithm::SlidingWindow(params)) => in_interval(params.count, params.interval),
        Some(Algorithm::FixedWindow(params)) => match params.windows {
            Windows::Rolling(interval) | Windows::Clock(interval) => {
                in_interval(params.count, interval)
            }
            Windows::Calendar(_) => params.count.get() as f64 / params.windows.seconds() as f64,
        },
        Some(Algorithm::Closed) => 0.0,
        Some(Algorithm::Concurrency(_)) => return None,
    })
}

/// The most that a limit lets pass at once. Infinite if everything passes. `None` if only Redis knows it.
fn burst(algorithm: Option<Algorithm>) -> Option<f64> {
    match algorithm {
        None => Some(f64::INFINITY),
        Some(algorithm) => algorithm.known_capacity().map(|capacity| capacity as f64),
    }
}

#[cfg(test)]
mod tests;
