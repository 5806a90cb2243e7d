//! Paths in the syntax of another proxy, and the same paths in tidegate's syntax.

use super::pattern::{Pattern, PatternError};

/// The advice for a regular expression, and for all else that tidegate's syntax cannot say.
const NO_SAME_PATH: &str = "write {name} for a segment, and {*rest} for the rest of the path, and percent-encode a \
                            sign that is meant itself: %2A for *";

/// Reads a path as an operator writes it.
///
/// # Errors
/// Why it is no path, and what was perhaps meant. A path in another proxy's syntax is always an error. Taken letter by
/// letter it would match no request, and its limits would not apply.
pub(crate) fn read_pattern(text: &str) -> Result<Pattern, String> {
    let ours = || match in_our_way(text) {
        Some(ours) => format!("did you mean \"{ours}\"?"),
        None => NO_SAME_PATH.to_owned(),
    };
    if !is_our_way(text) {
        return Err(format!("this is another proxy's way to write a path; {}", ours()));
    }
    text.parse().map_err(|error| match error {
        PatternError::Relative => format!("{error}; {}", ours()),
        error => error.to_string(),
    })
}

/// Whether a path of a request is written like the path of a route, so that another path is surely meant.
pub(crate) fn is_pattern(path: &str) -> bool {
    let is_named = |text: &str| text.starts_with('{') && text.ends_with('}');
    path.split('/').any(|text| is_named(text) || segment(text).is_some_and(|ours| ours != text))
}

/// Whether the path has no sign of another proxy's syntax.
fn is_our_way(path: &str) -> bool {
    let is_plain = |text| segment(text).is_some_and(|ours| ours == text);
    !has_modifier(path) && !path.ends_with('$') && path.split('/').all(is_plain)
}

/// Whether nginx's `=`, `~` or `^~` comes before the path.
fn has_modifier(path: &str) -> bool {
    path.split('/').next().is_some_and(|before| before.ends_with(' '))
}

/// The path in tidegate's syntax that matches the same requests, if there is one.
fn in_our_way(path: &str) -> Option<String> {
    let segments: Option<Vec<_>> = path.split('/').map(segment).collect();
    let ours = segments?.join("/");
    let ours = if ours.starts_with('/') { ours } else { format!("/{ours}") };
    let is_right = !has_modifier(path) && is_our_way(&ours) && ours.parse::<Pattern>().is_ok();
    is_right.then_some(ours)
}

/// The segment in tidegate's syntax. `None` if another proxy's syntax says what tidegate's cannot say.
fn segment(text: &str) -> Option<String> {
    let parameter = |mark: &str, name: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        (!name.is_empty() && name.chars().all(fits)).then(|| format!("{{{mark}{name}}}"))
    };
    if matches!(text, "*" | "**") {
        return parameter("*", "rest");
    }
    if let Some(name) = text.strip_prefix('*') {
        return parameter("*", name);
    }
    if let Some(name) = text.strip_prefix(':').filter(|name| !name.is_empty()) {
        return parameter("", name);
    }
    if let Some(inner) = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
        // `<int:id>` as well as `<id>`.
        return match inner.rsplit_once(':') {
            Some(("path", name)) => parameter("*", name),
            Some((_, name)) => parameter("", name),
            None => parameter("", inner),
        };
    }
    if let Some(inner) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        // `{id:[0-9]+}` is a parameter with a regular expression.
        return match inner.split_once(':') {
            Some((name, ".*")) => parameter("*", name),
            Some((name, _)) => parameter("", name),
            None => Some(text.to_owned()),
        };
    }
    // Signs that only wildcards and regular expressions have.
    let is_expression = ["*", "(", "[", "\\", "^", ".+"].iter().any(|sign| text.contains(sign));
    (!is_expression).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_of_another_proxy_is_shown_in_our_way() {
        for (theirs, ours) in [
            ("/api/*", "/api/{*rest}"),
            ("/api/**", "/api/{*rest}"),
            ("/users/:id", "/users/{id}"),
            ("/users/:id/orders/:order", "/users/{id}/orders/{order}"),
            ("/users/<id>", "/users/{id}"),
            ("/users/<int:id>", "/users/{id}"),
            ("/users/{id:[0-9]+}", "/users/{id}"),
            ("/api/{path:.*}", "/api/{*path}"),
            ("/api/*path", "/api/{*path}"),
            ("/api/<path:rest>", "/api/{*rest}"),
            ("*", "/{*rest}"),
            ("api/:id", "/api/{id}"),
        ] {
            assert_eq!(in_our_way(theirs).as_deref(), Some(ours), "{theirs}");
            assert!(!is_our_way(theirs), "{theirs}");
        }
        for theirs in [
            "^/api/.*$",
            "^/users/[0-9]+$",
            "/users/(\\d+)/orders",
            "/api$",
            "^/(?:v1|v2)/.*$",
            "/api(/.*)?",
            "= /exact",
            "^~ /static/",
            "~ /x",
            "~* ^/x",
            "~ \\.php$",
            "/api*",
            "/*.php",
            "/a/*/b",
            "/a/**/b",
            "/a/:id.json",
            "/a/:id/b/:id",
            "/a/.+",
            "PathPrefix(`/api`)",
            "/a//*",
        ] {
            assert_eq!((in_our_way(theirs), is_our_way(theirs)), (None, false), "{theirs}");
        }
        for ours in ["/", "/a/b", "/users/{id}", "/{*rest}", "/a.b/c-d_e", "/a:b", "/x;y", "/~me"] {
            assert!(is_our_way(ours), "{ours}");
        }
    }

    proptest! {
        #[test]
        fn each_suggestion_is_a_valid_pattern(path in "[~=]?[*]?[ ]?[\\^]?(/?[a|:*(){}<>.+?$\\[\\]\\\\0-9d]{0,6}){0,4}") {
            let ours = in_our_way(&path);
            prop_assert!(ours.is_none_or(|ours| ours.parse::<Pattern>().is_ok()), "{path}");
        }
    }
}
