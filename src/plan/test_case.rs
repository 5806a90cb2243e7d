//! `[[tests]]`: requests that `tidegate check` sends to the limits, and what is expected of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};

/// One of `[[tests]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCase {
    /// Its name in the report.
    pub name: String,
    /// The line of the file where it begins, from 1.
    pub line: usize,
    /// The method of its requests.
    pub method: Method,
    /// Their target: a path with a query, or a URL whose host is the request's host.
    pub target: Uri,
    /// Their headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The address from which they come.
    pub from: IpAddr,
    /// How many requests there are, at least 1.
    pub times: u64,
    /// The time over which they are spread evenly. Zero: all come at once.
    pub within: Duration,
    /// The time since the test before.
    pub after: Duration,
    /// What the API answers to those that pass.
    pub status: StatusCode,
    /// Whether all buckets are new before the test.
    pub fresh: bool,
    /// What is expected.
    pub expect: Expectation,
}

/// What is expected of a test's requests. A field that is `None` is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// The number of requests that pass at once.
    pub allowed: Option<u64>,
    /// The number of requests that are rejected.
    pub rejected: Option<u64>,
    /// The number of requests that pass after a wait.
    pub delayed: Option<u64>,
    /// The limit that rejects the first rejected request. If none is rejected, the limit that holds the first held
    /// request.
    pub limit: Option<Arc<str>>,
    /// The requests' route; `none` where they have none.
    pub route: Option<Arc<str>>,
    /// The `retry-after` of the first rejected request, in whole seconds.
    pub retry_after: Option<u64>,
}
