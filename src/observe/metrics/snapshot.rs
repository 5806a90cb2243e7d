//! The numbers of a scrape that the workers do not count: the state of other parts of the process. `admin`
//! fills a [`Snapshot`], and [`Metrics::render`](super::Metrics::render) writes it.

/// The state of other parts of the process at the moment of a scrape.
#[derive(Clone, Debug)]
pub struct Snapshot<'s> {
    /// tidegate's version.
    pub version: &'s str,
    /// Whether the store answers. The store in memory always answers.
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
    /// Connections since the start that sent a malformed request.
    pub malformed: u64,
    /// Buckets in this process's memory.
    pub memory_keys: u64,
    /// Decisions since the start by a limit's shared bucket, because there was no room for the key's own
    /// bucket.
    pub shared_decisions: u64,
    /// Buckets since the start that were forgotten before they were full, to make room for other buckets.
    pub forgotten: u64,
    /// Requests since the start on which Redis should have decided, and on which `on_store_error` decided.
    pub decided_without: u64,
    /// Requests since the start that were refused because a limit has `on_store_error = "reject"`.
    pub refused_without: u64,
    /// Settlements since the start that did not reach Redis.
    pub unsettled: u64,
    /// Log lines that were dropped since the start.
    pub log_dropped: u64,
    /// Whether the file was valid when it was last read.
    pub reload_successful: bool,
    /// When a configuration last came in force, in seconds since 1970.
    pub reload_success_time: f64,
    /// Every server of every upstream.
    pub servers: Vec<ServerGauge<'s>>,
}

/// The figures of a limit in the file, and how many keys the limit throttled lately.
#[derive(Clone, Copy, Debug)]
pub struct LimitFigures<'s> {
    /// The limit's name.
    pub limit: &'s str,
    /// Tokens a second. Infinite where everything passes. `None` where the file has no rate.
    pub rate: Option<f64>,
    /// The most that passes at once. `None` where there is no bound.
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
    /// Whether requests are sent to the server.
    pub up: bool,
}
