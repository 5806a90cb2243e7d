//! The configuration of a route: its action, its limits, and its options.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::upstream::Priority;
use crate::request::route::Rewrite;

/// The name under which requests without a route are counted.
pub(crate) const NO_ROUTE: &str = "none";

/// `[[routes]]` without path and conditions, which are in [`super::Settings::table`]. Every request reads the
/// whole struct, so the struct fits into one cache line of 64 bytes.
#[derive(Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct RouteSpec {
    /// The route's unique name in keys, logs and metrics.
    pub(crate) name: Arc<str>,
    /// What the proxy does with the route's requests.
    pub action: Action,
    /// The indexes of the route's limits in [`super::Settings::used`]: first the limits of `[server]`, then the route's
    /// own. Limits that are off are left out.
    pub(crate) limits: SmallVec<[u32; 4]>,
    /// Options that few routes have.
    pub(crate) options: Option<Box<RouteOptions>>,
}

/// Options that few routes have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteOptions {
    /// Header changes of requests that go upstream.
    pub(crate) request: Option<HeaderChanges>,
    /// Header changes of responses that go to the client.
    pub(crate) response: Option<HeaderChanges>,
    /// The most time to the response's head, in place of the upstream's timeout.
    pub(crate) response_timeout: Option<Duration>,
    /// Who goes first, if the upstream is full.
    pub(crate) priority: Priority,
    /// After which time an answer is slow, in place of the upstream's goal.
    pub(crate) slower_than: Option<Duration>,
    /// The most bytes of a request's body, in place of the server's bound.
    pub(crate) max_body_size: Option<u64>,
    /// The most bytes of a response's body in a second.
    pub(crate) response_rate: Option<NonZeroU64>,
    /// The fields of a request's body that the route's limits read, or that say the request's plan. If there are any,
    /// the body is read before the limits decide.
    pub(crate) body_fields: Vec<String>,
    /// Whether a limit that enforces needs these fields. If none does, a body that is late goes on as it comes.
    pub(crate) awaits_body: bool,
}

/// What the proxy does with a route's requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// The proxy forwards the requests.
    Forward {
        /// The upstream's index in [`super::Settings::upstreams`].
        upstream: u32,
        /// The path for the upstream, if the route names another path.
        rewrite: Option<Box<Rewrite>>,
    },
    /// Another proxy forwards the requests, and asks here whether they may go (`[decide]`).
    Decide,
    /// The proxy answers the requests itself.
    Respond {
        /// The status, 200 to 599.
        status: StatusCode,
        /// The body, sent as `text/plain` unless the route sets another type. It is boxed, since most
        /// routes have no body.
        body: Box<Bytes>,
    },
    /// The proxy answers with what these limits leave to the client that asks.
    Usage {
        /// The indexes of the limits in [`super::Settings::used`]. The answer leaves out limits that do not enforce.
        limits: Box<SmallVec<[u32; 4]>>,
    },
}

impl Action {
    /// The index of the upstream to which requests go.
    pub(crate) fn upstream(&self) -> Option<usize> {
        match self {
            Self::Forward { upstream, .. } => usize::try_from(*upstream).ok(),
            Self::Decide | Self::Respond { .. } | Self::Usage { .. } => None,
        }
    }

    /// Whether the proxy itself answers for this route, so that no API can answer its preflights.
    pub(crate) fn responds(&self) -> bool {
        matches!(self, Self::Respond { .. } | Self::Usage { .. })
    }
}

impl RouteSpec {
    /// The route's options. A route without options has all of them unset.
    pub(crate) fn options(&self) -> &RouteOptions {
        static UNSET: RouteOptions = RouteOptions {
            request: None,
            response: None,
            response_timeout: None,
            priority: Priority::Normal,
            slower_than: None,
            max_body_size: None,
            response_rate: None,
            body_fields: Vec::new(),
            awaits_body: false,
        };
        self.options.as_deref().unwrap_or(&UNSET)
    }
}

/// Changes to a message's headers: first `remove`, then `set`, then `add`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderChanges {
    /// Fields that replace existing fields of the same name.
    pub(crate) set: Vec<(HeaderName, HeaderValue)>,
    /// Fields that are added to existing fields of the same name.
    pub(crate) add: Vec<(HeaderName, HeaderValue)>,
    /// Names of fields that are removed.
    pub(crate) remove: Vec<HeaderName>,
}

impl HeaderChanges {
    /// The fields whose values the changes decide, whoever sent them.
    pub(crate) fn decided(&self) -> impl Iterator<Item = &HeaderName> {
        self.set.iter().map(|(name, _)| name).chain(&self.remove)
    }

    /// Makes these changes.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}
