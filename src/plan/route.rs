//! A route: what becomes of the requests that it matches.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

use crate::request::route::{Conditions, Pattern, Rewrite};

/// `[[routes]]`.
#[derive(Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// Unique; stands in keys, logs and metrics.
    pub name: Arc<str>,
    /// The paths that it matches, as the table has them.
    pub pattern: Pattern,
    /// What its requests must have besides, as the table has it.
    pub conditions: Conditions,
    /// What becomes of its requests.
    pub action: Action,
    /// The places of its limits in [`super::Plan::limits`], in the file's order, without those that are
    /// off.
    pub limits: SmallVec<[usize; 3]>,
    /// Changes to what goes upstream; mostly there are none.
    pub request_headers: Option<Box<HeaderChanges>>,
    /// Changes to what goes to the client.
    pub response_headers: Option<Box<HeaderChanges>>,
}

/// What becomes of a route's requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// They go upstream.
    Forward {
        /// The place in [`super::Plan::upstreams`].
        upstream: usize,
        /// Another path, if one was given.
        rewrite: Option<Rewrite>,
    },
    /// They are answered from the file.
    Respond {
        /// The status, 200 to 599.
        status: StatusCode,
        /// The body, sent as `text/plain` unless the route sets another type.
        body: Bytes,
    },
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
