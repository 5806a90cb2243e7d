//! The conditions of a route besides its path, and the order in which routes of one path are tried.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::request::host::Host;
use crate::request::value;

/// `www.example.com`, or `*.example.com` for every name below it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host.
    Exact(String),
    /// Every host below this name. The text begins with the dot and has no star.
    Below(String),
}

/// The conditions that a request must meet besides the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The allowed methods; empty means any method. `GET` does not include `HEAD`: a route takes only the
    /// methods that the file names.
    pub(crate) methods: Vec<Method>,
    /// The host; `None` means any host.
    pub(crate) host: Option<HostPattern>,
    /// Headers that the request must have, each with this value.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl HostPattern {
    /// Whether the pattern matches `host`, which must be in its normal form.
    pub(crate) fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == host,
            Self::Below(end) => host.len() > end.len() && host.ends_with(end.as_str()),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(host)) => self.matches(host),
            (Self::Below(end), Self::Below(other)) => other.ends_with(end.as_str()),
            (Self::Exact(_), Self::Below(_)) => false,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Below(end) => write!(f, "*{end}"),
        }
    }
}

impl FromStr for HostPattern {
    type Err = String;

    /// The error says what is wrong.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        match Host::without_port(name) {
            Some(host) if below && !host.as_str().starts_with('[') => {
                Ok(Self::Below(format!(".{}", host.as_str())))
            }
            Some(host) if !below => Ok(Self::Exact(host.as_str().to_owned())),
            _ if name.parse::<Host>().is_ok() => {
                Err(format!("`{text}` has a port, and hosts are compared without it"))
            }
            _ if name == "*" => Err("`*` is any host: leave `host` out".to_owned()),
            _ if name.contains('*') => {
                Err(format!("`{text}` has a star elsewhere than in front: `*.example.com`"))
            }
            _ => Err(format!("`{text}` is no host: `www.example.com`, `*.example.com`, `[::1]`")),
        }
    }
}

impl Conditions {
    /// Whether every request that meets `other` meets these conditions too.
    pub(crate) fn cover(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty()
                && other.methods.iter().all(|method| self.methods.contains(method)));
        let host = match (&self.host, &other.host) {
            (None, _) => true,
            (Some(host), Some(other)) => host.covers(other),
            (Some(_), None) => false,
        };
        methods && host && self.headers.iter().all(|header| other.headers.contains(header))
    }

    /// The rank of a route: the route with the lowest rank is tried first. More conditions come before fewer: the
    /// methods count as one condition, the host as one, and each header as one. If the number is equal, the first
    /// difference in this list decides: an exact host before `*.`, a longer name before a shorter one, more headers
    /// before fewer, fewer methods before more, the order of the file.
    pub(super) fn rank(&self, route: usize) -> impl Ord + use<> {
        let methods = usize::from(!self.methods.is_empty());
        let host = usize::from(self.host.is_some());
        let host_length = match &self.host {
            Some(HostPattern::Exact(_)) => usize::MAX,
            Some(HostPattern::Below(end)) => end.len(),
            None => 0,
        };
        let conditions = Reverse(methods + host + self.headers.len());
        let headers = Reverse(self.headers.len());
        (conditions, Reverse(host_length), headers, self.methods.len(), route)
    }

    pub(crate) fn allow_method(&self, method: &Method) -> bool {
        self.methods.is_empty() || self.methods.contains(method)
    }

    /// Whether the request has each header with its value, in any spelling. Other values of the same header do
    /// not matter.
    pub(super) fn allow_headers(&self, headers: &HeaderMap) -> bool {
        self.headers.iter().all(|header| value::is_there(headers, header))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_pattern_is_a_host_or_all_below_one() {
        for (pattern, yes, no) in [
            ("Example.COM.", &["example.com"][..], &["www.example.com", ""][..]),
            (
                "*.Example.com",
                &["a.example.com", "b.a.example.com"],
                &["example.com", "xexample.com", ".example.com"],
            ),
            ("[::0001]", &["[::1]"], &["::1"]),
        ] {
            let parsed: HostPattern = pattern.parse().expect(pattern);
            for host in yes {
                assert!(parsed.matches(host), "{pattern} {host}");
            }
            for host in no {
                assert!(!parsed.matches(host), "{pattern} {host}");
            }
        }
    }

    #[test]
    fn the_error_of_an_invalid_host_says_why() {
        for (pattern, word) in [
            ("a.example:80", "port"),
            ("*.example:80", "port"),
            ("*", "leave `host` out"),
            ("a.*.example", "in front"),
            ("*.*.example", "in front"),
            ("*example.com", "in front"),
            ("", "no host"),
            ("a b", "no host"),
            ("*.[::1]", "host"),
            ("http://a", "no host"),
        ] {
            let error = pattern.parse::<HostPattern>().expect_err(pattern);
            assert!(error.contains(word), "{pattern}: {error}");
        }
    }

    /// `methods` are separated by commas.
    fn conditions(methods: &str, host: &str, plan: &'static str) -> Conditions {
        let header = (HeaderName::from_static("x-plan"), HeaderValue::from_static(plan));
        Conditions {
            methods: methods.split_terminator(',').map(|m| m.parse().expect(m)).collect(),
            host: (!host.is_empty()).then(|| host.parse().expect(host)),
            headers: if plan.is_empty() { Vec::new() } else { vec![header] },
        }
    }

    #[test]
    fn conditions_cover_stricter_conditions() {
        let any = conditions("", "", "");
        for (name, one, other, forth, back) in [
            ("any", any.clone(), any.clone(), true, true),
            ("any, some", any, conditions("GET", "a.b", "x"), true, false),
            ("methods", conditions("GET,POST", "", ""), conditions("GET", "", ""), true, false),
            ("other methods", conditions("POST", "", ""), conditions("GET", "", ""), false, false),
            ("hosts", conditions("", "*.b", ""), conditions("", "a.b", ""), true, false),
            ("wider", conditions("", "*.c", ""), conditions("", "*.b.c", ""), true, false),
            ("apex", conditions("", "*.b", ""), conditions("", "b", ""), false, false),
            ("headers", conditions("", "", "x"), conditions("GET", "", "x"), true, false),
            ("other header", conditions("", "", "x"), conditions("", "", "y"), false, false),
        ] {
            assert_eq!((one.cover(&other), other.cover(&one)), (forth, back), "{name}");
        }
    }
}
