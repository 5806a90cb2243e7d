//! The finished configuration: every value is valid and every reference is resolved.
//!
//! This module is data. `config` makes a [`Settings`], a reload replaces it, and the code that serves requests reads it.
//! `counting` and `calendar` also make figures from what an operator writes, for `config` and for overrides that are
//! set while the process runs.

mod answer;
mod calendar;
mod cors;
mod counting;
mod estimate;
mod figures;
pub(crate) mod filter;
mod jitter;
mod jwt;
mod limit;
mod listen;
mod redis;
pub mod response;
mod route;
mod test_case;
#[cfg(test)]
pub(crate) mod testing;
mod trace;
mod upstream;
pub mod weights;

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};

pub use self::answer::AnswerSpec;
pub(crate) use self::answer::{AnswerBody, AnswerHeaders, BodyTemplate, TemplatePiece};
pub(crate) use self::calendar::Zone;
pub(crate) use self::cors::CorsSpec;
pub(crate) use self::counting::{
    CountingKind, FiguresError, WantedFigures, WindowLength, WindowStart, window_rate,
};
pub use self::estimate::Estimate;
pub(crate) use self::estimate::TokensPerByte;
pub use self::figures::Figures;
use self::filter::LogFilter;
pub(crate) use self::jitter::RetryJitter;
pub use self::jwt::JwtSpec;
pub(crate) use self::jwt::{JwksUrl, KeySetLocation, OnInvalid};
pub use self::limit::{BanSpec, CostSpec, LimitSpec, OnStoreError, OverrideSpec};
pub(crate) use self::limit::{ChosenFigures, FiguresOf, LimitInPlan, RunningFigures};
pub use self::listen::ListenAddress;
pub(crate) use self::listen::{ListenerTls, ServerTls, are_both_wildcards, overlap};
pub use self::redis::RedisUrl;
pub(crate) use self::redis::{RedisLocation, RedisTopology};
pub use self::route::Action;
pub(crate) use self::route::{HeaderChanges, NO_ROUTE, RouteOptions, RouteSpec};
pub(crate) use self::test_case::{Expectation, TestCase};
pub(crate) use self::trace::{CollectorAddress, SampleShare, TraceSpec};
pub(crate) use self::upstream::{
    AnswerGoal, Balance, Endpoint, GoalMode, HealthSpec, MaxRequests, OnAbort, Priority, Scheme,
    ServerAddress, UpstreamServer, UpstreamSpec,
};
use crate::limit::name::Name;
use crate::plans::{PlanFile, PlanRule};
use crate::request::client::Trust;
use crate::request::known_fields::KnownFields;
use crate::request::network::ClientPrefixes;
use crate::request::path::{AmbiguousPath, NormalPath};
use crate::request::route::RouteTable;
use crate::tls::client::ClientTlsSpec;

/// The validated configuration.
#[derive(Debug)]
pub struct Settings {
    /// Listening, timeouts, sizes, trust.
    pub server: ServerSpec,
    /// The upstreams. A route names its upstream by the index in this list.
    pub upstreams: Vec<UpstreamSpec>,
    /// The limits in use.
    pub limits: Vec<Arc<LimitSpec>>,
    /// The limits as routes use them. First come all of `limits`, in the same order. Then a limit follows again for
    /// each other cost that a route sets for it. A route knows its limits by their indexes in this list.
    pub(crate) used: Vec<Arc<LimitSpec>>,
    /// How the plan of a request is found. `None` without `[plans]`.
    pub(crate) plans: Option<Arc<PlanRule>>,
    /// The names of the limits that are off: they are in no route.
    pub(crate) off: Vec<Name>,
    /// The routes. `table` answers with an index in this list.
    pub routes: Vec<RouteSpec>,
    /// The route of requests without a route: it has the limits of `[server]`. Every other route has these
    /// limits too.
    pub(crate) no_route: RouteSpec,
    /// Finds a request's route.
    pub table: RouteTable,
    /// The methods that routes name, each once.
    pub(crate) methods: HashSet<Method>,
    /// The headers by which routes are chosen and whose values may be encoded.
    pub(crate) coded_conditions: Vec<HeaderName>,
    /// The fields of a request that the proxy reads, writes or removes.
    pub(crate) known_fields: KnownFields,
    /// Whose tokens are believed, in the file's order.
    pub jwt: Vec<Arc<JwtSpec>>,
    /// Where buckets live.
    pub store: StoreSpec,
    /// The answer to a throttled client if a limit has none.
    pub(crate) reject: Arc<AnswerSpec>,
    /// Which pages may read the answers that tidegate makes. `None` without `[cors]`.
    pub(crate) cors: Option<CorsSpec>,
    /// What is logged, and how.
    pub(crate) log: LogSpec,
    /// The admin endpoint.
    pub admin: AdminSpec,
    /// Where other proxies ask for decisions.
    pub decide: DecideSpec,
    /// Which requests are traced, and where their spans go.
    pub(crate) trace: TraceSpec,
    /// What `tidegate check` tries.
    pub(crate) tests: Vec<TestCase>,
}

