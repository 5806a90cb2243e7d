//! What a scrape shows besides the workers' counts: what other parts of the process know at that moment.
//! `admin` fills a [`Snapshot`], and [`Metrics::render`](super::Metrics::render) writes it.

use std::fmt;

use super::text::{FamilyKind, Page};

/// What other parts of the process know at the moment of a scrape.
#[derive(Clone, Debug)]
pub struct Snapshot<'s> {
    /// tidegate's version.
    pub version: &'s str,
    /// Whether the store answers; the one in memory always does.
    pub store_up: bool,
    /// Requests that are held by a limit.
    pub waiting: u64,
    /// Client connections.
    pub connections: u64,
    /// The figures of each limit of the file.
    pub limits: Vec<LimitFigures<'s>>,
    /// Further tries since the start, by the upstream's name.
    pub retries: Vec<(&'s str, u64)>,
    /// Errors of Redis since the start, by their kind.
    pub store_errors: Vec<(&'static str, u64)>,
    /// Connections since the start that said what is no request.
    pub malformed: u64,
    /// Buckets in this process's memory.
    pub memory_keys: u64,
    /// Decisions since the start that a limit's shared bucket made, because no room could be made.
    pub shared_decisions: u64,
    /// Buckets since the start that were forgotten, for want of room, before they were full.
    pub forgotten: u64,
    /// Requests since the start on which Redis should have decided and `on_store_error` did.
    pub decided_without: u64,
    /// Those since the start that it refused.
    pub refused_without: u64,
    /// Settlements since the start that did not reach Redis.
    pub unsettled: u64,
    /// Log lines that were dropped since the start.
    pub log_dropped: u64,
    /// Whether the file, when it was last read, was right.
    pub reload_successful: bool,
    /// When a configuration last came in force, in seconds since 1970.
    pub reload_success_time: f64,
    /// Every server of every upstream.
    pub servers: Vec<ServerGauge<'s>>,
}

/// What the file says of a limit, and whom it throttled lately.
#[derive(Clone, Copy, Debug)]
pub struct LimitFigures<'s> {
    /// Its name.
    pub limit: &'s str,
    /// Tokens a second; infinite where everything passes, `None` where time counts nothing.
    pub rate: Option<f64>,
    /// The most that passes at once; `None` where there is no bound.
    pub burst: Option<u64>,
    /// Keys that were rejected in the last summary interval.
    pub throttled_keys: u64,
}

/// A server of an upstream at the moment of a scrape.
#[derive(Clone, Copy, Debug)]
pub struct ServerGauge<'s> {
    /// The upstream's name.
    pub upstream: &'s str,
    /// The server's URL.
    pub server: &'s str,
    /// Whether requests are sent to it.
    pub up: bool,
}
impl Snapshot<'_> {
    pub(super) fn write(&self, page: &mut Page) {
        use FamilyKind::{Counter, Gauge};
        page.family(Gauge, "tidegate_limit_rate", "Tokens a second, as the file has it.");
        for LimitFigures { limit, rate, .. } in &self.limits {
            if let Some(rate) = rate {
                page.sample(&[("limit", limit)], &MetricNumber(*rate));
            }
        }
        page.family(Gauge, "tidegate_limit_burst", "The most that passes at once.");
        for LimitFigures { limit, burst, .. } in &self.limits {
            let burst =
                burst.map_or(MetricNumber(f64::INFINITY), |burst| MetricNumber(burst as f64));
            page.sample(&[("limit", limit)], &burst);
        }
        let help = "Keys that were rejected in the last summary interval.";
        page.family(Gauge, "tidegate_throttled_keys", help);
        for LimitFigures { limit, throttled_keys, .. } in &self.limits {
            page.sample(&[("limit", limit)], throttled_keys);
        }
        page.family(Counter, "tidegate_upstream_retries_total", "Further tries of requests.");
        for (upstream, retries) in &self.retries {
            page.sample(&[("upstream", upstream)], retries);
        }
        page.family(Counter, "tidegate_store_errors_total", "Errors of Redis by their kind.");
        for (kind, count) in &self.store_errors {
            page.sample(&[("kind", kind)], count);
        }
        page.family(Gauge, "tidegate_store_up", "Whether the store answers.");
        page.sample(&[], &u8::from(self.store_up));
        page.family(Gauge, "tidegate_waiting", "Requests that are held by a limit.");
        page.sample(&[], &self.waiting);
        page.family(Gauge, "tidegate_upstream_up", "Whether requests are sent to a server.");
        for ServerGauge { upstream, server, up } in &self.servers {
            page.sample(&[("upstream", upstream), ("server", server)], &u8::from(*up));
        }
        let help = "Connections that said what is no request.";
        page.family(Counter, "tidegate_malformed_requests_total", help);
        page.sample(&[], &self.malformed);
        page.family(Gauge, "tidegate_memory_keys", "Buckets in this process's memory.");
        page.sample(&[], &self.memory_keys);
        let help = "Decisions by a bucket that new keys share, the memory being full.";
        page.family(Counter, "tidegate_shared_decisions_total", help);
        page.sample(&[], &self.shared_decisions);
        let help = "Buckets that were forgotten before they were full, the memory being full.";
        page.family(Counter, "tidegate_forgotten_total", help);
        page.sample(&[], &self.forgotten);
        let help = "Requests that Redis did not decide on.";
        page.family(Counter, "tidegate_without_redis_total", help);
        page.sample(&[("answer", "decided")], &self.decided_without);
        page.sample(&[("answer", "refused")], &self.refused_without);
        let help = "Settlements of costs that did not reach Redis.";
        page.family(Counter, "tidegate_unsettled_total", help);
        page.sample(&[], &self.unsettled);
        page.family(Counter, "tidegate_log_dropped_total", "Log lines that were dropped.");
        page.sample(&[], &self.log_dropped);
        let help = "Whether the configuration file was right when it was last read.";
        page.family(Gauge, "tidegate_config_last_reload_successful", help);
        page.sample(&[], &u8::from(self.reload_successful));
        let help = "When a configuration last came in force, in seconds since 1970.";
        page.family(Gauge, "tidegate_config_last_reload_success_timestamp_seconds", help);
        page.sample(&[], &self.reload_success_time);
        page.family(Gauge, "tidegate_build_info", "The version that runs.");
        page.sample(&[("version", self.version)], &1);
    }
}

/// A number as Prometheus writes it.
struct MetricNumber(f64);

impl fmt::Display for MetricNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_infinite() {
            true => f.write_str("+Inf"),
            false => self.0.fmt(f),
        }
    }
}
