//! Path patterns, and the advice for a pattern in another proxy's syntax.

use crate::config::reader::{Item, Wrong};
use crate::request::route::Pattern;

/// The advice where tidegate's syntax has no such path.
const NO_SAME_PATH: &str =
    "write {name} for a segment, and {*rest} for the rest of the path; all else stands for itself";

/// A path pattern.
pub(crate) fn pattern(item: &Item<'_>) -> Option<Pattern> {
    const EXPECTED: &str = "expected a path, as in \"/users/{id}\" or \"/static/{*rest}\"";
    let pattern: Pattern = item.parse(EXPECTED, |text| {
        text.parse().map_err(|error| match in_our_way(text) {
            Some(ours) => Wrong::Because(format!("{error}; did you mean \"{ours}\"?")),
            None => Wrong::Because(format!("{error}")),
        })
    })?;
    // The warning repeats the text, which may be a secret.
    if !is_our_way(pattern.as_str()) && item.is_shown() {
        let title = format!("the path \"{}\" is matched letter by letter", pattern.as_str());
        let advice = match in_our_way(pattern.as_str()) {
            Some(ours) => format!("did you mean \"{ours}\"?"),
            None => NO_SAME_PATH.to_owned(),
        };
        item.cx.warning(&item.span, title, advice);
    }
    Some(pattern)
}

/// The path in tidegate's syntax. `None` where the path has tidegate's syntax already, and where this syntax
/// has no such path.
fn in_our_way(path: &str) -> Option<String> {
    // The anchors of a regular expression are dropped: a pattern always matches the whole path. `[^/]` becomes
    // `\w`, because its slash would split the segment.
    let plain = path.trim_start_matches('^').trim_end_matches('$').replace("[^/]", "\\w");
    let segments: Option<Vec<String>> = plain.split('/').map(segment).collect();
    let mut ours = segments?.join("/");
    if !ours.starts_with('/') {
        ours.insert(0, '/');
    }
    // A space separates nginx's modifier, as in `= /exact`, from the path.
    let is_right = !path.contains(' ') && ours.parse::<Pattern>().is_ok() && is_our_way(&ours);
    (is_right && ours != path).then_some(ours)
}

fn is_our_way(path: &str) -> bool {
    let is_plain = |text| segment(text).is_some_and(|ours| ours == text);
    !path.starts_with('^') && !path.ends_with('$') && path.split('/').all(is_plain)
}

/// The segment in tidegate's syntax. `None` where another proxy's syntax says what tidegate's cannot say.
fn segment(text: &str) -> Option<String> {
    // `{id:[0-9]+}` is a parameter with a regular expression in another proxy.
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    if let Some((name, expression)) = inner.and_then(|inner| inner.split_once(':')) {
        return Some(if is_rest(expression) { rest(name) } else { named(name) });
    }
    if inner.is_some() {
        return Some(text.to_owned());
    }
    if is_rest(text) {
        return Some(rest("rest"));
    }
    if let Some(name) = text.strip_prefix('*') {
        return is_name(name).then(|| rest(name));
    }
    if let Some(name) = text.strip_prefix(':').filter(|name| !name.is_empty()) {
        return is_name(name).then(|| named(name));
    }
    if let Some(inner) = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
        // `<int:id>` as well as `<id>`.
        return Some(match inner.rsplit_once(':') {
            Some(("path", name)) => rest(name),
            Some((_, name)) => named(name),
            None => named(inner),
        });
    }
    if is_class(text) {
        return Some(named("id"));
    }
    // Signs that only wildcards and regular expressions have.
    let is_expression = ["*", "(", "[", "\\", "^", ".+"].iter().any(|sign| text.contains(sign));
    (!is_expression).then(|| text.to_owned())
}

fn named(name: &str) -> String {
    if is_name(name) { format!("{{{name}}}") } else { "{id}".to_owned() }
}

fn rest(name: &str) -> String {
    if is_name(name) { format!("{{*{name}}}") } else { "{*rest}".to_owned() }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !name.is_empty() && name.chars().all(fits)
}

/// Whether another proxy means the rest of the path, slashes too.
fn is_rest(text: &str) -> bool {
    matches!(text, "*" | "**" | ".*" | "(.*)" | "(.*)?" | ".+" | "(.+)")
}

/// Whether a regular expression is one class of characters, as in `[0-9]+`, `(\d+)` or `[a-f0-9]{32}`.
fn is_class(text: &str) -> bool {
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    let is_count = |c: char| c.is_ascii_digit() || matches!(c, '+' | '{' | ',' | '}');
    let class = inner.trim_end_matches(is_count);
    let set = class.strip_prefix('[').and_then(|class| class.strip_suffix(']'));
    matches!(class, "\\d" | "\\w") || set.is_some_and(|set| !set.contains(['[', ']']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_another_proxy_is_shown_in_our_way() {
        for (theirs, ours) in [
            ("/api/*", "/api/{*rest}"),
            ("/api/**", "/api/{*rest}"),
            ("/users/:id", "/users/{id}"),
            ("/users/:id/orders/:order", "/users/{id}/orders/{order}"),
            ("/users/<id>", "/users/{id}"),
            ("/users/<int:id>", "/users/{id}"),
            ("^/api/.*$", "/api/{*rest}"),
            ("^/users/[0-9]+$", "/users/{id}"),
            ("/users/(\\d+)/orders", "/users/{id}/orders"),
            ("/users/{id:[0-9]+}", "/users/{id}"),
            ("/users/[^/]+/orders", "/users/{id}/orders"),
            ("/files/[a-f0-9]{32}", "/files/{id}"),
            ("/api/*path", "/api/{*path}"),
            ("/api/{path:.*}", "/api/{*path}"),
            ("/api/<path:rest>", "/api/{*rest}"),
            ("/api$", "/api"),
            ("*", "/{*rest}"),
            ("api/:id", "/api/{id}"),
        ] {
            assert_eq!(in_our_way(theirs).as_deref(), Some(ours), "{theirs}");
            assert!(!is_our_way(theirs), "{theirs}");
        }
        for theirs in [
            "/api*",
            "/*.php",
            "/img/*.png",
            "/a/*/b",
            "/a/**/b",
            "/a/:id.json",
            "/a/:id?",
            "/^a$",
            "/(a|b)/x",
            "/img/(.*)\\.png",
            "/a/[0-9]+/b/[0-9]+",
            "/api(/.*)?",
        ] {
            assert_eq!((in_our_way(theirs), is_our_way(theirs)), (None, false), "{theirs}");
        }
        for no_path in ["^~ /static/", "= /exact", "~* ^/x$", "PathPrefix(`/api`)", "/a//*"] {
            assert_eq!(in_our_way(no_path), None, "{no_path}");
        }
        for ours in ["/", "/a/b", "/users/{id}", "/{*rest}", "/a.b/c-d_e", "/a:b", "/x;y", "/~me"] {
            assert_eq!((in_our_way(ours), is_our_way(ours)), (None, true), "{ours}");
        }
    }
}