impl Settings {
    /// Whether tidegate forwards nothing: other proxies ask it, and forward themselves.
    pub(crate) fn only_decides(&self) -> bool {
        let Self { server, decide, .. } = self;
        decide.listen.is_some() && server.listen.is_empty() && server.tls.is_none()
    }

    /// A route's limits: those of `[server]`, then its own.
    pub fn limits_of(&self, route: &RouteSpec) -> impl Iterator<Item = &Arc<LimitSpec>> {
        self.limits_at(&route.limits)
    }

    /// The limits at these indexes.
    pub(crate) fn limits_at<'p>(
        &'p self,
        indexes: &[u32],
    ) -> impl Iterator<Item = &'p Arc<LimitSpec>> {
        indexes.iter().filter_map(|index| self.used.get(usize::try_from(*index).ok()?))
    }

    /// How the plan of a request of this route is found. `None` if no limit of the route has plans.
    pub(crate) fn plans_of(&self, route: &RouteSpec) -> Option<&PlanRule> {
        let has_plans = self.limits_of(route).any(|limit| !limit.plans.is_empty());
        self.plans.as_deref().filter(|_| has_plans)
    }

    /// The name of the first `[jwt.NAME]` in keys.
    pub(crate) fn first_issuer(&self) -> Option<Arc<str>> {
        self.jwt.first()?.named_of(self.jwt.len())
    }

    /// The `tls` of `[server]` and of `[decide]`, with their names in the file.
    pub(crate) fn listener_tls(&self) -> [(&'static str, Option<&ListenerTls>); 2] {
        let server = self.server.tls.as_ref().map(|tls| &tls.shown);
        [("server.tls", server), ("decide.tls", self.decide.tls.as_ref())]
    }

    /// Who has which plan, if a file says it.
    pub(crate) fn plans_file(&self) -> Option<&PlanFile> {
        self.plans.as_ref()?.file.as_ref()
    }

    /// How servers are reached by TLS: those of upstreams, and Redis.
    pub(crate) fn client_tls(&self) -> impl Iterator<Item = &Arc<ClientTlsSpec>> {
        let redis = match &self.store.location {
            StoreLocation::Redis(redis) => redis.tls.as_ref(),
            StoreLocation::Memory => None,
        };
        self.upstreams.iter().filter_map(|upstream| upstream.tls.as_ref()).chain(redis)
    }

    /// The upstream at this index, which an [`Action::Forward`] names.
    pub(crate) fn upstream(&self, index: u32) -> Option<&UpstreamSpec> {
        self.upstreams.get(usize::try_from(index).ok()?)
    }
}

