//! A request as an operator writes it: `GET /users/42`.

use http::{Method, Uri};

use super::route::is_pattern;

/// Reads a method and a path or URL. If there is no method, it is GET. The text after a `#` is left out.
///
/// # Errors
/// Says what is wrong with the text.
pub(crate) fn request_line(text: &str) -> Result<(Method, Uri), String> {
    let (method, target) = text.trim().split_once(' ').unwrap_or(("GET", text.trim()));
    let method = method.parse().map_err(|error| format!("{error}"))?;
    let target = target.trim();
    if !target.starts_with('/') && !target.contains("://") {
        return Err("a path begins with a slash, a URL with http://".to_owned());
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if path.starts_with('/') && is_pattern(path) {
        return Err(format!(
            "`{path}` is a pattern, and a request has one path, as /users/42; percent-encode a sign that is meant \
             itself: %2A for *"
        ));
    }
    // A browser does not send the text after a #.
    let target = target.split('#').next().unwrap_or_default();
    Ok((method, target.parse().map_err(|error| format!("{error}"))?))
}
