//! Warnings about limits that stop preflights. With a preflight, a browser asks the API: may a page of another origin
//! send this request? (Fetch standard, "CORS-preflight request".) If a preflight fails, the page does not learn why.

use std::collections::HashSet;

use http::Method;

use crate::config::assembly::Sections;
use crate::config::section::limit::LimitDraft;
use crate::config::section::route::{RouteDraft, UsedLimit};
use crate::limit::Mode;
use crate::request::key::{KeySource, Missing};
use crate::request::path::NormalPath;
use crate::settings::Action;

impl Sections<'_> {
    /// Warns of limits that count preflights, or refuse them because a preflight lacks a part of the key.
    pub(super) fn counted_preflights(&self) {
        if self.cors.is_none() {
            return;
        }
        let path = |route: &RouteDraft| Some(route.pattern.as_ref()?.as_str().to_owned());
        // If a route takes only preflights, its limits are meant for them.
        let own = self.routes.iter().filter(|it| it.conditions.methods == [Method::OPTIONS]);
        let own: HashSet<_> = own.filter_map(path).collect();
        let routes = self.routes.iter().filter(|route| {
            takes_preflights(route) && path(route).is_none_or(|path| !own.contains(&path))
        });
        let mut told = HashSet::new();
        for UsedLimit { limit: index, span, .. } in
            self.everywhere.iter().chain(routes.flat_map(|it| &it.limits))
        {
            let limit = self.limits.get(*index).and_then(|limit| limit.value.as_ref());
            let Some(LimitDraft { spec, sources, on: true, .. }) = limit else { continue };
            if spec.mode != Mode::Enforce || spec.exempt.has_method(&Method::OPTIONS) {
                continue;
            }
            let lacks = |part: &&KeySource| part.alternatives().iter().all(is_absent);
            let title = match (sources.iter().map(|it| &it.0).find(lacks), spec.key.missing) {
                (Some(_), Missing::Skip) => continue,
                (Some(part), Missing::Reject) => {
                    format!("\"{}\" refuses preflights: they have no `{part}`", spec.name)
                }
                _ => {
                    format!("\"{}\" counts preflights: no page learns of a rejected one", spec.name)
                }
            };
            if told.insert(*index) {
                let expected = "expected `exempt = { method = [\"OPTIONS\"] }` in this limit, or a route for `OPTIONS` alone";
                self.cx.warning(span, title, expected);
            }
        }
    }

    /// Warns of an API's routes whose preflights no route takes. They get 404 or 405, and no page learns why.
    pub(super) fn preflights_without_route(&self) {
        // Most pages read an API without a preflight.
        let is_plain = |method: &Method| matches!(*method, Method::GET | Method::HEAD);
        for route in self.routes.iter().filter(|_| self.cors.is_some() && self.has_all_routes) {
            let Some(pattern) = &route.pattern else { continue };
            let Ok(path) = NormalPath::parse(pattern.as_str(), true) else { continue };
            let fits = |other: &RouteDraft| {
                takes_preflights(other)
                    && !responds(other)
                    && other.pattern.as_ref().is_some_and(|it| it.matches(&path))
            };
            let methods = &route.conditions.methods;
            if !responds(route)
                && (methods.is_empty() || !methods.iter().all(is_plain))
                && !self.routes.iter().any(fits)
            {
                let title = "no route takes preflights of this path: pages of other origins cannot send what needs one";
                let expected =
                    "expected `OPTIONS` in its `methods`, or a route for `OPTIONS` alone";
                self.cx.warning(&route.path_span, title, expected);
            }
        }
    }
}

/// Whether preflights come to this route. They have none of the page's headers. A route that responds gets the preflights
/// of all its methods.
fn takes_preflights(route: &RouteDraft) -> bool {
    route.conditions.headers.is_empty()
        && (route.conditions.allow_method(&Method::OPTIONS) || responds(route))
}

fn responds(route: &RouteDraft) -> bool {
    route.action.as_ref().is_some_and(Action::responds)
}

/// Whether a preflight lacks this part of a key. A preflight has no credentials, and none of the headers that the page
/// sets.
fn is_absent(source: &KeySource) -> bool {
    match source {
        KeySource::Header(name) => !matches!(name.as_str(), "accept" | "origin" | "user-agent"),
        KeySource::Cookie(_) | KeySource::Cert | KeySource::Jwt(_) | KeySource::Body(_) => true,
        _ => false,
    }
}
