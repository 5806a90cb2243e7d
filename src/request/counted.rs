//! What a log says that limits counted of a request. A replay uses it in place of the request, of which it knows less.

use smallvec::SmallVec;

use crate::limit::key::Key;

/// What limits counted of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedRequest {
    /// What each limit counted, if the log says it.
    pub(crate) limits: SmallVec<[CountedLimit; 2]>,
    /// The name of the request's plan. `Some(None)` if it had none, and `None` if the log does not say it.
    pub(crate) plan: Option<Option<String>>,
}

/// What one limit counted of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountedLimit {
    /// The limit's name.
    pub(crate) limit: String,
    /// The key as in Redis: hashed where the log hashes it.
    pub(crate) key: Key,
    /// What the request asked for, if its head said so.
    pub(crate) cost: Option<u64>,
    /// What it took in the end, if its response said so.
    pub(crate) used: Option<u64>,
}

impl CountedRequest {
    /// What this limit counted.
    pub(crate) fn of(&self, limit: &str) -> Option<&CountedLimit> {
        self.limits.iter().find(|it| it.limit == *limit)
    }
}
