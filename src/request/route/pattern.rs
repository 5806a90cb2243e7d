//! Path patterns: the `path` of a route or of an exemption, parsed.

use std::str::FromStr;

use crate::request::path::{self, AmbiguousPath, NormalPath};

/// A path pattern: `/users/{id}`, `/static/{*rest}`.
///
/// A parameter is a whole segment that is not empty. `{*rest}` at the end matches the rest of the path,
/// also an empty rest: `/static/{*rest}` matches `/static/` and not `/static`. Literal segments are
/// compared in their normal form, whatever their spelling here. A literal brace is written `%7B` or `%7D`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    segments: Vec<Segment>,
    is_loose: bool,
}

/// A segment of a pattern. Only the last segment can be an empty literal (after a trailing slash) or a
/// rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// This text, in the matching form.
    Literal(String),
    /// Any segment that is not empty, with this name.
    Param(String),
    /// The rest of the path, with this name.
    Rest(String),
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The pattern does not begin with a slash.
    #[error("a path begins with a slash")]
    Relative,
    /// The pattern has a doubled slash.
    #[error("a doubled slash never matches, since slashes are merged before paths are compared")]
    EmptySegment,
    /// The pattern has a `.` or `..` segment.
    #[error(
        "a `.` or `..` segment never matches, since paths are resolved before they are compared"
    )]
    DotSegment,
    /// A segment has `;parameters`, which the matching form of a path never has.
    #[error(
        "`{0}` never matches, since `;parameters` are left out when paths are compared; write `%3B` for a semicolon"
    )]
    Parameters(String),
    /// A segment has braces but is not exactly one parameter.
    #[error("`{0}` is not a whole `{{name}}` or `{{*name}}`; write `%7B` and `%7D` for braces")]
    Braces(String),
    /// A parameter's name is empty or has characters other than letters, digits, `_` and `-`.
    #[error("the name in `{0}` needs letters, digits, `_` or `-`, and nothing else")]
    Name(String),
    /// Two parameters have this name.
    #[error("the name `{0}` stands twice")]
    Repeated(String),
    /// `{*rest}` is not the last segment.
    #[error("`{0}` must be the last segment")]
    RestNotLast(String),
    /// The pattern has more than [`Pattern::MAX_SEGMENTS`] segments.
    #[error("a path has at most {} segments", Pattern::MAX_SEGMENTS)]
    TooLong,
    /// A segment is not valid in a path.
    #[error(transparent)]
    Path(AmbiguousPath),
}

impl Pattern {
    /// The most segments of a pattern.
    pub(crate) const MAX_SEGMENTS: usize = 128;

    /// The same pattern for paths in their loose form ([`NormalPath::loosened`]).
    pub fn loosened(mut self) -> Self {
        for segment in &mut self.segments {
            if let Segment::Literal(text) = segment {
                *text = path::loose(text).into_owned();
            }
        }
        let is_empty =
            |segment: &Segment| matches!(segment, Segment::Literal(text) if text.is_empty());
        if self.segments.len() > 1 && self.segments.last().is_some_and(is_empty) {
            self.segments.pop();
        }
        self.is_loose = true;
        self
    }

    /// Whether the pattern is for paths in their loose form.
    pub(super) fn is_loose(&self) -> bool {
        self.is_loose
    }

    /// The pattern as written.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of the pattern's parameters, in order.
    pub(crate) fn params(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(Segment::name)
    }

    /// Whether the pattern matches the whole path, in its matching form.
    pub(crate) fn matches(&self, path: &NormalPath<'_>) -> bool {
        let mut parts = path.matching().split('/').skip(1);
        for segment in &self.segments {
            let matched = match (segment, parts.next()) {
                (Segment::Rest(_), Some(_)) => return true,
                (Segment::Param(_), Some(part)) => !part.is_empty(),
                (Segment::Literal(text), Some(part)) => text == part,
                // A loose path has lost the slash before an empty rest.
                (Segment::Rest(_), None) => return self.is_loose,
                (_, None) => false,
            };
            if !matched {
                return false;
            }
        }
        parts.next().is_none()
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl Segment {
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Param(name) | Self::Rest(name) => Some(name),
        }
    }

    /// Reads a segment with braces; `None` for a literal segment.
    fn braced(text: &str) -> Result<Option<Self>, PatternError> {
        let Some(inner) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
            let braces = text.contains(['{', '}']);
            return if braces { Err(PatternError::Braces(text.to_owned())) } else { Ok(None) };
        };
        if inner.contains(['{', '}']) {
            return Err(PatternError::Braces(text.to_owned()));
        }
        let (name, rest) = match inner.strip_prefix('*') {
            Some(name) => (name, true),
            None => (inner, false),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(PatternError::Name(text.to_owned()));
        }
        let name = name.to_owned();
        Ok(Some(if rest { Self::Rest(name) } else { Self::Param(name) }))
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let segments = segments(text, |part| match part.contains(';') {
            true => Err(PatternError::Parameters(part.to_owned())),
            false => literal(part, |path| path.matching().to_owned()),
        })?;
        if segments.len() > Self::MAX_SEGMENTS {
            return Err(PatternError::TooLong);
        }
        let names: Vec<_> = segments.iter().filter_map(Segment::name).collect();
        let is_repeated = |index: &usize| names[..*index].contains(&names[*index]);
        if let Some(index) = (0..names.len()).find(is_repeated) {
            return Err(PatternError::Repeated(names[index].to_owned()));
        }
        Ok(Self { text: text.to_owned(), segments, is_loose: false })
    }
}

