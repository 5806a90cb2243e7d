//! The request line: `GET /path?query HTTP/1.1` (RFC 9112, section 3).

use std::borrow::Cow;
use std::ops::Range;

use http::Method;

use super::record::LineFault;

/// The parts of a request's target (RFC 9112, section 3.2).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RequestTarget<'t> {
    /// The host of an absolute target, perhaps with a port.
    pub(super) host: Option<Cow<'t, str>>,
    pub(super) path: Cow<'t, str>,
    pub(super) query: Option<Cow<'t, str>>,
}

/// The method and the target of a request line.
pub(super) fn split(line: Cow<'_, str>) -> Result<(Cow<'_, str>, Cow<'_, str>), LineFault> {
    if matches!(&*line, "" | "-") {
        return Err(LineFault::NoRequest("the connection had no request"));
    }
    let no_http = LineFault::NoRequest("what the client sent is no HTTP request");
    let space = memchr::memchr(b' ', line.as_bytes()).ok_or(no_http)?;
    // Some clients send targets with spaces, although it is not allowed. Therefore the version is the last word.
    let version = memchr::memrchr(b' ', line.as_bytes());
    let version = version.filter(|at| *at > space && line[*at..].starts_with(" HTTP/"));
    let end = version.unwrap_or(line.len());
    let begin = space + line[space..end].bytes().take_while(|byte| *byte == b' ').count();
    let end = begin + line[begin..end].trim_end_matches(' ').len();
    if !is_method(&line[..space]) || begin == end {
        return Err(no_http);
    }
    Ok((part(&line, 0..space), part(&line, begin..end)))
}

/// A part of a text. It is borrowed if the text is.
fn part<'t>(text: &Cow<'t, str>, range: Range<usize>) -> Cow<'t, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[range]),
        Cow::Owned(text) => Cow::Owned(text[range].to_owned()),
    }
}

/// Whether a text can be a method (RFC 9110, section 9.1). For no method, logs have `-`.
pub(super) fn is_method(text: &str) -> bool {
    text != "-" && Method::from_bytes(text.as_bytes()).is_ok()
}

/// Splits a target into its parts.
pub(super) fn target(text: Cow<'_, str>) -> RequestTarget<'_> {
    let host = host(&text);
    let begin = host.as_ref().map_or(0, |host| host.end);
    let question = memchr::memchr(b'?', text[begin..].as_bytes()).map(|at| begin + at);
    let end = question.unwrap_or(text.len());
    let path = match host {
        // RFC 9110, section 4.2.3: the empty path of an http URL is `/`.
        Some(_) if begin == end => Cow::Borrowed("/"),
        _ => part(&text, begin..end),
    };
    let query = question.map(|at| part(&text, at + 1..text.len()));
    RequestTarget { host: host.map(|host| part(&text, host)), path, query }
}

/// Where the host of an absolute target is.
fn host(text: &str) -> Option<Range<usize>> {
    if text.starts_with('/') {
        return None;
    }
    let (_, rest) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme))?;
    let begin = text.len() - rest.len();
    Some(begin..begin + rest.find(['/', '?']).unwrap_or(rest.len()))
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
            assert_eq!(split(line.into()), Ok((method.into(), path.into())), "{line}");
            assert_eq!(split(line.to_owned().into()), Ok((method.into(), path.into())), "{line}");
        }
    }

    #[test]
    fn other_bytes_are_no_request() {
        for line in
            ["", "-", "\u{16}\u{3}\u{1}", "\u{16}\u{3} \u{1} x", "GET", "GET ", "- http://x:80- -"]
        {
            assert!(matches!(split(line.into()), Err(LineFault::NoRequest(_))), "{line}");
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
            let parts = RequestTarget {
                host: host.map(Cow::Borrowed),
                path: path.into(),
                query: query.map(Cow::Borrowed),
            };
            assert_eq!(target(text.into()), parts, "{text}");
            assert_eq!(target(text.to_owned().into()), parts, "{text}");
        }
    }
}
