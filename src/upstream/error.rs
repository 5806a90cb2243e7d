//! Why there is no response.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::timeout;

use super::trailers::MOST_IN_ANSWER;
use crate::observe::metrics::UpstreamFailure;

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// A server failed.
    Server {
        /// The server's URL. After several tries it is the last server.
        server: Arc<str>,
        /// What went wrong.
        failure: ServerFailure,
    },
    /// All servers have asked for a pause. This is the time until the first pause ends.
    Paused(Duration),
}

/// What went wrong with a server.
#[derive(Debug)]
pub(crate) enum ServerFailure {
    /// The server cannot be connected to.
    Connect(io::Error),
    /// The server did not take the connection within this time.
    ConnectTimeout(Duration),
    /// No head came within this time.
    ResponseTimeout(Duration),
    /// The exchange broke before there was a head, or the head was not valid HTTP.
    Exchange {
        source: hyper::Error,
        /// Whether the server had sent anything.
        heard: bool,
    },
    /// The transfer coding is other than chunked. This proxy would pass the body on wrongly.
    Coding,
    /// The name of a header field is no token.
    FieldName,
    /// The head is larger than `MOST_IN_ANSWER`.
    HeadTooLarge,
    /// The server changed to another protocol that was not offered, or before it had the whole request.
    Switched,
}

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TryEnd {
    /// The server has said that it did not process the request: it refused the stream `alone`, or all streams from this
    /// one on because it closes the connection.
    Refused { alone: bool },
    /// The server did not process the request because of an error that ended the connection.
    Unread,
    /// The stream ended `alone`, or with its connection.
    Broken { alone: bool },
    /// No head came in time.
    TimedOut,
    /// The server is not the reason, and the next one would change nothing.
    Unasked,
}

impl UpstreamError {
    pub(super) fn of(url: &str, failure: ServerFailure) -> Self {
        Self::Server { server: url.into(), failure }
    }

    /// The URL of the server that failed. `None` if no server was asked.
    pub(crate) fn server(&self) -> Option<&str> {
        match self {
            Self::Server { server, .. } => Some(server),
            Self::Paused(_) => None,
        }
    }

    /// The kind of failure in the metrics.
    pub(crate) fn kind(&self) -> UpstreamFailure {
        match self {
            Self::Server { failure, .. } => failure.kind(),
            Self::Paused(_) => UpstreamFailure::Busy,
        }
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { server, failure } => failure.tell(server, f),
            Self::Paused(_) => f.write_str("every server has asked for a pause (retry-after)"),
        }
    }
}

