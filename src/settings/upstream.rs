//! `[upstreams.NAME]`: the servers of an API, and how requests are spread over them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::PathAndQuery;

use crate::limit::name::Name;
use crate::request::key::KeySpec;
use crate::tls::client;

/// `[upstreams.NAME]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamSpec {
    pub(crate) name: Name,
    /// The upstream's servers; never empty.
    pub(crate) servers: Vec<UpstreamServer>,
    /// How a request's server is chosen.
    pub(crate) balance: Balance,
    /// The most time to connect to one server.
    pub(crate) connect_timeout: Duration,
    /// The most time to the response's head.
    pub(crate) response_timeout: Duration,
    /// The most time between two reads of a response's body.
    pub(crate) idle_timeout: Duration,
    /// How many requests may be in flight from this process; `None` is no limit.
    pub(crate) max_requests: Option<MaxRequests>,
    /// The most time that a request waits while `max_requests` are in flight.
    pub(crate) queue_timeout: Duration,
    /// Requests that wait have keys of these parts. The keys are served in turn. `None`: all requests have one key.
    pub(crate) share_by: Option<KeySpec>,
    /// The most tries after the first.
    pub(crate) retries: u32,
    /// What happens to a request whose client leaves before its answer has ended.
    pub(crate) on_abort: OnAbort,
    /// With [`OnAbort::Finish`]: the most time that a request goes on after its client has left.
    pub(crate) finish_timeout: Duration,
    /// The active health checks; `None` is none.
    pub(crate) health: Option<HealthSpec>,
    /// Whether a server that answers 429 or 503 with `retry-after` gets no requests for that time.
    pub(crate) respect_retry_after: bool,
    /// How `https` servers are verified; `None` if the upstream has no such server. It holds the content
    /// of the certificate files and not their names. A reload can thus see that certificates have changed.
    pub tls: Option<Arc<client::ClientTlsSpec>>,
}

impl UpstreamSpec {
    /// The `host` of a request to this server that brings none: the name in the server's certificate if the file has
    /// it, and otherwise the server's address.
    pub(crate) fn host_of(&self, server: &ServerAddress) -> HeaderValue {
        let name = self.tls.as_ref().and_then(|tls| tls.host_name());
        let name = name.and_then(|name| HeaderValue::from_str(name).ok());
        name.unwrap_or_else(|| server.host())
    }

    /// How long a request may go on after its client has left. `None` if it ends at once.
    pub(crate) fn outlives_client(&self) -> Option<Duration> {
        (self.on_abort == OnAbort::Finish).then_some(self.finish_timeout)
    }
}

/// How many requests of this process an upstream may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaxRequests {
    /// This number, at least 1.
    Number(usize),
    /// As many as it answers in time.
    Goal(AnswerGoal),
}

impl MaxRequests {
    /// The goal, if there is one.
    pub(crate) fn goal(&self) -> Option<&AnswerGoal> {
        match self {
            Self::Number(_) => None,
            Self::Goal(goal) => Some(goal),
        }
    }
}

/// In which time an upstream is to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerGoal {
    /// An answer is slow if its head comes later than this after the request.
    pub(crate) slower_than: Duration,
    /// The limit never falls below this number, at least 1.
    pub(crate) at_least: usize,
    pub(crate) mode: GoalMode,
}

/// Whether a goal holds requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GoalMode {
    #[default]
    Enforce,
    /// It only tells that a limit would begin.
    Shadow,
}

/// The order in which requests are served that wait for an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    /// All of them, in this order.
    pub(crate) const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

/// What happens to a request whose client leaves before its answer has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnAbort {
    /// It ends, and the server's connection is closed.
    #[default]
    Close,
    /// It goes on to its end, and keeps its slots and permits until then.
    Finish,
}

/// A server of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamServer {
    /// Where the server is.
    pub(crate) address: ServerAddress,
    /// The server's share of the requests, compared with the weights of the others; 1 to 1000.
    pub(crate) weight: u32,
}

/// How an upstream's server is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Balance {
    /// Of two random servers, the server with fewer requests in flight.
    #[default]
    LeastRequests,
    /// Each server in turn.
    RoundRobin,
    /// Requests with the same key go to the same server. A request without this key goes where
    /// [`Balance::LeastRequests`] would send it.
    Hash(KeySpec),
}

/// `health` of an upstream: a request that each server is asked now and then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthSpec {
    /// The path and query of the request.
    pub(crate) path: PathAndQuery,
    /// The `host` of the request; `None` is that of [`UpstreamSpec::host_of`].
    pub(crate) host: Option<HeaderValue>,
    /// The time between two checks of a server.
    pub(crate) interval: Duration,
    /// The most time for one check.
    pub(crate) timeout: Duration,
    /// How many failed checks in a row set a server aside; at least 1.
    pub(crate) unhealthy_after: u32,
    /// How many passed checks in a row bring a server back; at least 1.
    pub(crate) healthy_after: u32,
}

/// Where a server of an upstream is, and what it speaks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerAddress {
    /// The URL as written, for logs and labels.
    pub(crate) url: String,
    /// Where the server is.
    pub(crate) endpoint: Endpoint,
    /// The protocol that the server speaks.
    pub(crate) scheme: Scheme,
}

impl ServerAddress {
    /// The host and the port as in the URL.
    pub(crate) fn host(&self) -> HeaderValue {
        let host = match &self.endpoint {
            Endpoint::Tcp { .. } => self.url.split_once("://").map_or("", |(_, host)| host),
            Endpoint::Unix(_) => "localhost",
        };
        HeaderValue::from_str(host).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// On the network.
    Tcp {
        /// A name, an IPv4 address or an IPv6 address without brackets, in lower case.
        host: String,
        /// The port, not 0.
        port: u16,
    },
    /// On a Unix socket with this path, which is absolute.
    Unix(PathBuf),
}

/// As in a URL: an IPv6 address stands in brackets.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    /// HTTP/1.1 in clear text; the only protocol on a Unix socket.
    Http,
    /// TLS with the protocol that ALPN chooses. The upstream then has a [`UpstreamSpec::tls`].
    Https,
    /// HTTP/2 with prior knowledge in clear text.
    H2c,
}
