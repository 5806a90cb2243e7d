//! The forms in which other proxies ask, and what may be wrong with a call.

use http::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, StatusCode, Version};

use crate::answer::BEARER;
use crate::answer::grpc::Status;
use crate::answer::protocol::{GrpcKind, Protocol, plain};
use crate::answer::refusal::{CallFault, Refusal};
use crate::exchange::Exchange;
use crate::request::client::ClientHeader;
use crate::throttle::MOST_LIMITS;

/// Envoy's call.
const ENVOY_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The most different fields of a request. There is room in the map for those that are added on its way.
pub(super) const MOST_FIELDS: usize = 1_000;

/// The form in which a proxy asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `auth_request` of nginx.
    AuthRequest,
    /// ForwardAuth of Traefik, and `forward_auth` of Caddy.
    ForwardAuth,
    /// Anybody's code, with requests in the body.
    Check,
    /// The same code, with how a request ended.
    Settle,
    /// Envoy, with descriptors of requests in a gRPC message.
    Envoy,
    /// Nothing is asked at this path.
    Unknown,
}

/// Why a call asks nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadCall {
    /// The path is none of ours.
    #[error(
        "nothing is asked here: the paths are /auth-request, /forward-auth, /check and /settle, and ShouldRateLimit for gRPC"
    )]
    Path,
    /// The call does not show the token.
    #[error(
        "the token of [decide] is needed: in x-tidegate-token, as ?token= of the path, or as a bearer token"
    )]
    Token,
    /// The path takes POST alone.
    #[error("expected POST")]
    Method,
    /// A page in a browser calls, and no token is asked for.
    #[error(
        "a page of another site may not ask here: programs send neither origin nor sec-fetch-site"
    )]
    Page,
    /// The body is not what is expected.
    #[error("the body cannot be read: {0}")]
    Body(String),
    /// No request with this id waits for its end.
    #[error("no request of this id waits for its end in this process")]
    Ended,
    #[error("`{0}` is missing: it has a part of the request that is asked about")]
    Missing(&'static str),
    #[error("`{0}` comes twice")]
    Twice(&'static str),
    #[error("`{0}` cannot be read")]
    Unreadable(&'static str),
    #[error("a request has at most {} header fields", MOST_FIELDS)]
    TooManyFields,
    #[error("the message is compressed: send it as it is")]
    Compressed,
    #[error("the descriptors of a call have at most {MOST_LIMITS} limits in all")]
    TooManyLimits,
}

impl Form {
    /// The form of a call, by its path. Only a call by gRPC can be Envoy's. From now on the answer is by gRPC only where
    /// the caller surely speaks it: others would take the status 200 of a refusal for a permission.
    pub(super) fn of(call: &mut Exchange) -> Self {
        let is_grpc = call.protocol == Protocol::Grpc(GrpcKind::Native)
            && (&call.head.method, call.head.version) == (&Method::POST, Version::HTTP_2);
        let form = match call.head.uri.path() {
            "/auth-request" => Self::AuthRequest,
            "/forward-auth" => Self::ForwardAuth,
            "/check" => Self::Check,
            "/settle" => Self::Settle,
            ENVOY_PATH if is_grpc => Self::Envoy,
            _ => Self::Unknown,
        };
        if !is_grpc || !matches!(form, Self::Envoy | Self::Unknown) {
            call.protocol = plain(&call.head.headers, call.seen);
        }
        form
    }

    /// How the call asks, for the log and the metrics.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AuthRequest => "auth-request",
            Self::ForwardAuth => "forward-auth",
            Self::Check | Self::Settle => "check",
            Self::Envoy => "envoy",
            Self::Unknown => "none",
        }
    }

    /// Whether what is asked is in the body of the call.
    pub(super) fn has_body(self) -> bool {
        self.tells_end() || self == Self::Envoy
    }

    /// Whether the caller tells how a request ended.
    pub(super) fn tells_end(self) -> bool {
        matches!(self, Self::Check | Self::Settle)
    }

    /// The header that names the client, if the form says which.
    pub(super) fn client_header(self) -> Option<ClientHeader> {
        match self {
            Self::AuthRequest | Self::ForwardAuth => Some(ClientHeader::XForwardedFor),
            Self::Check | Self::Settle | Self::Envoy | Self::Unknown => None,
        }
    }

    /// The status by which the proxy knows that the request may go.
    pub(super) fn allowed(self) -> StatusCode {
        match self {
            Self::AuthRequest => StatusCode::NO_CONTENT,
            _ => StatusCode::OK,
        }
    }
}

impl From<BadCall> for Refusal<'_> {
    fn from(fault: BadCall) -> Self {
        let (status, grpc) = match &fault {
            BadCall::Path => (404, Status::Unimplemented),
            BadCall::Ended => (404, Status::InvalidArgument),
            BadCall::Token => (401, Status::Unauthenticated),
            BadCall::Page => (403, Status::InvalidArgument),
            BadCall::Method => (405, Status::InvalidArgument),
            BadCall::Compressed => (501, Status::Unimplemented),
            BadCall::Missing(_)
            | BadCall::Twice(_)
            | BadCall::Unreadable(_)
            | BadCall::TooManyFields
            | BadCall::TooManyLimits
            | BadCall::Body(_) => (400, Status::InvalidArgument),
        };
        let field = match &fault {
            BadCall::Method => Some((ALLOW, HeaderValue::from_static("POST"))),
            BadCall::Token => Some((WWW_AUTHENTICATE, BEARER)),
            _ => None,
        };
        Self::Call(CallFault { status, grpc, detail: fault.to_string(), field })
    }
}