impl ServerFailure {
    fn tell(&self, server: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(source) => {
                write!(f, "cannot connect to {server}: {source}")?;
                match lack(source) {
                    Some(lack) => write!(f, "; not the server but this machine has no {lack}"),
                    None => Ok(()),
                }
            }
            Self::ConnectTimeout(limit) => {
                write!(f, "no connection to {server} in time ({limit:?})")
            }
            Self::ResponseTimeout(limit) => {
                write!(f, "no answer from {server} in time ({limit:?})")
            }
            Self::Exchange { source, heard } => {
                let cause = Cause(source);
                let why: &dyn fmt::Display = match (self.refusal(), source.is_incomplete_message())
                {
                    (Some(h2::Reason::REFUSED_STREAM), _) => {
                        &"it refused the request without reading it (REFUSED_STREAM)"
                    }
                    (Some(h2::Reason::NO_ERROR), _) => {
                        &"it closed the connection without reading the request (GOAWAY)"
                    }
                    (_, true) if *heard => &"it closed the connection within its answer's head",
                    (_, true) => &"it closed the connection without an answer",
                    (_, false) if source.is_parse() && server.starts_with("http:") => {
                        &format_args!("{cause}; perhaps it speaks TLS there (https://)")
                    }
                    (_, false) => &cause,
                };
                write!(f, "the exchange with {server} failed: {why}")
            }
            Self::Coding => {
                write!(f, "{server} answered with a transfer coding other than chunked")
            }
            Self::FieldName => {
                write!(f, "{server} answered with an invalid name of a header field")
            }
            Self::HeadTooLarge => {
                let most = MOST_IN_ANSWER / 1024;
                write!(f, "{server} answered with a head of more than {most} KiB")
            }
            Self::Switched => write!(f, "{server} changed to another protocol without being asked"),
        }
    }

    /// The kind of failure in the metrics.
    pub(crate) fn kind(&self) -> UpstreamFailure {
        match self {
            Self::Connect(_) => UpstreamFailure::Connect,
            Self::ConnectTimeout(_) | Self::ResponseTimeout(_) => UpstreamFailure::Timeout,
            Self::Exchange { .. } => UpstreamFailure::Broken,
            Self::Coding | Self::FieldName | Self::HeadTooLarge | Self::Switched => {
                UpstreamFailure::Refused
            }
        }
    }

    /// Whether this machine failed. Such a failure does not count against the server.
    pub(super) fn is_this_machines(&self) -> bool {
        matches!(self, Self::Connect(error) if lack(error).is_some())
    }

    /// How the try ended that brought no answer.
    pub(super) fn end(&self) -> TryEnd {
        let reset = self.protocol_error().filter(|error| error.is_reset());
        let alone = reset.is_some();
        // The client has asked for what the server has over HTTP/1.1 alone.
        let is_odd = reset.and_then(h2::Error::reason) == Some(h2::Reason::HTTP_1_1_REQUIRED);
        match (self, self.refusal()) {
            (Self::ResponseTimeout(_), _) => TryEnd::TimedOut,
            (Self::Exchange { source, .. }, _) if is_odd || source.is_user() => TryEnd::Unasked,
            (Self::Exchange { .. }, Some(h2::Reason::REFUSED_STREAM | h2::Reason::NO_ERROR)) => {
                TryEnd::Refused { alone }
            }
            (Self::Exchange { .. }, Some(_)) => TryEnd::Unread,
            (Self::Exchange { .. }, None) => TryEnd::Broken { alone },
            _ => TryEnd::Unasked,
        }
    }

    /// Why the server did not process the request (RFC 9113, 8.7). It refused the stream, or its GOAWAY named an
    /// earlier stream as the last one.
    fn refusal(&self) -> Option<h2::Reason> {
        let error = self.protocol_error().filter(|error| error.is_remote())?;
        error.reason().filter(|it| error.is_go_away() || *it == h2::Reason::REFUSED_STREAM)
    }

    fn protocol_error(&self) -> Option<&h2::Error> {
        let Self::Exchange { source, .. } = self else { return None };
        source.source()?.downcast_ref()
    }
}

/// The connection that `connecting` makes within `limit`.
///
/// # Errors
/// Why there is none.
pub(super) async fn in_time<C>(
    limit: Duration,
    connecting: impl Future<Output = io::Result<C>>,
) -> Result<C, ServerFailure> {
    match timeout(limit, connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
            Err(ServerFailure::Connect(error))
        }
        Ok(Err(_)) | Err(_) => Err(ServerFailure::ConnectTimeout(limit)),
    }
}

/// What this machine lacks, and what to do. `None` if the error has another cause.
pub(super) fn lack(error: &io::Error) -> Option<&'static str> {
    Some(match Errno::from_io_error(error)? {
        Errno::ADDRNOTAVAIL => {
            "free port (or no address) to connect from: see `ss -s`, and raise net.ipv4.ip_local_port_range"
        }
        Errno::MFILE => {
            "open file left for this process: raise the limit (ulimit -n, LimitNOFILE=)"
        }
        Errno::NFILE => "open file left: raise fs.file-max",
        Errno::NOBUFS | Errno::NOMEM => {
            "memory left for sockets: see what uses it, and net.ipv4.tcp_mem"
        }
        _ => return None,
    })
}

/// Displays an error together with its cause.
#[derive(Debug)]
pub(crate) struct Cause<'e>(pub &'e (dyn Error + 'static));

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_on_this_machine_is_not_the_servers_fault() {
        for (code, is_this_machines) in [
            (Errno::ADDRNOTAVAIL, true),
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOBUFS, true),
            (Errno::NOMEM, true),
            (Errno::CONNREFUSED, false),
            (Errno::HOSTUNREACH, false),
            (Errno::TIMEDOUT, false),
        ] {
            let failure = ServerFailure::Connect(code.into());
            assert_eq!(failure.is_this_machines(), is_this_machines, "{code}");
            let text = UpstreamError::Server { server: "http://a".into(), failure }.to_string();
            assert_eq!(text.contains("this machine"), is_this_machines, "{text}");
        }
    }
}
