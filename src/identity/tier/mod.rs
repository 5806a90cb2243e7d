//! Plans: what a customer has bought. A limit may have other figures for each plan.
//!
//! The code says tier where an operator says plan, because a [`Plan`](crate::plan::Plan) is the whole configuration.

use std::collections::BTreeSet;

use http::HeaderName;

use crate::limit::name::Name;
use crate::request::key::{KeyError, KeySpec, View};

/// `[plans]`: how the plan of a request is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TierRule {
    /// The part of a request that says its plan.
    pub(crate) by: KeySpec,
    /// The plan of a request without a plan, or with one that no limit names.
    pub(crate) default: Option<Name>,
    /// The plans that limits name.
    pub(crate) named: BTreeSet<Name>,
}

/// The plan of a request. By default it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestTier<'r> {
    /// Its name. `None` where each limit counts the request by its own figures.
    pub(crate) name: Option<&'r Name>,
    /// Whether the plan is `plans.default`.
    pub(crate) is_default: bool,
}

impl TierRule {
    /// The plan of a request.
    ///
    /// # Errors
    /// Where the part that says it comes twice or can be read in two ways.
    pub(crate) fn tier(&self, request: &View<'_>) -> Result<RequestTier<'_>, KeyError> {
        let key = self.by.key(request)?;
        let said = key.as_ref().and_then(|key| key.values().next().flatten());
        let said = said.as_deref().and_then(|said| std::str::from_utf8(said).ok());
        Ok(match said.and_then(|said| self.named.get(said)) {
            Some(name) => RequestTier { name: Some(name), is_default: false },
            None => RequestTier { name: self.default.as_ref(), is_default: self.default.is_some() },
        })
    }

    /// The headers that it reads.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.by.headers()
    }
}
