//! One request of an access log, as far as the log tells.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use smallvec::SmallVec;

use crate::limit::time::Timestamp;

/// What a log tells of one value of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Logged<'l> {
    /// The log has no place for it.
    #[default]
    Untold,
    /// The log says that the request had none.
    Absent,
    /// The value.
    Value(Cow<'l, str>),
}

/// One request of an access log, as far as the log tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord<'l> {
    /// The time of the line.
    pub time: Timestamp,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The method.
    pub method: Cow<'l, str>,
    /// The path as sent.
    pub path: Cow<'l, str>,
    /// The query.
    pub query: Logged<'l>,
    /// The host.
    pub host: Logged<'l>,
    /// The headers.
    pub headers: LoggedHeaders<'l>,
    /// The status.
    pub status: Option<StatusCode>,
    /// The bytes of the body.
    pub bytes: Option<u64>,
    /// How long the request took.
    pub duration: Option<Duration>,
}

/// The headers of a request, as far as a log tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedHeaders<'l> {
    /// Named.
    pub named: SmallVec<[(HeaderName, Option<Cow<'l, str>>); 2]>,
    /// All others are known to be absent.
    pub is_complete: bool,
}

impl LoggedHeaders<'_> {
    /// One.
    pub fn get(&self, name: &HeaderName) -> Logged<'_> {
        match self.named.iter().find(|(own, _)| own == name) {
            Some((_, Some(value))) => Logged::Value(Cow::Borrowed(value)),
            Some((_, None)) => Logged::Absent,
            None if self.is_complete => Logged::Absent,
            None => Logged::Untold,
        }
    }
}
