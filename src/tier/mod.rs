//! Plans: what a customer has bought. A limit may have other figures for each plan.
//!
//! The code says tier where an operator says plan, because a [`Plan`](crate::plan::Plan) is the whole configuration.
//! `table` has the lines of `plans.file`, and `file` reads the file again when it changes.

mod file;
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;

use http::HeaderName;

pub(crate) use self::file::TierFile;
pub(crate) use self::table::{TierFileError, TierLine};
use crate::limit::key::Key;
use crate::limit::name::Name;
use crate::request::key::{KeyError, KeySpec, View};

/// `[plans]`: how the plan of a request is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TierRule {
    /// The part of a request that says its plan. With a file, the part that says who asks.
    pub(crate) by: KeySpec,
    /// Who has which plan.
    pub(crate) file: Option<Arc<TierFile>>,
    /// The plan of a request without a plan, or with one that no limit names.
    pub(crate) default: Option<Name>,
    /// The plans that limits name.
    pub(crate) named: BTreeSet<Name>,
}

/// The plan of a request. By default it has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTier<'r> {
    /// Its name. `None` where each limit counts the request by its own figures.
    pub(crate) name: Option<&'r Name>,
    /// Whether the plan is `plans.default`.
    pub(crate) is_default: bool,
    /// The line of the file that says who asks.
    pub(crate) line: Option<TierLine>,
}

impl TierRule {
    /// The plan of a request.
    ///
    /// # Errors
    /// Where the part that says it comes twice or can be read in two ways.
    pub(crate) fn tier(&self, request: &View<'_>) -> Result<RequestTier<'_>, KeyError> {
        let key = self.by.key(request)?;
        Ok(self.of_key(key.as_ref()))
    }

    /// The plan of a request whose part is this key. `None` where it lacks the part.
    pub(crate) fn of_key(&self, key: Option<&Key>) -> RequestTier<'_> {
        let line = || self.file.as_ref()?.table().find(&self.by, key?);
        let line = line();
        let said = match (&self.file, key) {
            (None, Some(key)) => key.values().next().flatten(),
            _ => None,
        };
        let said = match &line {
            Some(line) => Some(line.plan()),
            None => said.as_deref().and_then(|said| std::str::from_utf8(said).ok()),
        };
        match said.and_then(|said| self.named.get(said)) {
            Some(name) => RequestTier { name: Some(name), is_default: false, line },
            None => {
                let name = self.default.as_ref();
                RequestTier { name, is_default: name.is_some(), line }
            }
        }
    }

    /// The plan of the requests with this key of a limit. `None` where the key does not say who they are.
    pub(crate) fn of_limit_key(&self, limit: &KeySpec, key: &Key) -> Option<RequestTier<'_>> {
        let has_value = key.values().next().flatten().is_some();
        self.is_key(limit).then(|| self.of_key(Some(key).filter(|_| has_value)))
    }

    /// Whether a limit with this key counts by what says the plan, and by nothing else.
    pub(crate) fn is_key(&self, limit: &KeySpec) -> bool {
        limit.sources == self.by.sources
    }

    /// The headers that it reads.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.by.headers()
    }
}
