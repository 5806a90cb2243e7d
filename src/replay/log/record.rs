//! What an access log says about one request.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use serde::Serialize;
use smallvec::SmallVec;

use super::told::LoggedCounts;
use crate::limit::time::Timestamp;

/// What a log says about one value of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Logged {
    /// The log does not have it, or hides it.
    #[default]
    Unknown,
    /// The log says that the request did not have it.
    Absent,
    /// The value.
    Value(String),
}

impl Logged {
    /// The value of a text. For a value that the request does not have, servers write `-` or nothing.
    pub(super) fn of(text: impl Into<String>) -> Self {
        let text = text.into();
        match &*text {
            "" | "-" => Self::Absent,
            _ => Self::Value(text),
        }
    }

    /// The value, if the log has one.
    pub(crate) fn value(&self) -> Option<&str> {
        match self {
            Self::Value(text) => Some(text),
            Self::Unknown | Self::Absent => None,
        }
    }
}

/// The headers of a request, as far as a log has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedHeaders {
    named: SmallVec<[(String, Logged); 3]>,
    /// Whether the log names all headers of the request.
    pub(crate) are_complete: bool,
}

impl LoggedHeaders {
    /// The header of this name. Servers write names in any case and with `_` for `-`, so these count as equal.
    pub(crate) fn get(&self, name: &HeaderName) -> &Logged {
        match self.named.iter().find(|(named, _)| is_same_name(named, name.as_str())) {
            Some((_, value)) => value,
            None if self.are_complete => &Logged::Absent,
            None => &Logged::Unknown,
        }
    }

    /// The headers that the log names, in the log's spelling and order.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Logged)> {
        self.named.iter().map(|(name, value)| (&**name, value))
    }

    /// Whether the log says the value of each header.
    pub(crate) fn are_all_known(&self) -> bool {
        self.are_complete && self.named.iter().all(|(_, value)| *value != Logged::Unknown)
    }

    /// Adds a header. If two headers have the same name, the first one counts.
    pub fn push(&mut self, name: String, value: Logged) {
        self.named.push((name, value));
    }

    /// The log has named all headers of the request.
    pub fn are_all(&mut self) {
        self.are_complete = true;
    }
}

fn is_same_name(left: &str, right: &str) -> bool {
    let folded = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    left.len() == right.len() && left.bytes().map(folded).eq(right.bytes().map(folded))
}

/// Whose address a log has for the client. If a line has several addresses, the address whose variant comes last here
/// counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientOrigin {
    /// The left-most address of `x-forwarded-for`, which strangers can write.
    Forwarded,
    /// The other end of the connection. It may be another proxy.
    #[default]
    Peer,
    /// The client, as the server found it.
    Client,
}

/// What an access log says about one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogRecord {
    /// When the request was made. Most servers log the time at which it ended.
    pub time: Timestamp,
    /// The client's address in its canonical form. `None` if the log does not have it.
    pub client: Option<IpAddr>,
    /// Whose address `client` is.
    pub client_is: ClientOrigin,
    /// The method, as sent.
    pub method: String,
    /// The path, as sent: not decoded, without query.
    pub path: String,
    /// The query without its `?`.
    pub query: Logged,
    /// The host that the client asked for, perhaps with a port.
    pub host: Logged,
    /// The name of the user who has logged in.
    pub user: Logged,
    /// The headers.
    pub headers: LoggedHeaders,
    /// The status of the response.
    pub status: Option<StatusCode>,
    /// Bytes of the response's body. Some servers count its head, too.
    pub bytes: Option<u64>,
    /// How long the request took.
    pub duration: Option<Duration>,
    /// What the limits counted, if tidegate wrote the line.
    pub counted: Option<Box<LoggedCounts>>,
    /// How long the API took, from sending the request to the head of the answer.
    pub to_head: Option<Duration>,
    /// Whether tidegate wrote the line and refused the request.
    pub is_refused: bool,
}

/// Why a line is no record. Each has a short reason for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LineFault {
    /// Nothing is wrong with the line, but it shows no HTTP request: it has the bytes of a TLS handshake, or is a log
    /// line of another kind.
    NoRequest(&'static str),
    /// The line cannot be read.
    Broken(&'static str),
}

impl fmt::Display for LineFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRequest(reason) | Self::Broken(reason) => formatter.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::{HOST, USER_AGENT};

    use super::*;

    #[test]
    fn a_header_is_found_in_any_spelling() {
        for name in ["User-Agent", "user_agent", "USER_AGENT"] {
            let mut headers = LoggedHeaders::default();
            headers.push(name.into(), Logged::of("x"));
            headers.push("user-agent".into(), Logged::of("y"));
            assert_eq!(*headers.get(&USER_AGENT), Logged::Value("x".into()), "{name}");
            assert_eq!(*headers.get(&HOST), Logged::Unknown);
            headers.are_all();
            assert_eq!(*headers.get(&HOST), Logged::Absent);
        }
    }

    #[test]
    fn a_dash_is_nothing() {
        assert_eq!(Logged::of("-"), Logged::Absent);
        assert_eq!(Logged::of(""), Logged::Absent);
        assert_eq!(Logged::of("--"), Logged::Value("--".into()));
    }
}
