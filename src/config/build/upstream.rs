//! `[upstreams.NAME]`.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::{Named, name, named};
use crate::config::Overrides;
use crate::config::fields::{MAX_RETRIES, UPSTREAM, UPSTREAM_SERVER};
use crate::config::file::{Item, Section, Zero};
use crate::config::problem::{Problem, Span};
use crate::limit::name::Name;
use crate::plan::{Balance, ServerAddress, UpstreamSpec};

const URL: &str = "expected a URL without a path, as in \"http://127.0.0.1:3000\"";

pub(super) fn build(root: &mut Section<'_>, overrides: &Overrides) -> Vec<Named<UpstreamSpec>> {
    let sections = named(root, "upstreams", &UPSTREAM);
    let cx = root.cx;
    let replaced = overrides.upstream.as_ref().and_then(|url| {
        if sections.len() != 1 {
            let count = if sections.is_empty() { "no upstream" } else { "several upstreams" };
            cx.note(
                Problem::general(format!(
                    "`--upstream` cannot replace anything: the file has {count}"
                ))
                .help("it is for files with exactly one upstream"),
            );
            return None;
        }
        match server_address(url) {
            Ok(address) => Some(address),
            Err(error) => {
                cx.note(Problem::general(format!(
                    "`--upstream` {}",
                    error.about(&format!("\"{url}\""))
                )));
                None
            }
        }
    });
    let built = sections.into_iter().map(|(text, span, section)| {
        let name = name(cx, &text, span.clone());
        let spec = section.zip(name).map(|(section, name)| {
            one(section, overrides.upstream.is_some(), replaced.as_ref(), name)
        });
        Named { name: text, span, value: spec }
    });
    built.collect()
}

