//! Calls of other proxies, which ask whether a request of theirs may go (`[decide]`). `proxy` decides about that
//! request as about one of its own, and forwards nothing.
//!
//! Each kind of call is a [`Form`]. A form makes [`Question`]s of a call, and of what was decided the answer to the
//! call. In some forms a request stands in header fields of the call: `fields` reads these. In others requests stand in
//! the body: `check` and `envoy` read those. `access` checks the token. `leases` keeps what a request holds until
//! somebody tells its end.

mod access;
pub(crate) mod check;
pub(crate) mod envoy;
pub(crate) mod fields;
mod leases;

use std::borrow::Cow;
use std::net::IpAddr;

use bytes::Bytes;
use http::{Method, Response, StatusCode, request};

pub(crate) use self::leases::{Lease, Leases};
use crate::observe::metrics::DecisionKind;
use crate::request::client::ClientHeader;
use crate::throttle::{Hits, MOST_LIMITS, Quotas};

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

/// What is asked about a request.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) form: Form,
    /// Why the request is to be refused before all limits. It is taken out for the answer.
    pub(crate) fault: Option<BadCall>,
    /// Who sent the request to the caller, if the caller says so here.
    pub(crate) ip: Option<IpAddr>,
    /// What the request takes, in place of what its limits say. With 0 it takes nothing.
    pub(crate) cost: Option<u64>,
    /// What this cost is.
    pub(crate) hits: Hits,
    /// The indexes of the request's limits in the plan, in place of those of its route.
    pub(crate) limits: Option<Vec<u32>>,
}

/// The head of a request, and what is asked about the request.
pub(crate) type Asked = (request::Parts, Question);

/// What was decided about a request of a call.
pub(crate) struct DecidedRequest<'p> {
    pub(crate) decision: DecisionKind,
    pub(crate) quotas: Quotas<'p>,
    /// Why the request is refused; `None` where it may go.
    pub(crate) refused: Option<Cow<'static, str>>,
    /// The answer for its client.
    pub(crate) answer: Response<Bytes>,
    /// What the request holds, where somebody tells its end.
    pub(crate) lease: Option<Lease<'p>>,
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
    /// Too many requests wait for their end.
    #[error("too many requests were allowed and have not ended: settle them")]
    TooManyOpen,
    #[error("`{0}` is missing: it has a part of the request that is asked about")]
    Missing(&'static str),
    #[error("`{0}` comes twice")]
    Twice(&'static str),
    #[error("`{0}` cannot be read")]
    Unreadable(&'static str),
    #[error("a request has at most {} header fields", fields::MOST)]
    TooManyFields,
    #[error("the message is compressed: send it as it is")]
    Compressed,
    #[error("the descriptors of a call have at most {MOST_LIMITS} limits in all")]
    TooManyLimits,
}

impl Form {
    /// The form of calls at this path. Only a call by gRPC can be Envoy's.
    pub(crate) fn at(path: &str, is_grpc: bool) -> Self {
        match path {
            "/auth-request" => Self::AuthRequest,
            "/forward-auth" => Self::ForwardAuth,
            "/check" => Self::Check,
            "/settle" => Self::Settle,
            envoy::PATH if is_grpc => Self::Envoy,
            _ => Self::Unknown,
        }
    }

    /// How the call asks, for the log and the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AuthRequest => "auth-request",
            Self::ForwardAuth => "forward-auth",
            Self::Check | Self::Settle => "check",
            Self::Envoy => "envoy",
            Self::Unknown => "none",
        }
    }

    /// Lets a call with this head ask. `token` is `decide.token`. The field with the token is removed.
    ///
    /// # Errors
    /// Where the call shows no token, or asks nothing.
    pub(crate) fn admit(
        self,
        head: &mut request::Parts,
        token: Option<&str>,
    ) -> Result<(), BadCall> {
        match self {
            _ if !access::may_ask(self, head, token) => Err(BadCall::Token),
            Self::Unknown => Err(BadCall::Path),
            _ if self.has_body() && head.method != Method::POST => Err(BadCall::Method),
            _ if token.is_none() && self.tells_end() && access::is_from_page(head) => {
                Err(BadCall::Page)
            }
            _ => Ok(()),
        }
    }

    /// Whether what is asked is in the body of the call.
    pub(crate) fn has_body(self) -> bool {
        self.tells_end() || self == Self::Envoy
    }

    /// Whether the caller tells how a request ended.
    pub(crate) fn tells_end(self) -> bool {
        matches!(self, Self::Check | Self::Settle)
    }

    /// The header that names the client, if the form says which.
    pub(crate) fn client_header(self) -> Option<ClientHeader> {
        match self {
            Self::AuthRequest | Self::ForwardAuth => Some(ClientHeader::XForwardedFor),
            Self::Check | Self::Settle | Self::Envoy | Self::Unknown => None,
        }
    }

    /// The status by which the proxy knows that the request may go.
    pub(crate) fn allowed(self) -> StatusCode {
        match self {
            Self::AuthRequest => StatusCode::NO_CONTENT,
            _ => StatusCode::OK,
        }
    }
}

impl Question {
    /// Asks about a request as every request is decided.
    fn plain(form: Form) -> Self {
        Self { form, fault: None, ip: None, cost: None, hits: Hits::Asked, limits: None }
    }
}

impl BadCall {
    /// The status of the answer.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Path | Self::Ended => 404,
            Self::Token => 401,
            Self::Page => 403,
            Self::Method => 405,
            Self::TooManyOpen => 503,
            Self::Compressed => 501,
            Self::Missing(_)
            | Self::Twice(_)
            | Self::Unreadable(_)
            | Self::TooManyFields
            | Self::TooManyLimits
            | Self::Body(_) => 400,
        }
    }
}
