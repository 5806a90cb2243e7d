//! Rewrites: another path for the upstream, with the parameters of the route's path.

use super::pattern::{Pattern, PatternError, Segment, literal, segments};
use crate::request::path::NormalPath;

/// The path that goes upstream in place of the request's path: `/v2/{id}`, `/v2/{*rest}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    parts: Vec<RewritePart>,
}

/// A segment. For a parameter this is the index of the segment from which its value comes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RewritePart {
    Literal(String),
    Param(usize),
    Rest(usize),
}

impl Rewrite {
    /// A rewrite for the paths of `pattern`.
    ///
    /// # Errors
    /// A description, if the text is no path or names a parameter that `pattern` does not have.
    pub(crate) fn new(text: &str, pattern: &Pattern) -> Result<Self, String> {
        // `;parameters` are allowed, since they go upstream.
        let upstream = |path: &NormalPath<'_>| path.upstream().to_owned();
        let segments = segments(text, |part| literal(part, upstream));
        let segments = segments.map_err(|error| match error {
            PatternError::EmptySegment => "a slash is doubled".to_owned(),
            PatternError::DotSegment => "write the path without its dot segments".to_owned(),
            error => error.to_string(),
        })?;
        let parts = segments.into_iter().map(|segment| part(segment, pattern));
        Ok(Self { parts: parts.collect::<Result<_, _>>()? })
    }

    /// The rewritten path of a request. The values are the segments of the upstream form: with their
    /// `;parameters`, their encoding, and in `{*rest}` the doubled slashes that are kept.
    pub(crate) fn apply(&self, path: &NormalPath<'_>) -> String {
        let mut rewritten = String::with_capacity(path.upstream().len() + 16);
        for part in &self.parts {
            rewritten.push('/');
            rewritten.push_str(match part {
                RewritePart::Literal(text) => text,
                RewritePart::Param(index) => path.upstream_segment(*index).unwrap_or_default(),
                RewritePart::Rest(index) => path.upstream_rest(*index).unwrap_or_default(),
            });
        }
        rewritten
    }
}

fn part(segment: Segment, pattern: &Pattern) -> Result<RewritePart, String> {
    let (star, name) = match segment {
        Segment::Literal(text) => return Ok(RewritePart::Literal(text)),
        Segment::Param(name) => ("", name),
        Segment::Rest(name) => ("*", name),
    };
    let mut segments = pattern.segments().iter().enumerate();
    match segments.find(|(_, segment)| segment.name() == Some(&name)) {
        Some((index, Segment::Rest(_))) if star == "*" => Ok(RewritePart::Rest(index)),
        Some((index, Segment::Param(_))) if star.is_empty() => Ok(RewritePart::Param(index)),
        Some((_, Segment::Rest(_))) => {
            Err(format!("`{name}` stands for several segments: write `{{*{name}}}`"))
        }
        Some(_) => Err(format!("`{name}` stands for one segment: write `{{{name}}}`")),
        None => Err(format!("the route's path `{}` has no `{{{star}{name}}}`", pattern.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_go_upstream_as_they_came() {
        for (pattern, rewrite, path, merge_slashes, expected) in [
            ("/{*rest}", "/v2/{*rest}", "/a/b", true, "/v2/a/b"),
            ("/{*rest}", "/v2/{*rest}", "/", true, "/v2/"),
            ("/old/{*rest}", "/{*rest}", "/old/", true, "/"),
            ("/old/{*rest}", "/{*rest}", "/old;x/a;y//%3a", true, "/a;y/%3A"),
            ("/old/{*rest}", "/new/{*rest}", "/old//a//b", false, "/new//a//b"),
            ("/users/{id}", "/v2/{id}", "/users/a%40b;v=1", true, "/v2/a%40b;v=1"),
            ("/users/{id}", "/v2/{id}", "/users//42", false, "/v2/42"),
            ("/{a}/{b}", "/{b}/x/{a}", "/1/2", true, "/2/x/1"),
            ("/{a}/{b}", "/fixed;x/%c3%a9/", "/1/2", true, "/fixed;x/%C3%A9/"),
            ("/é/{b}", "/x/{b}", "/%C3%A9/é", true, "/x/é"),
        ] {
            let pattern: Pattern = pattern.parse().expect(pattern);
            let rewrite = Rewrite::new(rewrite, &pattern).expect(rewrite);
            let path = NormalPath::parse(path, merge_slashes).expect(path);
            assert!(pattern.matches(&path), "{path:?}");
            assert_eq!(rewrite.apply(&path), expected, "{path:?}");
        }
    }

    #[test]
    fn the_error_says_what_is_wrong() {
        let pattern: Pattern = "/a/{id}/{*rest}".parse().expect("a pattern");
        for (rewrite, word) in [
            ("v2", "begins with a slash"),
            ("/{name}", "has no `{name}`"),
            ("/{rest}", "write `{*rest}`"),
            ("/{*id}", "write `{id}`"),
            ("/{*rest}/x", "last"),
            ("/x{id}", "whole"),
            ("/{id", "whole"),
            ("/../x", "dot segment"),
            ("/a//b", "doubled"),
            ("/a?b={id}", "?b"),
            ("/a?b", "percent-encoded"),
            ("/..;x", "dot segment"),
        ] {
            let error = Rewrite::new(rewrite, &pattern).expect_err(rewrite);
            assert!(error.contains(word), "{rewrite}: {error}");
        }
    }
}
