//! Every reason for which tidegate answers a request with an error of its own. `answer` makes the response.

use http::{Method, StatusCode, request};

use crate::request::host::HostError;
use crate::request::path::AmbiguousPath;
use crate::throttle::Refused;
use crate::upstream::UpstreamError;
use crate::upstream::body::BodyFault;

/// Why a request does not go upstream, or got no answer from there.
#[derive(Debug)]
pub(crate) enum Refusal<'p> {
    /// The request's host is missing, repeated or malformed.
    Host(HostError),
    /// The path can be read in two ways.
    Path(AmbiguousPath),
    /// The transfer coding is other than chunked alone. This proxy would pass the body on wrongly.
    TransferCoding,
    /// A `content-length` is not a number.
    Length,
    /// The method has lower-case letters. Many APIs take it for the same method in upper case.
    MethodCase,
    /// There is no route for the request.
    NotFound,
    /// There is a route, but only for these methods. Empty if the method is never served.
    Method(Vec<Method>),
    /// The path and query are too long after the path was rewritten.
    TargetTooLong,
    /// The body is announced to be larger than allowed.
    TooLarge,
    /// The body failed before there was a response.
    Body(BodyFault),
    /// The limits do not let the request pass.
    Limits(Refused<'p>),
    /// The time-out that a gRPC client set for its call was over before an answer came.
    Deadline,
    /// The upstream did not answer, or its answer cannot be passed on.
    Upstream(UpstreamError),
    /// The client has left before an answer.
    ClientLeft,
}

impl Refusal<'_> {
    /// Whether an HTTP/1.1 connection must close, since the next bytes may not be a new request. They may
    /// be the rest of this one. After a target that only CONNECT uses, they may be another protocol: the
    /// client need not wait for its answer (draft-ietf-httpbis-optimistic-upgrade).
    pub(super) fn closes(&self, target: TargetForm) -> bool {
        match self {
            Self::Host(_)
            | Self::TransferCoding
            | Self::Length
            | Self::Body(_)
            | Self::ClientLeft => true,
            Self::Path(_) | Self::Method(_) | Self::MethodCase => target == TargetForm::Authority,
            Self::NotFound
            | Self::TargetTooLong
            | Self::TooLarge
            | Self::Limits(_)
            | Self::Deadline
            | Self::Upstream(_) => false,
        }
    }
}

/// The form of a request's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetForm {
    /// A host and a port, which only CONNECT uses (RFC 9112, 3.2.3).
    Authority,
    /// Anything else.
    Resource,
}

impl TargetForm {
    pub(super) fn of(head: &request::Parts) -> Self {
        let named = head.uri.authority().is_some() && head.uri.scheme().is_none();
        match named || head.method == Method::CONNECT {
            true => Self::Authority,
            false => Self::Resource,
        }
    }
}

impl<'p> From<Refused<'p>> for Refusal<'p> {
    fn from(refused: Refused<'p>) -> Self {
        Self::Limits(refused)
    }
}

/// The status 499, for a client that left before its answer. It is never sent; it appears in logs and
/// metrics.
pub(super) fn client_gone() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}
