//! `[[tests]]`: requests that `tidegate check` sends to the limits, and what is expected of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde_json::{Map, Value};

use crate::request::line::WrittenTarget;

/// One of `[[tests]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestCase {
    /// Its name in the report.
    pub(crate) name: String,
    /// The line of the file if it begins, from 1.
    pub(crate) line: usize,
    /// The method of its requests.
    pub(crate) method: Method,
    /// Their target: a path with a query, or a URL whose host is the request's host.
    pub(crate) target: WrittenTarget,
    /// Their headers.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Their body. Empty if they have none.
    pub(crate) body: String,
    /// The claims of their token, which counts as verified. Empty if they have no token.
    pub(crate) claims: Map<String, Value>,
    /// The address from which they come.
    pub(crate) from: IpAddr,
    /// How many requests there are, at least 1.
    pub(crate) times: u64,
    /// The time over which they are spread evenly. Zero: all come at once.
    pub(crate) within: Duration,
    /// The time since the test before.
    pub(crate) after: Duration,
    /// What the API answers to the requests that pass.
    pub(crate) status: StatusCode,
    /// Whether all buckets are new before the test.
    pub(crate) fresh: bool,
    /// What is expected.
    pub(crate) expect: Expectation,
}

/// What is expected of a test's requests. A field that is `None` is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expectation {
    /// The number of requests that pass at once.
    pub(crate) allowed: Option<u64>,
    /// The number of requests that are rejected.
    pub(crate) rejected: Option<u64>,
    /// The number of requests that pass after a wait.
    pub(crate) delayed: Option<u64>,
    /// The limit that rejects the first rejected request. If none is rejected, the limit that holds the first held
    /// request.
    pub(crate) limit: Option<Arc<str>>,
    /// The requests' route; `none` if they have none.
    pub(crate) route: Option<Arc<str>>,
    /// The `retry-after` of the first rejected request, in whole seconds.
    pub(crate) retry_after: Option<u64>,
}
