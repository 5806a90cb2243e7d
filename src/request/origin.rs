//! The origins of pages, and the patterns of `[cors]` that they match (RFC 6454; Fetch standard, `Origin` header).

use std::str::FromStr;

use http::uri::Scheme;

use super::route::HostPattern;

/// An origin, or a pattern for origins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OriginPattern {
    /// `*`: every origin.
    All,
    /// `null`: the origin of a page that has none of its own.
    Null,
    /// `https://app.example.com`, `https://*.example.com`, `http://localhost:*`.
    Site {
        scheme: String,
        host: HostPattern,
        /// A number, or `*` for any port. Empty for the default port of the scheme.
        port: String,
    },
}

impl OriginPattern {
    /// Whether the text of an `origin` field matches.
    pub(crate) fn matches(&self, origin: &[u8]) -> bool {
        let origin = std::str::from_utf8(origin).ok().and_then(|text| text.parse().ok());
        match (self, origin) {
            (Self::All, _) | (Self::Null, Some(Self::Null)) => true,
            (
                Self::Site { scheme, host, port },
                Some(Self::Site { scheme: of, host: HostPattern::Exact(at), port: on }),
            ) => *scheme == of && host.matches(&at) && on != "*" && (*port == on || port == "*"),
            _ => false,
        }
    }
}

impl FromStr for OriginPattern {
    type Err = String;

    /// # Errors
    /// If the text is no origin and no pattern. The error says what is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, place) = match text {
            "*" => return Ok(Self::All),
            "null" => return Ok(Self::Null),
            _ => text.split_once("://").ok_or("it has no scheme: expected `https://` before it")?,
        };
        if let Some((end, _)) = place.split_once(['/', '?', '#']) {
            return Err(format!("an origin has no path: expected \"{scheme}://{end}\""));
        }
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (place, None),
        };
        let named = scheme.parse::<Scheme>().ok().filter(|scheme| !scheme.as_str().is_empty());
        let named = named.ok_or_else(|| format!("`{scheme}` is no scheme, as `https` is one"))?;
        let scheme = named.as_str().to_lowercase();
        let no_port = |port| format!("`{port}` is no port: expected a number up to 65535, or `*`");
        let port = match port {
            None | Some("*") => port.unwrap_or_default().to_owned(),
            Some(port) if port.starts_with('+') => return Err(no_port(port)),
            // Browsers leave out the default port of the scheme.
            Some(port) => match (&*scheme, port.parse().map_err(|_| no_port(port))?) {
                ("http", 80_u16) | ("https", 443) => String::new(),
                (_, port) => port.to_string(),
            },
        };
        let host = host.parse().map_err(|_| match host {
            "*" => "`*` is no host: expected `*.` before a name, or `\"*\"` alone".to_owned(),
            _ => format!("`{host}` is no host, as `app.example.com` or `*.example.com` is one"),
        })?;
        Ok(Self::Site { scheme, host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_matches_by_scheme_host_and_port() {
        for (pattern, yes, no) in [
            (
                "https://app.example.com",
                &[
                    "https://app.example.com",
                    "https://app.example.com:443",
                    "HTTPS://App.Example.com",
                ][..],
                &[
                    "http://app.example.com",
                    "https://app.example.com:8443",
                    "https://app.example.com.evil.test",
                    "https://app.example.com@evil.test",
                    "https://app.example.com/",
                    "https://app.example.com https://app.example.com",
                    "https://a.app.example.com",
                    "app.example.com",
                    "null",
                    "",
                ][..],
            ),
            (
                "https://App.Example.com:8443",
                &["https://app.example.com:8443"],
                &["https://app.example.com", "https://app.example.com:84430"],
            ),
            (
                "https://app.example.com:443",
                &["https://app.example.com"],
                &["http://app.example.com:443"],
            ),
            (
                "https://*.example.com",
                &["https://a.example.com", "https://b.a.example.com"],
                &[
                    "https://example.com",
                    "https://*.example.com",
                    "https://aexample.com",
                    "https://a.example.com:8443",
                    "https://a.example.com:*",
                    "https://.example.com",
                    "https://evil.test/a.example.com",
                ],
            ),
            (
                "http://localhost:*",
                &["http://localhost", "http://localhost:80", "http://localhost:3000"],
                &[
                    "https://localhost:3000",
                    "http://localhost:x",
                    "http://localhost:",
                    "http://localhost:+1",
                ],
            ),
            ("http://*.localhost:*", &["http://a.localhost:3000"], &["http://localhost:3000"]),
            ("http://[::1]:3000", &["http://[0:0::1]:3000"], &["http://[::1]"]),
            ("http://[::1]", &["http://[::1]", "http://[::1]:80"], &["http://[::1]:3000"]),
            ("capacitor://localhost", &["capacitor://localhost"], &["http://localhost"]),
            ("*", &["https://a", "null"], &[]),
            ("null", &["null"], &["", "http://null", "Null"]),
        ] {
            let parsed: OriginPattern = pattern.parse().expect(pattern);
            for origin in yes {
                assert!(parsed.matches(origin.as_bytes()), "{pattern} {origin}");
            }
            for origin in no {
                assert!(!parsed.matches(origin.as_bytes()), "{pattern} {origin}");
            }
        }
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for (text, word) in [
            ("https://app.example.com/", "expected \"https://app.example.com\""),
            ("https://app.example.com:8443/a?b", "expected \"https://app.example.com:8443\""),
            ("https://app.example.com#a", "expected \"https://app.example.com\""),
            ("app.example.com", "no scheme"),
            ("*.example.com", "no scheme"),
            ("https://*", "`*` is no host"),
            ("https://a.*.example.com", "`a.*.example.com` is no host"),
            ("https://a:b@example.com", "`b@example.com` is no port"),
            ("https://example.com:", "`` is no port"),
            ("https://example.com:65536", "`65536` is no port"),
            ("https://", "`` is no host"),
            ("://a", "`` is no scheme"),
            ("*://a", "`*` is no scheme"),
            ("NULL", "no scheme"),
            ("", "no scheme"),
        ] {
            let error = text.parse::<OriginPattern>().expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
