//! Why there is no response.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::observe::metrics::UpstreamFailure;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No server could be connected to. This is the error of the last server.
    #[error("cannot connect to {server}: {source}")]
    Connect {
        /// The server.
        server: Arc<str>,
        /// The error.
        source: io::Error,
    },
    /// The last server that was tried did not take the connection in time.
    #[error("no connection to {server} in time")]
    ConnectTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// No head within the response timeout.
    #[error("no answer from {server} in time")]
    ResponseTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// The exchange broke before there was a head, or the head was not valid HTTP.
    #[error("the exchange with {server} failed: {}", broken(source, *heard))]
    Exchange {
        /// The server.
        server: Arc<str>,
        /// The error.
        source: hyper::Error,
        /// Whether the server had sent anything.
        heard: bool,
    },
    /// The transfer coding is other than chunked. This proxy would pass the body on wrongly.
    #[error("{server} answered with a transfer coding other than chunked")]
    Coding {
        /// The server.
        server: Arc<str>,
    },
    /// The server changed to another protocol that was not offered, or before it had the whole request.
    #[error("{server} changed to another protocol without being asked")]
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

    /// Whether the same request may succeed if it is sent again at once.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Exchange { source, .. } if !source.is_user())
    }

    /// Whether the server has said that it did not process the request (RFC 9113, 8.7). It refused the
    /// stream, or its GOAWAY named an earlier stream as the last one.
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

/// What broke in an exchange before there was an answer. `heard`: whether the server had sent anything.
fn broken(source: &hyper::Error, heard: bool) -> String {
    match (source.is_incomplete_message(), heard) {
        (true, true) => "it closed the connection within its answer's head".to_owned(),
        (true, false) => "it closed the connection without an answer".to_owned(),
        (false, _) => Cause(source).to_string(),
    }
}

/// Displays hyper's error together with its cause.
#[derive(Debug)]
pub(crate) struct Cause<'e>(pub &'e hyper::Error);

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
