//! `[upstreams.NAME]`.

use std::net::Ipv6Addr;

use super::tls::{self, UPSTREAM_TLS};
use super::values::{Named, named, once, socket_path};
use crate::config::Overrides;
use crate::config::reader::{Item, Problem, Section, Span, Wrong};
use crate::config::setting::{Settings, at, compared, fields, listed, plain, read, word, words};
use crate::config::shape::Fallback::{Required, Value, Words};
use crate::config::shape::{Kind, Shape, field};
use crate::limit::name::Name;
use crate::plan::{Balance, Endpoint, Scheme, ServerAddress, UpstreamSpec};

type Spec = UpstreamSpec;

/// `[upstreams.NAME]`.
pub(crate) static UPSTREAM: Shape = Shape::new("[upstreams.NAME]", || fields(SETTINGS)).later(&[
    "max_requests",
    "queue_timeout",
    "health",
    "hash_key",
    "respect_retry_after",
]);

#[rustfmt::skip]
pub(crate) static SETTINGS: Settings<Spec> = &[
    &compared(at!(servers), Kind::List(&Kind::Either(&[Kind::Text, Kind::Table(&UPSTREAM_SERVER)])), Required,
        "`http://`, `https://` or `h2c://` URLs without a path, or `unix:/PATH`")
        .shown(|servers, _| listed(servers.iter().map(|server| &server.url))),
    &word(at!(balance), Value("\"least-requests\""), "how a request's server is chosen"),
    &plain(at!(connect_timeout), Kind::TIME_ABOVE_ZERO, Value("\"2s\""),
        "to connect to one server; 504 past it, after trying the others"),
    &plain(at!(response_timeout), Kind::TIME_ABOVE_ZERO, Value("\"30s\""), "to the response's head; 504"),
    &plain(at!(idle_timeout), Kind::TIME_ABOVE_ZERO, Value("\"60s\""), "between two reads of a body"),
    &plain(at!(retries), Kind::Whole(0, 10), Value("1"),
        "further tries where nothing was sent, or where a second try is safe"),
    &compared(at!(tls), Kind::Table(&UPSTREAM_TLS), Words("the machine's authorities"),
        "how servers by `https` are verified, and what they are shown"),
];

words!(Balance { "least-requests" => LeastRequests, "round-robin" => RoundRobin } later "hash");

/// One of an upstream's `servers`, written as a table.
pub(crate) static UPSTREAM_SERVER: Shape =
    Shape::new("a server", || fields(OF_SERVER)).later(&["weight"]);

static OF_SERVER: Settings<()> = &[&field("url", Kind::Text, Required, "as in `servers`")];

const URL: &str = "expected a URL without a path, as in \"http://127.0.0.1:3000\"";

const SOCKET: &str = "expected a socket's absolute path, as in \"unix:/run/api.sock\"";

/// The upstreams. If the file has exactly one upstream, the command line can replace its servers by one
/// server.
pub(crate) fn build(root: &mut Section<'_>, overrides: &Overrides) -> Vec<Named<UpstreamSpec>> {
    let url = overrides.upstream.as_deref();
    let system = tls::SystemRoots::new();
    let cx = root.cx;
    let upstreams = named(root, "upstreams", &UPSTREAM, |section, name| {
        Some(one(section, name, url.map(|url| server_address(url).ok()), &system))
    });
    match url.map(server_address) {
        Some(_) if upstreams.len() != 1 => {
            let count = if upstreams.is_empty() { "no upstream" } else { "several upstreams" };
            let title = format!("`--upstream` cannot replace anything: the file has {count}");
            cx.note(Problem::general(title)).help("it is for files with exactly one upstream");
        }
        None | Some(Ok(_)) => {}
        Some(Err(error)) => {
            let (url, expected) = (url.unwrap_or_default(), error.instead(URL, true));
            cx.note(Problem::general(format!("`--upstream` cannot be \"{url}\": {expected}")));
        }
    }
    upstreams
}

/// `replaced` is the command line's server, which replaces the file's servers. The inner `None` means that
/// the command line's URL is wrong.
fn one(
    mut section: Section<'_>,
    name: Name,
    replaced: Option<Option<ServerAddress>>,
    system: &tls::SystemRoots,
) -> UpstreamSpec {
    let servers = match replaced {
        Some(server) => {
            let span = section.take("servers").map_or(section.span.clone(), |item| item.span);
            server.into_iter().map(|server| (server, span.clone())).collect()
        }
        None => servers(&mut section),
    };
    let secure = servers.iter().filter(|(server, _)| server.scheme == Scheme::Https);
    let secure: Vec<_> = secure.map(|(server, span)| (&server.endpoint, span)).collect();
    let unused = "none of its servers is reached by `https://`";
    let unused = (!servers.is_empty()).then_some(unused);
    let tls = tls::towards(&mut section, &secure, unused, system);
    let servers = servers.into_iter().map(|(server, _)| server).collect();
    read(SETTINGS, section, UpstreamSpec { servers, tls, ..UpstreamSpec::new(name) })
}

fn servers(section: &mut Section<'_>) -> Vec<(ServerAddress, Span)> {
    let Some(item) = section.require("servers", "[\"http://127.0.0.1:3000\"]") else {
        return Vec::new();
    };
    let Some(items) = item.list() else { return Vec::new() };
    if items.is_empty() {
        item.reject("expected at least one server: `[\"http://127.0.0.1:3000\"]`");
    }
    once(&items, server, |one, other| one.endpoint == other.endpoint, |server| server.url.clone())
}

