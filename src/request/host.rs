//! The host of a request in its normal form, as routes and keys compare it.

use std::net::Ipv6Addr;
use std::str::FromStr;

use http::header::HOST;
use http::{HeaderMap, Version};
use memchr::memchr;
use smallvec::SmallVec;

/// A host in its normal form: lower case, without a trailing dot, without the port; an IPv6
/// address in brackets, in its shortest spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host(HostText);

/// ASCII bytes. Every request has a host, and most hosts fit here without heap memory.
type HostText = SmallVec<[u8; 56]>;

/// Why a request has no valid host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostError {
    /// The request has no host, and its HTTP version demands a host.
    #[error("the request has no host")]
    Missing,
    /// The request has two `host` headers or more.
    #[error("the request has more than one host")]
    Repeated,
    /// The host is not a valid name or address, or its port is not a number up to 65535.
    #[error("the request's host is malformed")]
    Malformed,
}

/// The length of the longest DNS name.
const MAX_LENGTH: usize = 253;

impl Host {
    /// The request's host: the authority of an absolute-form target, or else the `host` header. An HTTP/1.0
    /// request without a host has the empty host.
    ///
    /// # Errors
    /// If there is no host, more than one, or a malformed host. HTTP/1.1 demands the header even with an
    /// absolute-form target. The header must then be valid, although only the target counts.
    pub(crate) fn of(
        authority: Option<&str>,
        headers: &HeaderMap,
        version: Version,
    ) -> Result<Self, HostError> {
        let mut lines = headers.get_all(HOST).iter();
        let header = match lines.next() {
            Some(line) => Some(Self::parse(line.as_bytes())?),
            None if version == Version::HTTP_11 => return Err(HostError::Missing),
            None => None,
        };
        if lines.next().is_some() {
            return Err(HostError::Repeated);
        }
        match (authority, header) {
            (Some(authority), _) => Self::parse(authority.as_bytes()),
            (None, Some(header)) => Ok(header),
            (None, None) if version < Version::HTTP_11 => Ok(Self(HostText::new())),
            (None, None) => Err(HostError::Missing),
        }
    }

    /// The normal form, as bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The normal form; empty for an HTTP/1.0 request without a host.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The normal form of a text that must have no port.
    pub(super) fn without_port(text: &str) -> Option<Self> {
        match text.strip_prefix('[') {
            Some(literal) => {
                let address: Ipv6Addr = literal.strip_suffix(']')?.parse().ok()?;
                Some(Self(format!("[{address}]").into_bytes().into()))
            }
            None => normal_name(text.as_bytes()).map(Self),
        }
    }

    /// A host with or without a port, as it stands in a `host` header.
    fn parse(text: &[u8]) -> Result<Self, HostError> {
        let colon = match text {
            // The last colon, unless it is inside the brackets of an IPv6 address.
            [b'[', ..] => text.iter().rposition(|byte| matches!(byte, b':' | b']')),
            _ => memchr(b':', text),
        };
        let (host, port) = match colon.and_then(|at| text.split_at_checked(at)) {
            Some((host, [b':', port @ ..])) => (host, port),
            _ => (text, &[][..]),
        };
        let host = match host {
            [b'[', ..] => std::str::from_utf8(host).ok().and_then(Self::without_port),
            _ => normal_name(host).map(Self),
        };
        host.filter(|_| is_port(port)).ok_or(HostError::Malformed)
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text.as_bytes())
    }
}

/// Whether this is empty or a number up to 65535.
fn is_port(digits: &[u8]) -> bool {
    let value = digits.iter().try_fold(0_u16, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
        value.checked_mul(10)?.checked_add(u16::from(digit))
    });
    value.is_some()
}

