//! The whole configuration, finished: every value in it is valid and every reference resolved.
//!
//! Data only. `config` makes it, a reload swaps it, everything on a request's way reads it.

pub mod filter;
pub mod response;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

use self::filter::LogFilter;
use self::response::{Statuses, UsedSource};
use crate::limit::algorithm::fixed_window::windows::Schedule;
use crate::limit::algorithm::{Algorithm, fixed_window};
use crate::limit::name::Name;
use crate::limit::patience::Patience;
use crate::limit::rate::{Burst, Cost};
use crate::limit::time::Timestamp;
use crate::limit::{Mode, Scope};
use crate::request::client::Trust;
use crate::request::exempt::Exempt;
use crate::request::key::KeySpec;
use crate::request::overrides::Overrides;
use crate::request::route::{Rewrite, Table};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    /// Where to listen; never empty.
    pub listen: Vec<SocketAddr>,
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
}

/// A server of an upstream, reached over plain HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// A name, an IPv4 address or an IPv6 address without brackets.
    pub host: String,
    /// The port; 80 where the URL has none.
    pub port: u16,
    /// As written, for logs and labels.
    pub url: String,
}

/// How an upstream's server is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// The one of two random servers with fewer requests in flight.
    LeastRequests,
    /// One after the other.
    RoundRobin,
}

/// `[limits.NAME]`, but for its name's fate in the store: what a limit counts, how, and by what.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// Its name, by which it is known in keys, logs and metrics.
    pub name: Name,
    /// What it counts by.
    pub key: KeySpec,
    /// Its figures where no override applies.
    pub figures: Figures,
    /// Other figures for some keys.
    pub overrides: Overrides<Figures>,
    /// What a request takes.
    pub cost: CostSpec,
    /// How long a request is held that would then pass; [`Patience::ENDLESS`] where the figures bound
    /// it.
    pub wait: Patience,
    /// Requests that this process holds for it at once.
    pub max_waiting: usize,
    /// Other figures, tried in shadow on what its own figures decide: a limit whose name, figures and
    /// mode are its own and all else this one's.
    pub candidate: Option<Arc<Self>>,
    /// The responses that count; what others had taken is given back. `None` is all of them.
    pub count_when: Option<Box<Statuses>>,
    /// What it never looks at.
    pub exempt: Exempt,
    /// Whether its refusal counts. A limit that is off is in no route.
    pub mode: Mode,
    /// Who shares its buckets.
    pub scope: Scope,
    /// What it does while Redis is out of reach.
    pub on_store_error: OnStoreError,
    /// Its own answer to a throttled client.
    pub reject: Option<Arc<AnswerSpec>>,
    /// The Redisson limiter that it shares, or what the names of its limiters begin with where it has a
    /// key. There where its algorithm is [`Algorithm::Redisson`].
    pub limiter: Option<String>,
}

impl LimitSpec {
    /// Whether what a request takes is known only when its response has ended.
    pub fn is_settled(&self) -> bool {
        self.count_when.is_some() || matches!(self.cost, CostSpec::Response { .. })
    }
}

/// How much passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figures {
    /// As much as the algorithm lets pass.
    Limited(Algorithm),
    /// As much as a window of the calendar has.
    Calendar(CalendarQuota),
    /// Everything: the store is not asked.
    Unlimited,
    /// Nothing: the store is not asked.
    Nothing,
}

/// So much in each day, week or month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarQuota {
    /// Tokens of a window.
    pub count: Burst,
    /// When windows begin.
    pub schedule: Arc<Schedule>,
}

/// `100000/month in Europe/Berlin`.
impl fmt::Display for CalendarQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} in {}", self.count, self.schedule.unit(), self.schedule.zone())
    }
}

/// How much passes, as of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// As much as the algorithm lets pass.
    Limited(Algorithm),
    /// Everything: the store is not asked.
    Unlimited,
    /// Nothing: the store is not asked.
    Nothing,
}

