//! The one normal form of a path.

use std::borrow::Cow;

/// A path in its normal form, once as it goes upstream and once as routes and keys see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalPath<'p> {
    upstream: Cow<'p, str>,
    matching: Cow<'p, str>,
}

/// A path that two parsers could read differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmbiguousPath {
    /// It does not begin with a slash.
    Relative,
}

impl<'p> NormalPath<'p> {
    /// The normal form of `path` (without its query).
    ///
    /// # Errors
    /// Where the path stays ambiguous.
    pub fn parse(path: &'p str, merge_slashes: bool) -> Result<Self, AmbiguousPath> {
        unimplemented!("{path} {merge_slashes}")
    }

    /// What the upstream receives.
    pub fn upstream(&self) -> &str {
        &self.upstream
    }

    /// What routes and keys see.
    pub fn matching(&self) -> &str {
        &self.matching
    }
}
