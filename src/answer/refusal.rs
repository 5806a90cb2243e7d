//! Every reason for which tidegate answers a request with an error of its own, and what it means.

use std::borrow::Cow;
use std::fmt::Display;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, request};

use super::grpc::Status;
use crate::observe::trace::cut;
use crate::reading::BadHead;
use crate::request::key::{KeyError, TokenFault};
use crate::request::name::is_invalid;
use crate::request::path::AmbiguousPath;
use crate::request::route::NoRoute;
use crate::throttle::Refused;
use crate::upstream::progress::BodyFault;
use crate::upstream::{QueueError, ServerFailure, UpstreamError};

/// The most different fields of a request. The `http` crate holds 24,576 of them in a message and panics at one
/// more. The rest is for fields that this proxy and a route's `request_headers` add.
const MOST_FIELDS: usize = 24_576 - 1_024;

/// Why a head is refused that hyper has accepted over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadFault {
    /// It is larger than `max_header_size`.
    #[error("message head is larger than max_header_size (HTTP/2)")]
    TooLarge,
    /// It has more fields than can be passed on with ours.
    #[error("message head has more than {MOST_FIELDS} different fields (HTTP/2)")]
    TooManyFields,
    /// The name of a field is no token.
    #[error("invalid name of a header field (HTTP/2)")]
    FieldName,
}

impl HeadFault {
    /// The fault in the fields of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        if headers.keys_len() > MOST_FIELDS {
            return Some(Self::TooManyFields);
        }
        headers.keys().any(is_invalid).then_some(Self::FieldName)
    }
}

/// Why a request does not go upstream, or got no answer from there.
#[derive(Debug)]
pub(crate) enum Refusal<'p> {
    /// The call of another proxy does not ask for a decision.
    Call(CallFault),
    /// The head is not to be passed on.
    Head(HeadFault),
    /// The head cannot be read, or announces a body that is too large.
    Unreadable(BadHead),
    /// There is no route for the request.
    NotFound,
    /// The path has routes for these methods alone. The list is empty for a TRACE or CONNECT whose path has
    /// no routes or cannot be read.
    Method(Vec<Method>),
    /// The path and query are too long after the path was rewritten.
    TargetTooLong,
    /// The body failed before there was a response.
    Body(BodyFault),
    /// The limits do not let the request pass.
    Limits(Refused<'p>),
    /// The time-out that a gRPC client set for its call was over before an answer came.
    Deadline,
    /// The upstream did not answer, or its answer cannot be passed on.
    Upstream(UpstreamError),
    /// The upstream has as many requests as it may have at once.
    Overload(QueueError),
    /// The client has left before an answer.
    ClientLeft,
    /// The program has panicked. `observe::panics` has logged why.
    Panic,
}

/// What is wrong with a call, as its caller is told.
#[derive(Debug)]
pub(crate) struct CallFault {
    pub(crate) status: u16,
    pub(crate) grpc: Status,
    pub(crate) detail: String,
    /// A field that says what the caller has to do.
    pub(crate) field: Option<(HeaderName, HeaderValue)>,
}

/// What the answer to a refused request says.
pub(crate) struct Meaning {
    pub(crate) status: StatusCode,
    /// The status of a gRPC call. A client may repeat a call that ended with [`Status::Unavailable`]. A call
    /// whose response or deadline timed out has another status, because the API may still act on the call.
    pub(crate) grpc: Status,
    /// Says nothing about a failed upstream: that is for the log only.
    pub(crate) detail: Cow<'static, str>,
}

