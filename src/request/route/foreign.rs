//! Paths in the syntax of another proxy, and the same paths in tidegate's syntax.

use super::pattern::{Pattern, PatternError};

/// The advice if tidegate's syntax has no such path.
const NO_SAME_PATH: &str = "write {name} for a segment, and {*rest} for the rest of the path, and percent-encode a \
                            sign that is meant itself: %2A for *";

/// Reads a path as an operator writes it.
///
/// # Errors
/// Why it is no path, and what was perhaps meant. A path in another proxy's syntax is always an error. Taken letter by
/// letter it would match no request, and its limits would not apply.
pub(crate) fn read_pattern(text: &str) -> Result<Pattern, String> {
    let ours = || meant(text).unwrap_or_else(|| NO_SAME_PATH.to_owned());
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

/// What was perhaps meant, in tidegate's syntax.
fn meant(path: &str) -> Option<String> {
    if let Some(ours) = in_our_way(path, segment) {
        return Some(match ours.as_slice() {
            [one] => format!("did you mean \"{one}\"?"),
            several => {
                let several: Vec<_> = several.iter().map(|one| format!("\"{one}\"")).collect();
                format!("did you mean {}, each by itself?", several.join(" and "))
            }
        });
    }
    let near =
        in_our_way(path, |text| segment(text).or_else(|| is_mixed(text).then(|| named("id"))))?;
    let near: Vec<_> = near.iter().map(|one| format!("\"{one}\"")).collect();
    Some(format!("the nearest is {}, which matches more", near.join(" and ")))
}

/// The paths in tidegate's syntax that together match the same requests. `segment` translates a segment. `None` if
/// the path has tidegate's syntax already, and if this syntax has no such paths.
fn in_our_way(path: &str, segment: impl Fn(&str) -> Option<String>) -> Option<Vec<String>> {
    let (plain, is_beginning) = without_anchors(path)?;
    let mut ours = Vec::new();
    for plain in alternatives(&plain)? {
        let path = translated(&plain, &segment)?;
        if !is_beginning || path.ends_with("{*rest}") {
            ours.push(path);
        } else if path.ends_with('/') {
            ours.push(path + "{*rest}");
        } else {
            let below = format!("{path}/{{*rest}}");
            ours.extend([path, below]);
        }
    }
    let is_right = |path: &String| path.parse::<Pattern>().is_ok() && is_our_way(path);
    (ours.iter().all(is_right) && ours != [path]).then_some(ours)
}

/// The path without the anchors of a regular expression and without nginx's modifiers, and whether other paths may
/// begin with it. tidegate's patterns always match the whole path.
fn without_anchors(path: &str) -> Option<(String, bool)> {
    let (modifier, text) = MODIFIERS
        .iter()
        .find_map(|modifier| Some((*modifier, path.strip_prefix(modifier)?)))
        .unwrap_or(("", path));
    // Such an expression matches anywhere in a path.
    if text.contains(' ') || (modifier.starts_with('~') && !text.starts_with('^')) {
        return None;
    }
    let from_start = text.trim_start_matches('^');
    let plain = from_start.trim_end_matches('$');
    let is_open = plain.len() == from_start.len() && from_start.len() < text.len();
    // `[^/]` becomes `\w`, because its slash would split the segment.
    let spelled = plain.replace("[^/]", "\\w").replace("\\/", "/").replace("\\.", ".");
    Some(match spelled.strip_suffix("(/.*)?") {
        Some(before) => (before.to_owned(), true),
        None => (spelled, is_open || modifier == "^~ "),
    })
}

/// nginx's modifiers in front of a path, and the space after them.
const MODIFIERS: [&str; 4] = ["= ", "~ ", "~* ", "^~ "];

/// The path for each word of its first `(one|other)`. Without such words, the path itself.
fn alternatives(path: &str) -> Option<Vec<String>> {
    const MOST: usize = 4;
    let group = || {
        let (before, rest) = path.split_once('(')?;
        let (words, after) = rest.split_once(')')?;
        words.contains('|').then_some((before, words.trim_start_matches("?:"), after))
    };
    let Some((before, words, after)) = group() else { return Some(vec![path.to_owned()]) };
    let words: Vec<_> = words.split('|').collect();
    let is_counted = after.starts_with(['?', '*', '+', '{']);
    let is_few = words.len() <= MOST && !words.contains(&"") && !is_counted;
    is_few.then(|| words.iter().map(|word| format!("{before}{word}{after}")).collect())
}

/// The path with each segment translated. Parameters of one name get a number.
fn translated(path: &str, segment: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (mut ours, mut ids) = (Vec::new(), 0);
    for text in path.split('/') {
        let segment = segment(text)?;
        ids += u32::from(segment == "{id}");
        ours.push(if segment == "{id}" && ids > 1 { format!("{{id{ids}}}") } else { segment });
    }
    let ours = ours.join("/");
    Some(if ours.starts_with('/') { ours } else { format!("/{ours}") })
}

/// Whether the path has no sign of another proxy's syntax.
fn is_our_way(path: &str) -> bool {
    let is_plain = |text| segment(text).is_some_and(|ours| ours == text);
    let has_modifier = MODIFIERS.iter().any(|modifier| path.starts_with(modifier));
    !has_modifier && !path.starts_with('^') && !path.ends_with('$') && path.split('/').all(is_plain)
}

/// The segment in tidegate's syntax. `None` if another proxy's syntax says what tidegate's cannot say.
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

/// Whether a regular expression has classes of characters between plain letters, as in `v[0-9]+`, and surely no
/// slash.
fn is_mixed(text: &str) -> bool {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let class = match first {
            '[' => rest.split_once(']').map(|(_, after)| after),
            '\\' => rest.strip_prefix("\\d").or_else(|| rest.strip_prefix("\\w")),
            '(' | ')' | '+' | '?' | '{' | '}' | ',' | '.' | '_' | '-' => rest.get(1..),
            _ => rest.strip_prefix(|c: char| c.is_ascii_alphanumeric()),
        };
        let Some(after) = class else { return false };
        rest = after;
    }
    !text.contains(".+")
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
            ("^/api/.*$", "/api/{*rest}"),
            ("^/users/[0-9]+$", "/users/{id}"),
            ("/users/(\\d+)/orders", "/users/{id}/orders"),
            ("/users/{id:[0-9]+}", "/users/{id}"),
            ("/users/[^/]+/orders", "/users/{id}/orders"),
            ("/files/[a-f0-9]{32}", "/files/{id}"),
            ("/a/[0-9]+/b/[0-9]+", "/a/{id}/b/{id2}"),
            ("/api/*path", "/api/{*path}"),
            ("/api/{path:.*}", "/api/{*path}"),
            ("/api/<path:rest>", "/api/{*rest}"),
            ("/api$", "/api"),
            ("/x/\\d+$", "/x/{id}"),
            ("^\\/api\\/img\\.png$", "/api/img.png"),
            ("*", "/{*rest}"),
            ("api/:id", "/api/{id}"),
            ("= /exact", "/exact"),
            ("^~ /static/", "/static/{*rest}"),
            ("~ ^/x/", "/x/{*rest}"),
            ("~ ^/x/.*$", "/x/{*rest}"),
        ] {
            let expected = format!("did you mean \"{ours}\"?");
            assert_eq!(meant(theirs), Some(expected), "{theirs}");
            assert!(!is_our_way(theirs), "{theirs}");
        }
        for (theirs, several) in [
            ("/x/(a|b)", "\"/x/a\" and \"/x/b\""),
            ("^/(?:v1|v2)/.*$", "\"/v1/{*rest}\" and \"/v2/{*rest}\""),
            ("~* ^/x", "\"/x\" and \"/x/{*rest}\""),
            ("/api(/.*)?", "\"/api\" and \"/api/{*rest}\""),
        ] {
            let expected = format!("did you mean {several}, each by itself?");
            assert_eq!(meant(theirs), Some(expected), "{theirs}");
            assert!(!is_our_way(theirs), "{theirs}");
        }
        for (theirs, near) in [
            ("^/v[0-9]+/.*$", "/{id}/{*rest}"),
            ("/v\\d+/users/:user", "/{id}/users/{user}"),
            ("/[a-z]+\\.html", "/{id}"),
        ] {
            let expected = format!("the nearest is \"{near}\", which matches more");
            assert_eq!(meant(theirs), Some(expected), "{theirs}");
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
            "/img/(.*)\\.png",
            "/(a|b|)/x",
            "/(a|b)+/x",
            "~ \\.php$",
            "~ /x$",
            "PathPrefix(`/api`)",
            "/a//*",
        ] {
            assert_eq!((meant(theirs), is_our_way(theirs)), (None, false), "{theirs}");
        }
        for ours in ["/", "/a/b", "/users/{id}", "/{*rest}", "/a.b/c-d_e", "/a:b", "/x;y", "/~me"] {
            assert_eq!((meant(ours), is_our_way(ours)), (None, true), "{ours}");
        }
    }

    proptest! {
        #[test]
        fn each_suggestion_is_a_valid_pattern(path in "[~=]?[*]?[ ]?[\\^]?(/?[a|:*(){}<>.+?$\\[\\]\\\\0-9d]{0,6}){0,4}") {
            let each = in_our_way(&path, segment).unwrap_or_default();
            for ours in each {
                prop_assert!(ours.parse::<Pattern>().is_ok(), "{path} {ours}");
            }
            let _ = meant(&path);
        }
    }
}
