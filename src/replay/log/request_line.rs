//! The request line: `GET /path?query HTTP/1.1` (RFC 9112, section 3).

use http::Method;

use super::record::LineFault;

/// The parts of a request's target (RFC 9112, section 3.2).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestTarget<'t> {
    /// The host of an absolute target, perhaps with a port.
    pub(super) host: Option<&'t str>,
    pub(super) path: &'t str,
    pub(super) query: Option<&'t str>,
}

/// The method and the target of a request line.
pub(super) fn split(line: &str) -> Result<(&str, &str), LineFault> {
    if matches!(line, "" | "-") {
        return Err(LineFault::NoRequest("the connection had no request"));
    }
    let no_http = LineFault::NoRequest("what the client sent is no HTTP request");
    let (method, rest) = line.split_once(' ').ok_or(no_http)?;
    // Some clients send targets with spaces, although it is not allowed. Therefore the version is the last word.
    let version = rest.rfind(' ').filter(|at| rest[*at..].starts_with(" HTTP/"));
    let target = rest[..version.unwrap_or(rest.len())].trim_matches(' ');
    match is_method(method) && !target.is_empty() {
        true => Ok((method, target)),
        false => Err(no_http),
    }
}

/// Whether a text can be a method (RFC 9110, section 9.1). For no method, logs have `-`.
pub(super) fn is_method(text: &str) -> bool {
    text != "-" && Method::from_bytes(text.as_bytes()).is_ok()
}

/// Splits a target into its parts.
pub(super) fn target(text: &str) -> RequestTarget<'_> {
    let absolute = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme));
    let (host, text) = match absolute {
        Some((_, rest)) => {
            let (host, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            (Some(host), rest)
        }
        None => (None, text),
    };
    let (path, query) = match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (text, None),
    };
    // RFC 9110, section 4.2.3: the empty path of an http URL is `/`.
    let path = if host.is_some() && path.is_empty() { "/" } else { path };
    RequestTarget { host, path, query }
}

fn is_scheme(text: &str) -> bool {
    let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    !text.is_empty() && text.bytes().all(may_stand)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_line_has_three_parts() {
        for (line, method, path) in [
            ("GET / HTTP/1.1", "GET", "/"),
            ("GET /", "GET", "/"),
            ("PROPFIND /a b HTTP/1.0", "PROPFIND", "/a b"),
            ("OPTIONS * HTTP/1.1", "OPTIONS", "*"),
            ("GET  /x  HTTP/1.1", "GET", "/x"),
            ("get /x HTTP/2.0", "get", "/x"),
            ("CONNECT example.com:443 HTTP/1.1", "CONNECT", "example.com:443"),
        ] {
            assert_eq!(split(line), Ok((method, path)), "{line}");
        }
    }

    #[test]
    fn other_bytes_are_no_request() {
        for line in
            ["", "-", "\u{16}\u{3}\u{1}", "\u{16}\u{3} \u{1} x", "GET", "GET ", "- http://x:80- -"]
        {
            assert!(matches!(split(line), Err(LineFault::NoRequest(_))), "{line}");
        }
    }

    #[test]
    fn a_target_may_have_a_host() {
        for (text, host, path, query) in [
            ("/a/b", None, "/a/b", None),
            ("/a?b=c?d", None, "/a", Some("b=c?d")),
            ("/a?", None, "/a", Some("")),
            ("https://example.com:443/a?b", Some("example.com:443"), "/a", Some("b")),
            ("http://example.com", Some("example.com"), "/", None),
            ("http://example.com?a", Some("example.com"), "/", Some("a")),
            ("/go?to=http://x/", None, "/go", Some("to=http://x/")),
            ("/a://b", None, "/a://b", None),
            ("*", None, "*", None),
            ("", None, "", None),
        ] {
            assert_eq!(target(text), RequestTarget { host, path, query }, "{text}");
        }
    }
}
