//! The whole configuration, finished: every value in it is valid and every reference resolved.
//!
//! Data only. `config` makes it, a reload swaps it, everything on a request's way reads it.

pub mod filter;
mod limit;
pub mod response;
mod route;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, StatusCode};

use self::filter::LogFilter;
pub use self::limit::{CalendarQuota, CostSpec, Figures, LimitSpec, OnStoreError};
pub use self::route::{Action, HeaderChanges, NO_ROUTE, RouteOptions, RouteSpec};
pub use self::tls::{Endpoint, Scheme, ServerAddress, ServerTls};
use crate::limit::name::Name;
use crate::request::client::Trust;
use crate::request::route::Table;
use crate::tls::client;

/// The validated configuration.
#[derive(Debug)]
pub struct Plan {
    /// Listening, timeouts, sizes, trust.
    pub server: ServerSpec,
    /// The existing APIs; routes name them by their place.
    pub upstreams: Vec<UpstreamSpec>,
    /// The limits that routes use; routes name them by their place.
    pub limits: Vec<Arc<LimitSpec>>,
    /// The names of the limits that are off: they are in no route.
    pub off: Vec<Name>,
    /// What happens to a request once its route is found, by the place that `table` answers.
    pub routes: Vec<RouteSpec>,
    /// What requests without a route meet: the limits of `[server]`. They are in every other route's, too.
    pub no_route: RouteSpec,
    /// Finds a request's route.
    pub table: Table,
    /// Where buckets live.
    pub store: StoreSpec,
    /// The answer to a throttled client where a limit has none of its own.
    pub reject: Arc<AnswerSpec>,
    /// What is logged, and how.
    pub log: LogSpec,
    /// The admin endpoint.
    pub admin: AdminSpec,
}

impl Plan {
    /// A route's limits, in the file's order.
    pub fn limits_of(&self, route: &RouteSpec) -> impl Iterator<Item = &Arc<LimitSpec>> {
        route.limits.iter().filter_map(|place| self.limits.get(usize::try_from(*place).ok()?))
    }

    /// The upstream at this place, which an [`Action::Forward`] names.
    pub fn upstream(&self, place: u32) -> Option<&UpstreamSpec> {
        self.upstreams.get(usize::try_from(place).ok()?)
    }
}

/// `[server]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSpec {
    /// Where to listen in clear text; empty only where there is `tls`.
    pub listen: Vec<SocketAddr>,
    /// Where to listen by TLS, and with what.
    pub tls: Option<ServerTls>,
    /// Worker threads, at least 1; `None` is one for each core that the process may use.
    pub workers: Option<usize>,
    /// For a request's head, from its first byte.
    pub header_timeout: Duration,
    /// Between two reads of a request's body or two writes of a response.
    pub body_timeout: Duration,
    /// A keep-alive connection without a request.
    pub idle_timeout: Duration,
    /// An upgraded connection on which nothing moves.
    pub tunnel_timeout: Duration,
    /// After SIGTERM, before it stops accepting.
    pub shutdown_delay: Duration,
    /// For what is under way when it stops accepting.
    pub drain_timeout: Duration,
    /// Client connections of the whole process, at least 1.
    pub max_connections: usize,
    /// Bytes of a request's head.
    pub max_header_size: usize,
    /// Bytes of a request's body; `None` is no limit.
    pub max_body_size: Option<u64>,
    /// The header that names a request, where there is one.
    pub request_id: Option<HeaderName>,
    /// Whose word about a client's address is taken.
    pub trust: Trust,
    /// Whether doubled slashes are merged in what goes upstream.
    pub merge_slashes: bool,
    /// IPv6 clients are counted by a network of this length, 1 to 128.
    pub ipv6_prefix: u8,
}

/// `[upstreams.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSpec {
    /// Its name.
    pub name: Name,
    /// Its servers; never empty.
    pub servers: Vec<ServerAddress>,
    /// How one of them is chosen.
    pub balance: Balance,
    /// To connect to one server.
    pub connect_timeout: Duration,
    /// To the response's head.
    pub response_timeout: Duration,
    /// Between two reads of a response's body.
    pub idle_timeout: Duration,
    /// Further tries after the first.
    pub retries: u32,
    /// How servers by `https` are verified; there where the upstream has one. What files held, and not
    /// their names: an upstream whose certificates changed is another one after a reload.
    pub tls: Option<Arc<client::Spec>>,
}

impl UpstreamSpec {
    /// An upstream of this name of which nothing else is known yet.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            servers: Vec::new(),
            balance: Balance::default(),
            connect_timeout: Duration::ZERO,
            response_timeout: Duration::ZERO,
            idle_timeout: Duration::ZERO,
            retries: 0,
            tls: None,
        }
    }
}

/// How an upstream's server is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// The one of two random servers with fewer requests in flight.
    #[default]
    LeastRequests,
    /// One after the other.
    RoundRobin,
}

/// The answer to a throttled client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerSpec {
    /// Its status, 400 to 599.
    pub status: StatusCode,
    /// Its body.
    pub body: AnswerBody,
    /// What says when to come back.
    pub headers: AnswerHeaders,
}

/// The header fields that tell a client of its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerHeaders {
    /// `retry-after` is sent.
    pub retry_after: bool,
    /// `ratelimit-policy` and `ratelimit` are sent, on allowed answers too.
    pub ratelimit: bool,
    /// `x-ratelimit-limit`, `-remaining` and `-reset` are sent, on allowed answers too.
    pub x_ratelimit: bool,
}

/// The body of the answer to a throttled client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AnswerBody {
    /// RFC 9457 JSON.
    #[default]
    Problem,
    /// One line of text.
    Text,
    /// None.
    Empty,
    /// The operator's own text.
    Custom(Bytes),
}

/// `[store]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSpec {
    /// Where buckets are shared.
    pub location: StoreLocation,
    /// What every key in Redis begins with.
    pub prefix: String,
    /// For one decision.
    pub timeout: Duration,
    /// The most buckets in this process's memory, at least 1.
    pub max_keys: usize,
}

/// Where buckets live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StoreLocation {
    /// In this process.
    #[default]
    Memory,
    /// In one Redis server: a URL (`redis://` or `redis+unix:`) that the client has accepted.
    Redis(String),
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSpec {
    /// How a line looks; `None` is pretty on a terminal and JSON elsewhere.
    pub format: Option<LogFormat>,
    /// What is written at all; `RUST_LOG` wins.
    pub level: LogFilter,
    /// A line for each request.
    pub access: bool,
    /// Which throttle lines are written.
    pub throttle: ThrottleLog,
    /// Between two summaries of one limit and key.
    pub summary_interval: Duration,
    /// Whether clients' secrets stand in logs and in Redis.
    pub keys: KeyDisplay,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For eyes.
    Pretty,
    /// For machines.
    Json,
}

/// Which throttle lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThrottleLog {
    /// The first at once, then one for each interval.
    #[default]
    Summary,
    /// Every one.
    Each,
    /// None.
    Off,
}

/// How the parts of a key that come from headers, cookies and the query are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDisplay {
    /// By a hash.
    #[default]
    Hashed,
    /// As they are.
    Plain,
}

/// `[admin]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminSpec {
    /// Where to listen; `None` is nowhere.
    pub listen: Option<SocketAddr>,
    /// The bearer token for everything but the two health checks.
    pub token: Option<String>,
}
