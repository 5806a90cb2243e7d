//! What may go wrong between a request's first byte and its answer's last.

use std::fmt;
use std::io;

use super::body;
use crate::http1::decode;
use crate::http1::response::HeadFault;

/// Why an exchange with a server broke off.
#[derive(Debug)]
pub enum Fault {
    /// The server closed the connection without an answer.
    NoAnswer,
    /// It closed the connection in the midst of its answer's head.
    HalfHead,
    /// The connection broke.
    Broken(io::Error),
    /// Its answer's head is no HTTP.
    Head(HeadFault),
    /// Its answer's body is cut off or framed wrongly.
    Body(decode::BodyFault),
    /// The client did not send its request's body to the end.
    Request(body::BodyFault),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("it closed the connection without an answer"),
            Self::HalfHead => f.write_str("it closed the connection within its answer's head"),
            Self::Broken(error) => write!(f, "the connection broke: {error}"),
            Self::Head(fault) => fault.fmt(f),
            Self::Body(fault) => write!(f, "the answer's body is faulty: {fault}"),
            Self::Request(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoAnswer | Self::HalfHead => None,
            Self::Broken(error) => Some(error),
            Self::Head(fault) => Some(fault),
            Self::Body(fault) => Some(fault),
            Self::Request(fault) => Some(fault),
        }
    }
}
