//! The parameters of a path that matched.

use super::pattern::{Pattern, Segment};
use crate::request::path::NormalPath;

/// The parameters of a path that matched. A value is looked up only on demand, since most requests need no
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathParams<'p> {
    matched: Option<(&'p Pattern, &'p str)>,
}

impl<'p> PathParams<'p> {
    /// The parameters of a request without a route.
    pub fn none() -> Self {
        Self { matched: None }
    }

    /// The parameters of a path that the pattern matches.
    pub fn of(pattern: &'p Pattern, path: &'p NormalPath<'_>) -> Self {
        Self { matched: Some((pattern, path.matching())) }
    }

    /// The value of a parameter in the path's matching form; `None` if the pattern has no such
    /// parameter.
    pub(crate) fn value(&self, name: &str) -> Option<&'p str> {
        let (pattern, path) = self.matched?;
        let segments = pattern.segments();
        let index = segments.iter().position(|segment| segment.name() == Some(name))?;
        let path = path.strip_prefix('/')?;
        match segments.get(index)? {
            // A loose path has lost the slash before an empty rest.
            Segment::Rest(_) => path.splitn(index + 1, '/').nth(index).or(Some("")),
            _ => path.split('/').nth(index),
        }
    }
}
