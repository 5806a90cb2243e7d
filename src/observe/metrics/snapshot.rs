//! What a scrape shows besides the workers' counts: what other parts of the process know at that moment.
//! `admin` fills a [`Snapshot`], and [`Metrics::render`](super::Metrics::render) writes it.

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
