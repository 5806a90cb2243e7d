//! The names of routes.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;

use super::RouteDraft;
use crate::config::reader::{Context, Span};
use crate::request::key::hash;
use crate::request::route::{Conditions, Pattern};

/// A name for each route: the route's `name`, or a name made from the requests that the route matches.
///
/// A route without a `name` is called by its path. If several of these routes have the same path, the
/// name has methods, host and path: `GET,POST api.example.com/users/{id}`. If these are the same too, the names of
/// the headers follow, and at last their values. The file's order does not matter.
pub(crate) fn names(cx: &Context<'_>, routes: &[RouteDraft]) -> Vec<Arc<str>> {
    let default = default_names(routes);
    let mut taken: HashMap<Arc<str>, &RouteDraft> = HashMap::new();
    let mut names = Vec::with_capacity(routes.len());
    for (route, default) in routes.iter().zip(default) {
        let name = match &route.name {
            Some((name, _)) => name.clone(),
            None => default.into(),
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
    fn position(route: &RouteDraft) -> &Span {
        route.name.as_ref().map_or(&route.path_span, |(_, span)| span)
    }
    let expected = match route.name {
        Some(_) => "expected another name",
        None => "expected a `name` beside it",
    };
    cx.error(position(route), format!("two routes are called \"{name}\""), expected)
        .related(position(other), "the other one");
}

/// For each route, the shortest of its default names that no other route without a `name` has. If there is none, the
/// longest one.
fn default_names(routes: &[RouteDraft]) -> Vec<String> {
    let mut names = vec![String::new(); routes.len()];
    let mut rest: Vec<_> = routes
        .iter()
        .zip(&mut names)
        .filter(|(route, _)| route.name.is_none())
        .filter_map(|(route, name)| Some((route.pattern.as_ref()?, &route.conditions, name)))
        .collect();
    for detail in [Detail::Path, Detail::Host, Detail::Headers, Detail::Values] {
        let mut count: HashMap<String, usize> = HashMap::new();
        for (pattern, conditions, name) in &mut rest {
            **name = default_name(pattern, conditions, detail);
            *count.entry(name.clone()).or_default() += 1;
        }
        rest.retain(|(.., name)| count.get(*name) > Some(&1));
    }
    names
}

/// How much of its route a default name shows. Each variant also shows what the variants before it show.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Detail {
    Path,
    /// Methods and host.
    Host,
    /// The names of headers.
    Headers,
    /// Their values. A value may be a secret, and the name stands in logs and metrics. Therefore the name has a few
    /// letters of its hash.
    Values,
}

fn default_name(pattern: &Pattern, conditions: &Conditions, detail: Detail) -> String {
    const LETTERS: usize = 8;
    let path = pattern.as_str();
    if detail == Detail::Path {
        return path.to_owned();
    }
    let methods: Vec<&str> = conditions.methods.iter().map(Method::as_str).collect();
    let host = conditions.host.as_ref().map_or(String::new(), ToString::to_string);
    let headers = conditions.headers.iter().filter(|_| detail > Detail::Host);
    let mut headers: Vec<_> = headers
        .map(|(name, value)| match detail {
            Detail::Values => {
                let hash = hash(value.as_bytes());
                format!("{name}={}", hash.get(..LETTERS).unwrap_or_default())
            }
            _ => name.to_string(),
        })
        .collect();
    headers.sort();
    let parts = [methods.join(","), format!("{host}{path}"), headers.join(",")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use crate::config::{Overrides, parse};

    /// The names of routes with these lines, or the errors.
    fn names(routes: &[&str]) -> Result<Vec<String>, String> {
        let mut text = "[upstreams.api]\nservers = [\"http://a\"]\n".to_owned();
        for lines in routes {
            text += &format!("[[routes]]\n{lines}\nupstream = \"api\"\n");
        }
        let env = |name: &str| (name == "SECRET").then(|| "hunter2".to_owned());
        let loaded = parse("proxy.toml", &text, &env, &Overrides::default());
        let settings = loaded.map_err(|problems| problems.to_string())?.settings;
        Ok(settings.routes.iter().map(|route| route.name.to_string()).collect())
    }

    /// A regression: two routes that differ only in their headers got the same name, which was an error.
    #[test]
    fn headers_are_in_the_name_where_the_rest_repeats() {
        let routes = [
            "path = \"/a\"\nmethods = [\"GET\"]",
            "path = \"/a\"",
            "path = \"/a\"\nheaders = { X-Plan = \"free\", accept = \"*/*\" }",
            "path = \"/a\"\nheaders = { x-plan = \"pro\" }",
            "path = \"/a\"\nheaders = { x-plan = \"${SECRET}\" }",
            "path = \"/b\"\nheaders = { x-plan = \"free\" }",
        ];
        let expected = ["GET /a", "/a", "/a accept,x-plan", "/a x-plan=", "/a x-plan=", "/b"];
        let found = names(&routes).unwrap();
        for (found, expected) in found.iter().zip(expected) {
            let (plain, hash) = found.split_at(found.find('=').map_or(found.len(), |at| at + 1));
            assert_eq!(plain, expected);
            assert!(hash.is_empty() || hash.len() == 8, "{found}");
        }
        assert_ne!(found[3], found[4]);

        let reversed: Vec<_> = routes.iter().rev().copied().collect();
        let again: Vec<_> = names(&reversed).unwrap().into_iter().rev().collect();
        assert_eq!(again, found, "the order of the file does not matter");
    }

    #[test]
    fn routes_have_names_of_their_own() {
        let routes = [
            "path = \"/once\"\nmethods = [\"GET\"]",
            "path = \"/users/{id}\"\nmethods = [\"GET\", \"POST\"]\nhost = \"api.example.com\"",
            "path = \"/users/{id}\"\nhost = \"*.example.com\"",
            "path = \"/users/{id}\"\nmethods = [\"PUT\"]",
            "path = \"/users/{id}\"",
            "path = \"/users/{id}\"\nname = \"mine\"\nheaders = { x-plan = \"free\" }",
        ];
        let expected = [
            "/once",
            "GET,POST api.example.com/users/{id}",
            "*.example.com/users/{id}",
            "PUT /users/{id}",
            "/users/{id}",
            "mine",
        ];
        assert_eq!(names(&routes).unwrap(), expected);
    }

    #[test]
    fn two_routes_with_the_same_conditions_are_an_error() {
        let one = "path = \"/a\"\nheaders = { x-plan = \"free\" }";
        let error = names(&[one, one]).unwrap_err();
        assert!(error.contains("this route never matches"), "{error}");
        assert!(!error.contains("two routes are called"), "{error}");
    }
}
