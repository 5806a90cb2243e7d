//! What limits counted of a logged request. A replay uses these values, because the log does not show the whole
//! request.

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
    /// The key as in Redis. Its secret parts may be hashed.
    pub(crate) key: Key,
    /// The cost at the start, if the request's head gave it.
    pub(crate) cost: Option<u64>,
    /// The cost in the end, if the response gave it.
    pub(crate) used: Option<u64>,
}

impl CountedRequest {
    /// What this limit counted.
    pub(crate) fn of(&self, limit: &str) -> Option<&CountedLimit> {
        self.limits.iter().find(|it| it.limit == *limit)
    }
}