fn one(
    mut section: Section<'_>,
    overridden: bool,
    replaced: Option<&ServerAddress>,
    name: Name,
) -> UpstreamSpec {
    let servers = if overridden {
        section.take("servers");
        replaced.into_iter().cloned().collect()
    } else {
        servers(&mut section)
    };
    let balance = section.take("balance").and_then(|item| {
        item.word(
            &[("least-requests", Balance::LeastRequests), ("round-robin", Balance::RoundRobin)],
            &["hash"],
        )
    });
    let spec = UpstreamSpec {
        name,
        servers,
        balance: balance.unwrap_or(Balance::LeastRequests),
        connect_timeout: section.duration("connect_timeout", Zero::Refused, secs(2)),
        response_timeout: section.duration("response_timeout", Zero::Refused, secs(30)),
        idle_timeout: section.duration("idle_timeout", Zero::Refused, secs(60)),
        retries: u32::try_from(section.whole("retries", 0..=MAX_RETRIES, 1)).unwrap_or(1),
    };
    section.finish();
    spec
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn servers(section: &mut Section<'_>) -> Vec<ServerAddress> {
    let Some(item) = section.require("servers", "[\"http://127.0.0.1:3000\"]") else {
        return Vec::new();
    };
    let items = item.list().unwrap_or_default();
    if items.is_empty() {
        item.reject("expected at least one server: `[\"http://127.0.0.1:3000\"]`");
    }
    let mut servers: Vec<(ServerAddress, Span)> = Vec::new();
    for item in &items {
        let Some(server) = server(item) else { continue };
        let same = |(other, _): &&(ServerAddress, Span)| {
            (&other.host, other.port) == (&server.host, server.port)
        };
        if let Some((_, first)) = servers.iter().find(same) {
            item.cx.note(
                Problem::error(
                    item.span.clone(),
                    format!("`servers` has {} twice", server.url),
                    "remove it",
                )
                .related(first.clone(), "first here"),
            );
        }
        servers.push((server, item.span.clone()));
    }
    servers.into_iter().map(|(server, _)| server).collect()
}

fn server(item: &Item<'_>) -> Option<ServerAddress> {
    if item.is_table() {
        let mut section = item.section(&UPSTREAM_SERVER, "a server")?;
        let url = section.require("url", "\"http://127.0.0.1:3000\"");
        section.finish();
        return url.as_ref().and_then(server);
    }
    let text = item.text_as(URL)?;
    if text.text.contains('@') {
        // A password may stand in front of it.
        item.clone().secret().reject("expected a URL without a user and a password");
        return None;
    }
    match server_address(&text.text) {
        Ok(address) => Some(address),
        Err(UrlError::Later(scheme)) => {
            item.fault(
                format!("a server at `{scheme}:` is not supported yet"),
                "expected `http://HOST:PORT`",
            );
            None
        }
        Err(UrlError::Wrong { near }) => {
            item.cx.note(match near.filter(|_| text.shown().is_some()) {
                Some(near) => text.refuse(format!("{URL}; did you mean \"{near}\"?")),
                None => text.refuse(URL),
            });
            None
        }
    }
}

/// Why a text is no server.
#[derive(Debug, PartialEq, Eq)]
enum UrlError {
    /// Of a scheme that is not supported yet.
    Later(String),
    /// No URL of a server; perhaps this was meant.
    Wrong { near: Option<String> },
}

impl UrlError {
    /// What is wrong with the command line's `url`.
    fn about(&self, url: &str) -> String {
        match self {
            Self::Later(scheme) => format!("{url}: a server at `{scheme}:` is not supported yet"),
            Self::Wrong { near: Some(near) } => {
                format!("cannot be {url}: {URL}; did you mean \"{near}\"?")
            }
            Self::Wrong { near: None } => format!("cannot be {url}: {URL}"),
        }
    }
}

fn server_address(url: &str) -> Result<ServerAddress, UrlError> {
    let scheme = url.split(':').next().unwrap_or_default();
    if matches!(scheme, "https" | "h2c" | "unix") {
        return Err(UrlError::Later(scheme.to_owned()));
    }
    let Some(rest) = url.strip_prefix("http://") else {
        let near = format!("http://{url}");
        let fits = !url.contains("://") && server_address(&near).is_ok();
        return Err(UrlError::Wrong { near: fits.then_some(near) });
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match host_and_port(authority) {
        Some((host, port)) if matches!(path, "" | "/") => {
            Ok(ServerAddress { host, port, url: url.trim_end_matches('/').to_owned() })
        }
        Some(_) => Err(UrlError::Wrong { near: Some(format!("http://{authority}")) }),
        None => Err(UrlError::Wrong { near: None }),
    }
}

fn host_and_port(authority: &str) -> Option<(String, u16)> {
    const HTTP: u16 = 80;
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
        // A sign would be read, too.
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok()?,
        None if rest.is_empty() => HTTP,
        _ => return None,
    };
    (port != 0).then(|| (host.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_urls_without_a_path() {
        for (url, host, port) in [
            ("http://127.0.0.1:3000", "127.0.0.1", 3000),
            ("http://API.internal", "api.internal", 80),
            ("http://[::1]:8080", "::1", 8080),
            ("http://[::1]/", "::1", 80),
            ("http://my_service:1/", "my_service", 1),
        ] {
            let address = server_address(url).unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{url}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let near = |text: &str| UrlError::Wrong { near: Some(text.to_owned()) };
        for (url, error) in [
            ("", UrlError::Wrong { near: None }),
            ("http://", UrlError::Wrong { near: None }),
            ("http://:80", UrlError::Wrong { near: None }),
            ("http://a:0", UrlError::Wrong { near: None }),
            ("http://a:", UrlError::Wrong { near: None }),
            ("http://a:+80", UrlError::Wrong { near: None }),
            ("http://a:65536", UrlError::Wrong { near: None }),
            ("http://u:p@a", UrlError::Wrong { near: None }),
            ("http://[::1", UrlError::Wrong { near: None }),
            ("http://[zz]", UrlError::Wrong { near: None }),
            ("http://a b", UrlError::Wrong { near: None }),
            ("ftp://a", UrlError::Wrong { near: None }),
            ("http://a/v1", near("http://a")),
            ("http://a?x", near("http://a")),
            ("127.0.0.1:3000", near("http://127.0.0.1:3000")),
            ("localhost:3000", near("http://localhost:3000")),
            ("https://a", UrlError::Later("https".to_owned())),
            ("unix:/run/a", UrlError::Later("unix".to_owned())),
        ] {
            assert_eq!(server_address(url), Err(error), "{url}");
        }
    }
}
