//! The methods for which a path has routes, for the `allow` of a 405.

use std::ops::ControlFlow;

use http::{HeaderMap, Method};

use super::{NoRoute, PathTarget, Table};
use crate::request::path::NormalPath;

/// The methods that are listed for a route for every method: those of RFC 9110 that are served, and PATCH.
const IN_USE: [Method; 7] = [
    Method::DELETE,
    Method::GET,
    Method::HEAD,
    Method::OPTIONS,
    Method::PATCH,
    Method::POST,
    Method::PUT,
];

impl Table {
    /// The methods of the routes that would match the request if its method did, sorted and without repetition.
    pub(crate) fn methods(
        &self,
        path: &NormalPath<'_>,
        host: &str,
        headers: &HeaderMap,
    ) -> Vec<Method> {
        self.allowed(PathTarget { path: path.matching(), host }, headers)
    }

    pub(super) fn why_none(&self, target: PathTarget<'_>, headers: &HeaderMap) -> NoRoute {
        let allowed = self.allowed(target, headers);
        match allowed.is_empty() {
            true => NoRoute::NotFound,
            false => NoRoute::MethodNotAllowed(allowed),
        }
    }

    fn allowed(&self, target: PathTarget<'_>, headers: &HeaderMap) -> Vec<Method> {
        let mut allowed: Vec<Method> = Vec::new();
        let _: ControlFlow<()> = self.walk(target, &mut |_, conditions| {
            match conditions {
                Some(conditions) if !conditions.allow_headers(headers) => {}
                Some(conditions) if !conditions.methods.is_empty() => {
                    allowed.extend(conditions.methods.iter().cloned());
                }
                _ => allowed.extend(IN_USE),
            }
            ControlFlow::Continue(())
        });
        allowed.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
        allowed.dedup();
        allowed
    }
}
