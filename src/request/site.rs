//! What a browser says about the page that sends a request: pages of other sites must not get through to endpoints for
//! operators and their programs.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use http::uri::{Authority, Uri};

/// In this field a browser says whether the page that sends a request is from the same site (Fetch Metadata Request
/// Headers, section 2.3).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a browser says that a page of another site sends the request. Programs other than browsers send
/// none of these fields.
pub(crate) fn is_of_another_site(headers: &HeaderMap, uri: &Uri) -> bool {
    let site = headers.get_all(SEC_FETCH_SITE).iter();
    if site.into_iter().any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        return true;
    }
    let own = authority(headers, uri);
    headers.get_all(ORIGIN).iter().any(|origin| {
        // The scheme is not compared: a proxy in front of the endpoint may speak TLS.
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let named = origin.and_then(|(_, named)| named.parse::<Authority>().ok());
        named.is_none() || named != own
    })
}

/// The host that the request is sent to, with its port.
fn authority(headers: &HeaderMap, uri: &Uri) -> Option<Authority> {
    let host = || Authority::try_from(headers.get(HOST)?.as_bytes()).ok();
    uri.authority().cloned().or_else(host)
}

/// Whether the request's host is an address or localhost. This prevents DNS rebinding: a page in a browser
/// could reach the endpoint only by the page's own host name, if that name resolves to loopback.
pub(crate) fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    if headers.get_all(HOST).iter().count() > 1 {
        return false;
    }
    let Some(authority) = authority(headers, uri) else { return false };
    let name = authority.host();
    name.eq_ignore_ascii_case("localhost")
        || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn local(host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        is_local(&headers, &Uri::from_static("/metrics"))
    }

    #[test]
    fn only_addresses_and_localhost_are_local() {
        for host in ["127.0.0.1", "127.0.0.1:9", "localhost", "LOCALHOST:80", "[::1]:9", "[::1]"] {
            assert!(local(host), "{host}");
        }
        for host in ["evil.example", "evil.example:9", "127.0.0.1.evil.example", "localhost.x", ""]
        {
            assert!(!local(host), "{host}");
        }
        assert!(!is_local(&HeaderMap::new(), &Uri::from_static("/metrics")));
        let mut two = HeaderMap::new();
        two.append(HOST, HeaderValue::from_static("127.0.0.1"));
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!is_local(&two, &Uri::from_static("/metrics")));
    }
}