/// Reads the segments of a pattern or of a rewrite. `literal` reads a segment without braces.
pub(super) fn segments(
    text: &str,
    literal: impl Fn(&str) -> Result<String, PatternError>,
) -> Result<Vec<Segment>, PatternError> {
    let mut segments = Vec::new();
    let mut parts = text.strip_prefix('/').ok_or(PatternError::Relative)?.split('/').peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        segments.push(match Segment::braced(part)? {
            Some(Segment::Rest(_)) if !is_last => {
                return Err(PatternError::RestNotLast(part.to_owned()));
            }
            Some(segment) => segment,
            None if part.is_empty() && !is_last => return Err(PatternError::EmptySegment),
            None => Segment::Literal(literal(part)?),
        });
    }
    Ok(segments)
}

/// A segment without braces in this form of a path.
pub(super) fn literal(
    segment: &str,
    form: impl FnOnce(&NormalPath<'_>) -> String,
) -> Result<String, PatternError> {
    let path = format!("/{segment}");
    let path = NormalPath::parse(&path, true).map_err(PatternError::Path)?;
    let form = form(&path);
    match form.strip_prefix('/') {
        Some("") | None if !segment.is_empty() => Err(PatternError::DotSegment),
        literal => Ok(literal.unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().expect(text)
    }

    fn matches(pattern: &str, path: &str) -> bool {
        self::pattern(pattern).matches(&NormalPath::parse(path, false).expect(path))
    }

    #[test]
    fn a_pattern_matches_whole_paths() {
        for (pattern, yes, no) in [
            ("/", &["/", "//", "/a/.."][..], &["/a"][..]),
            ("/a", &["/a", "//a", "/a;x", "/%61"], &["/", "/a/", "/a/b", "/A"]),
            ("/a/", &["/a/", "/a//", "/a/."], &["/a", "/a/b"]),
            ("/users/{id}", &["/users/1", "/users/a%20b"], &["/users", "/users/", "/users/1/"]),
            ("/{a}/{b}/", &["/1/2/"], &["/1/2", "/1//", "/1/2/3"]),
            ("/{*rest}", &["/", "/a", "/a/b/"], &[]),
            ("/static/{*rest}", &["/static/", "/static/a/b", "/static//a"], &["/static", "/x/"]),
            ("/caf%c3%a9", &["/café", "/caf%C3%A9"], &["/cafe"]),
            ("/café", &["/café", "/caf%C3%A9"], &["/cafe"]),
            ("/a%2Db:c%40", &["/a-b:c@", "/a-b%3Ac%40"], &["/a%2D"]),
            ("/%7Bx%7D", &["/{x}", "/%7bx%7d"], &["/x"]),
            ("/a%3Bb", &["/a%3bb"], &["/a;b", "/a"]),
        ] {
            for path in yes {
                assert!(matches(pattern, path), "{pattern} {path}");
            }
            for path in no {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn a_loose_pattern_matches_whatever_the_case_and_the_last_slash() {
        for (pattern, yes, no) in [
            ("/", &["/", "//"][..], &["/a"][..]),
            ("/Login/", &["/login", "/LOGIN/", "/Login;x/", "/%4cogin"], &["/", "/login/x"]),
            ("/users/{id}", &["/Users/1/", "/users/A"], &["/users", "/users/", "/users/1/x"]),
            ("/static/{*rest}", &["/Static", "/static/", "/static/a/"], &["/", "/statics"]),
            ("/{*rest}", &["/", "/A/"], &[]),
            ("/CAFÉ", &["/café/", "/caf%c3%89"], &["/cafe"]),
            ("/%ff/K", &["/%FF/\u{212a}"], &["/%fe/k"]),
        ] {
            let pattern = self::pattern(pattern).loosened();
            let matches =
                |path| pattern.matches(&NormalPath::parse(path, false).expect(path).loosened());
            for path in yes {
                assert!(matches(path), "{pattern:?} {path}");
            }
            for path in no {
                assert!(!matches(path), "{pattern:?} {path}");
            }
        }
    }

    #[test]
    fn a_pattern_that_can_never_match_is_an_error() {
        use PatternError as E;
        let long = "/a".repeat(129);
        for (text, error) in [
            ("", E::Relative),
            ("a", E::Relative),
            ("{*rest}", E::Relative),
            ("/a//b", E::EmptySegment),
            ("//", E::EmptySegment),
            ("/a/../b", E::DotSegment),
            ("/%2e", E::DotSegment),
            ("/a;b", E::Parameters("a;b".into())),
            ("/{a", E::Braces("{a".into())),
            ("/a}", E::Braces("a}".into())),
            ("/a{b}", E::Braces("a{b}".into())),
            ("/{a}{b}", E::Braces("{a}{b}".into())),
            ("/{a/b}", E::Braces("{a".into())),
            ("/{}", E::Name("{}".into())),
            ("/{*}", E::Name("{*}".into())),
            ("/{a b}", E::Name("{a b}".into())),
            ("/{**a}", E::Name("{**a}".into())),
            ("/{a}/{a}", E::Repeated("a".into())),
            ("/{a}/{*a}", E::Repeated("a".into())),
            ("/{*a}/b", E::RestNotLast("{*a}".into())),
            ("/{*a}/", E::RestNotLast("{*a}".into())),
            ("/a%2Fb", E::Path(AmbiguousPath::EncodedSlash)),
            ("/a?b", E::Path(AmbiguousPath::Forbidden)),
            (&long, E::TooLong),
        ] {
            assert_eq!(text.parse::<Pattern>(), Err(error), "{text}");
        }
    }

    #[test]
    fn names_come_in_order() {
        let pattern = pattern("/a/{b}/c/{d-1}/{*rest}");
        assert_eq!(pattern.params().collect::<Vec<_>>(), ["b", "d-1", "rest"]);
    }
}
