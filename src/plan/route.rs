//! A route: what becomes of the requests that it matches.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

use crate::request::route::Rewrite;

/// The name under which requests without a route are counted.
pub const NO_ROUTE: &str = "none";

/// `[[routes]]`, but for its path and conditions, which [`super::Plan::table`] has. A request looks at
/// all of it, and it is one line of a cache.
#[derive(Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct RouteSpec {
    /// Unique; stands in keys, logs and metrics.
    pub name: Arc<str>,
    /// What becomes of its requests.
    pub action: Action,
    /// The places of its limits in [`super::Plan::limits`], in the file's order, without those that are
    /// off.
    pub limits: SmallVec<[u32; 4]>,
    /// What few routes have.
    pub options: Option<Box<RouteOptions>>,
}

/// What few routes have.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// Header changes in what goes upstream.
    pub request: Option<HeaderChanges>,
    /// Header changes in what goes to the client.
    pub response: Option<HeaderChanges>,
    /// To the response's head, in place of the upstream's.
    pub response_timeout: Option<Duration>,
    /// Bytes of a request's body, in place of the server's.
    pub max_body_size: Option<u64>,
}

/// What becomes of a route's requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// They go upstream.
    Forward {
        /// The place in [`super::Plan::upstreams`].
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
        self.options.as_ref()?.request.as_ref()
    }

    /// Changes to what goes to the client.
    pub fn response_headers(&self) -> Option<&HeaderChanges> {
        self.options.as_ref()?.response.as_ref()
    }

    /// Its own time to the response's head.
    pub fn response_timeout(&self) -> Option<Duration> {
        self.options.as_ref()?.response_timeout
    }

    /// Its own bound of a request's body in bytes.
    pub fn max_body_size(&self) -> Option<u64> {
        self.options.as_ref()?.max_body_size
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