impl Figures {
    /// What they mean around this time: of a calendar only the windows next to it are known to an
    /// algorithm.
    pub fn at(&self, now: Timestamp) -> Terms {
        match self {
            Self::Limited(algorithm) => Terms::Limited(*algorithm),
            Self::Calendar(CalendarQuota { count, schedule }) => {
                let windows = schedule.around(now);
                let params = fixed_window::Params { count: *count, windows };
                Terms::Limited(Algorithm::FixedWindow(params))
            }
            Self::Unlimited => Terms::Unlimited,
            Self::Nothing => Terms::Nothing,
        }
    }
}

/// What a request takes from a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSpec {
    /// Always the same.
    Fixed(Cost),
    /// What a header says.
    Header {
        /// The header.
        name: Box<HeaderName>,
        /// Where the request does not have it.
        default: Cost,
        /// The most it may say.
        max: Cost,
    },
    /// What the response says; it is settled when that has ended.
    Response {
        /// Where it says so.
        source: Box<UsedSource>,
        /// What is taken before, and in the end where the response does not say.
        estimate: Cost,
        /// The most that one request can take; `None` is 100 times the burst.
        max: Option<u64>,
    },
}

/// What becomes of a request whose limit cannot ask its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// This process's own buckets decide, with the limit's figures.
    Local,
    /// The limit lets it pass.
    Allow,
    /// 503.
    Reject,
}

/// The answer to a throttled client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerSpec {
    /// Its status, 400 to 599.
    pub status: StatusCode,
    /// Its body.
    pub body: AnswerBody,
    /// `retry-after` is sent.
    pub retry_after: bool,
    /// `ratelimit-policy` and `ratelimit` are sent, on allowed answers too.
    pub ratelimit: bool,
    /// `x-ratelimit-limit`, `-remaining` and `-reset` are sent, on allowed answers too.
    pub x_ratelimit: bool,
}

/// The body of the answer to a throttled client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerBody {
    /// RFC 9457 JSON.
    Problem,
    /// One line of text.
    Text,
    /// None.
    Empty,
    /// The operator's own text.
    Custom(Bytes),
}

/// `[[routes]]`, but for its path and conditions, which [`Plan::table`] has. A request looks at all of
/// it, and it is one line of a cache.
#[derive(Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct RouteSpec {
    /// Unique; stands in keys, logs and metrics.
    pub name: Arc<str>,
    /// What becomes of its requests.
    pub action: Action,
    /// The places of its limits in [`Plan::limits`], in the file's order, without those that are
    /// off.
    pub limits: SmallVec<[u32; 4]>,
    /// What is changed in its headers; mostly that is nothing.
    pub headers: Option<Box<RouteHeaders>>,
}

/// What a route changes in headers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RouteHeaders {
    /// In what goes upstream.
    pub request: Option<HeaderChanges>,
    /// In what goes to the client.
    pub response: Option<HeaderChanges>,
}

/// What becomes of a route's requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// They go upstream.
    Forward {
        /// The place in [`Plan::upstreams`].
        upstream: u32,
        /// Another path, if one was given.
        rewrite: Option<Box<Rewrite>>,
    },
    /// They are answered from the file.
    Respond {
        /// The status, 200 to 599.
        status: StatusCode,
        /// The body, sent as `text/plain` unless the route sets another type. In a box, since most
        /// routes have none.
        body: Box<Bytes>,
    },
}

impl RouteSpec {
    /// Changes to what goes upstream.
    pub fn request_headers(&self) -> Option<&HeaderChanges> {
        self.headers.as_ref()?.request.as_ref()
    }

    /// Changes to what goes to the client.
    pub fn response_headers(&self) -> Option<&HeaderChanges> {
        self.headers.as_ref()?.response.as_ref()
    }
}

/// Changes to a message's headers: first `remove`, then `set`, then `add`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// In place of what is there.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Beside what is there.
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Taken out.
    pub remove: Vec<HeaderName>,
}

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// In this process.
    Memory,
    /// In one Redis server: a URL (`redis://` or `redis+unix:`) that the client has accepted.
    Redis(String),
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleLog {
    /// The first at once, then one for each interval.
    Summary,
    /// Every one.
    Each,
    /// None.
    Off,
}

/// How the parts of a key that come from headers, cookies and the query are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyDisplay {
    /// By a hash.
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
