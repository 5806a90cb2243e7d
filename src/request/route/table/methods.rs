//! The methods for which a path has routes, for the `allow` of a 405.

use std::ops::ControlFlow;

use http::{HeaderMap, Method};

use super::{PathTarget, RouteTable};
use crate::request::method::USUAL;
use crate::request::path::NormalPath;

impl RouteTable {
    /// The methods of the routes that would match the request if its method did, sorted and without repetition. A
    /// route for every method has the usual methods here, but not QUERY, which few APIs know.
    pub(crate) fn methods(
        &self,
        path: &NormalPath<'_>,
        host: &str,
        headers: &HeaderMap,
    ) -> Vec<Method> {
        let mut allowed: Vec<Method> = Vec::new();
        let target = PathTarget { path: path.matching(), host, headers: Some(headers) };
        let _: ControlFlow<()> = self.walk(target, &mut |_, conditions| {
            match conditions {
                Some(conditions) if !conditions.allow_headers(headers) => {}
                Some(conditions) if !conditions.methods.is_empty() => {
                    allowed.extend(conditions.methods.iter().cloned());
                }
                _ => allowed.extend(USUAL.into_iter().filter(|usual| *usual != Method::QUERY)),
            }
            ControlFlow::Continue(())
        });
        allowed.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        allowed.dedup();
        allowed
    }
}