fn server(item: &Item<'_>) -> Option<ServerAddress> {
    if item.is_table() {
        let mut section = item.section(&UPSTREAM_SERVER, "a server")?;
        let url = section.require("url", "\"http://127.0.0.1:3000\"");
        section.finish();
        return url.as_ref().and_then(server);
    }
    let text = item.text_as(URL)?;
    if text.text.contains('@') && !text.text.starts_with("unix:") {
        // The text in front of `@` may be a password.
        item.clone().secret().reject("expected a URL without a user and a password");
        return None;
    }
    item.parse(URL, server_address)
}

fn server_address(url: &str) -> Result<ServerAddress, Wrong> {
    if let Some(path) = url.strip_prefix("unix:") {
        return socket(url, path);
    }
    let Some((name, rest)) = url.split_once("://") else {
        let near = format!("http://{url}");
        let fits = server_address(&near).is_ok();
        return Err(Wrong::near(fits.then_some(near)));
    };
    let (scheme, default_port) = match name {
        "http" => (Scheme::Http, 80),
        "https" => (Scheme::Https, 443),
        "h2c" => (Scheme::H2c, 80),
        _ => return Err(Wrong::Expected),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match host_and_port(authority, default_port) {
        Some((host, port)) if matches!(path, "" | "/") => Ok(ServerAddress {
            url: url.trim_end_matches('/').to_owned(),
            endpoint: Endpoint::Tcp { host, port },
            scheme,
        }),
        Some(_) => Err(Wrong::Near(format!("{name}://{authority}"))),
        None => Err(Wrong::Expected),
    }
}

/// `unix:/PATH`, or `unix:///PATH`, with an empty host as in a `file:` URL.
fn socket(url: &str, path: &str) -> Result<ServerAddress, Wrong> {
    let path = socket_path(path).ok_or_else(|| Wrong::other(SOCKET))?;
    let endpoint = Endpoint::Unix(path);
    Ok(ServerAddress { url: url.to_owned(), endpoint, scheme: Scheme::Http })
}

fn host_and_port(authority: &str, default_port: u16) -> Option<(String, u16)> {
    const LONGEST: usize = 253;
    let (host, rest) = if let Some(inner) = authority.strip_prefix('[') {
        let (address, rest) = inner.split_once(']')?;
        address.parse::<Ipv6Addr>().ok()?;
        (address, rest)
    } else {
        let (host, rest) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
        let fits = (1..=LONGEST).contains(&host.len())
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        (fits.then_some(host)?, rest)
    };
    let port = match rest.strip_prefix(':') {
        // `parse` would accept a sign as well.
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok()?,
        None if rest.is_empty() => default_port,
        _ => return None,
    };
    (port != 0).then(|| (host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::super::values::LONGEST_SOCKET;
    use super::*;

    #[test]
    fn servers_are_urls_without_a_path() {
        use Scheme::{H2c, Http, Https};
        for (url, scheme, host, port) in [
            ("http://127.0.0.1:3000", Http, "127.0.0.1", 3000),
            ("http://API.internal", Http, "api.internal", 80),
            ("http://[::1]:8080", Http, "::1", 8080),
            ("http://[::1]/", Http, "::1", 80),
            ("http://my_service:1/", Http, "my_service", 1),
            ("https://api.internal", Https, "api.internal", 443),
            ("https://[::1]:8443", Https, "::1", 8443),
            ("h2c://api.internal", H2c, "api.internal", 80),
        ] {
            let address = server_address(url).unwrap();
            assert_eq!(address.endpoint, Endpoint::Tcp { host: host.to_owned(), port }, "{url}");
            assert_eq!(address.scheme, scheme, "{url}");
        }
    }

    #[test]
    fn a_socket_has_a_path() {
        for url in ["unix:/run/a@b.sock", "unix:///run/a@b.sock"] {
            let address = server_address(url).unwrap();
            assert_eq!(address.endpoint, Endpoint::Unix("/run/a@b.sock".into()), "{url}");
            assert_eq!((address.scheme, address.url.as_str()), (Scheme::Http, url));
        }
        let long = format!("unix:/{}", "a".repeat(LONGEST_SOCKET));
        for url in ["unix:", "unix:a.sock", "unix://host/a", "unix:/run/", "unix:/a\0b", &long] {
            assert_eq!(server_address(url), Err(Wrong::other(SOCKET)), "{url}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let near = |text: &str| Wrong::Near(text.to_owned());
        let wrong = || Wrong::Expected;
        for (url, error) in [
            ("", wrong()),
            ("http://", wrong()),
            ("http://:80", wrong()),
            ("http://a:0", wrong()),
            ("http://a:", wrong()),
            ("http://a:+80", wrong()),
            ("http://a:65536", wrong()),
            ("http://u:p@a", wrong()),
            ("http://[::1", wrong()),
            ("http://[zz]", wrong()),
            ("http://a b", wrong()),
            ("ftp://a", wrong()),
            ("http://a/v1", near("http://a")),
            ("https://a/v1", near("https://a")),
            ("http://a?x", near("http://a")),
            ("127.0.0.1:3000", near("http://127.0.0.1:3000")),
            ("localhost:3000", near("http://localhost:3000")),
        ] {
            assert_eq!(server_address(url), Err(error), "{url}");
        }
    }
}
