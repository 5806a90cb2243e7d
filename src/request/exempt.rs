//! The requests to which a limit does not apply.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::key::View;
use super::network::Networks;
use super::route::RouteTable;
use super::value;

/// The exempt requests of a limit. `None` for most limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt(Option<Arc<Exemptions>>);

/// The rules for exempt requests. A request that matches one entry is exempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exemptions {
    /// Clients' networks.
    pub(crate) networks: Networks,
    /// Paths, as routes without conditions.
    pub(crate) paths: RouteTable,
    pub(crate) methods: Vec<Method>,
    /// Headers with their values, in the order of the names. A value matches in any spelling, and the request may have
    /// other values of the same header too.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl From<Exemptions> for Exempt {
    fn from(mut exemptions: Exemptions) -> Self {
        exemptions.headers.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        Self(Some(Arc::new(exemptions)))
    }
}

impl Exempt {
    /// Whether the request is exempt.
    pub(crate) fn covers(&self, request: &View<'_>) -> bool {
        self.0.as_ref().is_some_and(|exemptions| exemptions.cover(request))
    }

    /// Whether some clients' addresses are exempt.
    pub(crate) fn has_networks(&self) -> bool {
        self.0.as_ref().is_some_and(|exemptions| !exemptions.networks.is_empty())
    }

    /// Whether requests with this method are exempt.
    pub(crate) fn has_method(&self, method: &Method) -> bool {
        self.0.as_ref().is_some_and(|exemptions| exemptions.methods.contains(method))
    }

    /// The headers that may make a request exempt.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.0.iter().flat_map(|exemptions| &exemptions.headers).map(|(name, _)| name)
    }
}

impl Exemptions {
    fn cover(&self, request: &View<'_>) -> bool {
        self.networks.contain(request.client)
            || self.paths.has(request.path)
            || self.methods.contains(request.method)
            || self.has_one_of(request.headers)
    }

    /// Whether the request has one of the headers. Walks through the shorter of the two lists, and searches the other
    /// one.
    fn has_one_of(&self, headers: &HeaderMap) -> bool {
        if self.headers.len() <= headers.len() {
            return self.headers.iter().any(|header| value::is_there(headers, header));
        }
        headers.iter().any(|(name, found)| {
            let at = self.headers.binary_search_by(|(own, _)| own.as_str().cmp(name.as_str()));
            let own = at.ok().and_then(|at| self.headers.get(at));
            own.is_some_and(|(_, value)| value::are_same(name, value, found))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::request::key::Token;
    use crate::request::path::NormalPath;
    use crate::request::route::{Conditions, PathParams, Pattern};

    #[test]
    fn any_one_entry_suffices() {
        let header =
            |value| (HeaderName::from_static("x-internal"), HeaderValue::from_static(value));
        let paths = ["/healthz", "/s/{*r}"].map(|path| path.parse::<Pattern>().expect("a path"));
        let paths = paths.into_iter().map(|path| (path, Conditions::default()));
        let exempt = |more: &[&'static str]| {
            let more = more
                .iter()
                .map(|name| (HeaderName::from_static(name), HeaderValue::from_static("secret")));
            Exempt::from(Exemptions {
                networks: Networks::from_iter(["10.0.0.0/8".parse().expect("a network")]),
                paths: RouteTable::new(paths.clone().collect()),
                methods: vec![Method::OPTIONS],
                headers: more.chain([header("secret")]).collect(),
            })
        };
        let one_and_many = [exempt(&[]), exempt(&["x-z", "x-b", "x-y", "a"])];
        for (name, client, path, value, expected) in [
            ("none", "203.0.113.7", "/a", "x", false),
            ("OPTIONS", "203.0.113.7", "/a", "x", true),
            ("client", "10.1.1.1", "/a", "x", true),
            ("mapped client", "::ffff:10.1.1.1", "/a", "x", true),
            ("client behind NAT64", "64:ff9b::10.1.1.1", "/a", "x", true),
            ("path", "203.0.113.7", "/%68ealthz;x", "x", true),
            ("path below", "203.0.113.7", "/healthz/", "x", false),
            ("rest", "203.0.113.7", "/s/a", "x", true),
            ("header", "203.0.113.7", "/a", "secret", true),
            ("header with blanks", "203.0.113.7", "/a", "secret\t", true),
            ("header in part", "203.0.113.7", "/a", "secret2", false),
        ] {
            let path = NormalPath::parse(path, true).expect(path);
            let headers = HeaderMap::from_iter([header(value)]);
            let view = View {
                methods: &HashSet::new(),
                path: &path,
                query: None,
                method: &name.parse().unwrap_or(Method::GET),
                host: b"",
                route: "",
                client: client.parse().expect(client),
                headers: &headers,
                params: PathParams::none(),
                cert: None,
                token: Token::NONE,
                body: None,
                id: None,
                has_end: true,
                may_wait: true,
                cost: None,
                counted: None,
            };
            for exempt in &one_and_many {
                assert_eq!(exempt.covers(&view), expected, "{name}");
            }
            assert!(!Exempt::default().covers(&view), "{name}");
        }
    }
}