/// A name in lower case without its trailing dot; `None` if it is no name.
fn normal_name(text: &[u8]) -> Option<HostText> {
    let text = text.strip_suffix(b".").unwrap_or(text);
    if text.len() > MAX_LENGTH {
        return None;
    }
    let mut name = HostText::from_slice(text);
    let mut before = b'.';
    for byte in &mut *name {
        *byte = NORMAL[usize::from(*byte)];
        if *byte == 0 || (*byte == b'.' && before == b'.') {
            return None;
        }
        before = *byte;
    }
    (before != b'.').then_some(name)
}

/// For each byte its normal form in a name; 0 for a byte that no name may have.
const NORMAL: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        let lower = byte.to_ascii_lowercase();
        if matches!(lower, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.') {
            table[byte as usize] = lower;
        }
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Uri};
    use proptest::prelude::*;

    fn of(target: &str, hosts: &[&str], version: Version) -> Result<String, HostError> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_bytes(host.as_bytes()).expect("a value"));
        }
        let uri: Uri = target.parse().expect("a target");
        let authority = uri.authority().map(|authority| authority.as_str());
        Host::of(authority, &headers, version).map(|host| host.as_str().to_owned())
    }

    #[test]
    fn a_host_has_one_normal_form() {
        for (header, host) in [
            ("example.com", "example.com"),
            ("EXAMPLE.Com", "example.com"),
            ("example.com.", "example.com"),
            ("example.com.:80", "example.com"),
            ("example.com:8080", "example.com"),
            ("example.com:", "example.com"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("my_host-1", "my_host-1"),
            ("[2001:DB8:0::1]", "[2001:db8::1]"),
            ("[::1]:443", "[::1]"),
        ] {
            assert_eq!(of("/", &[header], Version::HTTP_11), Ok(host.into()), "{header}");
        }
    }

    #[test]
    fn an_invalid_host_is_refused() {
        let long = "a".repeat(254);
        let headers = ". a..b .a a.. a,b a/b a@b user:pw@a a:b a:1:2 a:65536 a:+1 ::1 \
            [::1 [::1]x [::1]] [] [1.2.3.4] [fe80::1%25e] ex%61mple größe :80 *";
        for header in headers.split(' ').chain(["", "a b", &long]) {
            let found = of("/", &[header], Version::HTTP_11);
            assert_eq!(found, Err(HostError::Malformed), "{header}");
        }
    }

    #[test]
    fn the_target_wins_and_the_header_must_be_sound() {
        use HostError::*;
        use Version as V;
        let absolute = "http://A.example:81/x";
        for (name, target, hosts, version, expected) in [
            ("target wins", absolute, &["b.example"][..], V::HTTP_11, Ok("a.example")),
            ("target alone", absolute, &[], V::HTTP_11, Err(Missing)),
            ("target alone, 1.0", absolute, &[], V::HTTP_10, Ok("a.example")),
            ("target alone, h2", absolute, &[], V::HTTP_2, Ok("a.example")),
            ("target, bad header", absolute, &["a b"], V::HTTP_11, Err(Malformed)),
            ("user in target", "http://u@a/", &["a"], V::HTTP_11, Err(Malformed)),
            ("two", "/", &["a", "b"], V::HTTP_11, Err(Repeated)),
            ("two alike", "/", &["a", "a"], V::HTTP_10, Err(Repeated)),
            ("two beside target", absolute, &["a", "a"], V::HTTP_11, Err(Repeated)),
            ("none", "/", &[], V::HTTP_11, Err(Missing)),
            ("none, h2", "/", &[], V::HTTP_2, Err(Missing)),
            ("none, 1.0", "/", &[], V::HTTP_10, Ok("")),
            ("one, 1.0", "/", &["a"], V::HTTP_10, Ok("a")),
            ("empty, 1.0", "/", &[""], V::HTTP_10, Err(Malformed)),
        ] {
            assert_eq!(of(target, hosts, version), expected.map(str::to_owned), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_normal_form_is_its_own_normal_form(text in "[a-zA-Z0-9:.\\[\\]-]{0,12}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert_eq!(host.as_str().parse(), Ok(host.clone()));
            }
        }
    }
}
