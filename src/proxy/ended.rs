//! The end of a request: what is counted, logged and settled then.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, Version};
use tokio::time::Instant;

use super::answer::Protocol;
use super::client::ClientConnection;
use super::{Active, Proxy};
use crate::observe::events::{self, AccessLine};
use crate::observe::metrics::{NO_ROUTE, RouteCounter};
use crate::throttle::Permit;
use crate::upstream::body::BodyEnd;

/// The end of a request: dropped with its response's body, it counts and logs the request.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) client: Arc<ClientConnection>,
    pub(super) began: Instant,
    pub(super) active: Arc<Active>,
    pub(super) status: StatusCode,
    pub(super) noted: Noted,
    /// The client's HTTP version. In HTTP/1.0 the end of the connection may mark the end of a body.
    pub(super) version: Version,
    /// How far the request's body has come.
    pub(super) body_end: BodyEnd,
    pub(super) protocol: Protocol,
}

impl Ended {
    /// The route's name for logs.
    fn route(&self) -> &str {
        let route = self.noted.route.and_then(|route| self.active.plan.routes.get(route));
        route.map_or(NO_ROUTE, |route| &route.name)
    }

    /// The upstream did not give all that was asked of it.
    pub(super) fn failed(&self, error: &dyn Display) {
        self.active.failed.exchange(error, self.route(), Instant::now());
    }

    /// The response ends before its body has.
    pub(super) fn broke_off(&self) {
        if self.version < Version::HTTP_11 {
            self.client.phase.reset();
        }
    }
}

impl Proxy {
    /// Counts and logs a malformed request, which hyper has answered with `status` by itself.
    pub fn malformed(&self, client: &ClientConnection, status: StatusCode) {
        let duration = Duration::ZERO;
        let active = self.active();
        active.metrics.request(RouteCounter::NO_ROUTE, status, duration);
        if active.plan.log.access {
            events::access(&AccessLine {
                method: "-",
                path: "-",
                status: status.as_u16(),
                duration,
                route: NO_ROUTE,
                client: client.peer.address,
                upstream: None,
            });
        }
    }
}

/// What is found out about a request on its way.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// The place of its route in the plan; `None` where none was found.
    pub(super) route: Option<usize>,
    /// What the limits settle when the response has ended.
    pub(super) permit: Permit,
    pub(super) access: Option<Box<Access>>,
}

/// What the access line says besides.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) client: IpAddr,
    pub(super) upstream: Option<Arc<str>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let now = Instant::now();
        let duration = now.saturating_duration_since(self.began);
        let phase = &self.client.phase;
        phase.end(now);
        if !self.body_end.is_reached() && !phase.is_multiplexed() {
            phase.unsettle();
            phase.linger();
        }
        let counter = self.active.counter(self.noted.route);
        self.active.metrics.request(counter, self.status, duration);
        if let Some(access) = &self.noted.access {
            events::access(&AccessLine {
                method: access.method.as_str(),
                path: &access.path,
                status: self.status.as_u16(),
                duration,
                route: self.route(),
                client: access.client,
                upstream: access.upstream.as_deref(),
            });
        }
    }
}
