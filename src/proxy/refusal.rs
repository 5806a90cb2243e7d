//! Every reason for which tidegate answers a request itself.

use http::{Method, request};

use crate::request::host::HostError;
use crate::request::path::AmbiguousPath;
use crate::throttle::Refused;
use crate::upstream::UpstreamError;
use crate::upstream::body::BodyFault;

/// Why a request does not go upstream, or did not come back.
#[derive(Debug)]
pub enum Refusal<'p> {
    /// Nobody can tell which host it is for.
    Host(HostError),
    /// Its path can be read in two ways.
    Path(AmbiguousPath),
    /// Its body is coded in a way that this proxy would pass on wrongly.
    TransferCoding,
    /// The length of its body is no number.
    Length,
    /// Its method has letters in lower case, which many APIs read as the one in upper case.
    MethodCase,
    /// No route.
    NotFound,
    /// A route, but for these methods.
    Method(Vec<Method>),
    /// Its path and query are too long once the path is rewritten.
    TargetTooLong,
    /// Its body is announced to be larger than allowed.
    TooLarge,
    /// Its body failed before there was a response.
    Body(BodyFault),
    /// Its limits refuse.
    Limits(Refused<'p>),
    /// A gRPC client's own deadline has come before an answer.
    Deadline,
    /// The upstream did not answer.
    Upstream(UpstreamError),
    /// Nobody waits for an answer any more.
    ClientLeft,
}

impl Refusal<'_> {
    /// Whether what follows on an HTTP/1.1 connection cannot be told from the rest of this request, so
    /// that it must close. Behind a target that only CONNECT has, another protocol may follow: a client
    /// need not wait for its answer (draft-ietf-httpbis-optimistic-upgrade).
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

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetForm {
    /// A host and a port, as only CONNECT does (RFC 9112, 3.2.3).
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
