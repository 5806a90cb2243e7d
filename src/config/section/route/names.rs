//! The names of routes.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;

use super::RouteDraft;
use crate::config::reader::{Context, Span};
use crate::request::route::{Conditions, Pattern};

/// A name for each route: the route's `name`, or a name made from the requests that the route matches.
///
/// A route without a `name` is called by its path. Where several of these routes have the same path, the
/// name has methods, host and path: `GET,POST api.example.com/users/{id}`. The file's order does not
/// matter.
pub(crate) fn names(cx: &Context<'_>, routes: &[RouteDraft]) -> Vec<Arc<str>> {
    let mut by_path: HashMap<&str, usize> = HashMap::new();
    for route in routes.iter().filter(|route| route.name.is_none()) {
        if let Some(pattern) = &route.pattern {
            *by_path.entry(pattern.as_str()).or_default() += 1;
        }
    }
    let mut taken: HashMap<Arc<str>, &RouteDraft> = HashMap::new();
    let mut names = Vec::with_capacity(routes.len());
    for route in routes {
        let name = match (&route.name, &route.pattern) {
            (Some((name, _)), _) => name.clone(),
            (None, Some(pattern)) if by_path.get(pattern.as_str()) > Some(&1) => {
                full_name(pattern, &route.conditions)
            }
            (None, Some(pattern)) => pattern.as_str().into(),
            (None, None) => "".into(),
        };
        if route.pattern.is_some() {
            match taken.get(&name) {
                // Two equal routes without a `name` are reported elsewhere: one of them never matches.
                Some(other) if !other.is_same(route) => same_name(cx, &name, route, other),
                Some(_) => {}
                None => {
                    taken.insert(name.clone(), route);
                }
            }
        }
        names.push(name);
    }
    names
}

impl RouteDraft {
    fn is_same(&self, other: &Self) -> bool {
        self.name.is_none()
            && other.name.is_none()
            && self.pattern == other.pattern
            && self.conditions == other.conditions
    }
}

fn same_name(cx: &Context<'_>, name: &str, route: &RouteDraft, other: &RouteDraft) {
    fn place(route: &RouteDraft) -> &Span {
        route.name.as_ref().map_or(&route.path_span, |(_, span)| span)
    }
    let expected = match route.name {
        Some(_) => "expected another name",
        None => "expected a `name` beside it",
    };
    cx.error(place(route), format!("two routes are called \"{name}\""), expected)
        .related(place(other), "the other one");
}

fn full_name(pattern: &Pattern, conditions: &Conditions) -> Arc<str> {
    let methods: Vec<&str> = conditions.methods.iter().map(Method::as_str).collect();
    let mut name = methods.join(",");
    if !name.is_empty() {
        name.push(' ');
    }
    if let Some(host) = &conditions.host {
        name.push_str(&host.to_string());
    }
    name.push_str(pattern.as_str());
    name.into()
}