/// `[server]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSpec {
    /// The addresses for clear text; empty only if there is `tls` or `[decide]`.
    pub listen: Vec<ListenAddress>,
    /// The addresses and certificates for TLS.
    pub tls: Option<ServerTls>,
    /// Worker threads, at least 1; `None` is one for each core that the process may use.
    pub(crate) workers: Option<usize>,
    /// The most time for a request's head, from its first byte. A connection's first head is timed from the accept.
    pub(crate) header_timeout: Duration,
    /// The most time between two reads of a request's body or two writes of a response.
    pub(crate) body_timeout: Duration,
    /// The most time of a keep-alive connection without a request.
    pub(crate) idle_timeout: Duration,
    /// The most time of an upgraded connection without traffic.
    pub(crate) tunnel_timeout: Duration,
    /// The time after SIGTERM in which the server still accepts connections.
    pub shutdown_delay: Duration,
    /// The most time for open requests after the server stops accepting.
    pub drain_timeout: Duration,
    /// The most client connections of the whole process, at least 1.
    pub max_connections: usize,
    /// The most connections of one client address, at least 1; `None` is no limit.
    pub(crate) max_connections_per_client: Option<usize>,
    /// The most bytes of a request's head.
    pub(crate) max_header_size: usize,
    /// The most bytes of a request's body; `None` is no limit.
    pub(crate) max_body_size: Option<u64>,
    /// The header with the request's id; `None` if requests have no id.
    pub(crate) request_id: Option<HeaderName>,
    /// The proxies that may name a client's address.
    pub(crate) trust: Trust,
    /// Whether the connections of these proxies begin with a PROXY header.
    pub(crate) proxy_protocol: bool,
    /// Whether routes and keys take paths without regard to case and to a slash at the end.
    pub(crate) loose_paths: bool,
    /// Whether doubled slashes are merged in the path that goes upstream.
    pub(crate) merge_slashes: bool,
    /// The networks by which clients are counted.
    pub(crate) prefixes: ClientPrefixes,
}

impl ServerSpec {
    /// The normal forms of a request's path.
    ///
    /// # Errors
    /// If the path stays ambiguous.
    pub(crate) fn path<'p>(&self, path: &'p str) -> Result<NormalPath<'p>, AmbiguousPath> {
        let path = NormalPath::parse(path, self.merge_slashes)?;
        Ok(if self.loose_paths { path.loosened() } else { path }.trimmed())
    }
}

/// `[store]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSpec {
    /// Where buckets live.
    pub location: StoreLocation,
    /// The prefix of every key in Redis.
    pub prefix: String,
    /// The most time for one decision.
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
    /// In Redis.
    Redis(Box<RedisLocation>),
}

/// As the URL in the file, without user and password.
impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Redis(location) => location.fmt(f),
        }
    }
}

/// `[log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogSpec {
    /// The format of a log line. `None` means: pretty if the output is a terminal, else JSON.
    pub(crate) format: Option<LogFormat>,
    /// Which lines are written; `RUST_LOG` overrides it.
    pub(crate) level: LogFilter,
    /// Whether each request has a line.
    pub(crate) access: bool,
    /// Which throttle lines are written.
    pub(crate) throttle: ThrottleLog,
    /// The time between two summaries of one limit and key.
    pub(crate) summary_interval: Duration,
    /// How clients' secrets are shown in logs and in Redis keys.
    pub(crate) keys: KeyDisplay,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Pretty,
    /// For programs.
    Json,
}

/// Which throttle lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ThrottleLog {
    /// The first line at once, then one summary in each interval.
    #[default]
    Summary,
    /// Every throttle line.
    Each,
    /// No lines.
    Off,
}

/// How the parts of a key that come from headers, cookies, the query, tokens and bodies are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDisplay {
    /// As a hash.
    #[default]
    Hashed,
    /// As they are.
    Plain,
}

impl KeyDisplay {
    /// Whether keys of this limit are shown as hashes, if the file has this `log.keys`.
    pub(crate) fn hides(self, limit: &LimitSpec) -> bool {
        limit.log_keys.unwrap_or(self) == Self::Hashed && limit.key.has_secrets()
    }
}

/// `[admin]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminSpec {
    /// The address to listen on; `None` is no admin endpoint.
    pub listen: Option<SocketAddr>,
    /// The bearer token for everything but the two health checks.
    pub token: Option<String>,
}

/// `[decide]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecideSpec {
    /// Where other proxies ask for decisions; `None` is nowhere.
    pub listen: Option<ListenAddress>,
    /// The token that they must show.
    pub token: Option<String>,
    /// The certificates for them. `None` if they come in clear text.
    pub(crate) tls: Option<ListenerTls>,
}

/// Writes the items of a list with this text between them.
fn write_list(
    f: &mut fmt::Formatter<'_>,
    items: &[impl fmt::Display],
    between: &str,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if index == 0 { "" } else { between })?;
    }
    Ok(())
}