impl Refusal<'_> {
    /// What the answer to the request says.
    pub(crate) fn meaning(&self) -> Meaning {
        let bad = |why: &dyn Display| (400, Status::Internal, why.to_string().into());
        let (status, grpc, detail) = match self {
            // The fault may quote a caller, and a field has not room for everything.
            Self::Call(CallFault { status, grpc, detail, .. }) => {
                (*status, *grpc, cut(detail).to_owned().into())
            }
            Self::Head(fault @ HeadFault::FieldName) => bad(fault),
            Self::Head(fault) => (431, Status::ResourceExhausted, fault.to_string().into()),
            Self::Unreadable(head) => {
                let grpc = match head {
                    BadHead::TooLarge { .. } => Status::ResourceExhausted,
                    _ => Status::Internal,
                };
                (head.status(), grpc, head.to_string().into())
            }
            Self::Body(fault @ BodyFault::Broken) => bad(fault),
            Self::NotFound => (404, Status::Unimplemented, "no route for this request".into()),
            Self::Method(_) => (405, Status::Unimplemented, "no route for this method".into()),
            Self::Body(BodyFault::Stalled) => {
                (408, Status::DeadlineExceeded, "the body did not come in time".into())
            }
            Self::Body(BodyFault::TooLarge) => {
                (413, Status::ResourceExhausted, "the body is larger than allowed".into())
            }
            Self::TargetTooLong => {
                (414, Status::Internal, "the path is too long once it is rewritten".into())
            }
            Self::Limits(refused) => {
                let grpc = match refused {
                    // `rejection` composes the answer to a throttled request by the file's settings.
                    Refused::Key { error: KeyError::Token(TokenFault::TooMany), .. }
                    | Refused::Throttled { .. } => Status::ResourceExhausted,
                    Refused::Key { error, .. } if error.is_without_keys() => Status::Unavailable,
                    Refused::Key { error, .. } if error.asks_for_credentials() => {
                        Status::Unauthenticated
                    }
                    Refused::Key { .. } | Refused::Cost { .. } => Status::InvalidArgument,
                    Refused::TooManyOpen | Refused::StoreUnavailable => Status::Unavailable,
                };
                (refused.status(), grpc, refused.to_string().into())
            }
            Self::ClientLeft | Self::Body(BodyFault::ClientLeft) => {
                (client_gone().as_u16(), Status::Internal, "the client has left".into())
            }
            Self::Panic => (500, Status::Internal, "a fault of the proxy".into()),
            Self::Deadline => {
                (504, Status::DeadlineExceeded, "no answer before the call's deadline".into())
            }
            Self::Upstream(UpstreamError::Server { failure, .. }) => match failure {
                ServerFailure::ResponseTimeout(_) => {
                    (504, Status::DeadlineExceeded, "the API did not answer in time".into())
                }
                ServerFailure::ConnectTimeout(_) => {
                    (504, Status::Unavailable, "the API did not answer in time".into())
                }
                _ => (502, Status::Unavailable, "the API could not be reached or broke off".into()),
            },
            Self::Overload(_) => {
                (503, Status::Unavailable, "the API has as many requests as it can take".into())
            }
            Self::Upstream(UpstreamError::Paused(_)) => {
                (503, Status::Unavailable, "the API has asked for a pause".into())
            }
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Meaning { status, grpc, detail }
    }

    /// The reason for logs and metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Call(_) => "bad_call",
            Self::Unreadable(BadHead::TooLarge { .. }) => "too_large",
            Self::Head(HeadFault::FieldName)
            | Self::Unreadable(_)
            | Self::Body(BodyFault::Broken) => "bad_request",
            Self::Head(_) | Self::TargetTooLong | Self::Body(BodyFault::TooLarge) => "too_large",
            Self::NotFound => "no_route",
            Self::Method(_) => "method",
            Self::Body(BodyFault::Stalled) => "timeout",
            Self::Limits(refused) => refused.reason(),
            Self::Deadline => "deadline",
            Self::Upstream(error) => error.kind().reason(),
            Self::Overload(_) => "overload",
            Self::ClientLeft | Self::Body(BodyFault::ClientLeft) => "client_left",
            Self::Panic => "panic",
        }
    }

    /// Whether an HTTP/1.1 connection must close, since the next bytes may be the rest of this request.
    pub(crate) fn closes(&self) -> bool {
        match self {
            Self::Body(_) | Self::Panic => true,
            Self::Unreadable(head) => matches!(
                head,
                BadHead::Host(_)
                    | BadHead::TransferCoding
                    | BadHead::Length
                    | BadHead::Path(AmbiguousPath::Relative)
            ),
            _ => false,
        }
    }
}

/// Whether the request's target is a host and a port, which only CONNECT uses (RFC 9112, 3.2.3). After such
/// a request a refusal must close an HTTP/1.1 connection. The next bytes may be another protocol: the client
/// need not wait for its answer (draft-ietf-httpbis-optimistic-upgrade).
pub(crate) fn is_authority_form(head: &request::Parts) -> bool {
    let named = head.uri.authority().is_some() && head.uri.scheme().is_none();
    named || head.method == Method::CONNECT
}

impl From<BadHead> for Refusal<'_> {
    fn from(head: BadHead) -> Self {
        match head {
            BadHead::NeverServed(allowed) => Self::Method(allowed),
            head => Self::Unreadable(head),
        }
    }
}

impl From<NoRoute> for Refusal<'_> {
    fn from(none: NoRoute) -> Self {
        match none {
            NoRoute::NotFound => Self::NotFound,
            NoRoute::MethodNotAllowed(allowed) => Self::Method(allowed),
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
pub(crate) fn client_gone() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}
