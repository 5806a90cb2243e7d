//! Which route a request takes.

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::path::NormalPath;

/// A path pattern: `/users/{id}`, `/static/{*rest}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// It does not begin with a slash.
    Relative,
}

impl std::str::FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        unimplemented!("{text}")
    }
}

impl Pattern {
    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of its parameters, in order.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }

    /// Whether every path that `other` matches is matched by this pattern.
    pub fn covers(&self, other: &Self) -> bool {
        unimplemented!("{other:?}")
    }

    /// Whether the pattern matches.
    pub fn matches(&self, path: &NormalPath<'_>) -> bool {
        unimplemented!("{path:?}")
    }
}

/// `www.example.com`, or `*.example.com` for every name below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host.
    Exact(String),
    /// Every host that ends so (with the dot, without the star).
    Below(String),
}

impl std::str::FromStr for HostPattern {
    type Err = String;

    /// The error says what is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        unimplemented!("{text}")
    }
}

/// What a request must have besides its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// One of these; empty is any.
    pub methods: Vec<Method>,
    /// This host.
    pub host: Option<HostPattern>,
    /// Each of these headers with this value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Conditions {
    /// Whether every request that meets `other` meets these conditions too.
    pub fn cover(&self, other: &Self) -> bool {
        unimplemented!("{other:?}")
    }
}

/// All routes, for finding one.
#[derive(Debug, Default)]
pub struct Table {}

/// A route that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match<'p> {
    /// Its place in the list that the table was built from.
    pub route: usize,
    /// The path's parameters.
    pub params: Params<'p>,
}

/// The parameters of a path that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params<'p> {
    path: &'p str,
}

impl<'p> Params<'p> {
    /// The value of a parameter as keys see it.
    pub fn value(&self, name: &str) -> Option<&'p str> {
        unimplemented!("{name} {}", self.path)
    }
}

/// Why no route was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// None matches.
    NotFound,
    /// Routes match but for the method; these would do, without repetition, sorted.
    MethodNotAllowed(Vec<Method>),
}

impl Table {
    /// The table of these routes, each known by its place.
    pub fn new(routes: &[(Pattern, Conditions)]) -> Self {
        unimplemented!("{routes:?}")
    }

    /// The most specific route whose pattern and conditions the request meets.
    ///
    /// # Errors
    /// Where there is none.
    pub fn find<'p>(
        &'p self,
        path: &'p NormalPath<'_>,
        method: &Method,
        host: &str,
        headers: &HeaderMap,
    ) -> Result<Match<'p>, NoRoute> {
        unimplemented!("{path:?} {method} {host} {headers:?}")
    }
}

/// What goes upstream in place of the path: `/v2/{id}`, `/v2/{*rest}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    text: String,
}

impl Rewrite {
    /// A rewrite for the paths of `pattern`.
    ///
    /// # Errors
    /// What is wrong, where it is no path or names a parameter that `pattern` does not have.
    pub fn new(text: &str, pattern: &Pattern) -> Result<Self, String> {
        unimplemented!("{text} {pattern:?}")
    }

    /// The path for a request, from the parameters as they go upstream.
    pub fn apply(&self, path: &NormalPath<'_>) -> String {
        unimplemented!("{} {path:?}", self.text)
    }
}
