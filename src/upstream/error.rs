//! Why there is no response.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::observe::metrics::UpstreamFailure;

/// Why there is no response.
#[derive(Debug)]
pub enum UpstreamError {
    /// No server could be connected to; this was the last one's answer.
    Connect {
        /// The server.
        server: Arc<str>,
        /// What it said.
        source: io::Error,
    },
    /// The last server that was tried did not take the connection in time.
    ConnectTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// No head within the response timeout.
    ResponseTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// The exchange broke before there was a head, or the head was no HTTP.
    Exchange {
        /// The server.
        server: Arc<str>,
        /// What broke.
        source: hyper::Error,
        /// Whether the server had said anything.
        heard: bool,
    },
    /// The body is coded in a way that this proxy would pass on wrongly.
    Coding {
        /// The server.
        server: Arc<str>,
    },
    /// It changed to another protocol, which nobody had offered.
    Switched {
        /// The server.
        server: Arc<str>,
    },
}

impl UpstreamError {
    /// The server's URL.
    pub fn server(&self) -> &Arc<str> {
        match self {
            Self::Connect { server, .. }
            | Self::ConnectTimeout { server }
            | Self::ResponseTimeout { server }
            | Self::Exchange { server, .. }
            | Self::Coding { server }
            | Self::Switched { server } => server,
        }
    }

    /// What kind of failure it is, for metrics.
    pub fn failure(&self) -> UpstreamFailure {
        match self {
            Self::Connect { .. } => UpstreamFailure::Connect,
            Self::ConnectTimeout { .. } | Self::ResponseTimeout { .. } => UpstreamFailure::Timeout,
            Self::Exchange { .. } => UpstreamFailure::Broken,
            Self::Coding { .. } | Self::Switched { .. } => UpstreamFailure::Refused,
        }
    }

    /// Whether the same request may fare better at once.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Exchange { source, .. } if !source.is_user())
    }

    /// Whether the server has said that it has not looked at the request (RFC 9113, 8.7): it refused the
    /// stream, or said goodbye and meant an earlier one to be its last.
    pub(super) fn is_unprocessed(&self) -> bool {
        let Self::Exchange { source, .. } = self else { return false };
        let Some(error) = source.source().and_then(|error| error.downcast_ref::<h2::Error>())
        else {
            return false;
        };
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        let behind = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (refused || behind)
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect { server, source } => write!(f, "cannot connect to {server}: {source}"),
            Self::ConnectTimeout { server } => write!(f, "no connection to {server} in time"),
            Self::ResponseTimeout { server } => write!(f, "no answer from {server} in time"),
            Self::Switched { server } => {
                write!(f, "{server} changed to another protocol without being asked")
            }
            Self::Coding { server } => {
                write!(f, "{server} answered with a transfer coding other than chunked")
            }
            Self::Exchange { server, source, heard } => {
                write!(f, "the exchange with {server} failed: ")?;
                match (source.is_incomplete_message(), heard) {
                    (true, true) => {
                        f.write_str("it closed the connection within its answer's head")
                    }
                    (true, false) => f.write_str("it closed the connection without an answer"),
                    (false, _) => Cause(source).fmt(f),
                }
            }
        }
    }
}

impl std::error::Error for UpstreamError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { source, .. } => Some(source),
            Self::Exchange { source, .. } => Some(source),
            Self::ConnectTimeout { .. }
            | Self::ResponseTimeout { .. }
            | Self::Coding { .. }
            | Self::Switched { .. } => None,
        }
    }
}

/// What broke in an exchange, with what was behind it.
#[derive(Debug)]
pub struct Cause<'e>(pub &'e hyper::Error);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        write!(f, "{error}")?;
        match error.source() {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}
