//! Path patterns, and the advice for a pattern in another proxy's syntax.

use crate::config::reader::{Item, Wrong};
use crate::request::route::Pattern;

/// A path pattern.
pub(crate) fn pattern(item: &Item<'_>) -> Option<Pattern> {
    const EXPECTED: &str = "expected a path, as in \"/users/{id}\" or \"/static/{*rest}\"";
    let pattern: Pattern = item.parse(EXPECTED, |text| {
        text.parse().map_err(|error| match in_our_way(text) {
            Some(ours) => Wrong::Because(format!("{error}; did you mean \"{ours}\"?")),
            None => Wrong::Because(format!("{error}")),
        })
    })?;
    // A suggestion repeats the text, which may be a secret.
    if let Some(ours) = in_our_way(pattern.as_str()).filter(|_| item.is_shown()) {
        let title = format!("the path \"{}\" is matched letter by letter", pattern.as_str());
        item.cx.warning(&item.span, title, format!("did you mean \"{ours}\"?"));
    }
    Some(pattern)
}

/// The path in tidegate's syntax. `None` where the path has tidegate's syntax already.
fn in_our_way(path: &str) -> Option<String> {
    // The anchors of a regular expression are dropped: a pattern always matches the whole path.
    let plain = path.trim_start_matches('^').trim_end_matches('$');
    let mut segments: Vec<String> = plain.split('/').map(segment).collect();
    let rest = segments.iter().position(|segment| segment == REST);
    segments.truncate(rest.map_or(segments.len(), |place| place + 1));
    let mut ours = segments.join("/");
    if !ours.starts_with('/') {
        ours.insert(0, '/');
    }
    (ours != path).then_some(ours)
}

const REST: &str = "{*rest}";

fn segment(text: &str) -> String {
    // `{id:[0-9]+}` is a parameter with a regular expression in another proxy.
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    if let Some((name, _)) = inner.and_then(|inner| inner.split_once(':')) {
        return named(name);
    }
    if inner.is_some() {
        return text.to_owned();
    }
    if matches!(text, "*" | "**" | ".*" | "(.*)" | "(.*)?" | ".+" | "(.+)") {
        return REST.to_owned();
    }
    if let Some(name) = text.strip_prefix(':').filter(|name| is_name(name)) {
        return named(name);
    }
    if let Some(inner) = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
        // `<int:id>` as well as `<id>`.
        return named(inner.rsplit(':').next().unwrap_or(inner));
    }
    if is_expression(text) { named("id") } else { text.to_owned() }
}

fn named(name: &str) -> String {
    if is_name(name) { format!("{{{name}}}") } else { "{id}".to_owned() }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !name.is_empty() && name.chars().all(fits)
}

/// Whether a segment has signs that only a regular expression has.
fn is_expression(text: &str) -> bool {
    ["(", "[", "\\", "+)", ".*", ".+"].iter().any(|sign| text.contains(sign))
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
        ] {
            assert_eq!(in_our_way(theirs).as_deref(), Some(ours), "{theirs}");
        }
        for ours in ["/", "/a/b", "/users/{id}", "/{*rest}", "/a.b/c-d_e", "/a:b", "/x;y", "/~me"] {
            assert_eq!(in_our_way(ours), None, "{ours}");
        }
    }
}
