//! The URL of an upstream's server.

use std::net::Ipv6Addr;

use super::super::values::{NO_LOGIN, socket_path};
use crate::config::reader::Wrong;
use crate::settings::{Endpoint, Scheme, ServerAddress};

pub(crate) const URL: &str = "expected a URL without a path, as in \"http://127.0.0.1:3000\"";

const SOCKET: &str = "expected a socket's absolute path, as in \"unix:/run/api.sock\"";

const SCHEMES: &str = "expected `http://`, `https://`, `h2c://` or `unix:/` in front";

const HOST: &str = "expected a host's name or an address behind `://`, an IPv6 address in brackets";

const PORT: &str = "expected a port from 1 to 65535";

/// The server at a URL.
pub(crate) fn server_address(url: &str) -> Result<ServerAddress, Wrong> {
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
        _ => return Err(other_scheme(name, rest)),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(Wrong::other(NO_LOGIN));
    }
    match host_and_port(authority, default_port) {
        Ok((host, port)) if matches!(path, "" | "/") => Ok(ServerAddress {
            url: url.trim_end_matches('/').to_owned(),
            endpoint: Endpoint::Tcp { host, port },
            scheme,
        }),
        Ok(_) if path.starts_with('/') => {
            let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
            Err(Wrong::Because(format!(
                "{URL}; did you mean \"{name}://{authority}\" here, and `rewrite = \"{path}/{{*rest}}\"` in the route?"
            )))
        }
        Ok(_) => Err(Wrong::Near(format!("{name}://{authority}"))),
        Err(wrong) => Err(wrong),
    }
}

/// The scheme is not one of the four. `rest` is what stands after it.
fn other_scheme(name: &str, rest: &str) -> Wrong {
    let near = match name.to_ascii_lowercase().as_str() {
        "http" | "ws" => "http",
        "https" | "wss" | "grpcs" => "https",
        "h2c" | "h2" | "http2" | "grpc" => "h2c",
        _ => return Wrong::other(SCHEMES),
    };
    let near = format!("{near}://{rest}");
    match server_address(&near) {
        Ok(_) => Wrong::Because(format!("{SCHEMES}; did you mean \"{near}\"?")),
        Err(_) => Wrong::other(SCHEMES),
    }
}

/// `unix:/PATH`, or `unix:///PATH`, with an empty host as in a `file:` URL.
fn socket(url: &str, path: &str) -> Result<ServerAddress, Wrong> {
    let path = socket_path(path).ok_or_else(|| Wrong::other(SOCKET))?;
    let endpoint = Endpoint::Unix(path);
    Ok(ServerAddress { url: url.to_owned(), endpoint, scheme: Scheme::Http })
}

/// The host and the port of a URL.
///
/// # Errors
/// Which of them is wrong.
pub(in crate::config::section) fn host_and_port(
    authority: &str,
    default_port: u16,
) -> Result<(String, u16), Wrong> {
    let (host, rest) = split(authority).ok_or_else(|| Wrong::other(HOST))?;
    let port = match rest.strip_prefix(':') {
        // `parse` would accept a sign as well.
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().unwrap_or(0),
        None if rest.is_empty() => default_port,
        _ => 0,
    };
    match port {
        0 => Err(Wrong::other(PORT)),
        port => Ok((host.to_ascii_lowercase(), port)),
    }
}

/// The host, and what stands after it. `None` if the host is wrong.
fn split(authority: &str) -> Option<(&str, &str)> {
    const LONGEST: usize = 253;
    Some(if let Some(inner) = authority.strip_prefix('[') {
        let (address, rest) = inner.split_once(']')?;
        address.parse::<Ipv6Addr>().ok()?;
        (address, rest)
    } else {
        let (host, rest) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
        let fits = (1..=LONGEST).contains(&host.len())
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        (fits.then_some(host)?, rest)
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::values::LONGEST_SOCKET;
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
            assert!(url.trim_end_matches('/').ends_with(address.host().to_str().unwrap()), "{url}");
        }
    }

    #[test]
    fn a_socket_has_a_path() {
        for url in ["unix:/run/a@b.sock", "unix:///run/a@b.sock"] {
            let address = server_address(url).unwrap();
            assert_eq!(address.endpoint, Endpoint::Unix("/run/a@b.sock".into()), "{url}");
            assert_eq!((address.scheme, address.url.as_str()), (Scheme::Http, url));
            assert_eq!(address.host(), "localhost");
        }
        let long = format!("unix:/{}", "a".repeat(LONGEST_SOCKET));
        for url in ["unix:", "unix:a.sock", "unix://host/a", "unix:/run/", "unix:/a\0b", &long] {
            assert_eq!(server_address(url), Err(Wrong::other(SOCKET)), "{url}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let near = |text: &str| Wrong::Near(text.to_owned());
        let (host, port) = (|| Wrong::other(HOST), || Wrong::other(PORT));
        let scheme = |near: &str| Wrong::Because(format!("{SCHEMES}; did you mean \"{near}\"?"));
        let path = |near: &str| {
            let rewrite = "`rewrite = \"/v1/{*rest}\"` in the route";
            Wrong::Because(format!("{URL}; did you mean \"{near}\" here, and {rewrite}?"))
        };
        for (url, error) in [
            ("", Wrong::Expected),
            ("http://", host()),
            ("http://:80", host()),
            ("http://::1", host()),
            ("http://a:0", port()),
            ("http://a:", port()),
            ("http://a:+80", port()),
            ("http://a:65536", port()),
            ("http://u:p@a", Wrong::other(NO_LOGIN)),
            ("http://[::1", host()),
            ("http://[zz]", host()),
            ("http://a b", host()),
            ("ftp://a", Wrong::other(SCHEMES)),
            ("h2://", Wrong::other(SCHEMES)),
            ("h2://a", scheme("h2c://a")),
            ("grpc://a:1", scheme("h2c://a:1")),
            ("HTTPS://a", scheme("https://a")),
            ("http://a/v1", path("http://a")),
            ("https://a/v1", path("https://a")),
            ("http://a?x", near("http://a")),
            ("127.0.0.1:3000", near("http://127.0.0.1:3000")),
            ("localhost:3000", near("http://localhost:3000")),
        ] {
            assert_eq!(server_address(url), Err(error), "{url}");
        }
    }
}
