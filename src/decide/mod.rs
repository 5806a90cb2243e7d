//! Calls of other proxies, which ask whether a request of theirs may go (`[decide]`). `proxy` decides about that
//! request as about one of its own, and forwards nothing.
//!
//! [`DecideCall::read`] makes the head of a request from the call that asks about it. [`DecideCall::refuse`] makes the
//! answer for a request that is refused. [`Form::allowed`] is the status for one that may go.
//!
//! Each kind of call is a [`Form`]. In some forms the request stands in header fields: `fields` reads these. In others
//! requests stand in the body: `check` and `envoy` read those. `access` checks the token. `leases` keeps what a request
//! holds until somebody tells its end.

mod access;
mod check;
pub(crate) mod envoy;
mod fields;
mod leases;

use std::borrow::Cow;
use std::net::IpAddr;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING};
use http::{Method, Response, StatusCode, request};

pub(crate) use self::check::{Questions, RequestEnd};
pub(crate) use self::leases::{Leases, UntoldLeases};
use crate::observe::metrics::DecisionKind;
use crate::throttle::Quotas;

/// The status of a refused request, in an answer whose own status cannot say it.
const STATUS: HeaderName = HeaderName::from_static("x-tidegate-status");

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
}

/// What a proxy asks.
#[derive(Debug)]
pub(crate) struct DecideCall {
    /// `None` where nothing is asked at this path.
    pub(crate) form: Option<Form>,
    /// The method of the call itself.
    pub(crate) method: Method,
    /// Why the call asks nothing. It is taken out for the answer.
    pub(crate) fault: Option<BadCall>,
    /// Who sent the request to the caller, if the caller says so here.
    pub(crate) ip: Option<IpAddr>,
    /// What the request takes, in place of what its limits say. With 0 it takes nothing.
    pub(crate) cost: Option<u64>,
    /// The indexes of the request's limits in the plan, in place of those of its route.
    pub(crate) limits: Option<Vec<u32>>,
}

/// What was decided about one of the requests in the body of a call.
pub(crate) struct DecidedRequest<'p> {
    pub(crate) decision: DecisionKind,
    pub(crate) quotas: Quotas<'p>,
    /// Why the request is refused; `None` where it may go.
    pub(crate) refused: Option<Cow<'static, str>>,
    /// The answer for its client.
    pub(crate) answer: Response<Bytes>,
    /// By what the request is settled.
    pub(crate) id: Option<String>,
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
}

impl DecideCall {
    /// A call of this form, which has its requests in the body.
    fn of(form: Form) -> Self {
        let (form, method) = (Some(form), Method::POST);
        Self { form, method, fault: None, ip: None, cost: None, limits: None }
    }

    /// Reads a call, and makes `head` that of the request that it asks about. `token` is `decide.token`. The head of a
    /// call that asks nothing stays as it is. Only a call by gRPC can be Envoy's.
    pub(crate) fn read(head: &mut request::Parts, token: Option<&str>, is_grpc: bool) -> Self {
        let form = Form::at(head.uri.path()).filter(|form| is_grpc || *form != Form::Envoy);
        let method = head.method.clone();
        let fault = match form {
            _ if !access::may_ask(form, head, token) => Some(BadCall::Token),
            None => Some(BadCall::Path),
            Some(Form::AuthRequest) => fields::read(&fields::NGINX, head).err(),
            Some(Form::ForwardAuth) => fields::read(&fields::TRAEFIK, head).err(),
            Some(Form::Check | Form::Settle | Form::Envoy) => {
                (method != Method::POST).then_some(BadCall::Method)
            }
        };
        // The length and the coding are those of the call. The other request's body is not here.
        head.headers.remove(CONTENT_LENGTH);
        head.headers.remove(TRANSFER_ENCODING);
        Self { form, method, fault, ip: None, cost: None, limits: None }
    }

    /// How the call asks, for the log and the metrics.
    pub(crate) fn via(&self) -> &'static str {
        self.form.map_or(NO_FORM, Form::name)
    }

    /// The answer to the call about a request that is refused. `refusal` is what the request's client is to get.
    pub(crate) fn refuse(&self, refusal: Response<Bytes>) -> Response<Bytes> {
        match self.form {
            // nginx takes any other status for a failure, and reads no body.
            Some(Form::AuthRequest) => forbid(refusal),
            _ => refusal,
        }
    }
}

/// What stands for the form of a call that has none.
pub(crate) const NO_FORM: &str = "none";

impl Form {
    /// The form of calls at this path.
    fn at(path: &str) -> Option<Self> {
        match path {
            "/auth-request" => Some(Self::AuthRequest),
            "/forward-auth" => Some(Self::ForwardAuth),
            "/check" => Some(Self::Check),
            "/settle" => Some(Self::Settle),
            envoy::PATH => Some(Self::Envoy),
            _ => None,
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

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AuthRequest => "auth-request",
            Self::ForwardAuth => "forward-auth",
            Self::Check | Self::Settle => "check",
            Self::Envoy => "envoy",
        }
    }

    /// The status by which the proxy knows that the request may go.
    pub(crate) fn allowed(self) -> StatusCode {
        match self {
            Self::AuthRequest => StatusCode::NO_CONTENT,
            Self::ForwardAuth | Self::Check | Self::Settle | Self::Envoy => StatusCode::OK,
        }
    }
}

/// A refusal whose own status says only that it is one.
fn forbid(mut refusal: Response<Bytes>) -> Response<Bytes> {
    let status = refusal.status().as_u16();
    refusal.headers_mut().insert(STATUS, status.into());
    refusal.headers_mut().remove(CONTENT_TYPE);
    *refusal.status_mut() = StatusCode::FORBIDDEN;
    refusal.map(|_| Bytes::new())
}

impl BadCall {
    /// The status of the answer.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Path | Self::Ended => 404,
            Self::Token => 401,
            Self::Method => 405,
            Self::TooManyOpen => 503,
            Self::Compressed => 501,
            Self::Missing(_)
            | Self::Twice(_)
            | Self::Unreadable(_)
            | Self::TooManyFields
            | Self::Body(_) => 400,
        }
    }
}
