//! A request as an operator writes it: `GET /users/42`.

use std::fmt;

use http::{Method, Uri};

use super::route::is_pattern;

/// The target of a request as an operator writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WrittenTarget {
    pub(crate) uri: Uri,
    /// The whole text, if it has a `#`, at which [`Uri`] cuts. No request with this target is served.
    cut: Option<String>,
}

impl WrittenTarget {
    /// The path, or a text that is no path.
    pub(crate) fn path(&self) -> &str {
        self.cut.as_deref().unwrap_or_else(|| self.uri.path())
    }
}

impl From<Uri> for WrittenTarget {
    fn from(uri: Uri) -> Self {
        Self { uri, cut: None }
    }
}

impl fmt::Display for WrittenTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cut {
            Some(text) => f.write_str(text),
            None => self.uri.fmt(f),
        }
    }
}

/// Reads a method and a path or URL. If there is no method, it is GET. The text after the `#` of a URL is left out, as
/// browsers do.
///
/// # Errors
/// Says what is wrong with the text.
pub(crate) fn request_line(text: &str) -> Result<(Method, WrittenTarget), String> {
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
    let uri = target.parse().map_err(|error| format!("{error}"))?;
    let is_cut = target.starts_with('/') && target.contains('#');
    Ok((method, WrittenTarget { uri, cut: is_cut.then(|| target.to_owned()) }))
}
